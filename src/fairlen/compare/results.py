"""Results of a comparison's runs, as a table and JSON.

Intervals resample seeds and problems, the same ones for every method, so that what is hard for all cancels in a difference. They
are no narrower than Student's t over seeds: three of one sign would exclude 0 in a quarter of comparisons without an effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from math import inf, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from fairlen.audit.readers import read
from fairlen.audit.statistics.acceptance import acceptance
from fairlen.audit.statistics.budgets import reach
from fairlen.audit.statistics.coupling import REASONS, Untrained, coupling, untrained
from fairlen.audit.statistics.intervals import NUM_DRAWS, Estimate, draw_cluster_weights, quantiles, ratio
from fairlen.batch import Floats
from fairlen.compare.config import Match, Variant
from fairlen.console import make_console, print_table
from fairlen.distributions import student
from fairlen.evaluate.estimators import best_at, pass_at, percentile_interval
from fairlen.evaluate.run import show_length
from fairlen.files.foreign import read_file_bytes, read_file_lines
from fairlen.files.limits import parse_json
from fairlen.report import figure
from fairlen.report.figure import Form, share
from fairlen.report.run import column, parse_object, read_metrics

PAIRED = "95% intervals resample seeds and problems, paired over methods, no narrower than Student's t over seeds."
NUM_RESAMPLES = NUM_DRAWS
MAX_EXCESS = 0.02
"""Share by which what two methods spent may differ for them to be compared."""
Draw = Callable[..., Estimate]


@dataclass(frozen=True)
class Spent:
    """Cost of a finished run."""

    updates: float
    generated: float
    seconds: float
    rollout_batches: float


@dataclass(frozen=True)
class Cell:
    """One finished run: a method and a seed."""

    variant: Variant
    folder: Path
    spent: Spent


COSTS: dict[str, str] = {
    "updates": "update", "generated": "tokens/generated_total", "seconds": "time/training", "rollout_batches": "rollout_batch",
}  # fmt: skip
"""The metric behind each field of Spent."""


@dataclass(frozen=True)
class EqualCost:
    """A method against the reference as far as both went, on straight lines between evaluations."""

    accuracy: Estimate  # minus the reference's when both had generated as many tokens
    tokens: Estimate
    """Generated, over the reference's, less 1, when either first came to the accuracy that the lower of both ended at."""


@dataclass(frozen=True)
class Result:
    """One line of the comparison."""

    name: str
    samples: int  # to each problem, k
    last: Estimate  # avg@k at the end: the mean over problems of the mean over samples
    peak: Estimate  # avg@k at the best evaluation of each seed; chosen after the fact, so too high
    best_at: Estimate  # best@k: 1 - (1 - c/k)^k
    pass_at: Estimate  # pass@k of k samples: some sample correct
    length_correct: float
    length_incorrect: float
    difference: Estimate | None  # last accuracy minus the reference's, paired; None for the reference
    behind: Estimate | None  # last accuracy minus that of the best method, paired; None for that one
    seeds: tuple[float, ...]  # last accuracy of each seed
    coupling: Estimate  # sign and length, sum A L / sum L over the rollouts of the first seed
    lre: Estimate  # Length Reweighting Error of what that seed accepted; nan where every update was on-policy
    spent: Spent  # mean over seeds
    untrained: Untrained  # tokens of that seed that trained nothing
    equal: EqualCost | None  # None for the reference, and where evaluations lack what they had cost
    excess: float
    """The largest share by which what a seed's numbers are of differs from what the reference had spent of the matched cost."""


def read_own(path: Path, make: Callable[[Any], Any]) -> Any:
    """Return what a comparison's own file is made into. Raises ValueError where it is damaged."""
    content = read_file_bytes(path)
    try:
        return make(parse_json(content))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        how = "restore it" if path.name == "comparison.json" else "remove it: the comparison's command writes it again"
        raise ValueError(f"{path}: {error!r}: the file is damaged; {how}") from None


def summarize(cells: Sequence[Cell], match: Match | None = None) -> list[Result]:
    """Return one result a method, in the order of the cells; the first method is the reference.

    With `match` all are compared at what the reference had spent of it, by seed; else at their ends.
    """
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell.variant.text, []).append(cell)
    marks = [getattr(cell.spent, match) if match else inf for cell in next(iter(by_name.values()))]
    held = {
        name: [read_end(cell, match, mark) for cell, mark in zip(found, marks, strict=True)]
        for name, found in by_name.items()
    }
    refuse_other_problems(held)
    measured = {name: np.stack([end.values for end in ends], 1) for name, ends in held.items()}
    reference = next(iter(measured.values()))[0]
    best_name = max(held, key=lambda name: measured[name][0].mean())
    best_accuracy = measured[best_name][0]
    draw, curves = resampler(*reference.shape), {name: read_curve(found) for name, found in by_name.items()}
    base = next(iter(curves.values()))
    results = []
    for place, (name, values) in enumerate(measured.items()):
        accuracy, spent = values[0], [end.spent for end in held[name]]
        total = values.sum((1, 2))
        result = Result(
            name=name,
            samples=round(float(total[3] + total[5]) / accuracy.size),
            last=draw(accuracy),
            peak=draw(np.stack([end.best for end in held[name]])),
            best_at=draw(values[1]),
            pass_at=draw(values[2]),
            length_correct=total[4] / total[3] if total[3] else nan,
            length_incorrect=total[6] / total[5] if total[5] else nan,
            difference=draw(accuracy - reference, is_share=False) if place else None,
            behind=draw(accuracy - best_accuracy, is_share=False) if name != best_name else None,
            seeds=tuple(accuracy.mean(1).tolist()),
            **measure(by_name[name][0].folder / "records", match),
            spent=Spent(*np.mean([astuple(one) for one in spent], axis=0).tolist()),
            equal=compare_curves(base, curves[name]) if place and min(len(base[0]), len(curves[name][0])) > 1 else None,
            excess=max(abs(getattr(s, match) / m - 1.0) if match else 0.0 for s, m in zip(spent, marks, strict=True)),
        )
        results.append(result)
    return results


def refuse_other_problems(held: Mapping[str, Sequence[End]]) -> None:
    """Raise ValueError where methods were evaluated on different numbers of problems, or of samples of each."""
    sizes = [(name, end.values.shape[1], round(end.values[[3, 5], 0].sum())) for name in held for end in held[name]]
    if len({one[1:] for one in sizes}) > 1:
        said = "; ".join(dict.fromkeys("{}: problems={}, samples={}".format(*one) for one in sizes))
        raise ValueError(f"evaluations differ ({said}): compare runs with the same --problems and --samples")


class End(NamedTuple):
    """Held-out results of one run when it had spent its mark."""

    values: Floats  # by `measure_responses`, [7, problems]
    best: Floats  # accuracy at the best evaluation until then, [problems]
    spent: Spent


def read_end(cell: Cell, match: Match | None, mark: float) -> End:
    """Return what a run had come to at its mark, in a straight line between two evaluations, or without a match at its end."""
    (entries, found), spent = read_evaluations(cell), cell.spent
    last, share = len(found) - 1, 1.0
    if match:
        if len(entries) != len(found):
            raise ValueError(f"{cell.folder}: evaluations.jsonl and metrics.jsonl differ; to rerun, remove the folder")
        costs = [float(entry[COSTS[match]]) for entry in entries]
        last = next((place for place, cost in enumerate(costs) if cost >= mark), last)
        if last and costs[last] > mark:
            share = (mark - costs[last - 1]) / (costs[last] - costs[last - 1])
        ends = entries[max(last - 1, 0)], entries[last]
        spent = Spent(**{k: (1.0 - share) * ends[0][name] + share * ends[1][name] for k, name in COSTS.items()})
    values = (1.0 - share) * found[max(last - 1, 0)] + share * found[last]
    return End(values, max([values[0], *(one[0] for one in found[:last])], key=np.mean), spent)


def read_evaluations(cell: Cell) -> tuple[list[dict[str, Any]], list[Floats]]:
    """Return of each evaluation of a run its metrics, and its responses by `measure_responses`."""
    path = cell.folder / "evaluations.jsonl"
    lines = enumerate(read_file_lines(path), 1)
    measured = [measure_responses(parse_object(line, f"{path}:{number}")) for number, line in lines]
    return read_metrics(cell.folder)[1], measured


def measure_responses(line: Mapping[str, Any]) -> Floats:
    """Return by problem avg@k, best@k, pass@k, and the number and tokens of correct and of incorrect responses, [7, problems]."""
    right, length = np.array(line["correct"], np.bool_), np.array(line["length"], np.int64)
    count, k = right.sum(1), right.shape[1]
    rates = [count / k, best_at(count, k, k), pass_at(count, k, k)]
    return np.stack([*rates, count, (length * right).sum(1), k - count, (length * ~right).sum(1)]).astype(np.float64)


Curve = tuple[Floats, Floats]  # generated tokens [K], and accuracy there by seed and problem [seeds, K, problems]


def read_curve(cells: Sequence[Cell]) -> Curve:
    """Return the learning curve of a method over the tokens that all of its seeds generated; empty where they are unknown."""
    each = []
    for entries, found in map(read_evaluations, cells):
        each.append((column(entries, COSTS["generated"]), np.stack([one[0] for one in found])))
    if any(len(cost) != len(found) or not np.isfinite(cost).all() for cost, found in each):
        return np.zeros(0), np.zeros((len(cells), 0, 0))
    grid = np.unique(np.concatenate([cost for cost, _ in each]))
    grid = grid[(grid >= max(cost[0] for cost, _ in each)) & (grid <= min(cost[-1] for cost, _ in each))]
    return grid, np.stack([np.stack([np.interp(grid, cost, of) for of in found.T], 1) for cost, found in each])


def compare_curves(first: Curve, second: Curve) -> EqualCost:
    """Return the difference at equal tokens and the tokens at equal accuracy, from the mean, each seed and paired resamples."""
    num_seeds, num_problems = len(first[1]), first[1].shape[2]
    drawn, problems = draw_weights(num_seeds, num_problems)
    seeds = np.concatenate([np.full((1, num_seeds), 1 / num_seeds), np.eye(num_seeds), drawn])
    problems = np.concatenate([np.full((1 + num_seeds, num_problems), 1 / num_problems), problems])
    curves = [np.einsum("rs,skp,rp->rk", seeds, one[1], problems, optimize=True) for one in (first, second)]
    costs = [np.broadcast_to(one[0], of.shape) for one, of in zip((first, second), curves, strict=True)]
    spent = np.minimum(costs[0][:, -1], costs[1][:, -1])
    target = np.minimum(curves[0][:, -1], curves[1][:, -1])
    before, after = (reach(spent, cost, of) for cost, of in zip(costs, curves, strict=True))
    own, other = (reach(target, of, cost) for cost, of in zip(costs, curves, strict=True))
    found = np.stack([after - before, ratio(other, own) - 1], 1)
    ends = zip(found[0], *quantiles(found[1 + num_seeds :]), found[1 : 1 + num_seeds].T, strict=True)
    return EqualCost(*(widen(Estimate(*map(float, of)), each, least=-1.0) for *of, each in ends))


def measure(records: Path, match: Match | None) -> dict[str, Any]:
    """Return length effects on the records of a run, whose intervals are over its prompts.

    Raises ValueError for records that cannot all be read: methods would be compared on parts of their runs.
    """
    reading = read([str(records)])
    if reading.unreadable or not reading.sources:
        reasons = "; ".join(reading.unreadable) or "none there"
        remedy = "remove the cell's folder to run it again" if match else "restore them, or leave the run out"
        raise ValueError(f"{records}: {reasons}; {remedy}")
    log = reading.sources[0].log
    return {"coupling": coupling(log).sign_length, "lre": acceptance(log).lre, "untrained": untrained(log)}


def resampler(num_seeds: int, num_problems: int) -> Draw:
    """Return a function that gives the mean of values [seeds, problems] with its 95% interval over seeds and problems.

    The interval of a difference holds the percentiles over resampled seeds and problems, and that of a share also allows for one
    more problem, as `mean_of_problems` does. All intervals use the same resamples.
    """
    seeds, problems = draw_weights(num_seeds, num_problems)
    weights = draw_cluster_weights(num_problems)

    def draw(values: Floats, is_share: bool = True) -> Estimate:
        value = float(values.mean())
        if is_share:
            own = np.einsum("rs,sp,rp->r", seeds, values, weights[:, :-1], optimize=True)
            low, high = np.quantile(own, 0.025), np.quantile(own + weights[:, -1], 0.975)
            return widen(Estimate(value, float(low), float(high)), values.mean(1), 0.0, 1.0)
        drawn = np.einsum("rs,sp,rp->r", seeds, values, problems, optimize=True)
        return widen(percentile_interval(value, drawn), values.mean(1), -1.0, 1.0)

    return draw


def widen(found: Estimate, each: Floats, least: float, most: float = inf) -> Estimate:
    """Return an interval no narrower than Student's t over numbers [seeds], within `least` and `most`; of one seed as it is."""
    if len(each) < 2:
        return found
    half = student(0.975, len(each) - 1) * each.std(ddof=1) / len(each) ** 0.5
    ends = np.fmin(found.low, found.value - half), np.fmax(found.high, found.value + half)
    return Estimate(found.value, *np.clip(ends, least, most).tolist())


def draw_weights(num_seeds: int, num_problems: int) -> tuple[Floats, Floats]:
    """Return the shares of seeds and of problems in each resample, [resamples, seeds] and [resamples, problems]."""
    rng = np.random.default_rng(0)
    seeds, problems = (rng.multinomial(n, np.full(n, 1 / n), NUM_RESAMPLES) / n for n in (num_seeds, num_problems))
    return seeds, problems


def headings(k: int) -> tuple[str, ...]:
    """Return the heads of the columns of `cells_of`, of k samples a problem."""
    return (
        "method", "accuracy at the end", "against the reference", "at its best", f"best@{k}", f"pass@{k}",
        "length correct", "incorrect", "coupling", "LRE", "updates", "generated", "seconds",
    )  # fmt: skip


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


def show_difference(found: Estimate, form: Form = points) -> str:
    """Return a difference with its interval, unless all resamples have the same."""
    return figure.interval(found if form(found.low) != form(found.high) else Estimate(found.value), form)


def cells_of(result: Result, with_intervals: bool) -> tuple[str, ...]:
    """Return a line of the table; `with_intervals` gives those of all estimates, not of the main ones alone."""

    def show(found: Estimate, form: Form, has_interval: bool = with_intervals) -> str:
        return figure.interval(found if has_interval else Estimate(found.value), form)

    difference = f"{show_difference(result.difference)} points" if result.difference else "reference"
    return (
        result.name, show(result.last, share, True), difference, show(result.peak, share), show(result.best_at, share),
        show(result.pass_at, share), show_length(result.length_correct), show_length(result.length_incorrect),
        show(result.coupling, figure.plain), show(result.lre, figure.plain),
        *map(figure.plain, (result.spent.updates, result.spent.generated, result.spent.seconds)),
    )  # fmt: skip


COST_HEADINGS = (
    "method", "accuracy at equal tokens", "tokens at equal accuracy", "tokens that trained nothing", *REASONS,
)  # fmt: skip


def cost_cells(result: Result) -> tuple[str, ...]:
    """Return a line of the table of equal costs, against the reference."""
    equal, idle, own = result.equal, result.untrained, ("-", "-")
    if equal:
        own = f"{show_difference(equal.accuracy)} points", show_difference(equal.tokens, "{:+.0%}".format)
    return result.name, *own, f"{idle.together:.1%}", *(share(one.value) for one in idle.total.values())


def describe_match(results: Sequence[Result], cost: str) -> str:
    """Return at what cost methods are compared, and which have not come as far."""
    far = [f"{one.name} by {one.excess:.0%}" for one in results if one.excess > MAX_EXCESS]
    line = (
        f"all methods are compared at the {cost} of {results[0].name}, to {max(one.excess for one in results):.1%}; where a run "
        "passed them, between its evaluations before and after, in a straight line"
    )
    return f"{line}; not matched: {', '.join(far)}" if far else line


def print_results(console: Console, results: Sequence[Result], title: str) -> None:
    """Print one line a method."""
    rows = [cells_of(result, with_intervals=False) for result in results]
    print_table(make_console(200, console.file), title, headings(results[0].samples), rows, left=(0, 1))
    console.print(f"{PAIRED} `at its best` is chosen afterwards", soft_wrap=True)
    title = f"at equal cost, against {results[0].name}; tokens that trained nothing are of the first seed"
    print_table(make_console(200, console.file), title, COST_HEADINGS, map(cost_cells, results), left=(0,))
