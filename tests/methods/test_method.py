"""Score, weigh, loss and update on the ragged batch, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures import BUDGET, make_batch, make_micro, plan_of, ragged_rollouts, random_batch, speak, weight_matrix
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.methods.stages.advantage import GroupCentered
from fairlen.methods.stages.aggregation import Balanced, TokenMean
from fairlen.methods.stages.terms import ReferenceKL, SamplerMismatch
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.eqlen import EqLen


def test_dapo_on_the_ragged_batch_by_hand():
    """Keeps prompts 0 and 1. Soft overlong: free until 6.4 of 8 tokens, so row 3 (8 tokens) loses 1."""
    scored = compose("dapo").score(ragged_rollouts())
    assert scored.selected.tolist() == [True, True, False, False]
    assert scored.reward.tolist() == pytest.approx([1, 1, 1, -1, 1, 0, 0, 1, 1, 0])
    # prompt 0: mean 1/2, variance (3/4 + 9/4)/4 = 3/4: 1/2 and -3/2 over sqrt(3)/2; prompt 1 as in test_advantage
    a, b = 3**-0.5, 2**0.5
    assert scored.advantage.tolist() == pytest.approx([a, a, a, -3 * a, b, -b / 2, -b / 2, 0, 0, 0])
    (update,) = updates(scored)
    plan = compose("dapo").weigh(update)
    assert plan.rows.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert plan.weight.tolist() == pytest.approx([1 / 34] * 4 + [1 / 16] * 3)  # 1 / (2 groups * 17), 1 / (2 * 8)
    assert plan.length.sum() == 25


def test_overlong_filter_removes_truncated_rows_from_every_count():
    """Without row 3 prompt 0 is all correct: dapo drops it, and N, G and Z are those of prompt 1 alone."""
    filtered = compose("dapo+overlong_filter")
    scored = filtered.score(ragged_rollouts())
    assert scored.selected.tolist() == [False, True, False, False] and not scored.segments.active[3]
    (update,) = updates(scored)
    assert filtered.weigh(update).weight.tolist() == pytest.approx([1 / 8] * 3)
    plain = compose("grpo+overlong_filter").score(ragged_rollouts())
    assert plain.advantage[:4].tolist() == [0, 0, 0, 0]  # group of three correct responses
    (update,) = updates(plain)
    assert compose("grpo").weigh(update).weight[0] == pytest.approx(1 / 9)  # 1 / (N T), N = 9


def test_difficulty_aware_dler_goes_by_the_reward_after_truncation():
    """Budget 100, target 50 where more than half are right, else 100.

    Prompt 0, all correct: lengths 20, 30 are worth 1 and 70, 90 nothing: centred 1/2, 1/2, -1/2, -1/2. Prompt 1, all correct and
    short: nothing to compare. Prompt 2: the one right answer is truncated, so that all four are worth nothing. Prompt 3: 1 and
    three times 0.
    """
    batch = make_batch(
        np.repeat(range(4), 4), [20, 30, 70, 90, 20, 30, 40, 50, 100, 30, 40, 50, 60, 70, 80, 90],
        [1] * 8 + [1, 0, 0, 0] + [1, 0, 0, 0], truncated=[8], max_response_length=100,
    )  # fmt: skip
    scored = compose("da_dler").score_tables(batch.responses, batch.segments)
    assert scored.reward[:4].tolist() == [1, 1, 0, 0]
    assert scored.selected.tolist() == [True, False, False, True]
    assert np.sign(scored.advantage).tolist() == [1, 1, -1, -1, *[0] * 8, 1, -1, -1, -1]


def test_dler_compares_right_answers_of_which_some_are_truncated():
    """All right, one truncated: 1, 1, 1, 0 after truncation."""
    batch = make_batch([0] * 4, [3, 4, 5, 8], [1] * 4, truncated=[3])
    assert compose("dler").score_tables(batch.responses, batch.segments).selected.tolist() == [True]
    assert compose("dapo").score_tables(batch.responses, batch.segments).selected.tolist() == [False]


def two_streams(verdicts):
    """A prompt with a stream for each pair of verdicts: one round, two tracks of two tokens that end together."""
    responses = tuple(
        Response(
            prompt=0, token_ids=(7, stream, track, 0), num_prompt=1, logprobs=(-1.0,) * 3, finish="stop", seed=0,
            stream=stream, track=track, outcome=float(right), status="correct" if right else "incorrect",
        )
        for stream, pair in enumerate(verdicts)
        for track, right in enumerate(pair)
    )  # fmt: skip
    return Rollouts(responses, EqLen().cut(responses), BUDGET)


@over("name", ["eqlen+dynamic", "eqlen+dapo", "eqlen+dler", "eqlen+gr3"])
def test_a_filter_drops_a_prompt_of_which_no_pair_trains(name):
    """One stream all correct and one all incorrect: outcomes are mixed, and neither pair has anything to compare."""
    method = compose(name)
    assert method.score(two_streams([(1, 1), (0, 0)])).selected.tolist() == [False]
    assert method.score(two_streams([(1, 1), (0, 1)])).selected.tolist() == [True]


def test_without_a_filter_a_prompt_of_which_no_pair_trains_counts_among_those_planned():
    """`eqlen_unbiased` divides by the tracks planned: 16 of each of two prompts, though only one has a pair that trains."""
    first, second = two_streams([(1, 1), (0, 0)]), two_streams([(1, 0)])
    responses = (*first.responses, *(replace(r, prompt=1) for r in second.responses))
    (update,) = updates(compose("eqlen_unbiased").score(Rollouts(responses, EqLen().cut(responses), BUDGET)))
    assert update.segments.planned == 32 and len(update.segments) == 2


def test_a_prompt_without_an_active_response_does_not_train():
    batch = make_batch([0, 0, 1, 1, 2, 2], [1, 2, 3, 4, 5, 6], [1, 0] * 3, inactive=[2, 3])
    for name in ("grpo", "dapo", "grpo+toplambda"):
        scored = compose(name).score_tables(batch.responses, batch.segments)
        assert not scored.selected[1] and not scored.trains[2:4].any()
        assert scored.trains[[0, 1, 4, 5]].all()


def test_reward_of_an_inactive_response_stays_its_outcome():
    batch = make_batch([0, 0, 0], [1, 8, 8], [1, 1, 0], outcome=[1.0, 0.25, 0.0], inactive=[1])
    reward = compose("grpo+overlong").score_tables(batch.responses, batch.segments).reward
    assert reward.tolist() == pytest.approx([1.0, 0.25, -1.0])


@over("number", [1, 2, 3, 5, 20])
def test_updates_keep_prompts_whole_and_rows_once(number):
    batch = random_batch(0, num_prompts=7, num_tracks=3)
    scored = compose("grpo").score_tables(batch.responses, batch.segments)
    parts = list(updates(scored, number))
    assert len(parts) == min(number, 7)
    rows = np.concatenate([part.rows for part in parts])
    assert sorted(rows.tolist()) == list(range(21))
    prompts = [set(batch.responses.prompt[part.rows].tolist()) for part in parts]
    assert sum(len(names) for names in prompts) == 7
    assert max(map(len, prompts)) - min(map(len, prompts)) <= 1
    for part in parts:
        assert sorted(set(part.segments.group.tolist())) == list(range(part.segments.num_groups))
        assert part.advantage.tolist() == scored.advantage[part.rows].tolist()


def test_no_update_where_nothing_trains():
    batch = make_batch([0, 0], [1, 2], [1, 1])
    scored = compose("dapo").score_tables(batch.responses, batch.segments)
    assert list(updates(scored)) == [] and list(updates(scored, 4)) == []
    with pytest.raises(ValueError, match=r"num_updates=0: give at least 1"):
        list(updates(scored, 0))


def test_mass_multiplies_after_aggregation(ragged):
    mass = np.array([1, 0.5, 1, 2, 1, 1, 1, 1, 1, 0.25])
    heavy = replace(ragged, segments=replace(ragged.segments, mass=mass))
    for name in ("grpo", "grpo+balanced", "dapo_verl"):
        method = replace(compose(name), filter=Method().filter)
        one, other = plan_of(method, ragged), plan_of(method, heavy)
        assert other.weight.tolist() == pytest.approx((one.weight * mass).tolist())
        assert other.term_weight.tolist() == pytest.approx((one.term_weight * mass).tolist())


def test_the_loss_is_the_sum_of_weight_times_token_loss_plus_terms(ragged):
    method = replace(
        compose("dr_grpo+kl+entropy"), surrogate=compose("reinforce").surrogate, correction=SamplerMismatch("sequence")
    )
    plan = plan_of(method, ragged)
    micro, features, tokens = make_micro(ragged, plan, range(10))
    outputs = speak(weight_matrix("policy"), features, tokens)
    # N = 10, budget 8: every token weighs 1/80
    factor = micro.per_token(micro.sum_per_sequence(micro.old_logprobs - micro.rollout_logprobs).exp().clamp(max=2.0))
    log_ratio = outputs.logprobs - micro.ref_logprobs
    policy = -(factor * micro.per_token(micro.advantage) * outputs.logprobs).sum() / 80
    terms = 0.001 * ((-log_ratio).exp() - 1 + log_ratio).sum() / 80 - 0.001 * outputs.entropy.sum() / 80
    assert method.loss(outputs, micro).total.item() == pytest.approx((policy + terms).item(), rel=1e-12)


@pytest.mark.parametrize("scope", ["group", "update"])
def test_terms_have_a_weight_of_their_own(ragged, scope):
    """Balanced leaves rows 7 to 9 without a weight; their KL counts all the same, as under the token mean of the scope."""

    def term_loss(aggregation):
        with_kl = Method(aggregation=aggregation, terms=(ReferenceKL(),))
        micro, features, tokens = make_micro(ragged, plan_of(with_kl, ragged), range(10))
        outputs = speak(weight_matrix("policy"), features, tokens)
        without = replace(with_kl, terms=())
        return (with_kl.loss(outputs, micro).total - without.loss(outputs, micro).total).item()

    assert term_loss(Balanced(scope)) == pytest.approx(term_loss(TokenMean(scope)), rel=1e-9)
    assert term_loss(Balanced("group")) != pytest.approx(term_loss(TokenMean("update")), rel=1e-3)


def test_an_on_policy_micro_batch_has_ratio_1_whatever_the_engines_noise(ragged):
    method = compose("gspo")
    micro, features, tokens = make_micro(ragged, plan_of(method, ragged), range(10))
    outputs = speak(weight_matrix("policy"), features, tokens)
    noisy = replace(micro, is_on_policy=True, old_logprobs=outputs.logprobs.detach() + 1e-2)
    assert method.loss(outputs, noisy).token.ratio.tolist() == [1.0] * 35
    assert method.loss(outputs, replace(noisy, is_on_policy=False)).token.ratio.max() < 1


def test_sign_length_coupling_is_minus_the_token_means_loss_at_ratio_1(ragged):
    """(1/N) sum A T with N = 35 tokens; by hand with centred advantages: (9/4 - 6) + (4/3 - 2) = -53/12."""
    method = Method(advantage=GroupCentered(), aggregation=TokenMean("update"))
    plan = plan_of(method, ragged)
    coupling = (plan.advantage * plan.length).sum() / plan.length.sum()
    assert coupling == pytest.approx(-53 / 12 / 35)
    micro, features, tokens = make_micro(ragged, plan, range(10))
    outputs = speak(weight_matrix("policy"), features, tokens)
    loss = method.loss(outputs, replace(micro, is_on_policy=True)).total.item()
    assert loss == pytest.approx(-coupling)


@over("name", ["grpo", "grpo+balanced"])
def test_sequence_mean_and_balanced_have_loss_0_at_ratio_1_for_any_batch(name):
    batch = random_batch(5)
    method = compose(name)
    micro, features, tokens = make_micro(batch, plan_of(method, batch), range(24))
    outputs = speak(weight_matrix("policy"), features, tokens)
    assert abs(method.loss(outputs, replace(micro, is_on_policy=True)).total.item()) < 1e-15
