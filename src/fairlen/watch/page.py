"""The page of a watch: its alarms, then the audit of all responses that it has seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fairlen.audit.audit import audit, audit_source
from fairlen.audit.readers import LogReading, Source
from fairlen.audit.readers.formats import Format
from fairlen.audit.readers.rows import Options
from fairlen.report.audit_page import write_audit_page
from fairlen.report.figure import Figure, Section, Table

if TYPE_CHECKING:
    from fairlen.watch.watch import LengthWatch

FORMAT = Format("watch", "watched run", "the limit of generation", lambda columns: False, lambda chunk, found: chunk)


def write_watch_page(watch: LengthWatch, path: Path) -> Path:
    """Write the page, whole or not at all. Raises ValueError where nothing was kept."""
    log = watch.history.log()
    if not len(log):
        raise ValueError(
            "page: no response was kept; LengthWatch(keep=True) keeps lengths and outcomes, and add() brings them"
        )
    source = Source(FORMAT, "", (), log, ())
    one = audit_source(source, watch.in_use, watch.evidence.margins)
    return write_audit_page(
        path, (one,), LogReading((source,), (), ()), first=[describe_alarms(watch)], name="Length, watched"
    )


def write_followed_page(watch: LengthWatch, place: str, options: Options, path: Path) -> Path:
    """Write the page of files that were followed, which are read once more."""
    audits, reading = audit([place], options, watch.in_use, watch.evidence.margins)
    return write_audit_page(path, audits, reading, first=[describe_alarms(watch)], name="Length, watched")


def describe_alarms(watch: LengthWatch) -> Section:
    """Return the section of alarms, in the order in which they were raised."""
    rows = [(one.kind, str(one.step), "" if one.since is None else str(one.since), one.text) for one in watch.alarms]
    tested = f"at most {watch.error:.0%} of runs without an effect raise one" if watch.exchangeable else "not tested"
    says = f"effect: about length and correctness within prompts and steps, {tested}; the others are thresholds."
    title = "Alarms" if rows else f"No alarm in {len(watch.steps):,} steps"
    return Section("alarms", "Alarms", says, [Figure(title, says, table=Table(("kind", "step", "since", ""), rows))])
