"""The precision in which numbers came: what differs by less is rounding, and is neither a difference nor above a threshold.

A sum of n parts, each of them and each partial sum rounded to a machine epsilon e, is off by at most n e / 2 of its scale, so that
two such sums of one number differ by at most n e. The scale is the larger of the two, and at least 1, that of a verdict: what is
left where parts cancel has their rounding, not its own.
"""

from __future__ import annotations

import math
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


def precision_of(values: Any) -> float:
    """Return the machine epsilon of an array's or a tensor's type; 0 for whole numbers, which are exact."""
    kind = getattr(values, "dtype", np.dtype(np.float64))
    if isinstance(kind, np.dtype):
        return float(np.finfo(kind).eps) if kind.kind == "f" else DOUBLE if kind.kind == "O" else 0.0
    import torch

    return float(torch.finfo(kind).eps) if kind.is_floating_point else 0.0


def epsilons(values: Floats) -> Floats:
    """Return float32's machine epsilon for each number that float32 holds exactly, of any shape, and float64's for others.

    Of float64 numbers that were computed as such, one in 2^29 is one of float32.
    """
    with np.errstate(over="ignore"):
        return np.where(values.astype(np.float32) == values, SINGLE, DOUBLE)


def tolerance(scale: ArrayLike, epsilon: ArrayLike = DOUBLE, parts: ArrayLike = PARTS) -> Floats:
    """Return the most that rounding makes of a difference between numbers of this scale."""
    return np.multiply(parts, epsilon) * np.maximum(scale, 1.0)


def settle(index: NDArray[np.int64], values: Floats, precision: float = DOUBLE) -> Floats:
    """Return the values [N] with those of equal index [N] that differ by rounding made equal, and those that are rounding made 0.

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
    """Return whether values are above a threshold by more than rounding, of any shape; nan is not."""
    numbers = np.asarray(values, np.float64)
    with np.errstate(invalid="ignore"):
        return numbers - threshold > tolerance(np.maximum(np.abs(numbers), np.abs(threshold)), epsilons(numbers))


def add_parts(parts: Iterable[tuple[float, float]]) -> float:
    """Return the sum of (weight, value); as a number of float32 where a value is one, so that it is taken for what it is."""
    pairs = list(parts)
    total = sum(weight * value for weight, value in pairs)
    return float(np.float32(total)) if any(is_single(value) for _, value in pairs) else total


def is_single(value: float) -> bool:
    """Return whether a number came in float32: it holds the number exactly, which takes more than SHORT_BITS."""
    with np.errstate(over="ignore"):
        return float(np.float32(value)) == value and not (math.frexp(value)[0] * 2**SHORT_BITS).is_integer()
