"""The comparison as a page: what each method came to, with its interval, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.compare.config import FEW_SEEDS, CompareConfig
from fairlen.compare.results import Result
from fairlen.diagnostics.measures import Estimate
from fairlen.diagnostics.report.chart import Axis, Form, Frame, Series, Tone, lines, nice_axis, plain, share
from fairlen.diagnostics.report.figure import Figure, Section, Table, interval
from fairlen.diagnostics.report.page import FILE, fill, write_page
from fairlen.diagnostics.report.sample import visible

BUDGETS = {"generated": "generated tokens", "seconds": "seconds of training", "updates": "number of updates"}
PAIRED = "Intervals resample seeds and problems, the same for every method; against the reference they are paired."


def write_comparison(config: CompareConfig, results: Sequence[Result], folder: Path) -> Path:
    """Writes report.html of a comparison."""
    sections = [
        Section(
            "accuracy", "Accuracy", "Held-out problems at the end of the budget.", [accuracy(results), gains(results)]
        ),
        Section(
            "length",
            "Length",
            "Of held-out answers, and what length did to the updates.",
            [lengths(results), effects(results)],
        ),
        Section("cost", "Cost", budget_of(config), [cost(results)]),
    ]
    best = max(results, key=lambda result: result.last.value)
    facts = [
        ("best at the end", share(best.last.value), visible(best.name)),
        ("methods", str(len(results)), f"given equal {BUDGETS[config.match]}"),
        ("seeds", str(config.seeds), "of each method"),
    ]
    return write_page(fill(describe(config, results), facts, sections, [], [], total=1), folder / FILE)


def budget_of(config: CompareConfig) -> str:
    """What every method was given, and how it may have taken more."""
    over = (
        ""
        if config.match == "updates"
        else " A run ends with the rollout batch that passes it, and so takes up to one more."
    )
    return f"Every method was given the reference's {BUDGETS[config.match]}.{over}"


def describe(config: CompareConfig, results: Sequence[Result]) -> dict[str, Any]:
    """The header."""
    notes = [note.capitalize() for seeds, note in FEW_SEEDS.items() if seeds == config.seeds]
    return {
        "name": f"{len(results)} methods compared",
        "folder": "comparison",
        "hash": "",
        "notes": notes,
        "choices": [(f"method {place}", [(visible(r.name), "")]) for place, r in enumerate(results, 1)],
        "settings": [(name, visible(str(value))) for name, value in asdict(config.train).items()],
        "versions": [],
        "machine": [],
        "command": "",
    }


def by_method(
    results: Sequence[Result], label: str, series: Sequence[Series], y: Axis, level: float | None = None
) -> Any:
    """Points with whiskers, one place a method."""
    places = [((place + 0.5) / len(results), str(place + 1)) for place in range(len(results))]
    frame = Frame(Axis(0.0, float(len(results)), ()), y, "method", places, level)
    return lines(frame, series, label)


def points(results: Sequence[Result], label: str, get: Callable[[Result], Estimate], tone: Tone, form: Form) -> Series:
    """A number of each method with its interval."""
    found = [get(result) for result in results]
    x = np.arange(len(found), dtype=np.float64) + 0.5
    value, low, high = (np.array([getattr(one, name) for one in found]) for name in ("value", "low", "high"))
    return Series(label, x, value, tone, low, high, "points", form)


def text(found: Estimate, form: Form) -> str:
    """A number with its interval."""
    return interval((found.value, found.low, found.high), form)


def accuracy(results: Sequence[Result]) -> Figure:
    """Accuracy at the end."""
    best = max(results, key=lambda result: result.last.value)
    found = points(results, "", lambda result: result.last, "plain", share)
    is_alone = sum(result.last.value == best.last.value for result in results) == 1
    ends = [end for end in (found.low, found.high) if end is not None]
    rows = [(r.name, *(text(e, share) for e in (r.last, r.peak, r.best_at, r.pass_at))) for r in results]
    return Figure(
        f"{visible(best.name)} has the highest accuracy, {share(best.last.value)}"
        if is_alone
        else "Accuracy at the end",
        "Share of right answers at the end, mean over problems of the mean over samples.",
        by_method(results, "accuracy by method", [found], nice_axis(ends, share, most=1.0)),
        Table(("method", "at the end", "at its best (chosen afterwards)", "best@k", "pass@k"), rows),
        PAIRED,
    )


def gains(results: Sequence[Result]) -> Figure:
    """Differences from the reference."""
    found = [(r.name, r.difference) for r in results if r.difference]
    told = [name for name, difference in found if difference.low > 0 or difference.high < 0]
    return Figure(
        f"{len(told)} of {len(found)} methods differ from {visible(results[0].name)} by more than chance would explain",
        "Accuracy at the end minus the reference's, paired.",
        table=Table(
            ("method", "difference, points"), [(name, text(difference, in_points)) for name, difference in found]
        ),
        note=PAIRED,
    )


def lengths(results: Sequence[Result]) -> Figure:
    """Lengths of right and wrong answers."""
    right, wrong = (np.array([getattr(r, f"length_{name}") for r in results]) for name in ("right", "wrong"))
    places = np.arange(len(results), dtype=np.float64) + 0.5
    series = [
        Series("right", places, right, "right", mark="points"),
        Series("wrong", places, wrong, "wrong", mark="points"),
    ]
    return Figure(
        "Length of right and wrong answers",
        "Generated tokens of held-out answers at the end, mean.",
        by_method(results, "length by method", series, nice_axis([right, wrong], zero=True)),
        Table(
            ("method", "right", "wrong"),
            [(r.name, plain(r.length_correct), plain(r.length_incorrect)) for r in results],
        ),
    )


def effects(results: Sequence[Result]) -> Figure:
    """What length did to updates."""
    rows = [(r.name, text(r.coupling, plain), text(r.lre, plain)) for r in results]
    return Figure(
        "Length in the updates",
        "Coupling of sign and length, and Length Reweighting Error of what the bound accepted; first seed.",
        table=Table(("method", "coupling", "LRE"), rows),
        note="A dash: every update was on-policy, or there were too few sequences.",
    )


def cost(results: Sequence[Result]) -> Figure:
    """What runs cost."""
    rows = [(r.name, f"{r.updates:.0f}", f"{r.generated:,.0f}", f"{r.seconds:.0f}") for r in results]
    head = ("method", "updates", "generated tokens", "seconds of training")
    return Figure("What each method cost", "Mean over seeds.", table=Table(head, rows))


def in_points(value: float) -> str:
    """A difference of shares, in percentage points."""
    return f"{100 * value:+.1f}"
