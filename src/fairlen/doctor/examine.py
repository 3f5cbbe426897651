"""Runs checks, and shows their findings without secrets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fairlen.secrets import hide
from fairlen.train.run.config import TrainConfig

Status = Literal["pass", "warn", "fail"]
COLOURS: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "red"}


@dataclass(frozen=True)
class DoctorConfig(TrainConfig):
    """Check this machine and, with the flags of `fairlen train`, a run that is planned. Ends with 1 where a check fails."""

    json: bool = False
    """Print findings for machines."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    status: Status
    found: str
    remedy: str = ""
    """Remedy; empty where all is well."""
    name: str = ""


@dataclass(frozen=True)
class Check:
    """One thing to look at: the text that `look` returns says that all is well."""

    name: str
    look: Callable[[TrainConfig], Finding | str]
    remedy: str = "see what it says; report it if it is ours"
    """Remedy where `look` raises, which is a failure."""


def run_check(check: Check, config: TrainConfig) -> Finding:
    """Return what a check finds of the planned run."""
    try:
        found = check.look(config)
        finding = Finding("pass", found) if isinstance(found, str) else found
    except (ValueError, OSError, ImportError) as error:
        finding = Finding("fail", " ".join(str(error).split()), check.remedy)
    except Exception as error:
        finding = Finding("fail", f"the check ended with {type(error).__name__}: {error}", check.remedy)
    return Finding(finding.status, hide(finding.found), hide(finding.remedy), check.name)


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print one table, and one line that counts."""
    table = Table()
    for heading in ("check", "", "found", "what to do"):
        table.add_column(heading, no_wrap=heading in ("check", ""), overflow="fold")
    for one in findings:
        table.add_row(one.name, Text(one.status, COLOURS[one.status]), one.found, one.remedy)
    console.print(table)
    console.print(summarize(findings))


def summarize(findings: Sequence[Finding]) -> str:
    """Return how many findings there are of each status."""
    each = [f"{sum(one.status == status for one in findings)} {status}" for status in COLOURS]
    return f"{len(findings)} checks: {', '.join(each)}"


def to_json(findings: Sequence[Finding]) -> str:
    """Return the findings for machines."""
    return json.dumps({"findings": [asdict(one) for one in findings], "summary": summarize(findings)}, indent=1)
