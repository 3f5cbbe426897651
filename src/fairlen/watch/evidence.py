"""Evidence that length and correctness go together within prompts and steps. It stays valid if you look after every step.

A *group* holds the responses to one prompt in one step, k of them correct and m incorrect. Each group has three statistics, all
means over its k m pairs of an incorrect and a correct response:

- clipped gap: difference of log lengths, each at most CLIP away from the group's median log length;
- order: share of pairs in which the incorrect response is longer (ties count half), minus a half;
- raw gap: difference of log lengths without clipping, the statistic that the audit reports.

**The test** bets on the clipped gap and the order, because both are bounded. Null hypothesis: given the lengths of a group and k,
no group's expected statistic lies beyond the audit's margin. Exchangeable verdicts are the special case in which every expected
statistic is 0, so a trend of length or accuracy over steps is no evidence. For a stake s fixed before the verdicts, the product
over groups of 1 + s (x - margin) is a nonnegative supermartingale (Waudby-Smith and Ramdas, arXiv:2010.09686, section 4). So is
its average over stakes, statistics and onsets, in which a share 1 / (t (t + 1)) of the capital is bet from step t on (Shin,
Ramdas and Rinaldo, arXiv:2203.03532). It ever reaches 1 / a with probability at most a (Ville 1939).

**The sequences** are intervals of a mean over the groups since an onset, each weighted by w = k m / (k + m):

- of the expected clipped gap and the expected order: empirical Bernstein (Howard, Ramdas, McAuliffe and Sekhon,
  arXiv:1810.08240, section 3), exact at any number of groups. The expected values may differ from group to group.
- of the expected raw gap, which is not bounded: asymptotic (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, arXiv:2103.06476),
  with the audit's estimate and standard error, and Student's t because there may be few groups.

Onset t has the share 1 / (t (t + 1)) of the error, so each sequence holds at every look for an onset chosen after the data.
"""

from __future__ import annotations

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlen.audit.conclusion import Margins
from fairlen.audit.statistics.intervals import Estimate
from fairlen.audit.statistics.within import MIN_PROMPTS, equal_groups, sign_of
from fairlen.batch import Floats, Ints
from fairlen.distributions import NORMAL, student

CLIP = 1.0
"""Largest distance of a log length from its group's median, in nats: a factor of 2.7. It bounds the clipped gap."""
BOUNDS = np.array([2 * CLIP, 0.5])
"""Largest absolute value of the clipped gap and of the order."""
STAKES = np.array([0.1, 0.2, 0.4, 0.8, 1.6])
"""Stakes of the test per unit of a group's weight."""
MOST = 0.95
"""Largest share of the capital that a group may lose."""
SIDES = np.array([1.0, -1.0])
"""Signs of the two directions: incorrect responses are longer, or shorter."""
WEIGHT, CLIPPED, ORDER, RAW = range(4)
"""Columns of a group's statistics."""
SEQUENCE_STAKES = 0.0025 * 2.0 ** np.arange(12)
"""Stakes of the empirical Bernstein sequences per unit of a group's weight."""
PRIOR_GROUPS = 20.0
"""Tuning constant of the raw gap's sequence: narrowest at about 10 to 25 times as many groups. It does not affect validity."""
SMALLEST_ERROR = 1e-12
"""Probability below which Student's t quantile is not computed."""
NUM_GROUPS, SUM_W, SUM_WW, SUM_CLIPPED, SUM_ORDER, SUM_RAW, SUM_WW_RAW, SUM_WW_RAW2, MAX_CLIPPED, MAX_ORDER = range(10)
"""Columns of a step's sums. The two maxima are of a group's weight times the range of the statistic around its centre. The other
columns are the penalties of the sequences, [2, len(SEQUENCE_STAKES)] in one row."""
FIRST_PENALTY = 10
NUM_SUMS = FIRST_PENALTY + 2 * len(SEQUENCE_STAKES)


def compare_groups(stratum: Ints, outcome: Floats, length: Ints) -> tuple[Ints, Floats]:
    """Return the weight and the statistics of every group that has a better and a worse response.

    Args:
        stratum: Number of each response's group, [N].
        outcome: Outcome of each response, [N]; of a pair, the response with the larger one is the better one.
        length: Tokens of each response, [N].

    Returns:
        The numbers of the groups, [S], and their columns WEIGHT, CLIPPED, ORDER and RAW, [S, 4].
    """
    log_length = np.log(np.maximum(length, 1).astype(np.float64))
    numbers: list[Ints] = [np.zeros(0, np.int64)]
    statistics: list[Floats] = [np.zeros((0, 4))]
    for rows in equal_groups(stratum):
        raw = log_length[rows] - np.median(log_length[rows], 1, keepdims=True)
        better = outcome[rows][:, :, None] > outcome[rows][:, None, :]
        num_pairs = better.sum((1, 2))
        compared = num_pairs > 0
        # a response's length enters the sum over pairs once for each better response and, negated, for each worse one
        times = better.sum(1) - better.sum(2)
        sums = np.stack(
            [
                num_pairs**2 / rows.shape[1],
                (np.clip(raw, -CLIP, CLIP) * times).sum(1),
                -(better * sign_of(raw)).sum((1, 2)) / 2,
                (raw * times).sum(1),
            ],
            1,
        )
        statistics.append(sums[compared] / num_pairs[compared, None])
        numbers.append(stratum[rows[compared, 0]])
    return np.concatenate(numbers), np.concatenate(statistics)


@dataclass(frozen=True)
class EffectSizes:
    """Sizes of the effect since an onset, incorrect minus correct, each with a 95% interval that holds at every look."""

    raw_gap: Estimate
    """Difference of log lengths, as the audit estimates it; without an interval if fewer than MIN_PROMPTS groups exist."""
    order: Estimate
    """Share of pairs in which the incorrect response is longer, minus a half."""
    clipped_gap: Estimate
    """Difference of clipped log lengths: the bounded statistic that the test bets on."""


@dataclass
class EProcess:
    """Evidence of one run for each direction: incorrect responses are longer (side 0), or shorter (side 1).

    It keeps sums per step, so memory grows with the number of steps and not with the number of responses.
    """

    margins: Margins = field(default_factory=Margins)
    sums: list[Floats] = field(default_factory=list)
    """Sums over the groups of each step, [NUM_SUMS] each."""
    wealth: Floats = field(default_factory=lambda: np.full((2, 2, len(STAKES)), -np.inf))
    """Log of the capital bet so far from any onset on, by statistic, side and stake."""
    growth: Floats = field(default_factory=lambda: np.zeros((2, 2, len(STAKES))))
    """Log of the factor gained since the best onset, by statistic, side and stake."""
    onset: Ints = field(default_factory=lambda: np.zeros((2, 2, len(STAKES)), np.int64))
    """Position of that onset among the steps."""
    totals: Floats = field(default_factory=lambda: np.zeros(NUM_SUMS))
    """Sums over all steps so far. The sequences measure variation around the running mean of earlier steps."""

    def add_step(self, groups: Floats) -> None:
        """Add the groups of one step, [S, 4] as `compare_groups` returns them. A step without groups only advances the clock."""
        count = len(self.sums) + 1
        values = groups[:, [CLIPPED, ORDER]]
        margin = np.array([self.margins.of("gap"), self.margins.of("order")])
        stakes = find_stakes(groups[:, WEIGHT], BOUNDS + margin)
        beyond = SIDES * values[:, :, None] - margin[:, None]  # [S, statistic, side]
        gain = np.log1p(stakes[:, :, None] * beyond[..., None]).sum(0)
        self.wealth = np.logaddexp(self.wealth, -math.log(count * (count + 1))) + gain
        self.onset = np.where(self.growth <= 0, count - 1, self.onset)
        self.growth = np.maximum(self.growth, 0.0) + gain
        step_sums = sum_groups(groups, self.find_centre())
        self.sums.append(step_sums)
        self.totals = self.totals + step_sums

    def find_centre(self) -> Floats:
        """Return the running means of the clipped gap and the order over all earlier steps, [2]."""
        return self.totals[[SUM_CLIPPED, SUM_ORDER]] / max(self.totals[SUM_W], 1.0)

    def find_evalue(self, side: int) -> float:
        """Return the e-value against "no effect beyond the margins" in the direction of a side."""
        idle = 1 / (len(self.sums) + 1)  # share of the capital that no onset so far has bet
        return float(np.exp(np.minimum(self.wealth[:, side], 700.0)).mean()) + idle

    def find_onset(self, side: int) -> int:
        """Return the position of the step since which the evidence is strongest. It is an estimate of the onset."""
        best = self.growth[:, side].argmax()
        return int(self.onset[:, side].flat[best])

    def estimate_sizes(self, onset: int, level: float = 0.95) -> EffectSizes:
        """Return the sizes since the step at position `onset`, with their sequences at a confidence level."""
        window = np.array(self.sums[onset:]).reshape(-1, NUM_SUMS)
        error = (1 - level) / ((onset + 1) * (onset + 2))
        clipped, order = bound_means(*combine_steps(window), error)
        return EffectSizes(estimate_raw_gap(window.sum(0), error), order, clipped)

    def detect(self, side: int, error: float) -> tuple[int, EffectSizes] | None:
        """Return the position of the onset and the sizes since then, if there is an effect in the direction of a side.

        That takes an e-value of at least 1 / error, and a gap or an order whose interval lies on that side of 0.
        """
        if self.find_evalue(side) < 1 / error:
            return None
        onset = self.find_onset(side)
        sizes = self.estimate_sizes(onset)
        has_size = is_on_side(sizes.raw_gap, side) or is_on_side(sizes.order, side)
        return (onset, sizes) if has_size else None

    def state(self) -> dict[str, Any]:
        """Return everything that `from_state` needs, as values that JSON keeps exactly."""
        arrays = {"wealth": self.wealth, "growth": self.growth, "onset": self.onset.astype(np.float64)}
        packed = {name: pack_array(array) for name, array in arrays.items()}
        return packed | {"sums": pack_array(np.array(self.sums).reshape(-1, NUM_SUMS))}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], margins: Margins) -> EProcess:
        """Rebuild the evidence from a state. Raises KeyError, TypeError or ValueError if it is not one."""
        shape = (2, 2, len(STAKES))
        sums = unpack_array(state["sums"], NUM_SUMS)
        wealth, growth, onset = (
            unpack_array(state[name], len(STAKES)).reshape(shape) for name in ("wealth", "growth", "onset")
        )
        totals = np.zeros(NUM_SUMS)
        for row in sums:  # in the order of the run, so that the totals are the same to the last bit
            totals = totals + row
        return cls(margins, list(sums), wealth, growth, onset.astype(np.int64), totals)


def is_on_side(size: Estimate, side: int) -> bool:
    """Return whether an interval lies on the given side of 0. False if there is no interval."""
    return size.low > 0 if side == 0 else size.high < 0


def find_stakes(weight: Floats, room: Floats) -> Floats:
    """Return the stakes on groups, [S, K, L]. None can lose more than MOST if a value falls `room` [K] short of its mean."""
    return np.minimum(weight[:, None, None] * STAKES, MOST / room[:, None])


def sum_groups(groups: Floats, centre: Floats) -> Floats:
    """Return the sums over a step's groups, [NUM_SUMS]; `centre` [2] is the running mean of earlier steps."""
    weight = groups[:, WEIGHT]
    raw = groups[:, RAW]
    ranges = BOUNDS + np.abs(centre)  # largest distance of each statistic from its centre
    distance = (groups[:, [CLIPPED, ORDER]] - centre) / ranges  # [S, 2], within -1 and 1
    stakes = weight[:, None, None] * SEQUENCE_STAKES * ranges[:, None]  # [S, 2, L]
    allowed = np.minimum(stakes, MOST)
    penalties = ((-np.log1p(-allowed) - allowed) * distance[..., None] ** 2).sum(0)
    heaviest = weight.max(initial=0.0)
    return np.array(
        [
            len(groups), weight.sum(), (weight**2).sum(), (weight * groups[:, CLIPPED]).sum(), (weight * groups[:, ORDER]).sum(),
            (weight * raw).sum(), (weight**2 * raw).sum(), (weight**2 * raw**2).sum(), *(heaviest * ranges), *penalties.ravel(),
        ]
    )  # fmt: skip


def combine_steps(window: Floats) -> tuple[Floats, Floats, Floats]:
    """Return what `bound_means` needs from the sums of some steps [T, NUM_SUMS]: totals [2], weight, penalties [2, L]."""
    total = window.sum(0)
    penalties = total[FIRST_PENALTY:].reshape(2, -1)
    heaviest = window[:, [MAX_CLIPPED, MAX_ORDER]].max(0, initial=0.0)
    # a stake that is too large for the heaviest group lost its capital at that group
    is_lost = heaviest[:, None] * SEQUENCE_STAKES > MOST
    return total[[SUM_CLIPPED, SUM_ORDER]], total[SUM_W], np.where(is_lost, np.inf, penalties)


def bound_means(totals: Floats, weight: Floats, penalties: Floats, error: float) -> tuple[Estimate, Estimate]:
    """Return the weighted means of the clipped gap and the order with their empirical Bernstein sequences.

    Args:
        totals: Sums of weight times value, [2].
        weight: Sum of weights.
        penalties: Sums of variance terms for each stake, [2, L]; infinite for stakes that lost their capital.
        error: Error of each interval; half of it is for each end.
    """
    spent = math.log(2 * len(SEQUENCE_STAKES) / error)
    signed = SIDES[:, None] * totals  # [side, statistic]
    low = np.broadcast_to(-BOUNDS, signed.shape)
    high = np.broadcast_to(BOUNDS, signed.shape)
    for _ in range(40):  # bisection: the evidence against a mean falls as the mean grows
        middle = (low + high) / 2
        logs = SEQUENCE_STAKES * (signed - middle * weight)[..., None] - penalties
        is_rejected = np.logaddexp.reduce(logs, -1) >= spent
        low = np.where(is_rejected, middle, low)
        high = np.where(is_rejected, high, middle)
    values = totals / weight if weight > 0 else np.full(2, np.nan)
    clipped, order = (Estimate(float(values[at]), float(low[0, at]), float(-low[1, at])) for at in (0, 1))
    return clipped, order


def estimate_raw_gap(sums: Floats, error: float) -> Estimate:
    """Return the audit's estimate of the gap from sums over groups, [NUM_SUMS], with an asymptotic sequence at an error."""
    num_groups, weight, squares = sums[NUM_GROUPS], sums[SUM_W], sums[SUM_WW]
    if weight == 0:
        return Estimate(math.nan)
    value = float(sums[SUM_RAW] / weight)
    if num_groups < MIN_PROMPTS:
        return Estimate(value)
    # the delete-one jackknife's standard error, to first order: sum of (w (x - value))^2 over groups
    deviations = sums[SUM_WW_RAW2] - 2 * value * sums[SUM_WW_RAW] + value**2 * squares
    standard_error = math.sqrt(max(deviations, 0.0) * num_groups / (num_groups - 1)) / weight
    standard_error = max(
        standard_error, abs(value) / num_groups
    )  # as in the audit: what all groups share may be chance
    effective = float(weight**2 / squares)
    # two-sided normal mixture boundary with a prior worth PRIOR_GROUPS groups
    prior = PRIOR_GROUPS / effective
    z = math.sqrt((1 + prior) * (2 * math.log(1 / error) + math.log1p(1 / prior)))
    tail = max(1 - NORMAL.cdf(z), SMALLEST_ERROR)
    half = max(z, student(1 - tail, effective - 1)) * standard_error
    return Estimate(value, float(value - half), float(value + half))


def pack_array(array: Floats) -> str:
    """Return an array of float64 as text."""
    return b64encode(array.astype("<f8").tobytes()).decode()


def unpack_array(text: str, width: int) -> Floats:
    """Return the rows that `pack_array` wrote, [N, width]. Raises ValueError for text that is not an array of that width."""
    return np.frombuffer(b64decode(text, validate=True), "<f8").reshape(-1, width)
