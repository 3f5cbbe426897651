"""The expected gradient of EqLen, from every stream that a small policy can produce, against the exact policy gradient.

Horizon 4, two letters and EOS: 4,681 streams, because L(h) with h steps left has 1 tie and 8 pairs that go on:
L(h) = 1 + 8 L(h - 1), L(1) = 9. `pytest -s` with this file prints the table of all values of a survivor and weights of a round.
"""

import functools
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from loops import over
from toy import (
    Toy,
    all_groups,
    all_streams,
    cosine,
    exact_gradient,
    random_policy,
    random_reward,
    relative_error,
    unbiased,
)

from fairlen.methods.presets import eqlen_unbiased, rloo
from fairlen.methods.stages.aggregation import TokenSum
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.independent import Independent

RULES = ("max", "mean", "halving", "lineage")
WEIGHTS = ("none", "halving")
TOY = Toy(horizon=4)


@functools.cache
def compare(seed: int, rule: str, weight: str, binary: bool = True) -> tuple[float, float, float, float]:
    """Relative error, cosine, the sum over the EOS logits, and that of the exact gradient."""
    policy, reward = random_policy(TOY, seed), random_reward(TOY, seed, binary)
    exact = exact_gradient(TOY, policy, reward)
    ours = all_streams(TOY).expected(unbiased(rule, weight), policy, reward)
    return relative_error(ours, exact), cosine(ours, exact), float(ours[:, -1].sum()), float(exact[:, -1].sum())


def table(seed: int) -> str:
    lines = [
        f"policy {seed}, rewards 0 and 1; sum of the exact gradient over EOS logits: {compare(seed, 'max', 'none')[3]:+.4f}"
    ]
    lines += ["| survivor_reward | round_weight | relative error | cosine | EOS logits |", "|---|---|---|---|---|"]
    for rule, weight in product(RULES, WEIGHTS):
        error, cos, stop, _ = compare(seed, rule, weight)
        lines.append(f"| {rule} | {weight} | {error:.3g} | {cos:.4f} | {stop:+.4f} |")
    return "\n".join(lines)


@over("binary", [False, True])
@over("seed", range(2))
@over("rule", ["halving", "lineage"])
def test_halving_weights_with_halving_or_lineage_give_the_policy_gradient(seed, rule, binary):
    """A finisher ends at a stopping time of both tracks: E[score_1 R_2] = 0 and the fork is an exact sample. Each end halves
    the streams' mass below it, which 2^-j undoes. Left is the rounding of sums of 1e4 terms."""
    error, cos, stop, exact = compare(seed, rule, "halving", binary)
    assert error < 1e-10
    assert (cos, stop) == pytest.approx((1.0, exact), abs=1e-10)


def test_the_preset_is_the_method_that_is_exact():
    assert replace(eqlen_unbiased(), sampling=unbiased().sampling) == unbiased()
    assert eqlen_unbiased().sampling == EqLen(streams=8, survivor_reward="halving", round_weight="halving")
    assert eqlen_unbiased().aggregation == TokenSum("planned")


def test_streams_of_a_prompt_share_its_plan():
    """Of 3 streams planned for a prompt each adds mass / 6 a token where one alone has mass / 2: the mean over streams, each of
    which has the expectation above."""
    toy = Toy(3)
    streams, policy, reward = all_streams(toy), random_policy(toy, 0), random_reward(toy, 0)
    three = replace(unbiased(), sampling=replace(unbiased().sampling, streams=3))
    one = streams.gradients(unbiased(), policy, reward)
    assert np.allclose(streams.gradients(three, policy, reward), one / 3, rtol=0, atol=1e-15)


@pytest.mark.slow
@over("seed", range(2))
def test_every_other_rule_is_biased(seed):
    """max compares the best of several with one; mean counts the next finisher, the shorter of two, too often; without halving
    weights late rounds count 2^j times."""
    print("\n" + table(seed))
    for rule, weight in product(RULES, WEIGHTS):
        if weight == "none" or rule in ("max", "mean"):
            assert compare(seed, rule, weight)[0] > 1e-2, (rule, weight)
    assert compare(seed, "max", "halving")[0] > 2 * compare(seed, "mean", "halving")[0]
    assert compare(seed, "lineage", "none")[0] == pytest.approx(compare(seed, "halving", "none")[0], rel=1e-9)


@over("max_rounds", [1, 2])
def test_a_limit_of_rounds_is_biased(max_rounds):
    """What survives the last round is completed and not trained; its part of the gradient is missing."""
    policy, reward = random_policy(TOY, 0), random_reward(TOY, 0)
    streams = all_streams(TOY, max_rounds)
    assert streams.chance(policy).sum() == pytest.approx(1.0, abs=1e-14)
    method = replace(unbiased(), sampling=replace(unbiased().sampling, max_rounds=max_rounds))
    assert relative_error(streams.expected(method, policy, reward), exact_gradient(TOY, policy, reward)) > 1e-2


def spread(gradients: np.ndarray, chance: np.ndarray) -> float:
    """The total variance of one outcome's gradient."""
    mean = np.tensordot(chance, gradients, 1)
    return float(chance @ (gradients**2).sum((1, 2)) - (mean**2).sum())


@over("seed", range(4))
def test_lineage_has_more_variance_than_halving(seed):
    """Halving is the mean of lineages over which of two tracks is called the survivor's own: same mean, less variance. Beside it
    what two independent answers with leave-one-out have; a stream draws more tokens than they do."""
    policy, reward = random_policy(TOY, seed), random_reward(TOY, seed, binary=True)
    streams, groups = all_streams(TOY), all_groups(TOY)
    chance = streams.chance(policy)
    halving, lineage = (
        spread(streams.gradients(unbiased(rule), policy, reward), chance) for rule in ("halving", "lineage")
    )
    pairs = replace(rloo(), sampling=Independent(2))
    assert relative_error(groups.expected(pairs, policy, reward), exact_gradient(TOY, policy, reward)) < 1e-10
    independent = spread(groups.gradients(pairs, policy, reward), groups.chance(policy))
    tokens = chance @ np.bincount(streams.drawn[0]), groups.chance(policy) @ np.bincount(groups.drawn[0])
    print(f"\npolicy {seed}: halving, lineage, two independent answers")
    print("variance         ", *(f"{v:.4f}" for v in (halving, lineage, independent)))
    print(
        "variance * tokens", *(f"{v:.4f}" for v in (halving * tokens[0], lineage * tokens[0], independent * tokens[1]))
    )
    assert halving < lineage
    assert tokens[0] > tokens[1]
