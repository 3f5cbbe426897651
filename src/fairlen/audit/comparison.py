"""Differences between two logs, A and B: lengths, accuracy, truncation, and the effects of length within prompts.

Over prompts that both have, each with one weight on both sides: that of a difference of two means of a and b responses,
ab / (a + b). So another mix of prompts explains no difference; what does, two logs cannot say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from fairlen.audit.conclusion import RATE, as_estimate
from fairlen.audit.log import Log, ended_samples, halfway, plain_samples
from fairlen.audit.statistics.budgets import reach
from fairlen.audit.statistics.coupling import find_reasons
from fairlen.audit.statistics.intervals import Estimate, bootstrap, ratio
from fairlen.audit.statistics.within import MIN_PROMPTS, Effect, find_bar, jackknife, sum_pairs
from fairlen.batch import Columns, Floats, Ints, count_by, sum_by

NAMES = {
    "length": "mean length", "accuracy": "accuracy", "truncated": "truncated",
    "gap": "incorrect responses longer, within prompts", "order": "pairs in which the incorrect one is longer",
    "bend": "pairs in which it is farther from the median",
}  # fmt: skip
COSTS = {
    "at_tokens": "accuracy at equal tokens", "at_accuracy": "mean tokens at equal accuracy",
    "untrained": "tokens that trained nothing",
}  # fmt: skip
BY_LIMIT = (
    "equal tokens are {:,.4g} a response, equal accuracy is {:.1%}: a lower limit on length brings the log there that "
    "has more"
)
EFFECTS = "gap", "order", "bend"
"""Measures within groups, which mean nothing while it is open what responses of a group must agree in."""
NUM_BUDGETS = 64
NO_TWIN = (
    "no prompt is in both: effects within prompts are compared as of two samples of prompts; lengths, accuracy and truncation "
    "are not, since how hard the prompts are could explain any difference"
)
ONE_SIDED = "truncation is known in one log only: effects in the other include truncated responses"
UNEQUAL_GROUPS = (
    "prompts have {} responses in A and {} in B: how far responses are from the median depends on their number, so it is "
    "compared on equally many, drawn at random. Prompts with fewer responses are more often all correct or all incorrect, which "
    "is part of the tokens that trained nothing"
)
MIN_FOR_MEDIAN = 3  # of two responses both are equally far from the median
UNGRADED = "{:.1%} of A and {:.1%} of B have no verdict: all but the share truncated is of the others, which may differ by that"
Means = tuple[Ints, Floats, Floats]  # of a measure: prompts, sorted, with weight and mean of each, [K]


@dataclass(frozen=True)
class Contrast:
    """One measure of A and B, and B minus A; `gap`, and the difference of `length`, are relative."""

    measure: str
    first: Estimate
    second: Estimate
    difference: Estimate  # nan where the logs cannot be compared, without an interval where prompts are too few
    p_value: float
    num_prompts: int
    is_significant: bool = False  # at a false discovery rate of 5% over the whole comparison

    def row(self) -> tuple[str, ...]:
        """Return five cells of a table: what, A, B, B minus A, and the 95% interval of that."""
        found, base = self.difference, 0.5 if self.measure in ("order", "bend") else 0.0
        relative = {"length": ".4g", "at_accuracy": ".4g", "gap": "+.1%"}.get(self.measure)
        style, unit = (relative, "%") if relative else (".1%", " points")
        own = (f"{e.value + base:{style}}" if e.exists else "unknown" for e in (self.first, self.second))
        value, low, high = (f"{100 * x:+.1f}" for x in found)
        interval = f"[{low}, {high}]" if self.num_prompts >= MIN_PROMPTS else f"too few prompts: {self.num_prompts}"
        return (NAMES | COSTS)[self.measure], *own, *((value + unit, interval) if found.exists else ("unknown", ""))


@dataclass(frozen=True)
class Against:
    num_common: int
    num_first: int  # prompts of A alone
    num_second: int
    contrasts: tuple[Contrast, ...]
    notes: tuple[str, ...]

    @property
    def sentence(self) -> str:
        rows = (c.row() for c in self.contrasts if c.is_significant)
        found = "; ".join(f"{name} {by} {interval}" for name, _, _, by, interval in rows)
        return f"B minus A: {found}" if found else "no difference between A and B stands out from chance"


def compare_logs(first: Log, second: Log) -> Against:
    """Return B minus A. Raises ValueError where lengths have different units."""
    if first.unit != second.unit:
        raise ValueError(
            f"--against: lengths of one log are in {first.unit}, of the other in {second.unit}: --unit words counts both "
            "alike, --tokenizer FOLDER both in tokens"
        )
    outcomes = np.concatenate([log.responses.outcome[log.responses.active] for log in (first, second)])
    bar = halfway(outcomes) if "correct" not in first.known | second.known else None
    one, other = measure(first, bar), measure(second, bar)
    problems, others = one["length"][0], other["length"][0]
    num_common = len(np.intersect1d(problems, others)) if len(first.problem) and len(second.problem) else 0
    one["bend"], other["bend"] = measure_bends(first, second, bar, is_paired=num_common > 0)
    names = [name for name in NAMES if not ((first.question or second.question) and name in EFFECTS)]
    contrasts = [contrast(name, one[name], other[name], num_common > 0) for name in names]
    costs, by_limit = compare_costs(first, second, bar) if num_common > 1 else ((), [])
    stands = find_bar([c.p_value for c in contrasts], RATE)
    ungraded = [float((~log.responses.active[log.responses.round == 0]).mean()) for log in (first, second)]
    differ = abs(ungraded[1] - ungraded[0]) >= 0.01
    sizes = [usual_group_size(log) for log in (first, second)]
    is_one_sided = ("truncated" in first.known) != ("truncated" in second.known)
    questions = [f"{name}: {log.question}" for name, log in (("A", first), ("B", second)) if log.question]
    return Against(
        num_common, len(problems) - num_common, len(others) - num_common,
        (*(replace(c, is_significant=c.p_value <= stands) for c in contrasts), *costs),
        (*by_limit, *([] if num_common else [NO_TWIN]), *[ONE_SIDED] * is_one_sided,
         *[UNEQUAL_GROUPS.format(*sizes)] * (sizes[0] != sizes[1]), *[UNGRADED.format(*ungraded)] * differ, *questions,
         *list_unknowns("A", first), *list_unknowns("B", second)),
    )  # fmt: skip


def list_unknowns(name: str, log: Log) -> list[str]:
    """Return what is not known of the rows of one side."""
    unknowns = [log.obstacle, *log.caveats, *map(str, log.questions)]
    return [f"{name}: {clause}" for clause in unknowns if clause]


def compare_costs(first: Log, second: Log, bar: float | None) -> tuple[list[Contrast], list[str]]:
    """Return accuracy at equal tokens, tokens at equal accuracy and untrained tokens, over common prompts, and what is equal."""
    longest = max(int(log.responses.length.max()) for log in (first, second))
    budgets = np.unique(np.concatenate([[0], np.geomspace(1, longest, NUM_BUDGETS).round()]).astype(np.int64))
    (problems, a, x), (others, b, y) = (costs_by_problem(log, bar, budgets) for log in (first, second))
    common, here, there = np.intersect1d(problems, others, return_indices=True)
    weight = (a[here] * b[there] / (a[here] + b[there]))[:, None]
    columns = np.concatenate([x[here], y[there], np.ones((len(common), 1))], 1) * weight

    def measure_costs(sums: Floats) -> Floats:
        sides = np.split(sums[..., :-1] / sums[..., -1:], 2, -1)
        hits, tokens = ([side[..., place : place + len(budgets)] for side in sides] for place in (2, 2 + len(budgets)))
        spent, reached = (np.minimum(*(of[..., -1] for of in each)) for each in (tokens, hits))
        accuracy = [reach(spent, of, y) for of, y in zip(tokens, hits, strict=True)]
        needed = [reach(reached, of, y) for of, y in zip(hits, tokens, strict=True)]
        idle = [ratio(side[..., 0], side[..., 1]) for side in sides]
        relative = ratio(needed[1], needed[0]) - 1
        found = [*accuracy, accuracy[1] - accuracy[0], *needed, relative, *idle, idle[1] - idle[0], spent, reached]
        return np.stack(found, -1)

    found = bootstrap(np.arange(len(common)), list(columns.T), measure_costs)
    each = [[found.at(3 * place + side) for side in range(3)] for place in range(len(COSTS))]
    if len(common) < MIN_PROMPTS:
        each = [[Estimate(one.value) for one in row] for row in each]
    shown = [Contrast(name, a, b, gap, math.nan, len(common)) for name, (a, b, gap) in zip(COSTS, each, strict=True)]
    return shown, [BY_LIMIT.format(*found.value[-2:])]


def costs_by_problem(log: Log, bar: float | None, budgets: Ints) -> Means:
    """Return problems, their weight, and by problem means of untrained and all trained tokens, hits and tokens within budgets."""
    rows, key = plain_samples(log, with_truncated=True), log.problem if len(log.problem) else log.responses.prompt
    table, (problems, place) = log.responses.take(rows), np.unique(key[rows], return_inverse=True)
    correct = log.correct[rows] if bar is None else table.outcome > bar
    size, number, within = len(budgets), count_by(place, len(problems)), np.searchsorted(budgets, table.length)
    cell, shape = place * size + within, (len(problems), size)
    each = (sum_by(cell, of, len(problems) * size) for of in (correct, table.length, np.ones(len(place))))
    hits, tokens, count = (of.reshape(shape).cumsum(1) for of in each)
    tokens += budgets * (number[:, None] - count)
    response, own = log.segments.response, np.zeros(len(log), np.int64)
    own[np.flatnonzero(rows)] = place
    counts = log.segments.length * rows[response]
    idle = [sum_by(own[response], of, len(problems)) for of in (counts * (find_reasons(log) >= 0), counts)]
    return problems, number, np.concatenate([np.stack(idle, 1), hits, tokens], 1) / number[:, None]


def measure(log: Log, bar: float | None) -> dict[str, Means]:
    """Return every measure of a log's plain samples but `bend`; correct are outcomes above the bar, if there is one.

    The expected value of each of them does not depend on the number of responses to a prompt, so the logs may have different
    numbers. That of `bend` does, see `measure_bends`.
    """
    rows, key = plain_samples(log, with_truncated=True), log.problem if len(log.problem) else log.responses.prompt
    ended = ended_samples(log)
    table, problem = log.responses.take(rows), key[rows]
    correct = (log.correct[rows] if bar is None else table.outcome > bar).astype(np.float64)
    known = 0.0 if "truncated" in log.known else math.nan
    ended_rows = list_ended(log, bar)
    paired, sums = sum_pairs(ended_rows.stratum, ended_rows.problem, ended_rows.correct, ended_rows.log_length)
    return {
        "length": means_by(problem, table.length),
        "accuracy": means_by(problem, correct),
        "truncated": means_by(key[ended], log.responses.truncated[ended] + known),
        **{name: (paired, sums[:, 0], sums[:, k] / sums[:, 0]) for k, name in enumerate(("gap", "order"), 2)},
    }


@dataclass(frozen=True)
class Ended(Columns):
    """Plain samples that were not truncated, [N]."""

    stratum: Ints  # responses with the same number are compared with each other
    problem: Ints
    correct: Floats
    log_length: Floats


def list_ended(log: Log, bar: float | None) -> Ended:
    """Return the plain samples of a log that were not truncated; correct are outcomes above the bar, if there is one."""
    rows, key = plain_samples(log), log.problem if len(log.problem) else log.responses.prompt
    table = log.responses.take(rows)
    correct = log.correct[rows] if bar is None else table.outcome > bar
    return Ended(log.strata[rows], key[rows], correct.astype(np.float64), np.log(table.length))


def measure_bends(first: Log, second: Log, bar: float | None, is_paired: bool) -> list[Means]:
    """Return `bend` of both logs, on equally many responses to each prompt.

    A response's distance from the median, by rank, depends on how many responses the prompt has. With 4 in one log and 16 in the
    other the share of pairs would differ although nothing else does. So each prompt in a step is reduced to the same number, by a
    random draw: for prompts in both logs the smallest number that the prompt has in any step of either, otherwise the smaller of
    the two logs' usual numbers. A prompt in a step with fewer than that is left out.
    """
    sides = [list_ended(log, bar) for log in (first, second)]
    counts = [count_by_stratum(side) for side in sides]
    usual = min((int(np.median(count)) for _, count in counts if len(count)), default=0)
    problems = np.unique(np.concatenate([side.problem for side in sides]))
    target = np.full(len(problems), usual)
    if is_paired:
        target = np.full(len(problems), np.iinfo(np.int64).max)
        for problem, count in counts:
            np.minimum.at(target, np.searchsorted(problems, problem), count)
    found = []
    for side in sides:
        drawn = draw_equal(side, target[np.searchsorted(problems, side.problem)])
        paired, sums = sum_pairs(drawn.stratum, drawn.problem, drawn.correct, drawn.log_length)
        found.append((paired, sums[:, 0], sums[:, 4] / sums[:, 0]))
    return found


def count_by_stratum(side: Ended) -> tuple[Ints, Ints]:
    """Return the problem and the number of responses of each stratum of at least MIN_FOR_MEDIAN responses."""
    _, first, count = np.unique(side.stratum, return_index=True, return_counts=True)
    is_large = count >= MIN_FOR_MEDIAN
    return side.problem[first][is_large], count[is_large]


def draw_equal(side: Ended, target: Ints) -> Ended:
    """Return a random draw of `target` responses from each stratum, [N], the same for all of its rows; none if it has fewer."""
    order = np.random.default_rng(0).permutation(len(side))
    order = order[np.argsort(side.stratum[order], kind="stable")]
    _, start, place, count = np.unique(side.stratum[order], return_index=True, return_inverse=True, return_counts=True)
    number = target[order]
    is_drawn = (np.arange(len(order)) - start[place] < number) & (count[place] >= number)
    return side.take(np.sort(order[is_drawn]))


def usual_group_size(log: Log) -> int:
    """Return the median number of plain samples, truncated ones included, of a prompt in a step; 0 of an empty log."""
    count = np.unique(log.strata[plain_samples(log, with_truncated=True)], return_counts=True)[1]
    return int(np.median(count)) if len(count) else 0


def means_by(problem: Ints, values: np.ndarray) -> Means:
    problems, place, number = np.unique(problem, return_inverse=True, return_counts=True)
    return problems, number.astype(np.float64), sum_by(place, values, len(problems)) / number


def contrast(name: str, one: Means, other: Means, is_paired: bool) -> Contrast:
    """Return one measure of both sides, compared over common prompts, or effects within prompts as of two samples."""
    (problems, a, x), (others, b, y) = one, other
    if is_paired:
        _, here, there = np.intersect1d(problems, others, return_indices=True)
        a = b = a[here] * b[there] / (a[here] + b[there])
        x, y = x[here], y[there]
    first, second, found = jackknife(a * x, a), jackknife(b * y, b), Effect(math.nan, math.nan, 0.0, 0)
    if is_paired:
        found = jackknife(a * (y - x), a * x if name == "length" else a)
    elif name in ("gap", "order", "bend"):
        error, freedom = math.hypot(first.error, second.error), min(first.freedom, second.freedom)
        found = Effect(second.value - first.value, error, freedom, min(len(x), len(y)))
    if name == "length":
        found = replace(found, value=math.log1p(found.value), error=found.error / (1.0 + found.value))
    if name in ("accuracy", "truncated"):  # what is 0 on both sides may differ in the next prompt: as wide as Wilson's
        found = replace(found, error=max(found.error, 1.0 / max(float(a.sum()), 1.0)))
    own = [as_estimate("gap" if name == "gap" else "order", effect) for effect in (first, second)]
    difference = as_estimate("gap" if name in ("gap", "length") else "order", found)
    if found.num_prompts < MIN_PROMPTS:
        difference, found = Estimate(difference.value), replace(found, value=math.nan)
    return Contrast(name, own[0], own[1], difference, found.p_value, found.num_prompts)
