"""Checks of fields and columns at construction: the error names the class, the field, the value and what to give instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, field, fields
from functools import cache, partial
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np


class Rule(NamedTuple):
    """The numbers that a field takes."""

    holds: Callable[[float], bool]
    wanted: str


FINITE = Rule(math.isfinite, "a finite number")
POSITIVE = Rule(lambda value: 0 < value < math.inf, "a finite number above 0")
NOT_NEGATIVE = Rule(lambda value: value >= 0, "0 or more")

Positive = Annotated[float, POSITIVE]
Count = Annotated[int, Rule(lambda value: value >= 1, "1 or more")]
NotNegative = Annotated[float, NOT_NEGATIVE]
"""Infinity is allowed where it switches a bound off."""
Bound = Annotated[float, Rule(lambda value: value > 0, "a number above 0, or inf to switch it off")]
Amount = Annotated[float, Rule(lambda value: 0 <= value < math.inf, "a finite number, 0 or more")]
Natural = Annotated[int, NOT_NEGATIVE]
Seed = Annotated[int, Rule(lambda value: 0 <= value < 2**63, "0 to 9223372036854775807")]
"""One that every library takes."""
Fraction = Annotated[float, Rule(lambda value: 0 <= value <= 1, "a fraction from 0 to 1")]
PositiveFraction = Annotated[float, Rule(lambda value: 0 < value <= 1, "a fraction from more than 0 to 1")]


def added_later(default: Any) -> Any:
    """A field that a description leaves out while it has its default, so that hashes of before it was there stay."""
    return field(default=default, metadata={"added_later": True})


def is_described(stage: Any, one: Field[Any]) -> bool:
    """Whether a description of the stage has the field."""
    return not one.metadata.get("added_later") or getattr(stage, one.name) != one.default


def label(stage: Any, name: str) -> str:
    """The beginning of an error: the stage and its field, or a setting as users name it."""
    return stage.label(name) if hasattr(stage, "label") else f"{type(stage).__name__}: {name}"


def check(rule: Rule, stage: Any, *names: str) -> None:
    """Raises ValueError where one of the fields is not what the rule says."""
    for name in names:
        value, holds = getattr(stage, name), False
        with suppress(TypeError):  # a text, or None
            holds = rule.holds(value)
        if not holds:
            raise ValueError(f"{label(stage, name)}={value!r}: give {rule.wanted}")


read_hints = cache(partial(get_type_hints, include_extras=True))


def check_fields(stage: Any) -> None:
    """Every field is what it is declared as: by the rules above, or one of some words."""
    for name, hint in read_hints(type(stage)).items():
        value, kind = getattr(stage, name), get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if get_origin(kind) is Literal and value not in get_args(kind):
            raise ValueError(f"{label(stage, name)}={value!r}: give one of {', '.join(map(str, get_args(kind)))}")
        for rule in getattr(hint, "__metadata__", ()):
            if isinstance(rule, Rule):
                check(rule, stage, name)


class Checked:
    """A dataclass whose fields are checked by what they are declared as."""

    def __post_init__(self) -> None:
        check_fields(self)


WHAT_HOLDS = {"Floats": (np.float64, "numbers"), "Ints": (np.int64, "whole numbers"), "Bools": (np.bool_, "0 or 1")}
"""By the name of a column's type, what it is made of and what may be given."""


def convert_columns(table: Any) -> None:
    """Makes every column an array of the type that its field is declared with, without changing a value.

    An integer column of outcomes would truncate the rewards that are written into a copy of it.
    """
    columns = [one for one in fields(table) if one.type in WHAT_HOLDS]
    size = len(getattr(table, columns[0].name))
    for one in columns:
        given = getattr(table, one.name)
        kind, wanted = WHAT_HOLDS[str(one.type)]
        column = np.asarray(given) if np.ndim(given) else np.full(size, given)
        column = convert(column, kind, wanted, f"{type(table).__name__}: {one.name}")
        if column is not given:
            object.__setattr__(table, one.name, column)


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
    lengths = {name: len(column) for name, column in (table.columns() | table.channels).items()}
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
