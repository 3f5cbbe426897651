"""A comparison as a page, read from its folder: which method is ahead, if any, learning curves at equal cost, and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fairlen.compare.config import FEW_SEEDS, Match, parse_variant
from fairlen.compare.results import (
    COST_HEADINGS,
    COSTS,
    PAIRED,
    Cell,
    Result,
    Spent,
    cells_of,
    cost_cells,
    describe_match,
    headings,
    points,
    read_own,
    show_difference,
    summarize,
)
from fairlen.files.folders import write_file
from fairlen.precision import is_above
from fairlen.report import figure
from fairlen.report.figure import ChartRow, Figure, Form, Series, Table, Tone, interval, nice_axis, plain, share
from fairlen.report.page import render_page
from fairlen.report.run import column, read_metrics, visible
from fairlen.report.sections import define
from fairlen.secrets import hide_all
from fairlen.settings import flatten

MATCHED: dict[Match, str] = {"generated": "generated tokens", "seconds": "seconds of training", "updates": "updates"}
"""Quantity that is equal."""
TERMS = ("samples", "coupling", "acceptance.lre")
NUM_PLACES = 25
"""Equal costs at which learning curves are compared."""


def report_comparison(folder: Path, path: Path) -> Path:
    """Write the page of a comparison again, of the seeds of which all methods are done. Raises FileNotFoundError, ValueError."""
    results = folder / "results.json"
    if not results.exists():
        raise FileNotFoundError(f"{results}: no such file: the comparison has not ended; its command resumes it")
    variants = read_own(results, lambda found: [parse_variant(one["name"]) for one in found])
    settings, match = read_own(folder / "comparison.json", lambda found: (flatten(found), found["match"]))
    done = [{file.parent.name for file in (folder / one.folder).glob("seed-*/done.json")} for one in variants]
    if not done or not (seeds := sorted(set.intersection(*done))):
        raise ValueError(f"{folder}: no seed has a finished run of every method; the comparison's command makes them")
    places = [(one, folder / one.folder / seed) for one in variants for seed in seeds]
    cells = [Cell(one, run, read_own(run / "done.json", lambda found: Spent(**found))) for one, run in places]
    return write_comparison(settings, cells, summarize(cells, match), path)


def write_comparison(settings: dict[str, Any], cells: Sequence[Cell], results: Sequence[Result], path: Path) -> Path:
    """Write the page, from what comparison.json says, the runs and what they came to."""
    seeds, match = len(results[0].seeds), settings["match"]
    cost, spent = MATCHED[match], [getattr(cell.spent, match) for cell in cells]
    count = sum(one.difference is not None and one.difference.excludes(0.0) for one in results)
    says = "by a 95% interval each that excludes 0; not corrected for their number"
    facts = [
        name_winner(results),
        *([] if seeds in FEW_SEEDS else [("differ from the reference", str(count), says)]),
        ("methods", str(len(results)), f"each run spent {plain(min(spent))} to {plain(max(spent))} {cost}"),
        ("seeds", str(seeds), "of each method"),
    ]
    head = {
        "name": f"{len(results)} methods compared", "folder": "comparison", "kind": "compare",
        "notes": [FEW_SEEDS[seeds].capitalize()] if seeds in FEW_SEEDS else [],
        "settings": [(name, visible(str(value))) for name, value in hide_all(settings).items()],
    }  # fmt: skip
    lead = f"Every method was given the {cost} of the reference, {results[0].name}. "
    lead += f"{(said := describe_match(results, cost))[0].upper()}{said[1:]}."
    figures = [
        ends(results),
        equal_costs(results),
        *(learning(cells, MATCHED[one], COSTS[one]) for one in (match, *MATCHED.keys() - {match})),
        differences(results),
    ]
    shown = [figure.Section("results", "Results", lead, figures)]
    write_file(path, render_page(head, facts, shown, terms=define(*TERMS)).encode())
    return path


def name_winner(results: Sequence[Result]) -> tuple[str, str, str]:
    """Return the best method as a fact, or that none clearly is: by too few seeds, a tie, or an interval that holds 0."""
    best = next(one for one in results if one.behind is None)
    level = [one.name for one in results if not is_above(best.last.value, one.last.value)]
    close = [one.name for one in results if one.behind and not one.behind.excludes(0.0) and one.name not in level]
    if (seeds := len(best.seeds)) in FEW_SEEDS:
        lead = f"highest so far: {best.name}" if len(level) == 1 else f"tied so far: {', '.join(level)}"
        return "best at the end", "not known", f"{seeds} of the 3 seeds that it takes; {lead}"
    lead = f"highest is {best.name}" if len(level) == 1 else f"{', '.join(level)} are tied"
    if close or len(level) > 1:
        return "best at the end", "not clear", lead + (f"; not clearly above {', '.join(close)}" if close else "")
    return "best at the end", share(best.last.value), f"{best.name}, clearly above each other method"


def by_row(results: Sequence[Result], form: Form, x: str, level: float | None = None) -> Markup:
    """Draw accuracy of each method and its seeds or, around a level, differences from the reference."""
    found = []
    for one, tone in zip(results, tones(results), strict=True):
        of = one.last if level is None else one.difference
        if of:
            seeds = [a - (b if level is not None else 0) for a, b in zip(one.seeds, results[0].seeds, strict=True)]
            says = f"{interval(of, form) if level is None else show_difference(of, form)}; seeds {', '.join(map(form, seeds))}"
            found.append(ChartRow(one.name, tone, of, says, seeds))
    axis = nice_axis([np.array([*row.mark, *row.points]) for row in found], form, zero=level is not None)
    return figure.rows(found, axis, x, f"{x} by method", level)


def tones(results: Sequence[object]) -> list[Tone]:
    """Return a colour a method, the same in every chart."""
    return [figure.TONES[place % len(figure.TONES)] for place in range(len(results))]


def ends(results: Sequence[Result]) -> Figure:
    """Draw accuracy at the end, with the table of all numbers."""
    return Figure(
        "Accuracy at the end",
        "Share of correct responses to held-out problems, mean over problems of the mean over samples. Rings are seeds.",
        by_row(results, share, "held-out accuracy"),
        Table(headings(results[0].samples), [cells_of(result, with_intervals=True) for result in results]),
        f"{PAIRED} `At its best` is chosen afterwards; costs are means over seeds; coupling and LRE are of the first seed, "
        "with a dash where every update was on-policy or there were too few sequences.",
        terms=TERMS,
    )


def differences(results: Sequence[Result]) -> Figure:
    """Draw paired differences from the reference; the table of the first chart has the numbers."""
    return Figure(
        f"Difference from {results[0].name}",
        "Points of accuracy at the end, on the same seeds and problems. Rings are seeds.",
        by_row(results, points, "points", level=0.0),
        note="Whiskers: 95%, paired. One that holds 0 does not say which is better. Numbers are with accuracy at the end.",
    )


def equal_costs(results: Sequence[Result]) -> Figure:
    """List accuracy at equal tokens, tokens at equal accuracy, and the tokens that trained nothing by length."""
    rows = [cost_cells(one) for one in results]
    for one in results:
        for place, name in enumerate(one.untrained.bins.names()):
            each = [of[place] for of in one.untrained.share.values()]
            rows.append((f"{one.name}, {name} tokens", "", "", *map(share, (sum(each), *each))))
    return Figure(
        "At equal cost", f"Against {results[0].name}; tokens that trained nothing are of the first seed, of all and by length.",
        table=Table(COST_HEADINGS, rows), note=PAIRED,
    )  # fmt: skip


def learning(cells: Sequence[Cell], cost: str, metric: str) -> Figure:
    """Draw held-out accuracy of the first methods against what was spent, as far as every run went."""
    names = list(dict.fromkeys(cell.variant.text for cell in cells))
    curves = []
    for cell in cells:
        _, evaluations = read_metrics(cell.folder)
        curves.append((cell.variant.text, column(evaluations, metric), column(evaluations, "eval/accuracy")))
    grid = np.linspace(max(x[0] for _, x, _ in curves), min(x[-1] for _, x, _ in curves), NUM_PLACES)
    series = []
    for name, tone in zip(names, figure.TONES, strict=False):
        each = np.stack([np.interp(grid, x, y) for of, x, y in curves if of == name])
        low, high = (each.min(0), each.max(0)) if len(each) > 1 else (None, None)
        series.append(Series(visible(name), grid, each.mean(0), tone, low, high, form=share))
    frame = figure.Frame(
        replace(figure.span_axis(float(grid[-1])), form=plain), nice_axis(figure.ends_of(series), share, most=1.0), cost
    )
    left_out = f" Drawn are the first {len(series)} methods." if len(names) > len(series) else ""
    return Figure(
        f"Learning at equal {cost}",
        f"Held-out accuracy by {cost}, mean over seeds; straight lines between evaluations.",
        figure.lines(frame, series, f"accuracy by {cost}"),
        Table((cost, *(one.label for one in series)),
              [(plain(at), *map(share, of)) for at, *of in zip(grid, *(one.y for one in series), strict=True)]),
        f"Bands: from the lowest seed to the highest, no interval.{left_out}",
    )  # fmt: skip
