"""Replayed bands against the stages themselves and against closed forms; the law of log ratios."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
import torch
from fixtures import pieces
from test_measures_acceptance import make_log

from fairlen.audit.log import NO_UPDATES, Log, OffPolicy, off_policy
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip
from recipes.replay_bands import WIDTHS, critical_factor, factor_for, ratio_law, replay

PHI = NormalDist().cdf


def rows_of(length, log_ratio, prompt=None) -> OffPolicy:
    zeros, prompt = np.zeros(len(length)), np.arange(len(length)) if prompt is None else prompt
    return OffPolicy(np.asarray(length, np.int64), np.asarray(log_ratio, np.float64), zeros, zeros, prompt)


def log_of(rows: OffPolicy) -> Log:
    return make_log(rows.length, rows.log_ratio, rows.inside, rows.clipped, rows.prompt)


def normal_rows(sigma: float, k: float, lengths, num: int, seed: int = 0) -> OffPolicy:
    rng = np.random.default_rng(seed)
    length = np.repeat(lengths, num)
    return rows_of(length, sigma * np.sqrt(length) * rng.standard_normal(len(length)) - k * length)


def stage(rule: str, low: float, high: float, k: float):
    if rule.startswith("fspo"):
        name = {"fspo": "symmetric", "fspo_v3": "none", "fspo_centred": "centred"}[rule]
        return FairBand(width=high, lower_share=low / high, drift=name, drift_average=k, num_updates=1000)
    return {"rloo": SequenceRatioClip, "gspo": SequenceClip, "p_gspo": PowerClip}[rule](clip_low=low, clip_high=high)


@pytest.mark.parametrize("rule", WIDTHS)
def test_a_replay_says_what_the_stage_does(rule):
    """`inside` at random widths."""
    rng, k = np.random.default_rng(3), 0.004
    for _ in range(20):
        length = rng.integers(1, 40, 50)
        tokens = rng.normal(-k, 0.05, length.sum())
        total = np.bincount(np.repeat(np.arange(50), length), tokens)
        advantage = rng.choice([-1.0, 0.0, 1.0], 50)
        low, high = (width * rng.uniform(0.3, 3) for width in ((0.2, 0.25) if rule == "rloo" else (0.03, 0.04)))
        logprobs, micro = pieces(length.tolist(), advantage.tolist(), torch.from_numpy(tokens))
        told = stage(rule, low, high, k)(logprobs, micro)
        first = np.cumsum(length) - length
        assert ((critical_factor(rule, length, total, k, low, high) <= 1) == told.inside.numpy()[first]).all()


def test_the_widths_are_those_of_the_stages():
    assert WIDTHS["gspo"] == (3e-4, 4e-4) and WIDTHS["rloo"] == (0.2, 0.2) and WIDTHS["fspo"] == (0.03, 0.03)


@pytest.mark.parametrize("length", [25, 400, 6400])
def test_acceptance_of_a_normal_law_has_its_closed_form(length):
    """S ~ N(-k L, s^2 L), z = c / s, d = k sqrt(L) / s."""
    sigma, k, width, num = 0.02, 2e-4, 0.03, 40_000
    rows = normal_rows(sigma, k, [length], num)
    z, d = width / sigma, k * np.sqrt(length) / sigma
    expected = {
        "fspo": PHI(z) + PHI(z + 2 * d) - 1,
        "fspo_centred": 2 * PHI(z) - 1,
        "fspo_v3": PHI(z + d) - PHI(-z + d),
        "rloo": PHI((np.log(1.2) / np.sqrt(length) / sigma) + d) - PHI(np.log(0.8) / np.sqrt(length) / sigma + d),
        "gspo": PHI((np.log1p(4e-4) * np.sqrt(length) / sigma) + d)
        - PHI(np.log1p(-3e-4) * np.sqrt(length) / sigma + d),
    }
    for rule, share in expected.items():
        found = (critical_factor(rule, rows.length, rows.log_ratio, k, *WIDTHS[rule]) <= 1).mean()
        assert found == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / num) + 1e-4), rule
    assert max(expected.values()) - min(expected.values()) > 0.04  # so that the rules are told apart


def test_at_equal_acceptance_the_square_root_band_is_the_fair_one():
    rng = np.random.default_rng(0)
    length = np.exp(rng.normal(6.5, 0.8, 20_000)).astype(int) + 1
    sigma = 0.01
    log = log_of(rows_of(length, sigma * np.sqrt(length) * rng.normal(size=20_000) - sigma**2 / 2 * length))
    found = {one.rule: one for one in replay(log, WIDTHS, 0.8)}
    for one in found.values():
        assert one.acceptance.overall.value == pytest.approx(0.8, abs=1e-4)
        assert one.high / one.low == pytest.approx(WIDTHS[one.rule][1] / WIDTHS[one.rule][0])
    error = {rule: one.acceptance.lre for rule, one in found.items()}
    assert error["rloo"].low > 0.05 and error["gspo"].low > 0.05
    assert error["fspo_centred"].value < 0.01 and found["fspo_centred"].acceptance.p_value > 0.01
    assert found["fspo_centred"].high == pytest.approx(NormalDist().inv_cdf(0.9) * sigma, rel=0.03)


def test_the_width_of_a_target_is_the_least_that_reaches_it():
    critical = np.array([0.5, 0.1, 0.4, 0.3, 0.2])
    assert [factor_for(critical, t) for t in (0.2, 0.21, 0.6, 1.0)] == [0.1, 0.2, 0.3, 0.5]


def test_a_target_below_what_the_drift_accepts_is_refused_by_name():
    rows = normal_rows(0.001, 0.01, [100, 200], 100)
    (found,) = replay(log_of(rows), ("fspo",), 0.1)
    assert found.acceptance.undefined.startswith(
        "the drift alone accepts 5"
    )  # half of a normal law is above its mean, -k L
    assert np.isnan(found.low) and np.isnan(found.high)
    with pytest.raises(ValueError, match=r"target=1\.5"):
        replay(log_of(rows), WIDTHS, 1.5)


def test_nothing_off_policy_is_no_error():
    log = log_of(rows_of([3, 4], [0.0, 0.0]))
    assert len(off_policy(log)) == 0 and np.isnan(ratio_law(log).drift.value)
    assert all("0 off-policy" in one.acceptance.undefined for one in replay(log, WIDTHS, 0.5))
    assert not ratio_law(log).growth.exists and not ratio_law(log).scale.exists
    assert len(off_policy(replace(log, trained=NO_UPDATES))) == 0


def test_drift_is_minus_the_mean_per_token():
    """6 prompts in 64 draw one length alone, fewer than 1 in 40 on each side: five of one and one of the other are the ends."""
    found = ratio_law(log_of(rows_of([10, 30], [-1.0, -1.0]))).drift
    assert found.value == 0.05 and np.isnan(found.low)
    found = ratio_law(log_of(rows_of([10, 30] * 3, [-1.0] * 6))).drift
    assert found.value == 0.05 and found.low == pytest.approx(6 / 160) and found.high == pytest.approx(6 / 80)


def test_the_law_of_a_normal_log():
    sigma, k = 0.02, 3e-4
    rng = np.random.default_rng(5)
    length = np.exp(rng.normal(6, 0.7, 30_000)).astype(int) + 1
    rows = rows_of(length, sigma * np.sqrt(length) * rng.normal(size=30_000) - k * length)
    found = ratio_law(log_of(rows))
    for estimate, true in ((found.scale, sigma), (found.drift, k), (found.growth, 0.5)):
        assert estimate.low < estimate.value < estimate.high
        assert abs(estimate.value - true) < 2 * (estimate.high - estimate.low)


def test_moments_by_hand():
    rng = np.random.default_rng(0)
    values = rng.gamma(2.0, size=90)
    rows = rows_of(np.repeat([4, 9, 16], 30), values)
    found = ratio_law(log_of(rows))
    spread = values.reshape(3, 30).std(1)  # of the bins of lengths 4, 9 and 16
    assert found.growth.value == pytest.approx(np.polyfit(np.log([4, 9, 16]), np.log(spread), 1)[0])
    k = -values.sum() / rows.length.sum()
    assert found.scale.value == pytest.approx(np.sqrt(((values + k * rows.length) ** 2 / rows.length).mean()))


def test_log_ratios_that_are_all_the_same_have_no_spread_and_no_growth():
    """By length 10, 30 and 90 all S are 0.7, 0.1 and 0.3: mean S^2 minus the square of the mean is rounding alone."""
    rows = rows_of(np.repeat([10, 30, 90], 41), np.repeat([0.7, 0.1, 0.3], 41), prompt=np.arange(123) % 7)
    law = ratio_law(log_of(rows))
    assert np.isnan(law.growth.value)  # stds of exactly 0
    even = rows_of([7] * 8, [-0.7] * 8)
    assert ratio_law(log_of(even)).scale.value == 0.0  # S + k T = 0 with k = 1/10


@pytest.mark.parametrize("power", [0.5, 1.0, 0.0])
def test_growth_finds_its_exponent(power):
    rng = np.random.default_rng(1)
    length = rng.integers(10, 5000, 20_000)
    rows = rows_of(length, 0.01 * length**power * rng.normal(size=20_000))
    growth = ratio_law(log_of(rows)).growth
    assert growth.value == pytest.approx(power, abs=0.06) and growth.high - growth.low < 0.12
