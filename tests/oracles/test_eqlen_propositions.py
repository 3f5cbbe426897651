"""The example and the two propositions of 2604.17328, appendix C, computed on a softmax policy with free logits at every prefix.

Letters x and y are tokens 0 and 1, EOS is 2. The appendix's answers, with n_1 = n_2 = 2 and n_3 = 1:

    o_1 = a_1          = x EOS            right
    o_2 = s'_1 + s_2   = y y | x EOS      wrong
    o_3 = s'_1 + s'_2 + s_3 = y y | y y | EOS   right
"""

from dataclasses import replace

import numpy as np
import pytest
from toy import Listing, Toy, Track, all_groups, all_streams, random_policy, random_reward, responses_of, unbiased
from toy_engine import Engine, replay, run_sampler

from fairlen.methods.compose import compose
from fairlen.rollouts import Rollouts
from fairlen.sampling.independent import Independent

TOY = Toy(horizon=5)
O1, O2, O3 = (0, 2), (1, 1, 0, 2), (1, 1, 1, 1, 2)
PREFIX = ((0, 1), (2, 1))
"""(node, token) of s'_1: y at the root, whose child by y is node 2."""
EQLEN = compose("grpo+eqlen", ["sampling.streams=1", "sampling.max_rounds=2"])
GRPO = replace(compose("grpo"), sampling=Independent(2))
ORDERS = [(Track(O1), Track(O2), Track(O3, 1, 2)), (Track(O1), Track(O3), Track(O2, 1, 2))]
"""The track that goes on from the first pair may end as o_2 or as o_3; the fork ends as the other."""


def verdicts(*right: tuple[int, ...]) -> np.ndarray:
    reward = np.zeros((TOY.num_nodes, 1))
    for answer in right:
        reward[TOY.path(answer)[-1][0]] = 1.0
    return reward


REWARD = verdicts(O1, O3)
UNIFORM = np.full((TOY.num_nodes, TOY.size), 1 / 3)


@pytest.mark.parametrize("stream", ORDERS, ids=["fork ends as o_3", "fork ends as o_2"])
def test_the_example_step_by_step(stream):
    """Pair 1: r(a_1) = 1, R(b_1) = max(0, 1) = 1, skipped. Pair 2: r(a_2) = 0, R(b_2) = r(o_3) = 1: -1 and +1. s_3 is no pair."""
    responses = run_sampler(EQLEN.sampling, TOY, Engine(replay(TOY, stream)), REWARD, seed=0)
    assert [r.token_ids[1:] for r in responses] == [track.tokens for track in stream]
    rollouts = Rollouts(responses, EQLEN.sampling.cut(responses), TOY.horizon)
    o_2, o_3 = ([t.tokens for t in stream].index(o) for o in (O2, O3))
    # the prompt is one token, so that generated token t is at position 1 + t; b_1 is written by track 1, whatever it became
    spans = [(s.response, s.start - 1, s.stop - 1, s.role, s.round) for s in rollouts.segments]
    assert spans == [
        (0, 0, 2, "finisher", 0), (1, 0, 2, "survivor", 0), (o_2, 2, 4, "finisher", 1), (o_3, 2, 4, "survivor", 1),
    ]  # fmt: skip
    scored = EQLEN.score(rollouts)
    assert scored.value.tolist() == [1.0, 1.0, 0.0, 1.0]
    assert scored.trains.tolist() == [False, False, True, True]
    assert scored.advantage.tolist() == [0.0, 0.0, -1.0, 1.0]
    plan = EQLEN.plan(scored)
    # equations 5 and 6: the mean over one kept pair of the mean over 2 segments of 2 tokens each
    assert (plan.rows.tolist(), plan.weight.tolist()) == ([2, 3], [1 / 4, 1 / 4])


def step(method, stream, policy, reward) -> np.ndarray:
    """Gradient of one update of one outcome, ascent."""
    return Listing(TOY, (stream,)).gradients(method, policy, reward)[0]


def change(policy: np.ndarray, gradient: np.ndarray) -> float:
    """The derivative of the log-probability of s'_1 along the step: sum over its tokens of g[token] - policy . g."""
    return float(sum(gradient[node, token] - policy[node] @ gradient[node] for node, token in PREFIX))


def after(policy: np.ndarray, gradient: np.ndarray, rate: float) -> float:
    """The probability of s'_1 after the step."""
    moved = policy * np.exp(rate * gradient)
    return float(np.prod([moved[node, token] / moved[node].sum() for node, token in PREFIX]))


def test_proposition_1_one_step_of_grpo_makes_a_right_prefix_less_likely():
    """o_1 and o_2 are +1 and -1, weights 1 / (2 T): 1/8 a token of o_2. At the uniform policy, with pushes p and sum s at a node,
    g = p - s/3. Root: p = (1/4, -1/8, 0), g = (5/24, -4/24, -1/24), mean 0: -1/6. Node y: p = (0, -1/8, 0),
    g = (1, -2, 1)/24: -1/12. Together -1/4."""
    pair = (Track(O1), Track(O2))
    assert change(UNIFORM, step(GRPO, pair, UNIFORM, REWARD)) == pytest.approx(-1 / 4, abs=1e-15)
    for seed in range(5):
        policy = random_policy(TOY, seed)
        gradient = step(GRPO, pair, policy, REWARD)
        assert change(policy, gradient) < 0
        for rate in (1e-3, 0.1, 1.0):
            assert after(policy, gradient, rate) < after(policy, gradient, 0.0)


@pytest.mark.parametrize("stream", ORDERS, ids=["fork ends as o_3", "fork ends as o_2"])
def test_eqlen_leaves_the_prefix_alone_on_the_same_tracks(stream):
    """Pair 1 is skipped and the inherited prefix has no gradient: the logits at its two nodes do not move at all."""
    for seed in range(5):
        policy = random_policy(TOY, seed)
        gradient = step(EQLEN, stream, policy, REWARD)
        assert not gradient[[node for node, _ in PREFIX]].any()
        assert after(policy, gradient, 1.0) == after(policy, gradient, 0.0)
        below = TOY.path(O3)[2]
        assert gradient[below] > 0 > gradient[below[0], 0]


def test_eqlen_penalises_the_prefix_where_no_extension_was_right():
    """The same tracks with o_3 wrong too: a_1 is +1 and b_1 = s'_1 is -1, each token 1 / (2 * 2). Root: p = (1, -1, 0)/4 = g:
    -1/4. Node y: p = (0, -1, 0)/4, g = (1, -2, 1)/12: -1/6. Together -5/12, more than the -1/4 of GRPO, although s'_1 is the
    beginning of correct responses all the same. It happens with (1 - v)^n; test_length_neutral.py has the exact shares."""
    for stream in ORDERS:
        assert change(UNIFORM, step(EQLEN, stream, UNIFORM, verdicts(O1))) == pytest.approx(-5 / 12, abs=1e-15)


@pytest.mark.slow
def test_a_trained_prefix_cancels_in_every_pair():
    """The paper's ablation trains p_j in both rows of pair j, with A and -A, the same tokens and the same weight: on-policy the
    sum is 0 in every stream. With a token sum nothing is left of it; with GRPO's 1 / T only 1 / n_j becomes 1 / (|p_j| + n_j)."""
    toy = Toy(4)
    streams, policy, reward = all_streams(toy), random_policy(toy, 2), random_reward(toy, 2)
    plain = unbiased("max")
    trained = replace(plain, sampling=replace(plain.sampling, prefix_gradient=True))
    both = [streams.gradients(method, policy, reward) for method in (plain, trained)]
    assert both[1] == pytest.approx(both[0], abs=1e-14) and np.abs(both[0]).max() > 0.1
    # the example: pair 2 has weight 1 / (2 * 4) instead of 1 / (2 * 2), and the same direction
    trained = replace(EQLEN, sampling=replace(EQLEN.sampling, prefix_gradient=True))
    short, long = (step(method, ORDERS[0], UNIFORM, REWARD) for method in (EQLEN, trained))
    assert long == pytest.approx(short / 2, abs=1e-15)
    segments = trained.sampling.cut(tuple(responses_of(TOY, ORDERS[0])))
    assert [(s.start - 1, s.stop - 1) for s in segments] == [(0, 2), (0, 2), (0, 4), (0, 4)]


def mirrored(toy: Toy, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A policy and 0/1 rewards that are the same after x and after y, which it opens with equally often and never ends at."""
    policy, reward = random_policy(toy, seed), random_reward(toy, seed, binary=True)
    policy[0] = 0.5, 0.5, 0.0
    for answer in toy.answers((0,)):
        for (node, _), (twin, _) in zip(toy.path(answer)[1:], toy.path((1, *answer[1:]))[1:], strict=True):
            policy[twin], reward[twin] = policy[node], reward[node]
    return policy, reward


def test_proposition_2_a_prefix_that_says_nothing_is_pushed_both_ways():
    """By symmetry E = 0 at the root, whatever GRPO's 1 / T; but single groups do push."""
    toy = Toy(4)
    policy, reward = mirrored(toy, 1)
    groups = all_groups(toy)
    root = groups.gradients(GRPO, policy, reward)[:, 0]
    chance = groups.chance(policy)
    assert np.abs(chance @ root).max() < 1e-15
    assert chance @ root[:, 1] ** 2 > 1e-3


def test_the_same_holds_of_first_pieces_in_eqlen():
    """The caveat: the letter at the root belongs to a_1 and b_1 of every stream, and trains with mean 0 and positive variance
    there too. Only a prefix that was inherited is spared."""
    toy = Toy(4)
    policy, reward = mirrored(toy, 1)
    streams = all_streams(toy)
    chance = streams.chance(policy)
    for method in (unbiased(), unbiased("max", "none")):
        root = streams.gradients(method, policy, reward)[:, 0]
        assert np.abs(chance @ root).max() < 1e-15
        assert chance @ root[:, 1] ** 2 > 1e-3


def test_on_answers_of_equal_length_the_tax_is_the_same_number():
    """A letter, then right with v or wrong: no prefix is ever inherited. Rewards differ with 2 v (1 - v), letters with 1/2, and
    then y is pushed by +-1 / (2 * 2): variance v (1 - v) / 16 under GRPO and under EqLen, 1 update a prompt. v = 1/4: 3/256."""
    toy = Toy(horizon=2, ends=2)
    policy = np.array([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.25, 0.75], [0.0, 0.0, 0.25, 0.75]])
    reward = np.array([[1.0, 0.0]] * 3)
    for listing, method in ((all_groups(toy), GRPO), (all_streams(toy), compose("grpo+eqlen", ["sampling.streams=1"]))):
        root = listing.gradients(method, policy, reward, num_updates=len(listing))[:, 0, 1]
        chance = listing.chance(policy)
        assert chance @ root == pytest.approx(0.0, abs=1e-16)
        assert chance @ root**2 == pytest.approx(3 / 256, abs=1e-15)


def test_the_appendix_has_no_answer_that_would_reward_its_prefix():
    """Its three answers alone cannot prove proposition 2. (o_1, o_2) penalises s'_1, (o_1, o_3) is equal, and in (o_2, o_3) both
    begin with s'_1: a token of it is pushed by (1/5 - 1/4) / 2 = -1/40, never up. A wrong answer that opens otherwise is needed,
    as the mirrored policy has it."""
    policy = UNIFORM
    both = step(GRPO, (Track(O2), Track(O3)), policy, REWARD)
    # g = p - s/3 with p = (0, -1/40, 0)
    assert both[0] == pytest.approx([1 / 120, -2 / 120, 1 / 120], abs=1e-15)
    listing = Listing(TOY, ((Track(O1), Track(O3)),))
    assert not listing.gradients(GRPO, policy, REWARD).any()
    assert change(policy, both) < 0 and change(policy, step(GRPO, (Track(O1), Track(O2)), policy, REWARD)) < 0
