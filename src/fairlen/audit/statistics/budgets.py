"""Share of responses that are correct within b tokens, from a log alone, and the budget that nine tenths of them need."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from fairlen.audit.log import Log, ended_samples
from fairlen.audit.statistics.intervals import (
    NAN,
    NOTHING,
    Estimate,
    Estimates,
    ratio,
    shares_over_clusters,
    sums_by_block,
)
from fairlen.batch import Bools, Floats, Ints

PER_OCTAVE = 4  # budgets from one to twice as much
MAX_OCTAVES = 10
ENOUGH = 0.9  # of the correct responses


@dataclass(frozen=True)
class BudgetCurve:
    """Accuracy under each budget, [K], a quarter of an octave apart; intervals are over prompts.

    The last budget is the longest response's length, or twice that where responses were truncated. A truncated response is
    incorrect within its limit, and may be either beyond it.
    """

    budget: Ints
    longest: int  # length of the longest response
    correct: Estimates  # truncated responses are never correct
    highest: Estimates  # they are correct beyond the limit that ended them
    lost: Estimates  # correct responses that are longer: accuracy at the largest budget minus that at this one
    enough: Estimate  # least budget within which nine tenths of the correct responses end
    spent: Floats  # share of all tokens that lies within the budget

    @property
    def half(self) -> int:
        """Return the place of half the longest response's length; -1 where there is none."""
        found = np.flatnonzero(self.budget == round(self.longest / 2))
        return int(found[0]) if len(found) else -1

    @property
    def last(self) -> int:
        """Return the place of the longest response's length; -1 of no responses."""
        return int(np.searchsorted(self.budget, self.longest)) if len(self.budget) else -1


def budget_curve(log: Log) -> BudgetCurve:
    """Return the curve of all responses that started from their prompt and have a verdict, or were truncated."""
    table, rows = log.responses, ended_samples(log)
    correct = (log.correct & table.active)[rows]
    return find_curve(log.clusters[rows], table.length[rows], correct, table.truncated[rows])


def find_curve(cluster: Ints, length: Ints, correct: Bools, truncated: Bools) -> BudgetCurve:
    """Return the same from columns [N]; lengths may be those of one channel."""
    budget = choose_budgets(length, correct, truncated)
    size, open_ended = len(budget), truncated & ~correct
    place = np.searchsorted(budget, length)  # the first budget that is enough
    beyond = np.searchsorted(budget, length, side="right")
    hits, more = (
        sums_by_block(cluster, [of], np.minimum(at, size), size + 1)[:, :size].cumsum(1)
        for of, at in ((correct, place), (open_ended, beyond))
    )
    total, number = (sums_by_block(cluster, [of]) for of in (correct, np.ones(len(length))))
    within, highest, lost = (shares_over_clusters(of, number) for of in (hits, hits + more, total - hits))
    enough = find_enough(cluster[correct], length[correct])
    spent = np.array([ratio(np.minimum(length, one).sum(), length.sum()) for one in budget], np.float64)
    return BudgetCurve(budget, int(length.max(initial=0)), within, highest, lost, enough, spent)


def choose_budgets(length: Ints, correct: Bools, truncated: Bools) -> Ints:
    """Return budgets below and up to the longest response, from the last one at which hardly anything is correct."""
    if not len(length):
        return np.zeros(0, np.int64)
    longest = int(length.max())
    least = max(int(np.quantile(length[correct], 0.01)) if correct.any() else longest, 1)
    octaves = min(max(math.log2(longest / least), 1.0), MAX_OCTAVES)
    steps = np.arange(-math.ceil(PER_OCTAVE * octaves), PER_OCTAVE * bool((truncated & ~correct).any()) + 1)
    return np.unique(np.maximum(np.round(longest * 2.0 ** (steps / PER_OCTAVE)), 1).astype(np.int64))


def find_enough(cluster: Ints, length: Ints) -> Estimate:
    """Return the budget within which nine tenths of correct responses end, with its 95% interval over prompts.

    The lower end is the first length at which nine tenths may have ended, by the upper end of the share that ended
    (`shares_over_clusters`). The upper end is the first length at which nine tenths must have ended, by the share's lower end. It
    does not exist (nan) if even all correct responses of these prompts are too few to prove nine tenths: below about 36 prompts.

    Args:
        cluster: Prompt of each correct response, [N].
        length: Length of each correct response, [N].
    """
    if not len(length):
        return NOTHING
    value = float(np.quantile(length, ENOUGH, method="inverted_cdf"))
    number = sums_by_block(cluster, [np.ones(len(length))])
    if len(number) < 2:
        return Estimate(value)
    lengths = np.unique(length)

    def share_within(place: int) -> Estimate:
        within = sums_by_block(cluster, [length <= lengths[place]])
        return shares_over_clusters(within, number).at(0)

    places = range(len(lengths))
    first = bisect_left(places, True, key=lambda place: share_within(place).high >= ENOUGH)
    last = bisect_left(places, True, key=lambda place: share_within(place).low >= ENOUGH)
    high = float(lengths[last]) if last < len(lengths) else NAN
    return Estimate(value, float(lengths[first]), high)


def reach(target: Floats, x: Floats, y: Floats) -> Floats:
    """Return y where x first comes to a target [...], in a straight line between two places, [..., K]; y at the end if never."""
    done = x >= target[..., None] - 1e-12
    at = np.where(done.any(-1), np.maximum(np.argmax(done, -1), 1), x.shape[-1] - 1)[..., None]
    before, after = ([np.take_along_axis(of, place, -1)[..., 0] for of in (x, y)] for place in (at - 1, at))
    share = np.clip(np.nan_to_num(ratio(target - before[0], after[0] - before[0])), 0.0, 1.0)
    return before[1] + (after[1] - before[1]) * share
