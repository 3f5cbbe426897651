"""Columns of verl's batches as what Python reads quickly: an index of one costs about as much as all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor


def cut(column: Tensor) -> Sequence[Tensor]:
    """Return the rows of a jagged column."""
    return column.values().split(column.offsets().diff().tolist())


def read_values(column: Iterable[Any]) -> list[Any]:
    """Return what is no tensor, a value for each row."""
    return [getattr(value, "data", value) for value in column]
