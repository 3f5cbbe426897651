"""Student's t against tables, and means over seeds by hand."""

import math

import pytest
from loops import over

from research.study.intervals import quantile, summarize, two_sided

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
