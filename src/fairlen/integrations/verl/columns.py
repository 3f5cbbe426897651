"""Columns of verl's batches as what Python reads quickly: an index of one costs about as much as all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def unbind(column: Any) -> Sequence[Tensor]:
    """Return the rows of a jagged column."""
    return column.values().split(column.offsets().diff().tolist())


def spread_over(rows: Tensor, mask: Any) -> Tensor:
    """Return a jagged column: the number of each row where the mask is 1, and 0 elsewhere."""
    return torch.nested.nested_tensor_from_jagged(
        rows.repeat_interleave(mask.offsets().diff()) * mask.values(), mask.offsets()
    )


def read_values(column: Iterable[Any]) -> list[Any]:
    """Return what is no tensor, a value for each row."""
    return [getattr(value, "data", value) for value in column]
