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
SHORT_BITS = 12
"""Significant bits up to which a number says nothing of the type that it came in: 1, 0.5, 3/4."""

HALVES = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def precision_of(values: Any) -> float:
    """Machine epsilon of float16 and bfloat16 arrays or tensors; float64's of all others."""
    return HALVES.get(str(getattr(values, "dtype", "")).removeprefix("torch."), DOUBLE)


def epsilons(values: Floats) -> Floats:
    """Machine epsilon for each number: float32's where float32 holds it exactly, as 1 in 2^29 of float64's, else float64's."""
    with np.errstate(over="ignore"):
        return np.where(values.astype(np.float32) == values, SINGLE, DOUBLE)


def tolerance(scale: ArrayLike, epsilon: ArrayLike = DOUBLE, parts: ArrayLike = PARTS) -> Floats:
    """The largest difference between numbers of this scale that rounding explains."""
    return np.multiply(parts, epsilon) * np.maximum(scale, 1.0)


def settle(index: NDArray[np.int64], values: Floats, precision: float = DOUBLE) -> Floats:
    """The values [N] with those of equal index [N] that differ by rounding made equal, and those that are rounding made 0.

    Neighbours in order of size are one number where they differ by no more than the coarser of `precision` and float32's, where
    float32 holds both; they become the lowest.
    """
    epsilon = np.maximum(epsilons(values), precision)
    size = np.abs(values)
    values = np.where(size <= tolerance(0.0, epsilon), 0.0, values)
    order = np.lexsort((values, index))
    ordered, scale, steps = values[order], size[order], epsilon[order]
    with np.errstate(invalid="ignore"):
        gap = ordered[1:] - ordered[:-1]
        limit = tolerance(np.maximum(scale[1:], scale[:-1]), np.minimum(steps[1:], steps[:-1]))
        same = (index[order][1:] == index[order][:-1]) & (gap <= limit)
    first = np.maximum.accumulate(np.where(np.append(False, same), 0, np.arange(len(values) or 1)))
    settled = values.copy()
    settled[order] = ordered[first[: len(values)]]
    return settled


def is_above(values: ArrayLike, threshold: ArrayLike) -> NDArray[np.bool_]:
    """True where a value is above a threshold by more than rounding, of any shape; nan is not."""
    numbers, limit = np.asarray(values, np.float64), np.asarray(threshold, np.float64)
    with np.errstate(invalid="ignore"):
        return numbers - limit > tolerance(np.maximum(np.abs(numbers), np.abs(limit)), epsilons(numbers))


def add_parts(weights: Iterable[float], values: Iterable[float]) -> float:
    """Sum of weight * value; in float32 where it holds a value exactly that takes more than SHORT_BITS."""
    pairs = list(zip(weights, values, strict=True))
    with np.errstate(over="ignore"):
        singles = (
            float(np.float32(value)) == value and np.ldexp(np.frexp(value)[0], SHORT_BITS) % 1 for _, value in pairs
        )
        total = sum(weight * value for weight, value in pairs)
        return float(np.float32(total)) if any(singles) else total
