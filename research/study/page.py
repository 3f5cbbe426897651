"""The report page of the study: what each variant came to, curves, and the figures that claims rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fairlen.diagnostics.report.figure import (
    Axis,
    Figure,
    Frame,
    Section,
    Series,
    Table,
    interval,
    lines,
    nice_axis,
    plain,
    share,
)
from fairlen.diagnostics.report.page import write_page
from fairlen.diagnostics.report.run import visible
from fairlen.diagnostics.uncertainty import Estimate
from research.study import quantities as q
from research.study.checks import find_mistakes
from research.study.figures import DIRECTIONS, Runs, described
from research.study.intervals import estimate
from research.study.plan import Plan, Variant

TITLES = {
    1: "EqLen (2604.17328)", 2: "FSPO (2509.09177)", 3: "Balanced Aggregation (2605.04077)",
    4: "GRPO-lambda (2505.18086)", 5: "Combinations",
}  # fmt: skip
TONES: tuple[Any, ...] = ("plain", "correct", "incorrect", "third", "fourth")
MEASURES: tuple[tuple[str, q.Quantity, Any], ...] = (
    ("accuracy at the end", q.last, share),
    ("best (chosen afterwards)", q.best, share),
    ("length at the end", q.length_at(-1), plain),
    ("falls", q.falls, share),
    ("entropy, last quarter", q.quarter("updates", "entropy/mean", 3), plain),
    ("LRE", q.kept("lre", "value"), plain),
    ("clipped tokens", q.quarter("updates", "ratio/clipped", 3), share),
    ("generated", q.kept("generated"), plain),
)
LABELS = {
    "dapo+std_ba varied": "token", "dapo+std_ba:aggregation=SequenceMean varied": "sequence",
    "dapo+std_ba+balanced varied": "balanced", "dapo+std_ba gapped": "tok., gapped",
    "dapo+std_ba:aggregation=SequenceMean gapped": "seq., gapped", "grpo+lp long": "lp", "grpo+toplambda long": "toplambda",
    "grpo+toplambda:reward.TopLambda.alpha=0.2 long": "alpha 0.2",
    "grpo+toplambda:reward.TopLambda.fraction=0.1 long": "fraction 0.1",
    "eqlen+grpo+balanced_update tokens": "eqlen, balanced", "eqlen+grpo+toplambda tokens": "eqlen, lambda",
}  # fmt: skip
"""What curves are called where a variant's method is too long for it."""
NOTE = "95% intervals by a two-level bootstrap over seeds and problems, widened for few seeds (docs/study/protocol.md)."


def write_study_page(
    plan: Plan, runs: Runs, search: Mapping[str, Any], figures: Mapping[str, dict[str, Any]], path: Path
) -> Path:
    """Writes the page."""
    sections = [experiment(plan, number, runs, figures) for number in plan.experiments]
    sections.append(
        Section(
            "search",
            "The search",
            "Every method's own, on another seed.",
            [search_figure(search), checks(runs, search)],
        )
    )
    num = sum(len(some) for some in runs.values())
    facts = [
        ("runs", str(num), f"{len(plan.sizes.seeds)} seeds"),
        ("variants", str(len(plan.variants)), "those of several experiments once"),
        ("figures", str(len(figures)), "that claims rest on"),
    ]
    settings = [(name, visible(str(value))) for name, value in vars(plan.sizes).items()]
    head = {"name": "The study", "folder": "docs/study", "settings": settings}
    return write_page(path, head, facts, sections)


def experiment(plan: Plan, number: int, runs: Runs, figures: Mapping[str, dict[str, Any]]) -> Section:
    """Everything of one experiment."""
    variants = [v for v in plan.variants if number in v.experiments and not v.is_timed]
    parts = [outcome(variants, runs), curves(variants, runs), decisions(number, figures)]
    if number == 2 and DIRECTIONS in runs:
        parts.append(directions(runs[DIRECTIONS]))
    return Section(f"experiment-{number}", TITLES[number], "", parts)


def measured(runs: Sequence[q.Kept], quantity: q.Quantity) -> Estimate:
    """A number of one variant with its interval."""
    return estimate([np.array([quantity(run) for run in runs])], lambda means: means[0])


def text(found: Estimate, form: Any) -> str:
    return interval((found.value, found.low, found.high), form)


def outcome(variants: Sequence[Variant], runs: Runs) -> Figure:
    """What the runs came to."""
    rows = [
        (visible(v.name), *(text(measured(runs[v.name], quantity), form) for _, quantity, form in MEASURES))
        for v in variants
    ]
    head = ("variant", *(name for name, _, _ in MEASURES))
    return Figure("What each variant came to", "Means over seeds and held-out problems.", None, Table(head, rows), NOTE)


def curves(variants: Sequence[Variant], runs: Runs) -> Figure:
    """Held-out accuracy over training, of the first variants."""
    shown = variants[: len(TONES)]
    series = [curve(v, runs[v.name], tone) for v, tone in zip(shown, TONES, strict=False)]
    most = max(float(one.x[-1]) for one in series)
    frame = Frame(
        Axis(0.0, 1.0, (0.0, 0.5, 1.0), share),
        nice_axis([one.y for one in series], share, most=1.0),
        "share of the run",
    )
    chart: Markup = lines(frame, series, "held-out accuracy over training") if most > 0 else Markup("")
    rows = [(visible(v.name), *(share(y) for y in curve(v, runs[v.name], "plain").y)) for v in variants]
    width = max(len(row) for row in rows)
    head = ("variant", *(f"evaluation {n}" for n in range(width - 1)))
    padded = [(*row, *("-",) * (width - len(row))) for row in rows]
    named = ", ".join(visible(v.name) for v in shown)
    return Figure("Accuracy over training", f"Mean over seeds; drawn: {named}.", chart, Table(head, padded))


def curve(variant: Variant, runs: Sequence[q.Kept], tone: Any) -> Series:
    """Mean accuracy at the evaluations that all seeds have, the last one among them, at their mean share of the run's updates."""
    num = min(len(run["evaluations"]) for run in runs)
    places = [*range(num - 1), -1]
    y = np.mean([q.accuracies(run).mean(1)[places] for run in runs], axis=0)
    updates = np.array([[run["evaluations"][place]["update"] for place in places] for run in runs], np.float64)
    return Series(LABELS.get(variant.name, visible(variant.text)), np.mean(updates / updates[:, -1:], axis=0), y, tone)


def decisions(number: int, figures: Mapping[str, dict[str, Any]]) -> Figure:
    """The figures of docs/study/decisions.md."""
    words = described()
    rows = [
        (
            name,
            interval([np.nan if one[k] is None else one[k] for k in ("value", "low", "high")], plain),
            one["unit"],
            visible(one["what"]),
        )
        for name, one in figures.items()
        if words[name]["experiment"] == number
    ]
    return Figure(
        "Figures that claims rest on", "Those that decide were fixed before the study was run (docs/study/protocol.md).", None,
        Table(("figure", "value", "unit", "what"), rows), NOTE,
    )  # fmt: skip


def directions(runs: Sequence[q.Kept]) -> Figure:
    """Clipped against whole gradients."""
    rows = []
    for rule in runs[0]["directions"]:
        each = [
            text(measured(runs, mean_of(rule, name)), plain)
            for name in ("share", "cosine", "rho", "rho_paper", "rho_bound", "kappa", "eta", "lre")
        ]
        rows.append((rule, *each))
    head = ("band", "accepted", "cosine", "rho", "the paper's bound of rho", "the corrected one", "kappa", "eta", "LRE")
    return Figure(
        "Clipped against whole gradients",
        "Means over off-policy updates of the runs of grpo.",
        None,
        Table(head, rows),
        NOTE,
    )


def mean_of(rule: str, name: str) -> q.Quantity:
    """Mean over updates of one column; updates for which it does not exist are left out."""

    def measure(run: q.Kept) -> Any:
        found = [row[name] for row in run["directions"][rule] if row[name] is not None]
        return q.number(float(np.mean(found)) if found else None)

    return measure


def search_figure(search: Mapping[str, Any]) -> Figure:
    """What was tried and chosen."""
    rows = [
        (visible(name), f"{one['rate']:g}", f"{one['factor']:.3g}",
         "; ".join(f"{rate:g} x{factor:.3g}: {share(score)}" for rate, factor, score in one["tried"]))
        for name, one in search.items()
        if one["tried"]  # others take what another search chose
    ]  # fmt: skip
    head = ("variant", "learning rate", "width, times the published", "accuracy of what was tried")
    return Figure("What was tried and chosen", "One seed, other problems.", None, Table(head, rows))


def checks(runs: Runs, search: Mapping[str, Any]) -> Figure:
    """What has to be explained before the results are believed."""
    rows = [(visible(where), visible(what)) for where, what in find_mistakes(runs, search)]
    title = (
        f"{len(rows)} findings to explain before the results are believed" if rows else "No sign of a mistake of ours"
    )
    return Figure(
        title,
        "The checks of the protocol; docs/log.md goes through them.",
        None,
        Table(("where", "what"), rows) if rows else None,
    )
