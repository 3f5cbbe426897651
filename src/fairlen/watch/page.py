"""The page of a watch: its alarms, then the audit of the responses that it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairlen.audit.audit import audit, audit_source
from fairlen.audit.conclusion import Margins
from fairlen.audit.log import Log
from fairlen.audit.method_in_use import InUse
from fairlen.audit.readers import LogReading, Source
from fairlen.audit.readers.formats import Format
from fairlen.audit.readers.rows import Options
from fairlen.report.audit_page import write_audit_page
from fairlen.report.figure import Figure, Section

FORMAT = Format("watch", "watched run", "the limit of generation", lambda columns: False, lambda chunk, found: chunk)
SAYS = "Effect: about length and correctness within prompts and steps, tested at every step; the others are thresholds."


def write_log_page(
    path: Path, alarms: Sequence[Sequence[str]], log: Log, method: InUse | None, margins: Margins
) -> Path:
    """Write the page of a log, with rows (kind, step, since, text) of alarms. Raises ValueError for an empty log."""
    if not len(log):
        raise ValueError(
            "page: no response was kept; LengthWatch(keep=True) keeps lengths and outcomes, and add() brings them"
        )
    source = Source(FORMAT, "", (), log, ())
    reading = LogReading((source,), (), ())
    return write_audit_page(
        path, (audit_source(source, method, margins),), reading, first=[list_alarms(alarms)], name=NAME
    )


def write_files_page(
    path: Path, alarms: Sequence[Sequence[str]], place: str, options: Options, method: InUse | None, margins: Margins
) -> Path:  # fmt: skip
    """Write the page of files, which are read once more."""
    audits, reading = audit([place], options, method, margins)
    return write_audit_page(path, audits, reading, first=[list_alarms(alarms)], name=NAME)


NAME = "Length, watched"


def list_alarms(rows: Sequence[Sequence[str]]) -> Section:
    shown = [
        Figure(f"{kind.capitalize()}, step {step}", f"{text[:1].upper()}{text[1:]}") for kind, step, _, text in rows
    ]
    return Section("alarms", "Alarms" if rows else "No alarm", SAYS, shown)
