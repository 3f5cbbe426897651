"""Precision of numbers by their types: differences below it are rounding.

A sum of n parts, each of them and each partial sum rounded to a machine epsilon e, is off by at most n e / 2 of its scale:
two such sums of one number differ by at most n e. The scale is the larger of the two, and at least 1, that of a verdict:
the remainder of parts that cancel has their rounding, not its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PARTS = 4
"""Rounded numbers that a reward may be the sum of."""
DOUBLE = float(np.finfo(np.float64).eps)
SINGLE = float(np.finfo(np.float32).eps)
HALVES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def precision_of(values: Any) -> float:
    """Machine epsilon of float16 and bfloat16 arrays or tensors; float32's of all others, whatever they are held in."""
    return HALVES.get(str(getattr(values, "dtype", "")).removeprefix("torch."), SINGLE)


def tolerance(scale: ArrayLike, epsilon: ArrayLike = DOUBLE, parts: ArrayLike = PARTS) -> Floats:
    """The largest difference between numbers of this scale that rounding explains."""
    return np.multiply(parts, epsilon) * np.maximum(scale, 1.0)


def settle(index: NDArray[np.int64], values: Floats, precision: float = SINGLE) -> Floats:
    """The values [N] with those of equal index [N] that differ by rounding made equal, and those that are rounding made 0.

    Neighbours in order of size are one number where they differ by no more than `precision`; they become the lowest.
    """
    values = np.where(np.abs(values) <= tolerance(0.0, precision), 0.0, values)
    order = np.lexsort((values, index))
    ordered, scale = values[order], np.abs(values[order])
    with np.errstate(invalid="ignore"):
        is_near = np.diff(ordered) <= tolerance(np.maximum(scale[1:], scale[:-1]), precision)
    same = (np.diff(index[order]) == 0) & is_near
    first = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(len(values) or 1)))
    settled = values.copy()
    settled[order] = ordered[first[: len(values)]]
    return settled


def is_above(values: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """True where a value is above a threshold by more than rounding, of any shape; nan is not."""
    numbers, limit = np.asarray(values, np.float64), np.asarray(threshold, np.float64)
    with np.errstate(invalid="ignore"):
        return numbers - limit > tolerance(np.maximum(np.abs(numbers), np.abs(limit)), SINGLE)


def add_parts(weights: Iterable[float], values: Iterable[float]) -> float:
    """Sum of weight * value."""
    return sum(weight * value for weight, value in zip(weights, values, strict=True))
