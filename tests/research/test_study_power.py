"""Power by formula against simulation, seeds by hand; and coverage of the intervals, simulated."""

import math

import numpy as np
import pytest
from loops import first_quickly, over

from research.study.coverage import SHAPES, simulate
from research.study.intervals import quantile
from research.study.power import MOST_SEEDS, effect_seen, seeds_needed


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
