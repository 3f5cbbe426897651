"""The command that checks a machine and a planned run."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import warnings

from fairlen.cli.settings import read_config
from fairlen.console import make_console, tell
from fairlen.doctor.plan import DoctorConfig, make_plan


def run_doctor(arguments: list[str]) -> int:
    """Prints the findings; 1 where one is a failure."""
    config, complaint = read_planned(arguments)

    from fairlen.doctor.examine import (
        DEEP,
        DEEP_LIMIT,
        PATIENT_LIMIT,
        QUICK,
        QUICK_LIMIT,
        examine,
        show,
        since_start,
        to_json,
    )

    plan = make_plan(config, complaint)
    findings = examine(plan, QUICK, PATIENT_LIMIT if config.deep else max(QUICK_LIMIT - since_start(), 1.0))
    for check in DEEP if config.deep else ():  # one after the other: each takes the whole machine
        findings += examine(plan, (check,), DEEP_LIMIT)
    if config.json:
        tell(to_json(findings))
    else:
        show(findings, make_console())
    warnings.simplefilter("ignore", RuntimeWarning)  # of checks that were given up and end with the program
    return int(any(one.status == "fail" for one in findings))


def read_planned(arguments: list[str]) -> tuple[DoctorConfig, str]:
    """The settings, or the defaults and why those that were given cannot be: that is a finding. Unknown flags end the command."""
    said = io.StringIO()
    instead = DoctorConfig(deep="--deep" in arguments, json="--json" in arguments)
    try:
        with contextlib.redirect_stderr(said):
            return read_config(DoctorConfig(), "fairlen doctor", arguments), ""
    except (ValueError, FileNotFoundError) as error:
        return instead, str(error)
    except SystemExit:
        if "Value error" not in said.getvalue():
            tell(said.getvalue(), sys.stderr, end="")
            raise
        text = " ".join(line.strip("│| ") for line in said.getvalue().splitlines())
        found = re.search(r"Error parsing \w+: (.*?) [─-]{9}", text)
        return instead, found[1] if found else text
