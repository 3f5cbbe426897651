"""What a check finds, what it is given, and that nothing secret is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fairlen.methods.compose import Composition
from fairlen.train.config import TrainConfig

Status = Literal["pass", "warn", "fail"]
SECRET_NAME = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
SECRET_FORM = re.compile(r"(?<=://)[^/@\s]+(?=@)|\b(hf_|sk-|ghp_|pypi-)[\w-]{8,}")
MIN_SECRET = 8
"""Shorter values of the environment, such as "true", are no secrets."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    status: Status
    found: str
    remedy: str = ""
    """What to do, empty where all is well."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The run that is planned."""

    config: TrainConfig
    composition: Composition | None = None
    """None where the method cannot be composed."""
    complaint: str = ""
    """Why the settings, or the method, cannot be."""


@dataclass(frozen=True)
class Check:
    """One thing to look at. Whatever `look` raises is a failure of the check."""

    name: str
    look: Callable[[Plan], Finding]


def good(found: str) -> Finding:
    """All is well."""
    return Finding("", "pass", found)


def doubtful(found: str, remedy: str) -> Finding:
    """It runs, and may not do what is wanted."""
    return Finding("", "warn", found, remedy)


def bad(found: str, remedy: str) -> Finding:
    """A run would fail, or be wrong."""
    return Finding("", "fail", found, remedy)


def redact(finding: Finding, environment: Mapping[str, str] = os.environ) -> Finding:
    """The finding without passwords in URLs, tokens of known forms, and values of variables that their names call secret."""
    secrets = [v for k, v in environment.items() if SECRET_NAME.search(k) and len(v) >= MIN_SECRET]

    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "***")
        return SECRET_FORM.sub("***", text)

    return replace(finding, found=clean(finding.found), remedy=clean(finding.remedy))
