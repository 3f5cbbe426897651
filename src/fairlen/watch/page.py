"""The page of a watch: its alarms, then the audit of the responses that it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path

import numpy as np

from fairlen.audit.audit import Audit, audit_source
from fairlen.audit.conclusion import Margins
from fairlen.audit.log import Log
from fairlen.audit.method_in_use import InUse
from fairlen.audit.readers import LogReading, Source
from fairlen.audit.readers.formats import Format
from fairlen.batch import Floats, build_responses, build_segments, number_keys
from fairlen.report.audit_page import write_audit_page
from fairlen.report.figure import Figure, Section
from fairlen.watch.thresholds import Alarm, Shape

FORMAT = Format("watch", "watched run", "the limit of generation", lambda columns: False, lambda chunk, found: chunk)
SAYS = "Effect: about length and correctness within prompts and steps, tested at every step; the others are thresholds."


def write_page(path: Path, alarms: Sequence[Alarm], audits: Sequence[Audit], reading: LogReading) -> Path:
    """Write the page of audits, with the alarms before them."""
    told = [Figure(f"{one.kind}, step {one.step}".capitalize(), one.text[:1].upper() + one.text[1:]) for one in alarms]
    first = Section("alarms", "Alarms" if told else "No alarm", SAYS, told)
    return write_audit_page(path, audits, reading, first=[first], name="Length, watched")


def audit_kept(
    steps: Sequence[Shape], kept: Sequence[Floats], method: InUse | None, margins: Margins
) -> tuple[tuple[Audit, ...], LogReading]:
    """Audit what `LengthWatch.kept` has of steps. Raises ValueError where it has nothing."""
    if not kept:
        raise ValueError(
            "page: no response was kept; LengthWatch(keep=True) keeps lengths and outcomes, and add() brings them"
        )
    source = Source(FORMAT, "", (), make_log(steps, kept), ())
    return (audit_source(source, method, margins),), LogReading((source,), (), ())


def make_log(steps: Sequence[Shape], kept: Sequence[Floats]) -> Log:
    """Return the log of `LengthWatch.kept` as the audit reads it."""
    problem, length, outcome, correct, truncated = np.concatenate(kept).T
    step, number = np.repeat([one.number for one in steps], [len(part) for part in kept]), problem.astype(np.int64)
    prompt, verdict = number_keys(np.column_stack([step, number])), correct + 0.0 * outcome
    table = build_responses(prompt, length.astype(np.int64), outcome, verdict, truncated > 0, int(length.max()))
    known = {"correct", "reward"} | ({"truncated"} if not any(isnan(one.truncated) for one in steps) else set())
    return Log(
        "watch", "tokens", table, step, build_segments(table, table.length), known=frozenset(known), problem=number
    )
