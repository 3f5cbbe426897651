"""Effects of length within prompts, on cases that can be counted by hand and against a loop over pairs."""

import math

import numpy as np
import pytest

from fairlen.audit.statistics.within import MAX_GROUP, Effect, compare_within, find_bar, jackknife
from fairlen.distributions import student, two_sided


def test_two_prompts_by_hand():
    """Prompt 0: correct 2, 4; incorrect 8. Prompt 1: correct 6; incorrect 3."""
    stratum = np.array([0, 0, 0, 1, 1])
    outcome = np.array([1.0, 1.0, 0.0, 1.0, 0.0])
    length = np.array([2.0, 4.0, 8.0, 6.0, 3.0])
    found = compare_within(stratum, stratum, outcome, length)
    # weights k m / (k + m): 2/3 and 1/2; means over pairs of log length: (log 4 + log 2) / 2 and -log 2
    weights = np.array([2 / 3, 1 / 2])
    gaps = np.array([1.5 * math.log(2), -math.log(2)])
    assert found.gap.value == pytest.approx((weights * gaps).sum() / weights.sum())
    assert found.order.value == pytest.approx((2 / 3 * 0.5 - 1 / 2 * 0.5) / weights.sum())
    # ranks of prompt 0 about its median: -1, 0, 1, so that 8 is as far as 2 (a half of a win) and farther than 4 (a win);
    # prompt 1: both are equally far
    assert found.bend.value == pytest.approx((2 / 3 * 0.25 + 0.0) / weights.sum())
    assert found.gap.num_prompts == 2


def brute(stratum, prompt, outcome, length):
    """Means over pairs of each stratum, one after the other; then the weighted mean."""
    above, below = np.zeros(3), 0.0
    for s in np.unique(stratum):
        o, x = outcome[stratum == s], length[stratum == s]
        rank = np.array([(x < v).sum() + 0.5 * (x == v).sum() for v in x]) - len(x) / 2
        for i in range(len(o)):
            for j in range(len(o)):
                if o[i] > o[j]:
                    far = abs(rank)
                    above += np.array([
                        math.log(x[j] / x[i]), 0.5 * np.sign(x[j] - x[i]), 0.5 * np.sign(far[j] - far[i])
                    ]) / len(o)  # fmt: skip
                    below += 1 / len(o)
    return above / below


@pytest.mark.parametrize("levels", [2, 3, 9])
def test_it_is_the_mean_over_all_pairs(levels):
    """Groups of unequal sizes, ties of length and of outcome, graded rewards, in any order."""
    rng = np.random.default_rng(levels)
    stratum = rng.permutation(np.repeat(np.arange(30), rng.integers(1, 9, 30)))
    outcome = rng.integers(0, levels, len(stratum)) / 2
    length = rng.integers(1, 12, len(stratum)).astype(np.float64)
    found = compare_within(stratum, stratum // 2, outcome, length)
    assert np.allclose([found.gap.value, found.order.value, found.bend.value], brute(stratum, None, outcome, length))


def test_errors_are_over_prompts_not_over_their_steps():
    """One prompt in many steps is one prompt: copies of every stratum change neither the value nor the error."""
    rng = np.random.default_rng(0)
    stratum = np.repeat(np.arange(20), 6)
    outcome, length = rng.integers(0, 2, 120).astype(np.float64), rng.integers(1, 50, 120).astype(np.float64)
    once = compare_within(stratum, stratum, outcome, length)
    copies = (
        np.concatenate([stratum, stratum + 20, stratum + 40]),
        np.tile(stratum, 3),
        np.tile(outcome, 3),
        np.tile(length, 3),
    )
    thrice = compare_within(*copies)
    assert thrice.gap.value == pytest.approx(once.gap.value) and thrice.gap.error == pytest.approx(once.gap.error)
    assert thrice.gap.num_prompts == once.gap.num_prompts


def test_the_jackknife_of_a_plain_mean_is_its_standard_error():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    found = jackknife(values, np.ones(4))
    assert found.value == 4.0 and found.error == pytest.approx(np.std(values, ddof=1) / 2) and found.freedom == 3.0


@pytest.mark.parametrize("outcome", [np.ones(6), np.zeros(6)])
def test_nothing_to_compare(outcome):
    found = compare_within(np.arange(6) // 3, np.arange(6) // 3, outcome, np.arange(6) + 1.0)
    assert found.gap.num_prompts == 0 and math.isnan(found.gap.value)


def test_no_rows_and_single_responses():
    none = np.zeros(0)
    assert compare_within(none.astype(int), none.astype(int), none, none).order.num_prompts == 0
    assert compare_within(np.arange(5), np.arange(5), np.arange(5) % 2.0, np.ones(5)).order.num_prompts == 0


def test_large_groups_are_compared_by_a_sample():
    rng = np.random.default_rng(1)
    stratum = np.repeat([0, 1], 5 * MAX_GROUP)
    outcome = rng.integers(0, 2, len(stratum)).astype(np.float64)
    length = np.exp(rng.normal(5 - 0.3 * outcome, 0.3))
    assert compare_within(stratum, stratum, outcome, length).gap.value == pytest.approx(0.3, abs=0.08)


# two-sided 5% points from any table; P(|T| > t) of 1 degree is 1 - 2/pi atan t, of 2 degrees 1 - t / sqrt(2 + t^2), and of 4
# 1 - (3/2) s + s^3 / 2 where s = t / sqrt(4 + t^2)
def test_students_t():
    points = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 1e6: 1.960}
    for freedom, point in points.items():
        assert student(0.975, freedom) == pytest.approx(point, abs=5e-4)
        assert two_sided(student(0.975, freedom), freedom) == pytest.approx(0.05, rel=1e-9)
    for t in (0.0, 0.3, 2.0, 9.0, 1e4):
        s = t / math.sqrt(4 + t * t)
        assert two_sided(-t, 1) == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-7)
        assert two_sided(t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), abs=1e-12)
        assert two_sided(t, 4) == pytest.approx(1 - 1.5 * s + s**3 / 2, abs=1e-12)
    points = [student(0.975, freedom) for freedom in np.linspace(0.1, 40.0, 400).tolist()]
    assert (np.diff(points) < 0).all() and student(0.8, 0.0) == np.inf and two_sided(3.0, 0.0) == 1.0


def test_intervals_and_the_smallest_effect():
    effect = Effect(0.2, 0.1, 1e9, 500)
    assert effect.interval() == pytest.approx((0.2 - 0.195996, 0.2 + 0.195996), abs=1e-5)
    assert effect.detectable_at(0.05) == pytest.approx(0.28016, abs=1e-4)  # (1.95996 + 0.84162) standard errors
    assert effect.detectable_at(0.0125) == pytest.approx(0.33393, abs=1e-4)  # (2.49771 + 0.84162) standard errors
    assert effect.is_within(0.365) and not effect.is_within(0.364)  # 0.2 + 1.64485 * 0.1 = 0.36449


def test_false_discoveries():
    """Three tests at 5%: the smallest below 1.67%, or the second below 3.33%, or all below 5%."""
    assert find_bar([0.016, 0.5, 0.9], 0.05) == 0.016
    assert find_bar([0.017, 0.5, 0.9], 0.05) == -1.0
    assert find_bar([0.04, 0.033, 0.9], 0.05) == -1.0
    assert find_bar([0.03, 0.033, 0.9], 0.05) == 0.033
    assert find_bar([0.05, 0.05, 0.05], 0.05) == 0.05
    assert find_bar([math.nan, 0.04], 0.05) == 0.04  # one test is left
    assert find_bar([], 0.05) == -1.0


def noisy(chance, seed=0, num_prompts=300, size=8):
    """Responses whose chance to be correct is a function of log length about 5 and of the prompt's own centre."""
    rng = np.random.default_rng(seed)
    centre = 5 + rng.normal(0, 0.5, (num_prompts, 1))
    x = centre + rng.normal(0, 0.5, (num_prompts, size))
    outcome = (rng.random(x.shape) < chance(x, centre)).astype(np.float64)
    stratum = np.repeat(np.arange(num_prompts), size)
    return compare_within(stratum, stratum, outcome.ravel(), np.exp(x).ravel())


def test_a_peak_at_one_length_for_all_prompts_is_a_curve():
    """A parabola with its top at exp(5) = 148 and a quarter lost at one unit of log length: 0.25 * 0.5^2 at one deviation."""
    found = noisy(lambda x, _: np.clip(0.8 - 0.25 * (x - 5) ** 2, 0, 1))
    assert found.best_length == pytest.approx(148, rel=0.1)
    assert found.curve.value == pytest.approx(0.0625, abs=0.02)
    assert found.curve.p_value < 1e-4


def test_a_bent_slope_is_no_peak():
    """Accuracy falls everywhere, ever faster: the square is there, but the curve turns before all lengths."""
    found = noisy(lambda x, _: np.clip(0.9 - 0.02 * np.exp(x - 2.2), 0, 1))
    assert found.curve.value / found.curve.error > 3
    assert found.curve.p_value > 0.5


def test_the_curve_is_least_squares_within_prompts():
    """Against a regression with one constant a prompt, by numpy's solver; log lengths end at their 5% and 95% quantiles."""
    rng = np.random.default_rng(3)
    stratum = np.repeat(np.arange(12), 5)
    outcome, length = rng.integers(0, 2, 60).astype(np.float64), np.exp(rng.normal(4, 1, 60))
    outcome[::5], outcome[1::5] = 0.0, 1.0  # every prompt has both
    found = compare_within(stratum, stratum, outcome, length)
    x = np.log(length) - np.log(length).mean()
    x = np.clip(x, *np.quantile(x, (0.05, 0.95)))
    design = np.column_stack([x, x * x, np.eye(12)[stratum]])
    slope, square = np.linalg.lstsq(design, outcome, rcond=None)[0][:2]
    centred = x - np.array([x[stratum == s].mean() for s in range(12)])[stratum]
    assert found.curve.value == pytest.approx(-square * (centred**2).sum() / 48)
    assert math.log(found.best_length) - np.log(length).mean() == pytest.approx(-slope / (2 * square))
    length[7] *= 1e6  # one long response more or less far off decides nothing
    far = compare_within(stratum, stratum, outcome, length).curve.value
    length[7] *= 1e6
    assert compare_within(stratum, stratum, outcome, length).curve.value == pytest.approx(far)


def test_a_peak_with_flat_tails_is_seen_where_prompts_have_lengths_of_their_own():
    """Correct with .8 within half a log unit of one length, with .3 elsewhere; the prompts' own lengths spread by .8."""
    rng, called = np.random.default_rng(4), 0
    for _ in range(40):
        stratum = np.repeat(np.arange(80), 8)
        x = 0.8 * rng.normal(0, 1, 80)[stratum] + rng.normal(0, 0.5, 640)
        outcome = (rng.random(640) < np.where(np.abs(x) < 0.5, 0.8, 0.3)).astype(np.float64)
        called += compare_within(stratum, stratum, outcome, np.exp(5 + x)).curve.p_value <= 0.05
    assert called >= 32  # 92% of 300; with the tails 50%


def test_a_few_short_wrong_responses_make_no_peak():
    """A fifth has about 8 tokens and is wrong; of the others, of about 150, length decides nothing: accuracy never falls."""
    rng, called, prompt = np.random.default_rng(11), 0, np.repeat(np.arange(80), 8)
    for _ in range(40):
        hard, odd = rng.normal(0, 1.2, 80)[prompt], rng.random(640) < 0.2
        usual = np.exp(5 + 0.45 * hard + rng.normal(0, 0.5, 640))
        length = np.where(odd, 8 * np.exp(rng.normal(0, 0.3, 640)), usual)
        correct = (rng.random(640) < ~odd / (1 + np.exp(hard))).astype(np.float64)
        curve = compare_within(prompt, prompt, correct, np.ceil(length)).curve
        called += curve.value > 0 and curve.p_value <= 0.05
    assert called <= 5  # 28 by the parabola alone
