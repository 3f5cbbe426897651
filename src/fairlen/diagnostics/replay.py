"""What any sequence band would have accepted, from recorded log ratios and lengths alone.

A band grows with its widths, so that every sequence has one factor of the widths at which it begins to be inside. Any width is
replayed by comparing with that factor, and the width of a given overall acceptance is a quantile of it: nothing is searched for.
The answers are those of the recorded run; with other bounds, later updates would have had other log ratios.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairlen.batch import Floats
from fairlen.diagnostics.acceptance import Acceptance, acceptance_by_length
from fairlen.diagnostics.bins import NUM_BINS, length_bins
from fairlen.diagnostics.drift import drift_of, running_drift
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.rows import OffPolicy, off_policy
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip

RULES = ("fspo", "fspo_v3", "fspo_centred", "rloo", "gspo", "p_gspo")
DRIFTS: dict[str, Literal["symmetric", "none", "centred"]] = {
    "fspo": "symmetric", "fspo_v3": "none", "fspo_centred": "centred"
}  # fmt: skip
CLIPS: dict[str, SequenceRatioClip | SequenceClip | PowerClip] = {
    "rloo": SequenceRatioClip(),
    "gspo": SequenceClip(),
    "p_gspo": PowerClip(),
}
POWERS = {"rloo": 0.0, "gspo": 1.0, "p_gspo": PowerClip().power}
"""Of length, by which S is divided."""
WIDTHS: dict[str, tuple[float, float]] = {
    **{name: (FairBand().width * FairBand().lower_share, FairBand().width) for name in DRIFTS},
    **{name: (clip.clip_low, clip.clip_high) for name, clip in CLIPS.items()},
}
"""Lower and upper, of the presets: nats per square root of a token for fspo*, distance of the ratio from 1 for the others."""


@dataclass(frozen=True)
class Replayed:
    """One rule on the recorded sequences."""

    rule: str
    low: float
    """Lower width, in the rule's own unit (WIDTHS)."""
    high: float
    factor: float
    """Of the widths asked for; nan where no factor gives the target."""
    acceptance: Acceptance
    undefined: str = ""


def replay(
    log: Log,
    rules: tuple[str, ...] = RULES,
    widths: Mapping[str, tuple[float, float]] = WIDTHS,
    target: float | None = None,
    drift: Literal["pooled", "running"] = "pooled",
    effective: bool = False,
    num_bins: int = NUM_BINS,
) -> tuple[Replayed, ...]:
    """Every rule at its widths, or, with a target in 0..1, at multiples of them whose overall acceptance is the target.

    The drift k is that of all sequences, or FSPO's running estimate from the updates before. Effective: only the side that the
    sign of the advantage acts on counts.
    """
    if target is not None and not 0.0 < target <= 1.0:
        raise ValueError(f"target={target}: give a share above 0 and up to 1")
    rows = off_policy(log)
    bins = length_bins(rows.length, num_bins)
    known = running_drift(rows) if drift == "running" else max(np.nan_to_num(drift_of(rows).value), 0.0)
    found = []
    for rule in rules:
        low, high = widths[rule]
        critical = critical_factor(rule, rows, known, low, high, effective)
        factor = 1.0 if target is None or not len(rows) else factor_for(critical, target)
        accepted = acceptance_by_length(
            rows.length,
            (critical <= factor).astype(np.float64),
            rows.prompt,
            rows.segment,
            num_bins=num_bins,
            bins=bins,
        )
        undefined = accepted.undefined
        if target is not None and factor == 0.0:
            undefined = f"the drift alone accepts {accepted.overall.value:.1%}"
            factor = math.nan
        found.append(Replayed(rule, low * factor, high * factor, factor, accepted, undefined))
    return tuple(found)


def critical_factor(
    rule: str, rows: OffPolicy, drift: float | Floats, low: float, high: float, effective: bool = False
) -> Floats:
    """The least factor of both widths at which each sequence is inside, [N]; 0 where it always is.

    fspo*: |S + shift| over width sqrt(L), beyond the drift;  others: |exp(S / L^power) - 1| over the distance.
    """
    length, total = rows.length.astype(np.float64), rows.log_ratio
    if rule in DRIFTS:
        shift = drift * length
        moved = total + shift if rule == "fspo_centred" else total
        beyond = np.abs(moved) - (shift if rule == "fspo" else 0.0)
        size = np.maximum(beyond, 0.0) / np.sqrt(length)
    else:
        moved = np.expm1(np.minimum(total / length ** POWERS[rule], 700.0))
        size = np.abs(moved)
    factor = size / np.where(moved > 0, high, low)
    if effective:
        acts = np.where(moved > 0, rows.advantage > 0, rows.advantage < 0)
        factor = np.where(acts, factor, 0.0)
    return factor


def factor_for(critical: Floats, target: float) -> float:
    """The least factor at which at least the target share is inside."""
    place = max(math.ceil(target * len(critical) - 1e-9) - 1, 0)
    return float(np.partition(critical, place)[place])
