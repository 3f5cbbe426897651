"""Student's t, means over seeds, power by formula and simulation, and the bands and bins of gradients, by hand."""

import math

import numpy as np
import pytest
from loops import first_quickly, over

from research.study.coverage import SHAPES, simulate
from research.study.directions import Found, by_bin
from research.study.intervals import quantile, summarize, two_sided
from research.study.power import MOST_SEEDS, effect_seen, seeds_needed

TABLE = {  # 97.5%, 99.5% and 80%, as printed in tables of Student's t
    1: (12.706, 63.657, 1.376), 2: (4.303, 9.925, 1.061), 3: (3.182, 5.841, 0.978), 4: (2.776, 4.604, 0.941),
    5: (2.571, 4.032, 0.920), 7: (2.365, 3.499, 0.896), 10: (2.228, 3.169, 0.879), 19: (2.093, 2.861, 0.861),
    30: (2.042, 2.750, 0.854),
}  # fmt: skip


@over("freedom", TABLE)
def test_quantiles_are_those_of_the_tables(freedom):
    found = [quantile(probability, freedom) for probability in (0.975, 0.995, 0.8)]
    assert found == pytest.approx(TABLE[freedom], abs=6e-4)
    assert [two_sided(t, freedom) for t in TABLE[freedom]] == pytest.approx([0.05, 0.01, 0.4], rel=2e-3)


def test_p_values_of_few_degrees_of_freedom_in_closed_form():
    assert two_sided(1.0, 1) == pytest.approx(0.5)  # Cauchy: 1 - 2/pi atan 1
    assert two_sided(1.0, 2) == pytest.approx(1 - 1 / math.sqrt(3))  # 1 - t / sqrt(2 + t^2)
    assert two_sided(0.0, 7) == 1.0
    assert two_sided(-3.0, 7) == two_sided(3.0, 7)


def test_an_interval_by_hand():
    found = summarize({1: 1.0, 2: 2.0, 3: 6.0}, "points")
    # mean 3, sd sqrt((4 + 1 + 9) / 2) = 2.6458, error / sqrt 3 = 1.5275, reach 4.3027 * 1.5275 = 6.572, t = 1.964
    assert (found.value, found.low, found.high) == pytest.approx((3.0, -3.572, 9.572), abs=1e-3)
    assert found.p == pytest.approx(1 - 1.964 / math.sqrt(2 + 1.964**2), abs=1e-3)
    assert (found.seeds, found.unit, found.by_seed) == (3, "points", ((1, 1.0), (2, 2.0), (3, 6.0)))


def test_log_ratios_come_back_as_percent():
    found = summarize({1: math.log(1.0), 2: math.log(2.0), 3: math.log(4.0)}, is_log_ratio=True)
    # geometric mean 2: +100%; reach in logs 4.3027 * ln 2 / sqrt 3 = 1.7219: 2 / 5.595 and 2 * 5.595
    assert (found.value, found.low, found.high) == pytest.approx((100.0, -64.26, 1019.0), rel=1e-3)
    assert [value for _, value in found.by_seed] == pytest.approx([0.0, 100.0, 300.0])


def test_a_seed_without_a_number_is_left_out():
    found = summarize({1: 1.0, 2: math.nan, 3: 3.0, 4: 5.0})
    assert (found.value, found.seeds) == (3.0, 3)
    assert summarize({1: math.nan}) is None


@over("values", [{1: 1.0, 2: 2.0}, {1: 0.3, 2: 0.1 + 0.2, 3: 0.3}])
def test_two_seeds_or_no_spread_give_no_interval(values):
    found = summarize(values)
    assert not found.has_interval
    assert math.isnan(found.p)


@over("seeds", [5, 8, 20])
@over("smallest", [0.0, 2.0])
def test_the_effect_seen_is_reproduced_in_four_of_five_studies(seeds, smallest):
    """Of 20,000 studies; the formula is that of a shifted t, which is near the noncentral one."""
    effect = effect_seen(seeds, seeds**-0.5, smallest)
    drawn = np.random.default_rng(seeds).normal(effect, 1.0, (20_000, seeds))
    t = drawn.mean(1) / drawn.std(1, ddof=1) * math.sqrt(seeds)
    found = (t > quantile(0.975, seeds - 1)) & (drawn.mean(1) >= smallest)
    assert found.mean() == pytest.approx(0.8, abs=0.03)


@over("seeds", [5, 20])
def test_where_none_is_predicted_the_interval_lies_within_the_margin_in_four_of_five(seeds):
    drawn, margin = (
        np.random.default_rng(seeds).normal(0.0, 1.0, (20_000, seeds)),
        effect_seen(seeds, seeds**-0.5, 0.0, "none"),
    )
    reach = quantile(0.975, seeds - 1) * drawn.std(1, ddof=1) / math.sqrt(seeds)
    assert (np.abs(drawn.mean(1)) + reach < margin).mean() == pytest.approx(0.8, abs=0.06)


def test_seeds_by_hand():
    assert effect_seen(5, 5**-0.5) == pytest.approx((2.776 + 0.941) / math.sqrt(5), abs=1e-3)
    # one deviation, twice the smallest effect: 10 seeds see (2.262 + 0.883) / sqrt 10 = 0.994, 9 see (2.306 + 0.889) / 3 = 1.065
    assert seeds_needed(2.0, 1.0) == 10
    assert seeds_needed(2.0, 100.0) == 3
    assert seeds_needed(2.0, 0.01) == MOST_SEEDS


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", first_quickly(sorted(SHAPES, key=lambda one: not one.name.startswith("length_at_best")), 1, "nightly")
)
def test_intervals_hold_the_truth_in_about_95_of_100_studies(shape):
    found = simulate(shape, studies=2000)
    if shape.name.startswith("collapse"):  # 92.6% of 20 seeds, told in docs/log.md; the claim that rests on it has 8
        assert 0.92 <= found.pop(20) <= 0.97
    for share in found.values():
        assert 0.93 <= share <= 0.97


def test_every_band_accepts_the_same_share_of_an_update():
    """Lengths 4, 4, 16, 16, 16 and log ratios .1, -.1, .4, -.2, .2. Four of five are the 80%, and which one is refused hangs on
    the rule: |S| / sqrt(L) is .05, .05, .1, .05, .05; ratios from 1 are .11, .10, .49, .18, .22, so both refuse the third;
    S / L is .025, -.025, .025, -.0125, .0125 of widths .0004 above and .0003 below: the second is the farthest."""
    found = Found()
    length, total = np.array([4, 4, 16, 16, 16]), np.array([0.1, -0.1, 0.4, -0.2, 0.2])
    found.add(1, length, total, np.eye(5))
    assert [(row["rule"], row["share"]) for row in found.rows] == [("fspo_v3", 0.8), ("rloo", 0.8), ("gspo", 0.8)]


def test_means_of_bins():
    index, gradient = np.array([0, 0, 1]), np.array([[2.0, 0.0], [0.0, 4.0], [6.0, 6.0]])
    full, accepted, share = by_bin(index, 2, gradient, np.array([True, False, False]))
    assert full.tolist() == [[1.0, 2.0], [6.0, 6.0]]
    assert accepted.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert share.tolist() == [0.5, 0.0]
