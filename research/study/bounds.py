"""How far unequal acceptance of lengths can turn an update: theorem 2.1 of 2509.09177, as it stands and as it holds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats


@dataclass(frozen=True)
class Direction:
    """Exact functions of the gradients given: no interval."""

    kappa: float
    """E|g*_L| / |g*|, at least 1: how much the gradients of different lengths cancel."""
    eta: float
    """max |g_b_L - g*_L| / |g*_L|: how much acceptance changes the gradient within a length."""
    lre: float
    lre_weighted: float
    """LRE with bins weighted by the size of their gradients."""
    rho: float
    """As it is: |g_b - qbar g*| / (qbar |g*|)."""
    rho_paper: float
    """kappa (eta + (1 + eta) LRE): the paper's last line, which loses a factor 2 of its own proof. Can be violated."""
    rho_bound: float
    """kappa (eta + 2 (1 + eta) LRE_w): holds for any gradients."""
    cosine: float
    """Between g_b and g*, as it is."""
    cosine_paper: float
    """(1 - rho_paper) / (1 + rho_paper)."""
    cosine_bound: float
    """sqrt(1 - rho_bound^2), the sharp one, where rho_bound < 1; else -1: nothing is known."""
    undefined: str = ""


def direction_bound(full: Floats, accepted: Floats, share: Floats, count: Floats) -> Direction:
    """Return the bounds from the mean gradient of each bin, over all its sequences and over the accepted ones, [K, D] each.

    `share` [K] is q of each bin, `count` [K] its sequences (any weights). A bin that accepts nothing contributes no clipped
    gradient, whatever its row of `accepted`. Undefined where the whole gradient or acceptance is 0; eta is infinite where a
    bin's gradient is 0 and its clipped one is not, and then nothing is bounded.
    """
    part = np.asarray(count, np.float64) / np.sum(count)
    accepted = np.where(np.asarray(share)[:, None] > 0, accepted, full)
    norm, gap = np.linalg.norm(full, axis=1), np.linalg.norm(accepted - full, axis=1)
    whole, clipped, overall = part @ full, (part * share) @ accepted, float(part @ share)
    size, magnitude, length = float(np.linalg.norm(whole)), float(part @ norm), float(np.linalg.norm(clipped))
    if overall <= 0 or size == 0:
        why = "no sequence was accepted" if overall <= 0 else "the whole gradient is 0"
        return Direction(*[math.nan] * 10, undefined=why)
    with np.errstate(divide="ignore", invalid="ignore"):
        eta = float(np.max(np.where(gap > 0, gap / norm, 0.0)[part > 0]))
    kappa, off = magnitude / size, np.abs(share / overall - 1.0)
    lre, lre_weighted = 0.5 * float(part @ off), 0.5 * float(part @ (off * norm)) / magnitude
    paper, bound = kappa * (eta + (1 + eta) * lre), kappa * (eta + 2 * (1 + eta) * lre_weighted)
    return Direction(
        kappa=kappa,
        eta=eta,
        lre=lre,
        lre_weighted=lre_weighted,
        rho=float(np.linalg.norm(clipped - overall * whole)) / (overall * size),
        rho_paper=paper,
        rho_bound=bound,
        cosine=float(clipped @ whole) / (length * size) if length > 0 else math.nan,
        cosine_paper=(1 - paper) / (1 + paper) if math.isfinite(paper) else -1.0,
        cosine_bound=math.sqrt(1 - bound**2) if bound < 1 else -1.0,
    )
