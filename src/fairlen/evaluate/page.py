"""An evaluation as one page: accuracy of each set, accuracy by length, and what was truncated or has no verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.diagnostics.report.figure import (
    Axis,
    Figure,
    Frame,
    Section,
    Series,
    Table,
    interval,
    lines,
    middles,
    nice_axis,
    plain,
    share,
)
from fairlen.diagnostics.report.page import render_page
from fairlen.diagnostics.report.run import visible
from fairlen.diagnostics.report.terms import define
from fairlen.evaluate.start import notes_of, show_share
from fairlen.files.folders import write_file


def report_evaluation(folder: Path, path: Path) -> Path:
    """Write the page of an evaluation, from its summary.json. Raises ValueError where that is damaged."""
    place = folder / "summary.json"
    try:
        summary = json.loads(place.read_text())
        sections = [
            set_section(number, name, found["scores"]) for number, (name, found) in enumerate(summary["sets"].items())
        ]
        facts = [(name, *show_average(found["scores"])) for name, found in summary["sets"].items()]
        notes = notes_of(summary)
        settings = [(name, visible(str(value))) for name, value in summary["config"].items()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{place}: {error!r}: the file is damaged; the command of the evaluation writes it again"
        ) from None
    head = {
        "kind": "eval",
        "name": visible(folder.resolve().name),
        "folder": "held-out problems",
        "notes": notes,
        "settings": settings,
    }
    write_file(path, render_page(head, facts, sections, terms=define("samples")))
    return path


def show_average(scores: Mapping[str, Any]) -> tuple[str, str]:
    """Return avg@n of a set, and how many problems it is over."""
    name = next(key for key in scores if key.startswith("avg@"))
    return share(
        scores[name]["value"]
    ), f"{name}: {show_share(scores[name], with_interval=True)}, {scores['problems']} problems"


def set_section(number: int, name: str, scores: Mapping[str, Any]) -> Section:
    """Return the figures of a set."""
    rates = {key: value for key, value in scores.items() if "@" in key}
    cells = [(key, show_share(value, with_interval=True), str(value["problems"])) for key, value in rates.items()]
    cells += [(key, show_share(of, with_interval=True), "") for key, of in
              (("truncated", scores["truncated"]), ("without a verdict", scores["without_verdict"]["share"]))]  # fmt: skip
    table = Table(("", "95% interval over problems", "problems"), cells)
    figures = [Figure("Accuracy", "Over problems.", table=table, terms=("samples",))]
    if scores["accuracy_by_length"]:
        figures.append(by_length(scores["accuracy_by_length"], scores["unit"]))
    sizes = [(side.replace("_", " "), interval(ends_of(of), plain)) for side, of in scores["length"].items()]
    figures.append(
        Figure("Length", f"Mean length in {scores['unit']}, by outcome.", table=Table(("responses", "mean"), sizes))
    )
    return Section(f"set{number}", name, f"{scores['problems']} problems, {scores['samples']:,} samples.", figures)


def ends_of(estimate: Mapping[str, Any]) -> list[float]:
    """Return an estimate of summary.json, nan for what is null."""
    return [nan if estimate[name] is None else estimate[name] for name in ("value", "low", "high")]


def by_length(bins: list[dict[str, Any]], unit: str) -> Figure:
    """Draw accuracy by bin of length."""
    names, found = [f"{one['from']} to {one['to']}" for one in bins], [ends_of(one) for one in bins]
    value, low, high = np.array(found).T
    series = [Series("", middles(len(bins)), value, "plain", low, high, "points", share)]
    places = [(float(at), str(one["from"])) for at, one in zip(middles(len(bins)), bins, strict=True)]
    y = nice_axis([value, low, high], share, zero=True, most=1.0)
    frame = Frame(
        Axis(0, 1), y, f"length, from ({unit})", places, names=lambda x: f"{names[int(x * len(names))]} {unit}"
    )
    samples = [str(one["samples"]) for one in bins]
    return Figure(
        "Accuracy by length",
        "Share of correct responses in bins of length, over all problems: difficulty and effects of length are mixed.",
        lines(frame, series, "accuracy by length"),
        Table(
            (unit, "accuracy", "samples"), list(zip(names, (interval(of, share) for of in found), samples, strict=True))
        ),
        "Whiskers: 95% over problems. `fairlen audit` on this folder compares responses to the same problem.",
    )
