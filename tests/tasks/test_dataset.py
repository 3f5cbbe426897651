"""Orders as functions of a position: permutations, and mixtures with exact shares."""

from collections import Counter
from itertools import pairwise

import pytest
from loops import over

from fairlen.tasks.dataset import Mixture, shuffle


@over("count", [1, 2, 3, 4, 5, 16, 17, 100, 257])
def test_every_epoch_has_every_thing_once(count):
    for epoch in range(3):
        assert sorted(shuffle(epoch * count + i, count, (0, 1)) for i in range(count)) == list(range(count))


def test_epochs_and_seeds_have_orders_of_their_own():
    starts = [(seed, 50 * epoch) for seed in ((0, 0), (0, 1), (1, 0)) for epoch in range(4)]
    assert len({tuple(shuffle(start + i, 50, seed) for i in range(50)) for seed, start in starts}) == 12


def test_neighbours_do_not_stay_neighbours():
    order = [shuffle(i, 1000, (9,)) for i in range(1000)]
    assert sum(b - a == 1 for a, b in pairwise(order)) < 10  # one is expected in a random order


@over(
    "weights, shares",
    [((1, 1), (1, 1)), ((0.7, 0.3), (7, 3)), ((2, 1, 1), (2, 1, 1)), ((0.5, 0.25, 0.25), (2, 1, 1)), ((0.333, 0.667), (333, 667)),
     ((5,), (1,)), ((1.5, 0.001), (1500, 1))],
)  # fmt: skip
def test_shares_are_exact_in_every_period(weights, shares):
    mixture = Mixture(tuple(map(float, weights)))
    assert mixture.shares == shares
    period = sum(shares)
    for start in (0, 5 * period):
        counts = Counter(mixture.at(start + i)[0] for i in range(period))
        assert tuple(counts[source] for source in range(len(shares))) == shares


@over("weights", [(0.7, 0.3), (1, 2, 4), (0.5, 0.3, 0.2), (10, 1), (30, 2, 2, 2), (3, 7, 1, 13, 4, 8, 5, 27)])
def test_no_source_is_ever_one_problem_off(weights):
    mixture = Mixture(tuple(map(float, weights)))
    counts: Counter[int] = Counter()
    for position in range(3 * sum(mixture.shares)):
        source, own = mixture.at(position)
        assert own == counts[source]  # each source is gone through without gaps
        counts[source] += 1
        for other, share in enumerate(mixture.shares):
            assert abs(counts[other] - (position + 1) * share / sum(mixture.shares)) < 1


def test_a_mixture_by_hand():
    # shares 2 and 1 of 3, slack 1/2: the first must be drawn by 0.75, 2.25, the second by 1.5
    assert [Mixture((2.0, 1.0)).at(i) for i in range(6)] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]


def test_shares_that_cannot_be_kept_exactly_are_refused():
    with pytest.raises(ValueError, match=r"weights 1000.0, 0.001: shares of one in 1,000,001 cannot be kept"):
        Mixture((1000.0, 0.001))
