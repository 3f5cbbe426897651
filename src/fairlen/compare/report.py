"""The comparison as a table and as a page: what each method came to, with its interval, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import nan
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from fairlen.compare.config import FEW_SEEDS, CompareConfig
from fairlen.compare.results import Result
from fairlen.console import make_console, visible
from fairlen.diagnostics.measures import Estimate
from fairlen.diagnostics.report import figure
from fairlen.diagnostics.report.figure import Axis, Form, Frame, Series, Tone, lines, nice_axis, plain, share
from fairlen.diagnostics.report.page import FILE, write_page
from fairlen.evaluate.run import show_length

MATCHED = {"generated": "generated tokens", "seconds": "seconds of training", "updates": "number of updates"}
PAIRED = "95% intervals resample seeds and problems, the same for every method; against the reference they are paired."


def headings(config: CompareConfig) -> tuple[str, ...]:
    """Return the heads of the columns of `cells_of`."""
    k = config.train.eval_samples
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
        show(result.coupling, plain), show(result.lre, plain), f"{result.updates:.0f}", f"{result.generated:,.0f}",
        f"{result.seconds:.0f}",
    )  # fmt: skip


def print_results(console: Console, config: CompareConfig, results: Sequence[Result], folder: Path) -> None:
    """Print one line a method."""
    table = Table(title=f"held-out problems, {config.seeds} seeds, matched by {config.match}", title_justify="left")
    for place, heading in enumerate(headings(config)):
        table.add_column(heading, no_wrap=place == 0, justify="left" if place < 2 else "right")
    for result in results:
        table.add_row(*cells_of(result, with_intervals=False))
    make_console(200, console.file).print(table)
    console.print(f"{PAIRED} `at its best` is chosen afterwards", soft_wrap=True)
    if config.seeds in FEW_SEEDS:
        console.print(f"note: {FEW_SEEDS[config.seeds]}", soft_wrap=True)
    console.print(f"folder: {folder}; the picture of it: {FILE}", soft_wrap=True)


def write_comparison(config: CompareConfig, results: Sequence[Result], folder: Path) -> Path:
    """Write report.html of a comparison."""
    best = max(results, key=lambda result: result.last.value)
    significant = sum(result.difference is not None and result.difference.excludes(0.0) for result in results)
    facts = [
        ("best at the end", share(best.last.value), visible(best.name)),
        ("methods", str(len(results)), f"given equal {MATCHED[config.match]}"),
        ("differ from the reference", str(significant), "by more than chance would explain"),
        ("seeds", str(config.seeds), "of each method"),
    ]
    excess = "" if config.match == "updates" else " and a run ends with the rollout batch that passes it,"
    given = f"Every method was given the reference's {MATCHED[config.match]};{excess} so that costs are about equal."
    choices = [(f"method {place}", [(visible(result.name), "")]) for place, result in enumerate(results, 1)]
    head = {
        "name": f"{len(results)} methods compared",
        "folder": "comparison",
        "notes": [note.capitalize() for seeds, note in FEW_SEEDS.items() if seeds == config.seeds],
        "choices": choices,
        "settings": [(name, visible(str(value))) for name, value in asdict(config.train).items()],
    }
    section = figure.Section("results", "Results", given, [accuracy(config, results), lengths(results)])
    return write_page(folder / FILE, head, facts, [section])


def accuracy(config: CompareConfig, results: Sequence[Result]) -> figure.Figure:
    """Draw accuracy at the end; with the table of all numbers."""
    last = [result.last for result in results]
    value, low, high = (np.array([getattr(one, name) for one in last]) for name in ("value", "low", "high"))
    series = Series("", np.arange(0.5, len(last)), value, "plain", low, high, "points", share)
    return figure.Figure(
        "Accuracy at the end",
        "Share of correct responses to held-out problems, mean over problems of the mean over samples.",
        lines(frame(results, nice_axis([low, high], share, most=1.0)), [series], "accuracy by method"),
        figure.Table(headings(config), [cells_of(result, with_intervals=True) for result in results]),
        f"{PAIRED} `At its best` is chosen afterwards; costs are means over seeds; coupling and LRE are of the first seed, "
        "with a dash where every update was on-policy or there were too few sequences.",
    )


def lengths(results: Sequence[Result]) -> figure.Figure:
    """Draw lengths of correct and incorrect responses."""
    sides: list[tuple[str, Tone]] = [("correct", "correct"), ("incorrect", "incorrect")]
    found = [np.array([getattr(result, f"length_{side}") for result in results]) for side, _ in sides]
    places = np.arange(0.5, len(results))
    series = [Series(side, places, y, tone, mark="points") for (side, tone), y in zip(sides, found, strict=True)]
    return figure.Figure(
        "Length of correct and incorrect responses",
        "Generated tokens of responses to held-out problems at the end, mean.",
        lines(frame(results, nice_axis(found, zero=True)), series, "length by method"),
    )


def frame(results: Sequence[Result], y: Axis) -> Frame:
    """Return a frame with one place a method."""
    places = [((place + 0.5) / len(results), str(place + 1)) for place in range(len(results))]
    return Frame(Axis(0.0, float(len(results))), y, "method", places)
