"""Checks of fields and columns at construction: the error names the class, the field, the value and what to give instead."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np


def owner_of(stage: Any) -> str:
    """What an error begins with: the stage, or nothing for settings, whose fields are flags."""
    return getattr(stage, "named_in_errors", f"{type(stage).__name__}: ")


def check_fraction(stage: Any, name: str, *, above: float = -math.inf) -> None:
    """The field lies in 0..1, and above `above`."""
    value = getattr(stage, name)
    if not (0.0 <= value <= 1.0 and value > above):
        low = f"more than {above:g}" if above >= 0 else "0"
        raise ValueError(f"{owner_of(stage)}{name}={value}: give a fraction from {low} to 1")


def check_positive(stage: Any, *names: str) -> None:
    """The fields are finite and above 0."""
    for name in names:
        value = getattr(stage, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{owner_of(stage)}{name}={value}: give a finite number above 0")


def check_not_negative(stage: Any, *names: str) -> None:
    """The fields are at least 0; infinity is allowed where it switches a bound off."""
    for name in names:
        value = getattr(stage, name)
        if not value >= 0:
            raise ValueError(f"{owner_of(stage)}{name}={value}: give 0 or more")


def check_seed(stage: Any, most: int = 2**63 - 1) -> None:
    """The seed is one that every library takes."""
    if not 0 <= stage.seed <= most:
        raise ValueError(f"{owner_of(stage)}seed={stage.seed}: give 0 to {most}")


def check_finite(stage: Any, *names: str) -> None:
    """The fields are neither infinite nor NaN."""
    for name in names:
        value = getattr(stage, name)
        if not math.isfinite(value):
            raise ValueError(f"{owner_of(stage)}{name}={value}: give a finite number")


def check_choice(stage: Any, name: str, choices: tuple[str, ...]) -> None:
    """The field is one of the choices."""
    value = getattr(stage, name)
    if value not in choices:
        raise ValueError(f"{owner_of(stage)}{name}={value!r}: give one of {', '.join(choices)}")


def check_literals(stage: Any) -> None:
    """Every field that is declared as one of some words is one of them."""
    for name, hint in get_type_hints(type(stage)).items():
        if get_origin(hint) is Literal:
            check_choice(stage, name, get_args(hint))


def check_clip(stage: Any) -> None:
    """`clip_low` lies in 0..1, `clip_high` is at least 0."""
    check_fraction(stage, "clip_low")
    check_not_negative(stage, "clip_high")


def check_above_clip(stage: Any, *names: str) -> None:
    """Bounds on the ratio itself lie beyond 1 + clip_high, where they can act, or are inf, which is off."""
    for name in names:
        value = getattr(stage, name)
        if value != math.inf and not value > 1.0 + stage.clip_high:
            raise ValueError(
                f"{owner_of(stage)}{name}={value}: it bounds the ratio itself; "
                f"give more than 1 + clip_high = {1 + stage.clip_high:g} (3 is common), or inf to leave it off"
            )


WHAT_HOLDS = {"Floats": (np.float64, "numbers"), "Ints": (np.int64, "whole numbers"), "Bools": (np.bool_, "0 or 1")}
"""By the name of a column's type, what it is made of and what may be given."""


def convert_columns(table: Any) -> None:
    """Makes every column an array of the type that its field is declared with, without changing a value.

    An integer column of outcomes would truncate the rewards that are written into a copy of it.
    """
    for field in fields(table):
        if field.type in WHAT_HOLDS:
            given = getattr(table, field.name)
            kind, wanted = WHAT_HOLDS[str(field.type)]
            column = convert(np.asarray(given), kind, wanted, f"{type(table).__name__}: {field.name}")
            if column is not given:
                object.__setattr__(table, field.name, column)


def convert(given: np.ndarray, kind: type, wanted: str, name: str) -> np.ndarray:
    """The column as that type. Raises ValueError where it holds something else."""
    if given.dtype == kind:
        return given
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{name} is a column of {given.dtype}: give {wanted}")
    with np.errstate(invalid="ignore"):
        column = given.astype(kind)
    if kind is not np.float64 and (column != given).any():
        row = int(np.argmax(column != given))
        raise ValueError(f"{name}={given[row]} in row {row}: give {wanted}")
    return column


def check_columns(table: Any) -> None:
    """Raises ValueError where the columns of a table contradict each other."""
    lengths = {name: len(column) for name, column in table.columns().items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"{type(table).__name__}: columns differ in length: {lengths}")
    if len(table) and int(table.length.min()) < 1:
        row = int(table.length.argmin())
        raise ValueError(f"{type(table).__name__}: length {table.length[row]} in row {row}: every row has a token")
    if table.max_response_length < 1:
        raise ValueError(f"budget={table.max_response_length}: the max response length is at least 1 token")
    if "outcome" in lengths and not np.isfinite(table.outcome[table.active]).all():
        row = int(np.flatnonzero(~np.isfinite(table.outcome) & table.active)[0])
        raise ValueError(f"outcome={table.outcome[row]} in row {row}: rewards must be finite, or the row inactive")
