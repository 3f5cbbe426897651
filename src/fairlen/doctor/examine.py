"""Runs checks side by side, each with a deadline: one that raises or hangs is a finding too."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, Queue

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlen.doctor import deep, machine, model, packages, settings, template
from fairlen.doctor.finding import Check, Finding, Plan, bad, redact

QUICK = (*packages.CHECKS, *machine.CHECKS, *model.CHECKS, *template.CHECKS, *settings.CHECKS)
DEEP = deep.CHECKS
QUICK_LIMIT, PATIENT_LIMIT, DEEP_LIMIT = 4.5, 180.0, 900.0
"""Seconds until checks are given up: from the start of the process, with --deep, and for each deep one."""
SLOW = {"device", "memory", "sandbox"}
"""Checks that start processes: no answer says that the machine is slow, not that something is broken."""


def examine(plan: Plan, checks: Sequence[Check], limit: float) -> list[Finding]:
    """The findings in the order of the checks."""
    found: Queue[tuple[int, Finding]] = Queue()
    end = time.monotonic() + limit
    for place, check in enumerate(checks):  # daemons: one that hangs does not keep the program
        threading.Thread(target=lambda p=place, c=check: found.put((p, run_check(c, plan))), daemon=True).start()
    done: dict[int, Finding] = {}
    while len(done) < len(checks):
        try:
            place, finding = found.get(timeout=max(end - time.monotonic(), 0.0))
        except Empty:
            break
        done[place] = finding
    return [redact(done.get(place) or overdue(check, limit)) for place, check in enumerate(checks)]


def since_start() -> float:
    """Seconds since this process began, imports included; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def run_check(check: Check, plan: Plan) -> Finding:
    """What a check finds, and how long it took."""
    begun = time.monotonic()
    try:
        finding = check.look(plan)
    except BaseException as error:
        finding = bad(
            f"the check ended with {type(error).__name__}: {error}", "see what it says; report it if it is ours"
        )
    return replace(finding, name=check.name, seconds=time.monotonic() - begun)


def overdue(check: Check, limit: float) -> Finding:
    """A check that has not ended."""
    status = "warn" if check.name in SLOW else "fail"
    remedy = "`fairlen doctor --deep` waits longer; what else runs on this machine?"
    return Finding(
        check.name, status, f"no answer within {limit:.1f} s; other jobs may keep this machine busy", remedy, limit
    )


def show(findings: Sequence[Finding], console: Console) -> None:
    """One table, and one line that counts."""
    table = Table(show_lines=False)
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, no_wrap=heading in ("check", ""), overflow="fold")
    colours = {"pass": "green", "warn": "yellow", "fail": "red"}
    for one in findings:
        table.add_row(one.name, Text(one.status, colours[one.status]), one.found, one.remedy)
    console.print(table)
    console.print(count(findings))


def count(findings: Sequence[Finding]) -> str:
    """How many of each."""
    each = [(sum(one.status == status for one in findings), status) for status in ("pass", "warn", "fail")]
    return f"{len(findings)} checks: " + ", ".join(f"{number} {status}" for number, status in each)


def to_json(findings: Sequence[Finding]) -> str:
    """For machines."""
    return json.dumps({"findings": [asdict(one) for one in findings], "summary": count(findings)}, indent=1)
