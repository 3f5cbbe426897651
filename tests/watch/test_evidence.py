"""Evidence about length and correctness: numbers by hand, and laws that hold whatever is drawn."""

import math

import numpy as np
import pytest

from fairlen.watch.evidence import STAKES, EProcess, bound_mean, compare_groups


def test_statistics_of_a_group_by_hand():
    # Lengths 10, 20 correct and 20, 40 incorrect, median 20. Pairs worse - better: ln 2, ln 4, 0, ln 2; mean ln 2.
    # The worse one is longer in 3 of 4 pairs and ties in 1: (3 + .5) / 4 - .5 = .375. Weight 2 * 2 / 4 = 1.
    _, found = compare_groups(np.zeros(4, int), np.array([1.0, 1.0, 0.0, 0.0]), np.array([10, 20, 20, 40]))
    np.testing.assert_allclose(found, [[1.0, math.log(2), 0.375]], rtol=1e-12)
    assert len(compare_groups(np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0]), np.array([5, 9, 7]))[1]) == 0
    # 1 and 10,000 around the median 100: both count as a nat away, so that the incorrect one is 2 longer, not ln 10,000
    _, found = compare_groups(np.zeros(3, int), np.array([1.0, 0.0, 0.0]), np.array([1, 10_000, 100]))
    assert found[0, 1] == pytest.approx((2 + 1) / 2)


def test_the_first_steps_wealth_by_hand():
    # One group of weight 1 whose statistics are both .5. At step 1 half of the capital is staked, 1 / (1 * 2).
    # Of pairs: .5 * (1 + s (.5 - .05)); of lengths: .5 * (1 + s (.5 - ln 1.1)); half stays idle.
    one = EProcess()
    one.add(np.array([[1.0, 0.5, 0.5]]))
    margins, most = np.array([math.log(1.1), 0.05]), 0.95 / (np.array([2.0, 0.5]) + np.array([math.log(1.1), 0.05]))
    grown = [0.5 * (1 + np.minimum(STAKES, most[k]) * (0.5 - margins[k])) for k in range(2)]
    assert one.measure(0) == pytest.approx(np.mean(grown) + 0.5, rel=1e-12)


def test_capital_grows_by_no_more_than_it_should():
    """The mean e-value of many runs at the edge of the hypothesis is at most 1: Ville's inequality rests on it."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        one = EProcess()
        for _ in range(10):
            shares = np.where(rng.random(8) < 0.55, 0.5, -0.5)  # of mean .05, the margin
            one.add(np.column_stack([np.ones(8), np.zeros(8), shares]))
        found.append(one.measure(0))
    assert np.mean(found) < 1 + 3 * np.std(found) / math.sqrt(len(found))


def test_an_effect_is_found_with_its_onset_and_size():
    rng, one = np.random.default_rng(1), EProcess()
    for step in range(100):
        mean = 0.2 if step >= 40 else 0.0
        one.add(np.column_stack([np.full(16, 2.0), rng.normal(mean, 0.2, (16, 2)).clip(-0.5, 0.5)]))
    assert one.measure(0) > 1e6 and one.measure(1) < 1 and abs(one.find_onset(0) - 40) <= 2
    order = one.find(0, 0.025)["order"]
    assert order.low < 0.2 < order.high < order.low + 0.1 and one.find(1, 0.025) == {}


def test_bounds_cover_one_mean_at_every_time():
    """At least 95% of sequences lie on the truth at all of 30 looks: of 60 at that rate 7 or more miss with probability 3%."""
    rng, missed = np.random.default_rng(2), 0
    for mean in (-0.2, 0.0, 0.3) * 20:
        x = rng.normal(mean, 0.15, 300).clip(-0.5, 0.5)
        looks = (bound_mean(np.ones(n), x[:n], 0.5, math.log(2 / 0.05)) for n in range(10, 301, 10))
        missed += any(not found.low <= mean <= found.high for found in looks)
    assert missed <= 6
