"""Effects of length within prompts: each correct response is compared with each incorrect one to the same prompt in one step.

What makes a prompt hard, or a step early, is the same on both sides of such a pair, so that it can explain none of these effects.
They are associations all the same: of two responses to one prompt the longer one may be incorrect because it is long, or long
because it was lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fairlen.audit.statistics.intervals import Estimate
from fairlen.batch import Floats, Ints, sum_by
from fairlen.distributions import student, two_sided

MAX_GROUP = 256  # responses of one prompt and step that are compared with each other; of more, so many drawn at random
MAX_CELLS = 1 << 22  # pairs that are held at a time
MIN_PROMPTS = 10  # prompts with a better and a worse response below which no interval is trusted
NUM_SUMS = 11


@dataclass(frozen=True)
class Effect:
    """A mean over pairs, and how far it may be from the truth. `nan` where nothing could be compared."""

    value: float
    error: float  # standard error: delete-one jackknife over prompts
    freedom: float  # degrees of freedom: prompts, counted by their share of the weight, minus one
    num_prompts: int  # prompts with a pair
    least_p: float = 0.0  # p-value of a condition without which the effect is not what it is called

    @property
    def exists(self) -> bool:
        return math.isfinite(self.value)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return bounds that cover the truth with that probability, by Student's t."""
        half = student(0.5 + level / 2, self.freedom) * self.error
        return self.value - half, self.value + half

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.value, *(self.interval() if self.freedom >= 2 else ()))  # below, one prompt decides

    @property
    def p_value(self) -> float:
        """Return how often no effect would look this large, two-sided; nan where nothing could be compared."""
        alone = two_sided(self.value / self.error, self.freedom) if self.error > 0 else float(not self.value)
        return max(alone, self.least_p) if math.isfinite(self.value) else math.nan

    def is_within(self, margin: float) -> bool:
        """Return whether the 90% interval lies within plus or minus `margin`: two one-sided tests at 5%."""
        low, high = self.interval(0.9)
        return -margin < low and high < margin

    def detectable_at(self, level: float) -> float:
        """Return the size of an effect whose p-value, in logs like this one, is below `level` in four of five."""
        return (student(1 - level / 2, self.freedom) + student(0.8, self.freedom)) * self.error


@dataclass(frozen=True)
class Within:
    """Four effects. Three are weighted means over prompts of a mean over pairs of a better and a worse response.

    A prompt with k correct and m incorrect responses weighs k m / (k + m), which is best where the effect is the same everywhere
    (van Elteren 1960). The fourth is of least squares with a constant for each prompt and step.
    """

    gap: Effect  # log length of the worse response minus that of the better one
    order: Effect  # share of pairs in which the worse response is the longer one, minus a half; ties count half
    bend: Effect
    """Share of pairs in which the worse response is farther from the prompt's median length (by rank), minus a half: above 0
    where responses of medium length are the best of their prompt."""
    aligned: Effect
    """`bend` once the mean gap is taken out: a shift of one outcome alone moves the commoner one to the middle."""
    curve: Effect
    """Accuracy lost one standard deviation of log length away from the best length, in shares of 1, by least squares of outcome
    on log length and its square within prompts, the shortest and longest 5% counted as of the length where those begin, since a
    peak has flat tails: above 0 where accuracy peaks at one length for all prompts. Its p-value asks
    that accuracy rises at the 10% quantile of length and falls at the 90% one (Sasabuchi 1980; Lind and Mehlum 2010), and that
    it does so among the responses below the turn and among those above it."""
    best_length: float  # where that curve turns, in units of length; beyond all lengths, or nan, where it does not


def compare_within(stratum: Ints, prompt: Ints, outcome: Floats, length: Floats) -> Within:
    """Return effects of length on outcome within strata [N], one prompt in one step each, with errors over prompts [N]."""
    centre = float(np.log(length).mean()) if len(length) else 0.0
    x = np.log(length) - centre
    _, total = sum_pairs(stratum, prompt, outcome, x)
    gap, order, bend = (jackknife(total[:, k], total[:, 0]) for k in (2, 3, 4))
    curve, turn = fit_curve(total[:, 5:], np.quantile(x, (0.1, 0.9)) if len(x) else x)
    aligned = bend
    if gap.exists and gap.p_value <= 0.05:
        _, moved = sum_pairs(stratum, prompt, outcome, x + gap.value * outcome)
        aligned = jackknife(moved[:, 4], moved[:, 0])
    curve = replace(curve, least_p=max(curve.least_p, *ask_sides(stratum, prompt, outcome, x - turn, curve.value)))
    if has_gap(x):
        curve, turn = Effect(math.nan, math.nan, 0.0, curve.num_prompts), math.nan
    return Within(gap, order, bend, aligned, curve, math.exp(min(turn + centre, 700.0)))


def has_gap(x: Floats) -> bool:
    """Return whether the middle 90% of log lengths has a gap over two thirds of its range, as where many responses are empty."""
    middle = np.unique(np.clip(x, *np.quantile(x, (0.05, 0.95)))) if len(x) else x
    return len(middle) > 1 and bool(np.diff(middle).max() > 2 / 3 * (middle[-1] - middle[0]))


def sum_pairs(stratum: Ints, prompt: Ints, outcome: Floats, x: Floats) -> tuple[Ints, Floats]:
    """Return prompts with a pair, [K] in order, and sums of `pair_sums`, [K, NUM_SUMS], the first the weight km / (k + m)."""
    clipped = np.clip(x, *np.quantile(x, (0.05, 0.95))) if len(x) else x
    parts = [(pair_sums(outcome[rows], x[rows], clipped[rows]), prompt[rows[:, 0]]) for rows in equal_groups(stratum)]
    sums = np.concatenate([np.zeros((0, NUM_SUMS)), *(p[0] for p in parts)])
    cluster = np.concatenate([np.zeros(0, np.int64), *(p[1] for p in parts)])
    known = sums[:, 0] > 0
    prompts, place = np.unique(cluster[known], return_inverse=True)
    each = sums[known]
    each[:, :5] /= each[:, 1:2]
    return prompts, np.stack([sum_by(place, column, len(prompts)) for column in each.T], 1)


def equal_groups(stratum: Ints) -> Iterator[Ints]:
    """Yield rows of strata of one size, [strata, size]; of more than MAX_GROUP rows so many at random, of one row none."""
    rows = np.random.default_rng(0).permutation(len(stratum))
    rows = rows[np.argsort(stratum[rows], kind="stable")]
    _, start, count = np.unique(stratum[rows], return_index=True, return_counts=True)
    count = np.minimum(count, MAX_GROUP)
    for size in np.unique(count[count > 1]).tolist():
        starts = start[count == size]
        step = max(MAX_CELLS // size**2, 1)
        for first in range(0, len(starts), step):
            yield rows[starts[first : first + step, None] + np.arange(size)]


def pair_sums(outcome: Floats, x: Floats, clipped: Floats) -> Floats:
    """Return sums of strata [S, n] of log lengths x, and of those without tails, [S, NUM_SUMS].

    They are: pairs, responses, the three comparisons over pairs, then responses less one and the centred products xx, xz, zz, xy
    and zy of clipped x, its square z and the outcome y.
    """
    size = outcome.shape[1]
    better = outcome[:, :, None] > outcome[:, None, :]
    surplus = better.sum(1) - better.sum(2)  # by how many more it is beaten than it beats
    longer = sign_of(x)
    rank = longer.sum(2) / 2
    gap = (x * surplus).sum(1)
    order = -(better * longer).sum((1, 2)) / 2
    bend = -(better * sign_of(np.abs(rank))).sum((1, 2)) / 2
    cx, cz, cy = (v - v.mean(1, keepdims=True) for v in (clipped, clipped * clipped, outcome))
    products = [(one * other).sum(1) for one, other in ((cx, cx), (cx, cz), (cz, cz), (cx, cy), (cz, cy))]
    num, freedom = np.full(len(outcome), size), np.full(len(outcome), size - 1)
    return np.stack([better.sum((1, 2)), num, gap, order, bend, freedom, *products], 1).astype(np.float64)


def sign_of(values: Floats) -> np.ndarray:
    """Return 1 where the first of two is larger, -1 where it is smaller, [S, n, n]."""
    one, other = values[:, :, None], values[:, None, :]
    return (one > other).astype(np.int8) - (one < other)


def jackknife(above: Floats, below: Floats) -> Effect:
    """Return sum of `above` over sum of `below`, of prompts [K], with the error over them."""
    size = len(above)
    if size < 2:
        return Effect(float("nan"), float("nan"), 0.0, size)
    total, weight = above.sum(), below.sum()
    without = (total - above) / (weight - below)
    value, error = float(total / weight), error_of(without)
    # what is the same in every prompt seen may still differ in the next one
    return Effect(value, max(error, abs(value) / size), float(weight**2 / (below**2).sum()) - 1.0, size)


def error_of(without: Floats) -> float:
    """Return the jackknife's standard error, from the estimates without each prompt, [K]."""
    return math.sqrt((len(without) - 1) / len(without) * ((without - without.mean()) ** 2).sum())


def fit_curve(sums: Floats, ends: Floats) -> tuple[Effect, float]:
    """Return the effect `Within.curve` and where it turns, from the last six sums of prompts [K, 6]; `ends` as there."""
    nothing = Effect(math.nan, math.nan, 0.0, len(sums)), math.nan
    total = sums.sum(0)
    is_flat = total[0] * total[3] <= 1e-9 * total[1] ** 2  # of two lengths, as far below the mean as above it
    if len(sums) < 3 or is_flat or not total[1] * total[3] - total[2] ** 2 > 1e-9 * total[1] * total[3]:
        return nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        slope, square = map(float, solve_curve(total))
        without = np.stack(solve_curve(total - sums))
    spread = float(total[1] / total[0])
    weight = sums[:, 3] - total[2] / total[1] * (2 * sums[:, 2] - total[2] / total[1] * sums[:, 1])
    freedom = float(weight.sum() ** 2 / (weight**2).sum()) - 1.0
    if not (np.isfinite(without).all() and freedom > 0):
        return nothing

    slopes = [(slope + 2 * square * end, error_of(without[0] + 2 * without[1] * end)) for end in ends.tolist()]
    (first, first_error), (last, last_error) = slopes if square < 0 else [(-s, e) for s, e in slopes]
    turns = min(first / max(first_error, 1e-12), -last / max(last_error, 1e-12))
    least = two_sided(turns, freedom) if turns > 0 else 1.0
    effect = Effect(-square * spread, error_of(without[1]) * spread, freedom, len(sums), least)
    return effect, -slope / (2 * square) if square else math.nan


def ask_sides(stratum: Ints, prompt: Ints, outcome: Floats, x: Floats, curve: float) -> Iterator[float]:
    """Yield the one-sided p-values that outcome rises on x within strata below a turn at 0, and falls above it; or the reverse.

    Without them some very short responses, all of them wrong, bend a parabola where accuracy never falls (Simonsohn 2018).
    """
    for side in (-1.0, 1.0):
        rows = side * x >= 0
        _, sums = sum_pairs(stratum[rows], prompt[rows], outcome[rows], x[rows])
        xx, xy = sums[sums[:, 6] > 0][:, [6, 9]].T
        slope = jackknife(xy, xx)
        has_sign = slope.num_prompts >= MIN_PROMPTS and slope.value * side * curve < 0
        yield slope.p_value / 2 if has_sign and math.isfinite(slope.error) else 1.0  # `max` would pass over a nan


def solve_curve(sums: Floats) -> tuple[Floats, Floats]:
    """Return slope and square of least squares on x and z, from the sums [..., 6] of `fit_curve`."""
    _, xx, xz, zz, xy, zy = np.moveaxis(sums, -1, 0)
    scale = xx * zz - xz * xz
    return (zz * xy - xz * zy) / scale, (xx * zy - xz * xy) / scale


def find_bar(p_values: Iterable[float], rate: float) -> float:
    """Return the p-value up to which findings stand at a rate (Benjamini and Hochberg 1995), -1 for none; nan is no test."""
    known = sorted(p for p in p_values if not math.isnan(p))
    return max((p for place, p in enumerate(known, 1) if p <= rate * place / len(known)), default=-1.0)
