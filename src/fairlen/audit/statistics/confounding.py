"""Tests of whether a candidate that varies within prompts, such as a checkpoint, explains an effect of length.

A pair of responses shows an effect of length only if one policy sampled both. A candidate confounds if it is associated with
length and with the outcome within groups, and if the effect changes when both responses of a pair must agree in it. Only a
candidate that was fixed before sampling may form groups: a consequence of the response, such as a label, would hide true effects.
This module contains no names of columns and reads no files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from fairlen.audit.statistics.within import MIN_PROMPTS, Effect, jackknife, sum_pairs
from fairlen.batch import Bools, Floats, Ints, number_keys, sum_by

Origin = Literal["design", "consequence", "unclear"]
"""Whether a candidate was fixed before sampling, follows from the response, or could be either."""

MAX_ROWS = 20_000
"""Rows that are tested; of a larger log, whole groups drawn at random."""
MAX_VALUES = 48
"""Values of a candidate that are tested separately; more values are merged with their neighbours, in order."""
MAX_P = 0.002
"""P-value up to which a candidate is associated with length, and with the outcome."""
MAX_P_EFFECT = 0.025
"""P-value up to which a log shows an effect, as in the verdict if one of two findings is significant."""
LENGTH_MARGIN, SHARE_MARGIN = math.log1p(0.10), 0.05
"""Smallest changes of an effect that matter: of log length, and of a share of pairs, as in the verdict."""
MIN_Z = 4.0
"""Standard errors by which the layout of a candidate's values must differ from chance to count as planned."""
MIN_COPY = 0.5
"""Share of the outcome's variance within groups from which on a candidate that nobody planned is a copy of the outcome."""
MIN_RANK_CORRELATION, FEW_VALUES, MIN_OF_FEW = 0.7, 5, 0.9
"""Rank correlation with length within groups from which on a candidate of numbers measures the response; it is higher for up to
FEW_VALUES values, which may be a setting."""
MAX_ORDERED = 0.2
"""Correlation of length with the place among neighbouring rows from which on the file is in order of length, or of completion."""
MOST_SORTED = 8
"""Values up to which a file may have been sorted by them."""
MIN_MIXED = 0.1
"""Share of a log's comparisons below which a grouping leaves too little to compare."""
MIN_GAP = 5.0
"""Times that a gap between visits to a prompt is as wide as one within a visit."""
MIN_ALIKE = 0.8
"""Share of groups with the same number of visits."""
MAX_SPACING = 3.0
"""Rows between neighbours of a group up to which all of them were written together."""


@dataclass(frozen=True)
class GroupedRows:
    """Responses that are compared, [N], in the order of the file."""

    stratum: Ints  # group of each response, dense from 0: its prompt in one step
    prompt: Ints  # prompt of each response, over which errors are computed
    outcome: Floats  # 1 if the response is correct, else 0
    length: Floats  # log length

    def take(self, rows: Bools) -> GroupedRows:
        return GroupedRows(number_keys(self.stratum[rows]), self.prompt[rows], self.outcome[rows], self.length[rows])


@dataclass(frozen=True)
class Sizes:
    """Effects of length in a set of pairs."""

    gap: Effect
    order: Effect
    bend: Effect

    def list_effects(self) -> tuple[tuple[Effect, float], ...]:
        return (self.gap, LENGTH_MARGIN), (self.order, SHARE_MARGIN), (self.bend, SHARE_MARGIN)

    @property
    def side(self) -> int:
        """Return 1 if incorrect responses are longer, -1 if they are shorter, 2 or -2 for a bend, and 0 without an effect."""
        for place, (effect, margin) in enumerate(self.list_effects()):
            is_shown = effect.num_prompts >= MIN_PROMPTS and effect.p_value <= MAX_P_EFFECT
            if is_shown and not effect.is_within(margin):
                return int(math.copysign(2 if place == 2 else 1, effect.value))
        return 0

    def differs(self, other: Sizes, share: float = 1.0) -> bool:
        """Return whether an effect differs by more than a share of what matters."""
        pairs = zip(self.list_effects(), other.list_effects(), strict=True)
        changes = [(abs(effect.value - changed.value), margin) for (effect, margin), (changed, _) in pairs]
        return any(change > share * margin for change, margin in changes)


@dataclass(frozen=True)
class Confounding:
    """A candidate that is associated with length and with the outcome, and that changes the effect."""

    strength: float  # the smaller of both associations, as -log10 of its p-value
    origin: Origin
    before: Sizes
    after: Sizes  # effects in pairs that agree in the candidate, or adjusted for it if there are too few of them
    has_pairs: bool  # whether enough pairs agree in the candidate

    @property
    def changes_verdict(self) -> bool:
        return self.before.side != self.after.side


def select_rows(stratum: Ints, prompt: Ints, outcome: Floats, length: Floats) -> tuple[Ints, GroupedRows]:
    """Return the rows, and their numbers, of groups with correct and incorrect responses; of a large log, groups at random."""
    stratum = number_keys(stratum)
    number = int(stratum.max(initial=-1)) + 1
    size, hits = np.bincount(stratum, minlength=number), np.bincount(stratum, outcome, number)
    chosen = (hits > 0) & (hits < size)
    order = np.random.default_rng(0).permutation(number)
    is_few = np.cumsum(np.where(chosen, np.minimum(size, MAX_ROWS), 0)[order]) <= MAX_ROWS
    chosen[order[~is_few]] = False
    rows = np.flatnonzero(chosen[stratum])
    whole = GroupedRows(stratum, prompt, outcome, length)
    return rows, whole.take(chosen[stratum])


def measure_sizes(rows: GroupedRows) -> Sizes:
    _, sums = sum_pairs(rows.stratum, rows.prompt, rows.outcome, rows.length)
    gap, order, bend = (jackknife(sums[:, column], sums[:, 0]) for column in (2, 3, 4))
    return Sizes(gap, order, bend)


def split_rows(rows: GroupedRows, code: Ints) -> GroupedRows:
    """Return rows whose groups agree in a candidate."""
    stratum = number_keys(rows.stratum * (int(code.max(initial=0)) + 1) + code)
    return GroupedRows(stratum, rows.prompt, rows.outcome, rows.length)


def find_confounding(
    rows: GroupedRows, code: Ints, number: Floats, max_p: float = MAX_P, is_place: bool = False
) -> Confounding | None:
    """Return how a candidate confounds, None if it does not.

    Args:
        rows: responses [N] in the order of the file, of groups with both outcomes.
        code: value of the candidate for each response [N], dense from 0 in an order that means something (size, or first row).
        number: the same as numbers [N], nan if its values are not numbers.
        max_p: p-value up to which an association counts.
        is_place: whether the candidate is a place in the files, whose layout says nothing.
    """
    if len(rows.stratum) == 0 or not varies_within(rows.stratum, code):
        return None
    merged = merge_values(code)
    p_outcome = test_association(rows.stratum, merged, rows.outcome)
    if p_outcome > max_p:
        return None
    p_length = test_association(rows.stratum, merged, rows.length)
    if p_length > max_p:
        spread = np.abs(rows.length - median_of_stratum(rows.stratum, rows.length))
        p_length = 2 * test_association(rows.stratum, merged, spread)
    if p_length > max_p:
        return None
    before, after = measure_sizes(rows), measure_sizes(split_rows(rows, code))
    has_pairs = keeps_pairs(rows, code)
    if not has_pairs:
        after = adjust_sizes(rows, merged)
    if not before.differs(after, 1.0 if before.side == after.side else 0.5):
        return None
    strength = -math.log10(max(p_outcome, p_length, 1e-300))
    return Confounding(strength, find_origin(rows, code, number, is_place), before, after, has_pairs)


def varies_within(stratum: Ints, code: Ints) -> bool:
    """Return whether a candidate has two values in at least MIN_PROMPTS groups."""
    cells = np.unique(stratum * (int(code.max(initial=0)) + 1) + code) // (int(code.max(initial=0)) + 1)
    return int((np.bincount(cells) > 1).sum()) >= MIN_PROMPTS


def merge_values(code: Ints) -> Ints:
    """Return a candidate with at most MAX_VALUES values, each with about as many rows if there were more."""
    if int(code.max(initial=0)) < MAX_VALUES:
        return code
    before = np.cumsum(np.bincount(code)) - np.bincount(code)
    return np.unique(before[code] * MAX_VALUES // len(code), return_inverse=True)[1]


def keeps_pairs(rows: GroupedRows, code: Ints) -> bool:
    """Return whether enough comparisons of a correct and an incorrect response agree in a candidate."""
    weight, prompts = weigh_groups(rows)
    weight_left, prompts_left = weigh_groups(split_rows(rows, code))
    return prompts_left >= min(MIN_PROMPTS, prompts) and weight_left >= MIN_MIXED * weight


def weigh_groups(rows: GroupedRows) -> tuple[float, int]:
    """Return the weight km / (k + m) of all groups, and how many prompts have some."""
    size = np.bincount(rows.stratum)
    hits = np.bincount(rows.stratum, rows.outcome)
    weight = hits * (size - hits) / np.maximum(size, 1)
    return float(weight.sum()), len(np.unique(rows.prompt[(weight > 0)[rows.stratum]]))


def centre_within(stratum: Ints, values: Floats) -> Floats:
    """Return values minus the mean of their group."""
    number = int(stratum.max(initial=-1)) + 1
    mean = sum_by(stratum, values, number) / np.maximum(np.bincount(stratum, minlength=number), 1)
    return values - mean[stratum]


def median_of_stratum(stratum: Ints, values: Floats) -> Floats:
    """Return the lower median of each row's group."""
    order = np.lexsort((values, stratum))
    size = np.bincount(stratum)
    first = np.cumsum(size) - size
    return values[order][first + (size - 1) // 2][stratum]


def test_association(stratum: Ints, code: Ints, values: Floats) -> float:
    """Return the p-value that a candidate and values are independent within groups: by values, or along their order.

    Both statistics have the mean and covariance of a permutation of the values within each group.
    """
    size = np.bincount(stratum)
    centred = centre_within(stratum, values)
    variance = np.bincount(stratum, centred**2) / np.maximum(size - 1, 1)
    by_value = chi_square_p(*sum_by_value(stratum, code, centred, variance))
    along = centre_within(stratum, code.astype(np.float64))
    scale = math.sqrt(max(float((variance[stratum] * along**2).sum()), 1e-300))
    trend = 2 * NormalDist().cdf(-abs(float(along @ centred)) / scale)
    return min(1.0, 2 * min(by_value, trend))


def count_cells(stratum: Ints, code: Ints) -> Floats:
    """Return how many responses each group [S] has of each value [V]."""
    shape = int(stratum.max()) + 1, int(code.max()) + 1
    return np.bincount(stratum * shape[1] + code, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def sum_by_value(stratum: Ints, code: Ints, centred: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return the sum of centred values of each value of a candidate [V], and its covariance under permutation [V, V]."""
    cells = count_cells(stratum, code)
    size = cells.sum(1)
    total = sum_by(code, centred, cells.shape[1])
    covariance = np.diag(variance @ cells) - (cells * (variance / size)[:, None]).T @ cells
    return total, covariance


def chi_square_p(total: Floats, covariance: Floats) -> float:
    """Return the upper tail of the quadratic form of sums under their covariance (Wilson and Hilferty 1931)."""
    values, vectors = np.linalg.eigh(covariance)
    is_free = values > 1e-9 * max(float(values.max(initial=0.0)), 1e-12)
    freedom = int(is_free.sum())
    if not freedom:
        return 1.0
    statistic = float(((vectors[:, is_free].T @ total) ** 2 / values[is_free]).sum())
    if freedom == 1:
        return 2 * NormalDist().cdf(-math.sqrt(statistic))
    spread = 2 / (9 * freedom)
    return NormalDist().cdf(-((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def adjust_sizes(rows: GroupedRows, code: Ints) -> Sizes:
    """Return effects adjusted for a candidate by least squares, with a constant for each group and each value.

    This compares responses with different values, so it is only used to decide whether to ask.
    """
    cells = count_cells(rows.stratum, code)
    size = cells.sum(1)
    gram = np.diag(cells.sum(0)) - (cells / size[:, None]).T @ cells
    inverse = np.linalg.pinv(gram)

    def remove_candidate(values: Floats) -> Floats:
        centred = centre_within(rows.stratum, values)
        effect = inverse @ np.bincount(code, centred, cells.shape[1])
        return centred - centre_within(rows.stratum, effect[code])

    outcome = remove_candidate(rows.outcome)
    rank = centre_within(rows.stratum, rank_within(rows.stratum, rows.length))
    prompt = number_keys(rows.prompt)
    number = int(prompt.max()) + 1
    below = sum_by(prompt, outcome**2, number)
    if below.sum() - below.max() <= 1e-9 * len(outcome):  # the candidate determines all outcomes
        nothing = Effect(math.nan, math.nan, 0.0, 0)
        return Sizes(nothing, nothing, nothing)
    pairs = 2 * size[rows.stratum] / np.maximum(size[rows.stratum] - 1, 1)
    gap, order, bend = (
        jackknife(-sum_by(prompt, outcome * remove_candidate(values), number), below)
        for values in (rows.length, rank / pairs, np.abs(rank) / pairs)
    )
    return Sizes(gap, order, bend)


def rank_within(stratum: Ints, values: Floats) -> Floats:
    """Return the rank of each value in its group, over the group's size: between 0 and 1."""
    order = np.lexsort((values, stratum))
    size = np.bincount(stratum)
    first = np.cumsum(size) - size
    rank = np.empty(len(values))
    rank[order] = np.arange(len(values)) - first[stratum[order]]
    return 2 * rank / np.maximum(size[stratum] - 1, 1) - 1


def find_origin(rows: GroupedRows, code: Ints, number: Floats, is_place: bool = False) -> Origin:
    """Return whether a candidate was fixed before sampling, by the layout of its values.

    Responses to one prompt are exchangeable, and so are values that follow from them: their numbers vary from prompt to prompt,
    and their order in the file is random. Equal numbers, or blocks, are planned. A choice among the responses, such as the best
    one, is planned too, but determines the outcome.
    """
    if is_at_limit(rows, code):
        return "consequence"
    is_planned = is_balanced(rows.stratum, code)
    if determines_outcome(rows, code):
        return "unclear" if is_planned else "consequence"
    if is_planned:
        return "design"
    if copies_outcome(rows, code) or measures_response(rows, code, number) or is_cut_by_length(rows, code):
        return "consequence"
    is_sorted = is_place or is_sorted_by_value(code)
    if not is_sorted and has_layout(rows, code) and not is_sorted_by_response(rows):
        return "design"
    return "unclear"


def determines_outcome(rows: GroupedRows, code: Ints) -> bool:
    """Return whether one of a few values always has the same outcome, though groups have both outcomes."""
    number = int(code.max()) + 1
    hits, size = np.bincount(code, rows.outcome, number), np.bincount(code, minlength=number)
    is_pure = (size >= 30) & ((hits <= 0.005 * size) | (hits >= 0.995 * size))
    return number <= 8 and bool(is_pure.any())


def is_at_limit(rows: GroupedRows, code: Ints) -> bool:
    """Return whether one value stands for the longest responses, which share their length, as the word for a limit does."""
    number = int(code.max()) + 1
    if number > 8:
        return False
    size = np.bincount(code, minlength=number)
    longest = rows.length >= rows.length.max() - 0.01
    at_limit = np.bincount(code, longest, number)
    is_word = (at_limit > 0.9 * size) & (at_limit > 0.9 * longest.sum())
    return bool(longest.sum() >= 10 and is_word.any())


def copies_outcome(rows: GroupedRows, code: Ints) -> bool:
    """Return whether a candidate is nearly the outcome, as a second judge's verdict is."""
    return explained_share(rows.stratum, code, rows.outcome) >= MIN_COPY


def is_cut_by_length(rows: GroupedRows, code: Ints) -> bool:
    """Return whether values are ranges of length that touch each other, as with a file for each range."""
    order = np.argsort(rows.length, kind="stable")
    change = np.flatnonzero(np.diff(code[order]) != 0)
    num_values = int(code.max()) + 1
    if num_values > 8 or len(change) > num_values - 1 + 0.01 * len(code):
        return False
    return bool((np.diff(rows.length[order])[change] <= 0.05).all())


def explained_share(stratum: Ints, code: Ints, values: Floats) -> float:
    """Return the share of the variance of values within groups that a candidate explains, less what chance explains."""
    cell = number_keys(stratum * (int(code.max()) + 1) + code)
    groups, cells, size = int(stratum.max()) + 1, int(cell.max()) + 1, len(values)
    if size <= cells or size <= groups:
        return 0.0
    left = (centre_within(cell, values) ** 2).sum() / (size - cells)
    whole = (centre_within(stratum, values) ** 2).sum() / (size - groups)
    return float(1 - left / whole) if whole > 0 else 0.0


def measures_response(rows: GroupedRows, code: Ints, number: Floats) -> bool:
    """Return whether a candidate of numbers grows with length, as a number of turns does."""
    if not np.isfinite(number).all() or int(code.max()) < 2:
        return False
    rank, of_length = (
        centre_within(rows.stratum, rank_within(rows.stratum, values))
        for values in (number + 1e-9 * rows.length, rows.length)
    )
    scale = math.sqrt(float((rank**2).sum() * (of_length**2).sum()))
    least = MIN_RANK_CORRELATION if int(code.max()) >= FEW_VALUES else MIN_OF_FEW
    return scale > 0 and float(rank @ of_length) / scale >= least


def is_balanced(stratum: Ints, code: Ints) -> bool:
    """Return whether groups have more equal numbers of each value than chance gives."""
    if int(code.max()) >= MAX_VALUES:
        return is_even(stratum, code)
    cells = count_cells(stratum, code)
    size = cells.sum(1, keepdims=True)
    if len(cells) < MIN_PROMPTS:
        return False
    expected = size * cells.sum(0) / cells.sum()
    statistic = float(((cells - expected) ** 2 / expected).sum())
    freedom = (len(cells) - 1) * (cells.shape[1] - 1)
    return is_below_chance(statistic, freedom) or is_even(stratum, code)


def is_even(stratum: Ints, code: Ints) -> bool:
    """Return whether the values that a group has come equally often, in groups with several."""
    cell, count = np.unique(stratum * (int(code.max()) + 1) + code, return_counts=True)
    group = cell // (int(code.max()) + 1)
    num_values = np.bincount(group, minlength=int(stratum.max()) + 1)
    size = np.bincount(stratum)
    is_told = (num_values > 1) & (size >= 3 * num_values)
    if is_told.sum() < MIN_PROMPTS:
        return False
    expected = (size / np.maximum(num_values, 1))[group]
    statistic = float((((count - expected) ** 2 / expected) * is_told[group]).sum())
    return is_below_chance(statistic, int((num_values[is_told] - 1).sum()))


def is_below_chance(statistic: float, freedom: int) -> bool:
    """Return whether a chi-square statistic is so small that numbers were planned to be equal."""
    spread = 2 / (9 * freedom)
    z = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return z < -MIN_Z and statistic < 0.6 * freedom


def has_layout(rows: GroupedRows, code: Ints) -> bool:
    """Return whether neighbours in a group, in the order of the file, agree more or less often than chance gives."""
    order = np.argsort(rows.stratum, kind="stable")
    stratum, value = rows.stratum[order], code[order]
    is_pair = stratum[1:] == stratum[:-1]
    agrees = (value[1:] == value[:-1]) & is_pair
    size = np.bincount(stratum)
    cell, count = np.unique(stratum * (int(code.max()) + 1) + value, return_counts=True)
    same = np.bincount(cell // (int(code.max()) + 1), count * (count - 1.0), len(size))
    chance = same / np.maximum(size * (size - 1.0), 1)
    expected = float((chance * (size - 1)).sum())
    variance = float((chance * (1 - chance) * (size - 1)).sum())
    return variance > 0 and abs(float(agrees.sum()) - expected) > MIN_Z * math.sqrt(variance)


def is_sorted_by_value(code: Ints) -> bool:
    """Return whether all rows with one of a few values follow one another: written so, or sorted by somebody."""
    num_values = int(code.max()) + 1
    return num_values <= MOST_SORTED and int((np.diff(code) != 0).sum()) + 1 == num_values


def is_sorted_by_response(rows: GroupedRows) -> bool:
    """Return whether the order of the file follows from the responses: sorted by length, time of completion, or outcome."""
    if any(abs(correlate_in_blocks(rows.length, size)) > MAX_ORDERED for size in (8, 32)):
        return True
    order = np.argsort(rows.stratum, kind="stable")
    stratum, outcome, length = rows.stratum[order], rows.outcome[order], rows.length[order]
    is_pair = stratum[1:] == stratum[:-1]
    turns = np.bincount(stratum[1:], is_pair & (outcome[1:] != outcome[:-1]), int(stratum.max()) + 1)
    if float((turns <= 1).mean()) > 0.9:
        return bool(np.bincount(stratum).mean() >= 4)
    rises = (np.diff(length) > 0)[is_pair & (np.diff(length) != 0)]
    return len(rises) >= 100 and max(rises.mean(), 1 - rises.mean()) > 0.8


def correlate_in_blocks(values: Floats, size: int) -> float:
    """Return the correlation of values with their place among a number of neighbouring rows, which no slow drift causes."""
    number = len(values) // size
    if number * size < 100:
        return 0.0
    block = values[: number * size].reshape(number, size)
    block = block - block.mean(1, keepdims=True)
    place = np.arange(size) - (size - 1) / 2
    scale = math.sqrt(float((block**2).sum() * number * (place**2).sum()))
    return float((block @ place).sum()) / scale if scale > 0 else 0.0


def find_spacing(stratum: Ints, position: Ints) -> float:
    """Return the median number of rows from a response to the next one of its group."""
    order = np.lexsort((position, stratum))
    gap = np.diff(position[order])[np.diff(stratum[order]) == 0]
    return float(np.median(gap)) if len(gap) else 0.0


def find_visits(stratum: Ints, position: Ints, is_regular: bool = True) -> Ints | None:
    """Return which visit to its group each response belongs to [N], None if groups are not visited several times.

    Responses of one visit are near each other in the file, and visits are far apart: in most groups, the same number of gaps is
    at least MIN_GAP times as wide as all others. Without `is_regular`, groups may have any numbers of visits.
    """
    order = np.lexsort((position, stratum))
    sorted_stratum, sorted_position = stratum[order], position[order]
    visit = np.zeros(len(stratum), np.int64)
    numbers = list[Ints]()
    for rows in list_equal_groups(sorted_stratum):
        gap = np.diff(sorted_position[rows], axis=1).astype(np.float64)
        number, cut = find_wide_gaps(gap)
        numbers.append(number)
        visit[order[rows[:, 1:]]] = np.cumsum(gap >= cut[:, None], axis=1)
    if not is_regular:
        return visit
    if not numbers:
        return None
    number = np.concatenate(numbers)
    usual = int(np.bincount(number).argmax())
    is_usual = usual > 0 and len(number) >= MIN_PROMPTS and float((number == usual).mean()) >= MIN_ALIKE
    return visit if is_usual else None


def list_equal_groups(stratum: Ints) -> Iterator[Ints]:
    """Yield the rows of groups of one size, [groups, size], of sorted groups; groups of fewer than four rows are skipped."""
    _, start, count = np.unique(stratum, return_index=True, return_counts=True)
    for size in np.unique(count[count >= 4]).tolist():
        yield start[count == size, None] + np.arange(size)


def find_wide_gaps(gap: Floats) -> tuple[Ints, Floats]:
    """Return how many gaps of each group [S, n - 1] are wide, 0 if none stands out, and the width of the narrowest wide one."""
    widest = -np.sort(-gap, axis=1)
    most = max((gap.shape[1] + 1) // 2 - 1, 1)  # visits have two responses on average
    ratio = widest[:, :most] / np.maximum(widest[:, 1 : most + 1], 1.0)
    place = np.argmax(ratio, axis=1)
    rows = np.arange(len(gap))
    is_wide = ratio[rows, place] >= MIN_GAP
    return np.where(is_wide, place + 1, 0), np.where(is_wide, widest[rows, place], np.inf)
