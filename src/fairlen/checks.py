"""Checks of fields at construction: the error names the class, the field, the value and what to give instead."""

from __future__ import annotations

import math
from typing import Any


def check_fraction(stage: Any, name: str, *, above: float = -math.inf) -> None:
    """The field lies in 0..1, and above `above`."""
    value = getattr(stage, name)
    if not (0.0 <= value <= 1.0 and value > above):
        low = f"more than {above:g}" if above >= 0 else "0"
        raise ValueError(f"{type(stage).__name__}: {name}={value}: give a fraction from {low} to 1")


def check_positive(stage: Any, *names: str) -> None:
    """The fields are finite and above 0."""
    for name in names:
        value = getattr(stage, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{type(stage).__name__}: {name}={value}: give a number above 0")


def check_not_negative(stage: Any, *names: str) -> None:
    """The fields are at least 0; infinity is allowed where it switches a bound off."""
    for name in names:
        value = getattr(stage, name)
        if not value >= 0:
            raise ValueError(f"{type(stage).__name__}: {name}={value}: give 0 or more")


def check_choice(stage: Any, name: str, choices: tuple[str, ...]) -> None:
    """The field is one of the choices."""
    value = getattr(stage, name)
    if value not in choices:
        raise ValueError(f"{type(stage).__name__}: {name}={value!r}: give one of {', '.join(choices)}")
