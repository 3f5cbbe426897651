"""What the runs of a comparison came to, as a table and JSON.

Intervals resample seeds and problems, the same ones for every method, so that what is hard for all cancels in a difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path

import numpy as np
from rich.console import Console

from fairlen.batch import Bools, Floats, Ints, mean_or_nan
from fairlen.compare.config import FEW_SEEDS, CompareConfig, Variant
from fairlen.console import make_console, print_table
from fairlen.diagnostics.acceptance import acceptance
from fairlen.diagnostics.coupling import coupling
from fairlen.diagnostics.readers import read
from fairlen.diagnostics.report import figure
from fairlen.diagnostics.report.figure import Form, share
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.evaluate.estimators import best_at, pass_at, percentile_interval
from fairlen.evaluate.run import show_length

PAIRED = "95% intervals resample seeds and problems, the same for every method; against the reference they are paired."
NUM_RESAMPLES = 4000
Draw = Callable[[Floats], Estimate]


@dataclass(frozen=True)
class Spent:
    """What a finished run cost."""

    updates: int
    generated: int
    seconds: float
    rollout_batches: int


@dataclass(frozen=True)
class Cell:
    """One finished run: a method and a seed."""

    variant: Variant
    folder: Path
    spent: Spent


@dataclass(frozen=True)
class Result:
    """One line of the comparison."""

    name: str
    last: Estimate
    """avg@k at the end: the mean over problems of the mean over samples."""
    peak: Estimate
    """avg@k at the best evaluation of each seed; chosen after the fact, so too high."""
    best_at: Estimate
    """best@k: 1 - (1 - c/k)^k."""
    pass_at: Estimate
    """pass@k of k samples: some sample correct."""
    length_correct: float
    length_incorrect: float
    difference: Estimate | None
    """Last accuracy minus the reference's, paired; None for the reference."""
    behind: Estimate | None
    """Last accuracy minus that of the best method, paired; None for that one."""
    seeds: tuple[float, ...]
    """Last accuracy of each seed."""
    coupling: Estimate
    """Sign and length, sum A L / sum L over the rollouts of the first seed."""
    lre: Estimate
    """Length Reweighting Error of what that seed accepted; nan where every update was on-policy."""
    updates: float
    generated: float
    seconds: float


def summarize(cells: Sequence[Cell]) -> list[Result]:
    """Return one result a method, in the order of the cells; the first method is the reference."""
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(cell.variant.text, []).append(cell)
    held = {name: read_evaluations(found) for name, found in by_name.items()}
    reference = next(iter(held.values()))[0].mean(2)
    best_name = max(held, key=lambda name: held[name][0].mean())
    best_accuracy = held[best_name][0].mean(2)
    draw = resampler(*reference.shape)
    results = []
    for place, (name, (last, best, length)) in enumerate(held.items()):
        if last.shape[:2] != reference.shape:
            raise ValueError(
                f"{name}: evaluated on {last.shape[1]} problems, {next(iter(held))} on {reference.shape[1]}; compare those with "
                "the same held-out problems"
            )
        count, samples, accuracy = last.sum(2), last.shape[2], last.mean(2)
        spent = [cell.spent for cell in by_name[name]]
        result = Result(
            name=name,
            last=draw(accuracy),
            peak=draw(best.mean(2)),
            best_at=draw(best_at(count, samples, samples)),
            pass_at=draw(pass_at(count, samples, samples)),
            length_correct=mean_or_nan(length[last]),
            length_incorrect=mean_or_nan(length[~last]),
            difference=draw(accuracy - reference) if place else None,
            behind=draw(accuracy - best_accuracy) if name != best_name else None,
            seeds=tuple(accuracy.mean(1).tolist()),
            **measure(by_name[name][0].folder / "records"),
            updates=float(np.mean([one.updates for one in spent])),
            generated=float(np.mean([one.generated for one in spent])),
            seconds=float(np.mean([one.seconds for one in spent])),
        )
        results.append(result)
    return results


def read_evaluations(cells: Sequence[Cell]) -> tuple[Bools, Bools, Ints]:
    """Return verdicts at the last and at the best evaluation, and lengths at the last, [seeds, problems, samples]."""
    last, best, length = [], [], []
    for cell in cells:
        lines = [json.loads(line) for line in (cell.folder / "evaluations.jsonl").read_text().splitlines()]
        verdicts = [np.array(line["correct"], np.bool_) for line in lines]
        last.append(verdicts[-1])
        best.append(max(verdicts, key=np.mean))
        length.append(np.array(lines[-1]["length"], np.int64))
    return np.stack(last), np.stack(best), np.stack(length)


def measure(records: Path) -> dict[str, Estimate]:
    """Return length effects on the records of a run, whose intervals are over its prompts.

    Raises ValueError for records that cannot all be read: methods would be compared on parts of their runs.
    """
    reading = read([str(records)])
    if reading.unreadable or not reading.sources:
        reasons = "; ".join(reading.unreadable) or "none there"
        raise ValueError(f"{records}: {reasons}; remove the cell's folder to run it again")
    log = reading.sources[0].log
    return {"coupling": coupling(log).sign_length, "lre": acceptance(log).lre}


def resampler(num_seeds: int, num_problems: int) -> Draw:
    """Return the mean of values [seeds, problems] with a 95% percentile interval, from the same resamples every time."""
    rng = np.random.default_rng(0)
    seeds, problems = (rng.multinomial(n, np.full(n, 1 / n), NUM_RESAMPLES) / n for n in (num_seeds, num_problems))

    def draw(values: Floats) -> Estimate:
        drawn = np.einsum("rs,sp,rp->r", seeds, values, problems, optimize=True)
        return percentile_interval(float(values.mean()), drawn)

    return draw


def headings(k: int) -> tuple[str, ...]:
    """Return the heads of the columns of `cells_of`, of k samples a problem."""
    return (
        "method", "accuracy at the end", "against the reference", "at its best", f"best@{k}", f"pass@{k}",
        "length correct", "incorrect", "coupling", "LRE", "updates", "generated", "seconds",
    )  # fmt: skip


def cells_of(result: Result, with_intervals: bool) -> tuple[str, ...]:
    """Return a line of the table; `with_intervals` gives those of all estimates, not of the main ones alone."""

    def show(found: Estimate, form: Form, has_interval: bool = with_intervals) -> str:
        ends = (found.low, found.high) if has_interval else (nan, nan)
        return figure.interval((found.value, *ends), form)

    difference = "reference"
    if result.difference:
        difference = show(result.difference, lambda value: f"{100 * value:+.1f}", True) + " points"
    return (
        result.name, show(result.last, share, True), difference, show(result.peak, share), show(result.best_at, share),
        show(result.pass_at, share), show_length(result.length_correct), show_length(result.length_incorrect),
        show(result.coupling, figure.plain), show(result.lre, figure.plain), f"{result.updates:.0f}", f"{result.generated:,.0f}",
        f"{result.seconds:.0f}",
    )  # fmt: skip


def print_results(console: Console, config: CompareConfig, results: Sequence[Result], title: str) -> None:
    """Print one line a method."""
    rows = [cells_of(result, with_intervals=False) for result in results]
    print_table(make_console(200, console.file), title, headings(config.train.eval_samples), rows, left=(0, 1))
    console.print(f"{PAIRED} `at its best` is chosen afterwards", soft_wrap=True)
    if config.seeds in FEW_SEEDS:
        console.print(f"note: {FEW_SEEDS[config.seeds]}", soft_wrap=True)
