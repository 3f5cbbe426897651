"""Intervals of means over few seeds: that they cover, what is paired, and what is left out."""

import math

import numpy as np
import pytest

from research.study.intervals import estimate, stretch


def plain(means):
    return means[0]


def difference(means):
    return means[0] - means[1]


def coverage(is_stretched: bool, num: int = 400) -> float:
    """How often the interval of a mean of five seeds holds it, one normal number a seed."""
    drawn = np.random.default_rng(1).normal(0.0, 1.0, (num, 5, 1))
    found = [estimate([one], plain, is_stretched) for one in drawn]
    return sum(one.low <= 0.0 <= one.high for one in found) / num


def test_five_seeds_are_covered_and_the_plain_bootstrap_does_not():
    assert coverage(True) >= 0.93  # standard error at 95%: 1.1 points
    assert coverage(False) < 0.90


def test_the_stretch_is_that_of_the_t_distribution():
    assert stretch(5) == pytest.approx(math.sqrt(5 / 4) * 2.776 / 1.96, rel=1e-3)  # 1.118 * 1.416 = 1.584
    assert stretch(1000) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(ValueError, match="one seed has no spread"):
        stretch(1)


def test_differences_are_paired_by_seed_and_problem():
    """What is hard for both cancels: seeds differ by up to 0.8, the difference is 0.1 everywhere."""
    base = np.array([[0.1, 0.2], [0.5, 0.6], [0.8, 0.9]])
    found = estimate([base + 0.1, base], difference)
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    alone = estimate([base], plain)
    assert alone.high - alone.low > 0.5


def test_a_seed_without_a_number_is_left_out_of_both_sides():
    one, other = np.array([[1.0], [np.nan], [3.0]]), np.array([[0.0], [100.0], [0.0]])
    assert estimate([one, other], difference).value == 2.0  # (1 + 3) / 2 - (0 + 0) / 2
    assert math.isnan(estimate([np.full((3, 1), np.nan)], plain).value)


def test_one_seed_has_no_interval():
    found = estimate([np.array([[0.2, 0.4]])], plain)
    assert found.value == pytest.approx(0.3)
    assert math.isnan(found.low)
