"""The page of a watch: alarms first, then length and accuracy over steps, then the audit of the responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np

from fairlen.audit.audit import Audit, audit_source
from fairlen.audit.conclusion import Margins
from fairlen.audit.log import Log
from fairlen.audit.method_in_use import InUse
from fairlen.audit.readers import LogReading, Source
from fairlen.audit.readers.formats import Format
from fairlen.batch import Floats, build_responses, build_segments, number_keys, sum_by
from fairlen.console import first_of
from fairlen.files.folders import write_file
from fairlen.report.audit_page import MAX_LOGS, log_section
from fairlen.report.figure import Figure, Section, Series, Table, lines, plain, share, whole, windows
from fairlen.report.page import MAX_NOTES, render_page
from fairlen.report.rollouts import ROOM
from fairlen.report.sections import VERDICTS, define, over_training
from fairlen.watch.thresholds import Alarm, StepSummary

FORMAT = Format("watch", "watched run", "the limit of generation", lambda columns: False, lambda chunk, found: chunk)
LEAD = (
    "The alarm effect is a test of length and correctness within prompts and steps, made after every step; all others are "
    "thresholds. Sizes in an alarm are of the moment at which it was raised, and too large on average. Their intervals are about "
    "the steps seen: they do not cover an association that moves from step to step."
)
CURVES = (("length", "Length", plain), ("correct", "Accuracy", share), ("truncated", "Share cut at the limit", share))
"""Numbers of a step that are drawn over steps: field, title and format."""


def write_page(
    path: Path,
    alarms: Sequence[Alarm],
    audits: Sequence[Audit],
    reading: LogReading,
    steps: Sequence[StepSummary] = (),
    kept_share: float = 1.0,
) -> Path:
    """Write the page of a watch and return its path.

    Args:
        path: File to write.
        alarms: Alarms of the watch.
        audits: Audits of its responses, with `reading`, from `audit_kept` or from an audit of files.
        reading: How those responses were read.
        steps: Summaries of all steps, for the curves.
        kept_share: Share of the prompts that the audit is about.
    """
    titles = [f"Alarm: {alarm.kind}, step {alarm.step}" for alarm in alarms]
    figures = [Figure(title, capitalize(alarm.text)) for title, alarm in zip(titles, alarms, strict=True)]
    figures += draw_curves(steps)
    num_kept = sum(len(audit.log) for audit in audits)
    num_all = max(sum(step.size for step in steps), num_kept)
    lead = LEAD
    if kept_share < 1:
        lead += (
            f" The audit below is about a random {share(kept_share)} of the prompts: {num_kept:,} of {num_all:,} responses. "
            "The alarms and curves are about all of them."
        )
    sections = [Section("alarms", "Alarms" if alarms else "No alarm", lead, figures)]
    sections += [describe_audit(f"log{place}", audit) for place, audit in enumerate(audits[:MAX_LOGS], 1)]
    notes = [f"Skipped: {sentence}" for sentence in first_of([*reading.unreadable, *reading.skipped], MAX_NOTES)]
    head = {
        "kind": "watch",
        "folder": f"{num_all:,} rollouts",
        "notes": notes,
        "name": "; ".join(titles) if titles else "No alarm",
    }
    write_file(path, render_page(head, [], sections, terms=define()).encode())
    return path


def capitalize(text: str) -> str:
    """Return a text whose first letter is a capital; the others stay."""
    return text[:1].upper() + text[1:]


def describe_audit(name: str, audit: Audit) -> Section:
    """Return the section of an audit with its verdict. What its findings say is not said a second time."""
    section = log_section(name, audit, ROOM)
    sentence = audit.conclusion.sentence
    for finding in audit.findings:
        sentence = sentence.replace(finding.text, "").strip("; ")
    verdict = f"{VERDICTS[audit.conclusion.status]}. {capitalize(sentence)}".rstrip(". ")
    title = section.title if audit.source.folder else "Audit of the responses"
    return replace(section, title=title, lead=f"{verdict}. {section.lead}")


def draw_curves(steps: Sequence[StepSummary]) -> list[Figure]:
    """Return length, accuracy and truncation over steps. Long runs are averaged over windows of steps, weighted by responses."""
    if not steps:
        return []
    window, middle = windows(np.array([step.number for step in steps]))
    size = np.array([step.size for step in steps], np.float64)
    figures: list[Figure] = []
    for field, title, form in CURVES:
        values = np.array([getattr(step, field) for step in steps])
        known = ~np.isnan(values)
        total = sum_by(window[known], values[known] * size[known], len(middle))
        weight = sum_by(window[known], size[known], len(middle))
        if not total.any():  # unknown, or never more than 0
            continue
        mean = np.divide(total, weight, out=np.full(len(middle), np.nan), where=weight > 0)
        series = Series(title.lower(), middle, mean, "plain", form=form)
        rows = [(whole(at), form(value)) for at, value in zip(middle.tolist(), mean.tolist(), strict=True)]
        figures.append(
            Figure(
                f"{title} over steps: {form(values[known][0])} in the first, {form(values[known][-1])} in the last",
                f"{title} of all responses. A long run is averaged over windows of steps.",
                lines(over_training([series], step="step"), [series], f"{title.lower()} over steps"),
                Table(("step", title.lower()), rows),
                id=f"watch-{field}",
            )
        )
    return figures


def audit_kept(
    steps: Sequence[StepSummary], kept: Sequence[Floats], method: InUse | None, margins: Margins
) -> tuple[tuple[Audit, ...], LogReading]:
    """Audit the responses in `LengthWatch.kept`, which must not be empty."""
    source = Source(FORMAT, "", (), make_log(steps, kept), ())
    return (audit_source(source, method, margins),), LogReading((source,), (), ())


def make_log(steps: Sequence[StepSummary], kept: Sequence[Floats]) -> Log:
    """Return the log of `LengthWatch.kept` as the audit reads it."""
    problem, length, outcome, correct, truncated = np.concatenate(kept).T
    step = np.repeat([summary.number for summary in steps], [len(rows) for rows in kept])
    number = problem.astype(np.int64)
    prompt = number_keys(np.column_stack([step, number]))
    verdict = np.where(np.isnan(outcome), np.nan, correct)
    table = build_responses(prompt, length.astype(np.int64), outcome, verdict, truncated > 0, int(length.max()))
    knows_limit = not any(isnan(summary.truncated) for summary in steps)
    known = {"correct", "reward"} | ({"truncated"} if knows_limit else set())
    return Log(
        "watch", "tokens", table, step, build_segments(table, table.length), known=frozenset(known), problem=number
    )
