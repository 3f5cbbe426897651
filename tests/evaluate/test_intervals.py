"""Estimators and intervals: closed forms, enumeration, coverage."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from loops import over

from fairlen.evaluate import estimators
from fairlen.evaluate.estimators import (
    difference_by_problem,
    majority,
    mean_by_problem,
    mean_of_problems,
    mean_of_sets,
    pass_at,
    resampled_means,
)


@over("n", [7, 64, 256])
def test_pass_at_k_to_twelve_digits(n):
    right = np.arange(n + 1)
    for k in (1, 2, n // 2, n - 1, n):
        exact = [float(1 - Fraction(comb(n - c, k), comb(n, k))) for c in right]
        assert np.abs(pass_at(right, n, k) - exact).max() <= 1e-12


def test_majorities_by_hand():
    """The correct answer has number 1: two of two votes tie with it or not, and nobody's vote is no answer."""
    labels = np.array(
        [[0, 0, 1, 2, 1], [0, 1, 1, 1, -1], [2, -1, -1, -1, -1], [1, -1, -1, -1, -1], [-1] * 5, [0, 1, 2, 3, 4]]
    )
    assert [majority(row, row == 1) for row in labels] == [1 / 2, 1, 0, 1, 0, 1 / 5]


def test_a_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(1)
    ability = rng.beta(0.5, 0.5, 200)[:, None]
    before, after = ((rng.random((200, 8)) < np.clip(ability + shift, 0, 1)).astype(float) for shift in (0.0, 0.05))
    found = difference_by_problem(after, before)
    assert found.value == pytest.approx(after.mean() - before.mean()) and found.low > 0
    apart = mean_by_problem(after)
    assert found.high - found.low < 0.6 * (apart.high - apart.low)
    assert difference_by_problem(before, before).low == difference_by_problem(before, before).high == 0
    with pytest.raises(ValueError, match="200 and 199"):
        difference_by_problem(after, before[1:])


def test_parts_do_not_change_what_is_drawn(monkeypatch):
    each = np.arange(30.0)
    whole = resampled_means(each)
    assert (whole == each[np.random.default_rng(0).integers(0, 30, (estimators.NUM_RESAMPLES, 30))].mean(1)).all()
    monkeypatch.setattr(estimators, "MAX_PICKS", 1000)
    assert (resampled_means(each) == whole).all()


@over("num, far", [(8, 0.324), (128, 0.029)])  # z^2 / (n + z^2) with z^2 = 3.8415
def test_where_no_problem_is_solved_the_interval_is_wilsons(num, far):
    """3.8415 / 11.8415 = 0.324, and 3.8415 / 131.8415 = 0.029; as many samples of each problem as one likes change nothing."""
    for samples in (1, 16):
        none, all_ = (mean_by_problem(np.full((num, samples), share)) for share in (0.0, 1.0))
        assert (none.value, none.low, none.high) == (0.0, 0.0, pytest.approx(far, abs=5e-4))
        assert (all_.value, all_.low, all_.high) == (1.0, pytest.approx(1 - far, abs=5e-4), 1.0)


def test_problems_that_are_alike_have_the_interval_of_the_same_share_right_as_a_whole():
    """Four problems with 1 of 2 right: Wilson of 2 of 4 is 1/2 +- z sqrt(1/16 + z^2/64) / (1 + z^2/4) = 0.5 +- 0.35."""
    found = mean_by_problem(np.array([[1.0, 0.0]] * 4))
    assert (found.value, found.low, found.high) == (0.5, pytest.approx(0.15, abs=1e-3), pytest.approx(0.85, abs=1e-3))
    assert mean_of_problems(np.full(3, -2.0)).low == -2.0  # no share: nothing is known of its spread


def test_over_sets_without_a_right_answer_the_ends_are_the_means_of_the_sets():
    """0 of 8 and 0 of 128: (0.324 + 0.029) / 2; one problem that is solved, and the bootstrap shows a spread of its own."""
    found = mean_of_sets([np.zeros(8), np.zeros(128)])
    assert (found.value, found.low, found.high) == (0.0, 0.0, pytest.approx((0.3244 + 0.0291) / 2, abs=1e-4))
    assert mean_of_sets([np.zeros(8), np.eye(8)[0]]).high > 0.0


def test_wilsons_interval_holds_the_truth_where_few_problems_can_be_solved():
    """30 problems, of which each is solved always or never: of those at 1% 74% show no right answer, 0.99^30."""
    rng, truth, covered = np.random.default_rng(4), 0.01, 0
    for _ in range(400):
        found = mean_by_problem(np.repeat((rng.random((30, 1)) < truth).astype(float), 4, 1))
        covered += found.low <= truth <= found.high
    assert covered / 400 >= 0.95  # all those without a correct response, 74%, missed without it


@pytest.mark.slow
@over("name", {"even": (1, 1), "easy or hard": (0.3, 0.3), "mostly hard": (0.5, 2)}.items())
def test_intervals_of_100_problems_are_within_two_points_of_their_name(name, monkeypatch):
    """How often the interval holds the true mean, with four samples a problem."""
    monkeypatch.setattr(estimators, "NUM_RESAMPLES", 500)
    (_, (a, b)), rng, covered = name, np.random.default_rng(0), 0
    for _ in range(1000):
        found = mean_by_problem((rng.random((100, 4)) < rng.beta(a, b, 100)[:, None]).astype(float))
        covered += found.low <= a / (a + b) <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)


def test_the_interval_resamples_problems_not_samples():
    # 20 problems, each always right or always wrong: 50 more samples of a problem say nothing new
    values = np.repeat(np.arange(20) % 2, 50).reshape(20, 50).astype(float)
    found = mean_by_problem(values)
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(20), rel=0.1)  # not / sqrt(1000)
