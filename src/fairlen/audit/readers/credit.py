"""Which columns of numbers are parts of the reward: those whose sum explains the advantage that stands beside them."""

from __future__ import annotations

from itertools import product

import numpy as np

from fairlen.batch import Floats, Ints, count_by, sum_by

MAX_PARTS = 8  # columns of which all sets are tried
SAME, ENOUGH = (1e-9, 1e-4, 0.5), 0.9
"""Share of an advantage's squares in a prompt that may be left: of exact numbers, rounded ones, and what a method changed, as by
a penalty on length; share of prompts explained."""


def weigh_parts(parts: Floats, advantage: Floats, group: Ints) -> Floats:
    """Return the weight of each part, [m], in the sum that goes with the advantage within groups; of no part where none does.

    `parts` are [N, m], nan where a part does not apply, `group` dense from 0. Weights are 1 for the fewest columns whose sum
    does, else what solves for them. Advantages may be scaled by group, by batch or not, or be sums of parts that are normalised.
    """
    known = np.isfinite(advantage) & ~np.isnan(parts).all(1)
    number, group = int(group.max(initial=-1)) + 1, group[known]

    def centre(column: Floats) -> Floats:
        return column - (sum_by(group, column, number) / np.maximum(count_by(group, number), 1))[group]

    credit = centre(advantage[known])
    columns = np.stack([centre(np.nan_to_num(column)) for column in parts[known].T[:MAX_PARTS]])
    size = np.stack([sum_by(group, column**2, number) for column in columns])
    scale = np.sqrt(np.where(size > 0, size, 1.0))[:, group]
    for those, same in product((columns, columns / scale), SAME):
        if (weights := solve(those, credit, group, number, same)).any():
            return np.pad(weights, (0, parts.shape[1] - len(weights)))
    return np.zeros(parts.shape[1])


def solve(columns: Floats, credit: Floats, group: Ints, number: int, same: float) -> Floats:
    """Return the weights of centred columns, [m, N], whose sum is in proportion to the credit in nearly every group."""
    squares = sum_by(group, credit**2, number)
    some = squares > 1e-6
    with_credit = np.stack([sum_by(group, column * credit, number) for column in columns])[:, some]
    pairs = np.stack([[sum_by(group, a * b, number)[some] for a in columns] for b in columns])

    def explained(weights: Floats) -> float:
        along = weights @ with_credit
        whole = np.einsum("i,ijg,j->g", weights, pairs, weights) * squares[some]
        return float(np.mean((along > 0) & (along**2 > (1 - same) * whole))) if some.any() else 0.0

    sets = np.array(sorted(product((0.0, 1.0), repeat=len(columns)), key=sum))[1:]
    shares = [explained(weights) for weights in sets]
    if max(shares) >= ENOUGH:
        return next(weights for share, weights in zip(shares, sets, strict=True) if share >= max(shares) - 0.02)
    left = (pairs - with_credit[:, None] * with_credit[None] / squares[some]).sum(2)
    scale = np.sqrt(np.diag(pairs.sum(2)))
    varies = np.flatnonzero(scale > 0)
    weights = np.zeros(len(columns))
    if len(varies):  # those of which the least is left
        left = left[np.ix_(varies, varies)] / np.outer(scale[varies], scale[varies])
        weights[varies] = np.linalg.eigh(left)[1][:, 0] / scale[varies]
        weights *= np.sign((weights @ with_credit).sum()) / np.abs(weights).max()
        weights[np.abs(weights) < 1e-2] = 0.0
    return np.round(weights, 3) if explained(weights) >= ENOUGH else np.zeros(len(columns))
