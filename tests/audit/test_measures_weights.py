"""Weights in fractions by hand and against the stages; coupling, criterion, intervals.

row        0  1  2  3 | 4  5  6 | 7  8 | 9      (the ragged batch)
length     1  3  5  8 | 2  5  1 | 2  3 | 5
advantage  1  1  1 -3 | 2 -1 -1 | 0  0 | 0      groups 0 and 1 are mixed
"""

from dataclasses import replace

import numpy as np
import pytest
from fixtures import make_batch, ragged_batch, random_batch

from fairlen.audit.log import NO_UPDATES, Log, Trained, advantages, weighed
from fairlen.audit.statistics.coupling import RULES, coupling, shares_under, token_weights, untrained, weight_shares
from fairlen.audit.statistics.intervals import MAX_BLOCKS, Bins, blocks_of, mean_over, wilson
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.aggregation import Balanced, ConstantBudget, LengthPower, SequenceMean, TokenMean, TokenSum

STAGES = {
    "sequence_mean": SequenceMean(), "token_mean": TokenMean(), "token_mean_update": TokenMean("update"),
    "token_sum": TokenSum(), "constant_budget": ConstantBudget(), "length_power": LengthPower(), "balanced": Balanced(),
    "balanced_update": Balanced("update"),
}  # fmt: skip
ADVANTAGE = np.array([1.0, 1, 1, -3, 2, -1, -1, 0, 0, 0])


def log_of(batch, advantage=None, rollout_batch=None, trained=NO_UPDATES) -> Log:
    num = len(batch.responses)
    return Log(
        "ours", "tokens", batch.responses, np.zeros(num, np.int64) if rollout_batch is None else rollout_batch,
        batch.segments, advantage, trained=trained, known=frozenset({"correct", "truncated"}),
    )  # fmt: skip


@pytest.fixture
def log() -> Log:
    return log_of(ragged_batch(), ADVANTAGE)


POWER = np.array([1, 3, 5, 8, 2, 5, 1]) ** 0.4
RATIOS = {
    "sequence_mean": 1.0, "token_mean": (24 / 17 + 6 / 8) / (9 / 17 + 4 / 8), "token_mean_update": 30 / 13,
    "token_sum": 30 / 13, "constant_budget": 30 / 13,
    "length_power": (3 * POWER[3] + POWER[5] + POWER[6]) / (POWER[:3].sum() + 2 * POWER[4]), "balanced": 1.0,
    "balanced_update": 1.0,
}  # fmt: skip


def test_weights_by_hand(log):
    assert set(STAGES) == set(RULES) == set(RATIOS)
    for name, found in weight_shares(log).items():
        assert found.incorrect_to_correct.value == pytest.approx(RATIOS[name]), name  # here signs are verdicts


def test_weights_by_length_by_hand(log):
    """Bins of up to 2 and of more tokens, with 6 and 29 of them."""
    length = log.responses.length
    bins = Bins((length > 2).astype(np.int64), np.array([1, 3]), np.array([2, 8]), np.array([4, 6]))
    assert shares_under("token_sum", weighed(log), bins, bins).per_token == pytest.approx([1, 1])
    mean = shares_under("sequence_mean", weighed(log), bins, bins)  # 4 and 6 rows of equal weight on 6 and 29 tokens
    assert mean.per_token == pytest.approx(np.array([4 / 6, 6 / 29]) / (10 / 35))


def test_verdicts_and_signs_may_differ(log):
    """With row 3 called right: 24 of 30 change sides."""
    right = log.responses.correct.copy()
    right[3] = True
    found = weight_shares(replace(log, responses=replace(log.responses, correct=right)))["token_sum"]
    assert found.incorrect_to_correct.value == pytest.approx(6 / 37)


@pytest.mark.parametrize("name", RULES)
def test_weights_are_those_of_the_stage_in_every_update(name):
    """Three rollout batches of different sizes at once against one call of the stage for each."""
    batches = [random_batch(seed, num_prompts=n) for seed, n in ((1, 2), (2, 5), (3, 9))]
    sizes = [len(b.responses) for b in batches]
    shift = np.cumsum([0, *(b.responses.num_prompts for b in batches)])
    prompt = np.concatenate([b.responses.prompt + s for b, s in zip(batches, shift, strict=False)])
    length, right = (np.concatenate([getattr(b.responses, n) for b in batches]) for n in ("length", "correct"))
    log = log_of(make_batch(prompt, length, right, max_response_length=12), None, np.repeat([4, 7, 5], sizes))
    found = token_weights(name, weighed(log))
    expected = [STAGES[name](b.segments, GroupNormalized()(b.segments, b.responses.outcome)) for b in batches]
    assert found == pytest.approx(np.concatenate(expected), rel=1e-12)
    assert weighed(log).names.tolist() == [4, 5, 7]


def test_updates_are_units_where_they_were_recorded(log):
    """Prompt 0 in update 3, prompts 1 and 0 again in update 9: a group in two updates is two groups."""
    rows = np.array([0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3])
    nothing = np.zeros(11)
    trained = Trained(rows, np.array([3] * 4 + [9] * 7), nothing, nothing, nothing, nothing)
    found = token_weights("token_mean", weighed(replace(log, trained=trained)))
    assert found == pytest.approx([1 / 17] * 4 + [1 / 16] * 3 + [1 / 34] * 4)


def test_the_factor_of_a_segment_counts(log):
    """Row 3 at half its weight: 18 instead of 30 below 0."""
    mass = np.ones(10)
    mass[3] = 0.5
    found = weight_shares(replace(log, segments=replace(log.segments, mass=mass)))["token_sum"]
    assert found.incorrect_to_correct.value == pytest.approx(18 / 13)


def test_advantages_not_recorded_are_normalised_by_group():
    batch = ragged_batch()
    found = advantages(log_of(batch))
    assert found == pytest.approx(GroupNormalized()(batch.segments, batch.responses.outcome))
    inactive = make_batch(*(getattr(batch.responses, n) for n in ("prompt", "length", "correct")), inactive=[3])
    assert advantages(log_of(inactive))[:4].tolist() == [0, 0, 0, 0]  # the rest of prompt 0 are all correct


def test_coupling_by_hand(log):
    found = coupling(log)
    assert found.sign_length.value == pytest.approx(-17 / 35)
    assert found.variation_within_sign.value == pytest.approx(np.sqrt((8 / 9 + 8 / 9) / (2 + 1)))


def simulate(spread: float, gap: float, prompts: int = 100, answers: int = 8, seed: int = 0) -> Log:
    """Half of the answers right; lengths lognormal about 500, incorrect ones longer by a factor exp(gap)."""
    rng = np.random.default_rng(seed)
    right = np.tile([1, 0], answers // 2 * prompts)
    length = np.ceil(500 * np.exp(spread * rng.normal(size=len(right)) + gap * (1 - right))).astype(int)
    return log_of(make_batch(np.repeat(np.arange(prompts), answers), length, right, max_response_length=10**6))


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "gap"), [(0.05, 0.6), (0.5, 0.0), (0.6, 0.1), (0.05, -0.6), (0.2, 0.4)])
def test_the_spread_within_a_sign_by_regime(spread, gap):
    found = coupling(simulate(spread, gap, answers=64))
    assert found.variation_within_sign.value == pytest.approx(np.sqrt(np.expm1(spread**2)), rel=0.05)


def test_without_mixed_groups_nothing_is_decided():
    log = log_of(make_batch([0, 0, 1, 1], [1, 2, 3, 4], [1, 1, 0, 0]))
    assert not coupling(log).variation_within_sign.exists
    assert np.isnan(weight_shares(log)["token_sum"].incorrect_to_correct.value)
    assert len(weight_shares(replace(log, responses=log.responses.take(np.zeros(0, np.int64)), batch=log.batch[:0],
                                     segments=log.segments.take(np.zeros(0, np.int64))))) == 8  # fmt: skip


@pytest.mark.slow
def test_the_interval_of_the_coupling_covers_zero_where_there_is_none():
    covered = sum(not coupling(simulate(0.5, 0.0, 60, seed=seed)).sign_length.excludes(0.0) for seed in range(40))
    assert 34 <= covered <= 40
    assert coupling(simulate(0.5, 0.3, 60)).sign_length.excludes(0.0)


def test_intervals_are_over_prompts_not_rows():
    values = np.repeat(np.arange(40) % 2, 50).astype(float)
    found = mean_over(np.repeat(np.arange(40), 50), values)
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(40), rel=0.12)


def test_intervals_cover_for_ragged_prompts():
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        prompt = np.repeat(np.arange(80), rng.integers(1, 9, 80))
        found = mean_over(prompt, rng.normal(size=80)[prompt] + rng.normal(size=len(prompt)))
        covered += found.low <= 0 <= found.high
    assert 88 <= covered <= 99


def test_pooling_many_prompts_leaves_the_spread_as_it_is():
    rng = np.random.default_rng(0)
    values = rng.normal(size=30_000)
    found = mean_over(np.arange(30_000), values)
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 / np.sqrt(30_000), rel=0.12)
    block, size = blocks_of(np.arange(30_000))
    assert size == MAX_BLOCKS and (np.bincount(block) == 15).all()
    assert blocks_of(np.array([7, 3, 7]))[0].tolist() == [1, 0, 1]


def test_one_prompt_has_no_interval():
    found = mean_over(np.zeros(5, np.int64), np.arange(5.0))
    assert found.value == 2 and np.isnan(found.low) and not found.excludes(100)
    assert not mean_over(np.zeros(0, np.int64), np.zeros(0)).exists


def test_wilson_by_table():
    found = wilson(np.array([0, 5, 10, 0]), np.array([10, 10, 10, 0]))
    assert found.low[:3] == pytest.approx([0, 0.2366, 0.7225], abs=1e-4)
    assert found.high[:3] == pytest.approx([0.2775, 0.7634, 1], abs=1e-4)
    assert np.isnan([found.value[3], found.low[3], found.high[3]]).all()


def test_of_compared_pieces_the_better_one_counts_as_correct(log):
    """The other way round: 1 + 3 + 5 + 2 x 2 tokens below over 3 x 8 + 5 + 1 above; by their own ends it would be 30 / 13."""
    turned = replace(log, advantage=-ADVANTAGE)
    assert weight_shares(turned)["token_sum"].incorrect_to_correct.value == pytest.approx(30 / 13)
    pieces = replace(turned, known=log.known | {"streams"})
    assert weight_shares(pieces)["token_sum"].incorrect_to_correct.value == pytest.approx(13 / 30)


def test_tokens_that_trained_nothing_have_a_reason(log):
    """Of 35 tokens 2 + 3 are of a prompt all correct, 5 of a response that is alone and incorrect."""
    found = untrained(log)
    assert {name: one.value for name, one in found.total.items() if one.value} == {
        "all correct": pytest.approx(5 / 35), "all incorrect": pytest.approx(5 / 35),
    }  # fmt: skip
    assert found.together.value == pytest.approx(10 / 35) and found.share["all correct"] == pytest.approx([5 / 35])


def test_masked_and_stale_responses_and_those_that_no_update_had_trained_nothing():
    """A truncated response that the method left out (8 tokens), a dropped one (5), and the second (3), which no update had."""
    batch, nothing = ragged_batch(), np.zeros(9)
    table = replace(batch.responses, active=~np.isin(np.arange(10), (3, 5)))
    rows = np.array([0, 2, 3, 4, 5, 6, 7, 8, 9])
    found = untrained(log_of(replace(batch, responses=table),
                             np.where(table.active, ADVANTAGE, 0.0), trained=Trained(rows, *[nothing] * 5)))  # fmt: skip
    assert found.total["truncated"].value == pytest.approx(8 / 35)
    assert found.total["stale, or without a verdict"].value == pytest.approx(5 / 35)
    assert found.total["all correct"].value == pytest.approx((2 + 3 + 3) / 35)  # of prompt 0 the three that are left
