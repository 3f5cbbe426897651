"""An audit as one page to send around: verdicts, findings, a picture of each, the rollouts behind them, and definitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np

from fairlen.audit import numbers
from fairlen.audit.audit import Audit, find_missing
from fairlen.audit.comparison import Against
from fairlen.audit.conclusion import TURNS
from fairlen.audit.readers import LogReading
from fairlen.audit.statistics.budgets import BudgetCurve
from fairlen.audit.statistics.intervals import Estimates, rate
from fairlen.console import first_of
from fairlen.files.folders import write_file
from fairlen.report import figure as drawing
from fairlen.report import sections
from fairlen.report.page import MAX_NOTES, render_page
from fairlen.report.prompts import difficulty_figure, within_figures
from fairlen.report.rollouts import ROOM, show_rollouts
from fairlen.report.run import TEXT_BYTES
from fairlen.report.sections import VERDICTS, define

MAX_LOGS = 12  # with pictures; of others the verdict alone
COUNTS = {"effect": "with an effect of length", "none": "with none", "unknown": "not known yet"}


def write_audit_page(
    path: Path,
    audits: Sequence[Audit],
    reading: LogReading,
    comparison: Against | None = None,
    first: Sequence[drawing.Section] = (),
    name: str = "",
) -> Path:
    """Write one page that is whole or not there; a comparison is of the first two logs; sections may stand `first`."""
    room = min(ROOM, TEXT_BYTES // (14 * max(min(len(audits), MAX_LOGS), 1)))
    shown = [log_section(f"log{place}", one, room) for place, one in enumerate(audits[:MAX_LOGS], 1)]
    shown = [*first, *([compare_section(comparison)] if comparison else []), *shown]
    notes = [f"Left out: {sentence}" for sentence in first_of(reading.unreadable, MAX_NOTES)]
    if reading.skipped:
        notes.append(f"Left out: {'; '.join(first_of(reading.skipped, MAX_NOTES))}")
    status = [one.conclusion.status for one in audits]
    counts = ", ".join(f"{status.count(word)} {words}" for word, words in COUNTS.items() if word in status)
    one = VERDICTS[status[0]] if status else "No rollouts could be read"
    head = {
        "kind": "audit", "folder": f"{sum(len(one.log) for one in audits):,} rollouts", "notes": notes, "audits": audits,
        "name": name or (f"{len(audits)} logs: {counts}" if len(audits) > 1 else one),
    }  # fmt: skip
    write_file(path, render_page(head, [], shown, terms=define()).encode())
    return path


def compare_section(found: Against) -> drawing.Section:
    table = drawing.Table(("", "A", "B", "B minus A", "95% interval"), [one.row() for one in found.contrasts])
    says = f"{found.num_common:,} prompts are in both, {found.num_first:,} in A alone, {found.num_second:,} in B alone."
    figure = drawing.Figure(
        f"{found.sentence[:1].upper()}{found.sentence[1:]}", says, table=table, note=" ".join(found.notes)
    )
    return drawing.Section("comparison", "Comparison", "A is the first log of this page, B the second one.", [figure])


def log_section(name: str, one: Audit, room: int) -> drawing.Section:
    log, source, found = one.log, one.source, one.lengths
    shown = (
        ("accuracy", found.accuracy, drawing.share),
        (f"length ({log.unit})", found.mean, drawing.plain),
        ("truncated", one.selection.truncated, drawing.share),
    )
    facts = [
        (name, form(of.value), "" if isnan(of.low) else f"{form(of.low)} to {form(of.high)}")
        for name, of, form in shown
    ]
    compared = "with a correct and an incorrect response in one step"
    malformed = first_of([f"{row.file}:{row.line}: {row.reason}" for row in log.malformed], MAX_NOTES)
    return drawing.Section(
        name, source.title, f"{numbers.count_rollouts(one)}; lengths in {log.unit}.",
        [replace(figure, id=f"{name}-{place}") for place, figure in enumerate(find_figures(one))],
        audit=one,
        facts=[*facts, ("prompts compared", f"{one.conclusion.num_prompts:,}", compared)],
        rollouts=show_rollouts(one, room),
        notes=[*source.notes, *(f"not in these files: {sentence}" for sentence in find_missing(one)), *malformed],
    )  # fmt: skip


def find_figures(one: Audit) -> list[drawing.Figure]:
    log, head = one.log, ("", "number", "95% interval")
    figures = [
        *within_figures(log), *(within_figures(log, TURNS) if one.turns else []),
        *budget_figures(one.budgets, log.unit), difficulty_figure(log), *selection_figures(one),
        drawing.Figure(numbers.AGGREGATIONS.capitalize(), "1 is equal weight. Unequal is not wrong by itself: advice is "
               "given only where something is proved.",
               table=drawing.Table(("", *numbers.aggregation_head(one)[1:]), list(numbers.aggregation_rows(one))),
               terms=("weights", "aggregations", "interval")),
        drawing.Figure("Tokens that trained nothing",
               f"Share of {log.unit} whose advantage is 0 or that no update had, by length of the response.",
               table=drawing.Table(numbers.untrained_head(one), list(numbers.untrained_rows(one))), terms=("interval",)),
        *sections.channel_figures(one),
        drawing.Figure("Effects within prompts, as numbers",
               "The four that are tested, without truncated responses and with them.",
               table=drawing.Table(head, list(numbers.within_rows(one))),
               terms=("within.length", "within.bend", *["within.turns", "within.turn_length"] * bool(one.turns))),
        drawing.Figure("Description", "No effect of length follows from these.",
               table=drawing.Table(head, [*numbers.measured_rows(one), *numbers.recorded_rows(one)]), terms=("difficulty",)),
    ]  # fmt: skip
    if one.acceptance and not one.acceptance.undefined:
        figures.append(sections.acceptance_figure(log))
    return [*figures, *sections.stream_figures(log)] if one.streams else figures


def selection_figures(one: Audit) -> list[drawing.Figure]:
    """Draw truncated and dropped responses over steps; nothing where nothing is known of them."""
    cells = list(numbers.selection_rows(one))
    if [number for _, number, _ in cells] == ["unknown"]:
        return []
    log, dropped = one.log, ~(one.log.responses.active | one.log.responses.truncated)
    window, middle = drawing.windows(log.step)
    series = [drawing.as_series("no verdict", middle, rate(dropped, log.clusters, window, len(middle)), "fourth")]
    figure = sections.truncation_figure(log, *(series if dropped.any() else []), step="step")
    return [replace(
        figure, title="Truncated responses, and those without a verdict", says="Share of responses, over steps.",
        chart=figure.chart if "truncated" in log.known and len(middle) > 1 else None,
        table=drawing.Table(("", "share", "95% interval"), cells), terms=("truncated", "selection.dropped"),
    )]  # fmt: skip


def budget_figures(found: BudgetCurve, unit: str) -> list[drawing.Figure]:
    """Draw accuracy over logarithms of budgets, up to eight of which are written below; nothing of no responses."""
    budget, high, label = found.budget, found.highest, f"budget ({unit})"
    if not len(budget):
        return []
    series = [drawing.as_series("ended and correct", np.log(budget), found.correct, "correct")]
    if (opens := high.value - found.correct.value > 0.005).any():
        opens |= budget == found.longest
        bound = (np.where(opens, of, np.nan) for of in (high.value, high.low, high.high))
        series.append(drawing.as_series("if truncated ones were correct", np.log(budget), Estimates(*bound), "fourth"))
    axis = drawing.Axis(float(np.log(budget[0])), float(np.log(max(budget[-1], budget[0] + 1))))
    shown = budget[::-1][:: len(budget) // 8 + 1]
    places = [(axis.at(float(np.log(one))), f"{one:,}" if one < 1e4 else f"{one / 1e3:.3g}k") for one in shown]
    y = drawing.nice_axis(drawing.ends_of(series), drawing.share, zero=True, most=1.0)
    frame = drawing.Frame(axis, y, f"{label}, logarithmic", places, names=lambda x: f"{label} {np.exp(x):,.0f}")
    return [drawing.Figure(
        "Accuracy within a budget", f"{numbers.describe_budgets(found, unit)} The curve shows the share of all responses that "
        f"end within a budget and are correct.".lstrip(),
        drawing.lines(frame, series, "accuracy by budget"),
        drawing.Table((label, "correct within it", "95% interval"), list(numbers.budget_rows(found))),
        f"{drawing.INTERVAL} A truncated response is incorrect within its limit; beyond it, it may be either.",
        terms=("truncated", "interval"),
    )]  # fmt: skip
