"""Every sequence band on the same recorded data, by a protocol that was written before it was run.

python recipes/replay_bands.py [--run FOLDER] [--targets 0.5 0.8 0.95]

1. Data: `fairlen train --method grpo --updates-per-batch 4 --prompts-per-batch 16 --rollout-batches 24 --learning-rate 3e-4
   --seed 0` on the playground, whose token clip bounds no sequence, into runs/replay unless a folder is given;
   `--rollout-batches 2` takes seconds. Rows are sequences of off-policy updates.
2. Rules: RULES; the drift k is the mean of -S per token, the same for all.
3. Equal acceptance: both widths of each rule are multiplied by one factor, so that 80% of all rows are inside (50% and 95%
   beside it).
4. Bins: ten quantile bins of length with at least 30 sequences each, the same for all rules.
5. Uncertainty: a bootstrap over prompts, the noise floor of a perfectly fair rule, and the p-value of a test over prompts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fairlen.audit.log import Log, OffPolicy, off_policy
from fairlen.audit.readers import read
from fairlen.audit.statistics.acceptance import Acceptance, acceptance_by_length
from fairlen.audit.statistics.intervals import NOTHING, Estimate, bootstrap, length_bins, ratio, ratio_over
from fairlen.batch import Floats, Ints, centred_squares
from fairlen.flags import read_flags
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip

RULES = ("fspo", "fspo_v3", "fspo_centred", "rloo", "gspo")
CLIPS = {"rloo": (SequenceRatioClip(), 0.0), "gspo": (SequenceClip(), 1.0), "p_gspo": (PowerClip(), PowerClip().power)}
"""Each with the power of length by which S is divided; the other rules are bands of FSPO."""
WIDTHS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(RULES[:3], (FairBand().width * FairBand().lower_share, FairBand().width)),
    **{name: (clip.clip_low, clip.clip_high) for name, (clip, _) in CLIPS.items()},
}
"""Lower and upper, of the presets: nats per square root of a token for fspo*, distance of the ratio from 1 for the others."""


@dataclass
class Settings:
    """The run to replay, and the acceptance of each band."""

    run: str = ""
    targets: tuple[float, ...] = (0.5, 0.8, 0.95)
    threads: int = 0
    rollout_batches: int = 24


def train(threads: int, rollout_batches: int) -> Path:
    """The run of the protocol, unless it is there."""
    from fairlen.train.run.config import TrainConfig
    from fairlen.train.start import start_training

    folder = Path("runs/replay")
    if not (folder / "run.json").exists():
        start_training(
            TrainConfig.of(
                method="grpo",
                updates_per_batch=4,
                prompts_per_batch=16,
                rollout_batches=rollout_batches,
                eval_every=0,
                threads=threads,
                out=str(folder),
            )
        )
    return folder


def critical_factor(
    rule: str, length: Ints, log_ratio: Floats, drift: float | Floats, low: float, high: float
) -> Floats:
    """Return the least factor of both widths at which each sequence is inside, [N]; 0 where it always is.

    `drift` is k, of all sequences or of each, in nats per token.

    fspo*: |S + shift| over width sqrt(L), beyond the drift;  others: |exp(S / L^power) - 1| over the distance.
    """
    tokens, moved = length.astype(np.float64), log_ratio
    if rule in CLIPS:
        moved = np.expm1(np.minimum(moved / tokens ** CLIPS[rule][1], 700.0))
        size = np.abs(moved)
    else:
        moved = moved + drift * tokens if rule == "fspo_centred" else moved
        beyond = np.abs(moved) - (drift * tokens if rule == "fspo" else 0.0)
        size = np.maximum(beyond, 0.0) / np.sqrt(tokens)
    return size / np.where(moved > 0, high, low)


def factor_for(critical: Floats, target: float) -> float:
    """Return the least factor at which at least the target share is inside."""
    place = max(math.ceil(target * len(critical) - 1e-9) - 1, 0)
    return float(np.partition(critical, place)[place])


@dataclass(frozen=True)
class RatioLaw:
    """The law of the log ratio S of off-policy sequences, with intervals over prompts.

    Source: 2509.09177, theorem 2.2: S of responses of the old policy is near N(-k L, sigma^2 L). Sequences of all updates are
    pooled; updates that moved by different amounts make a mixture, whose tails are heavier than normal.
    """

    scale: Estimate
    """sigma, nats per square root of a token: root mean square of (S + k L) / sqrt(L)."""
    drift: Estimate
    """k, nats per token: -sum S / sum L; nan of no sequences."""
    growth: Estimate
    """Exponent of the std of S with length over bins (log-log least squares): 1/2 in the theorem, 1 where drift varies."""


def ratio_law(log: Log) -> RatioLaw:
    """Return the law of the recorded log ratios."""
    rows = off_policy(log)
    length, total = rows.length.astype(np.float64), rows.log_ratio
    scale = bootstrap(rows.prompt, [total**2 / length, total, length, np.ones(len(rows))], spread_of).at(0)
    return RatioLaw(scale, ratio_over(rows.prompt, -total, length), growth_of(rows))


def spread_of(sums: Floats) -> Floats:
    """Return sigma from the sums of S^2/L, S, L and 1: with k = -S/L, E (S + k L)^2 / L = (sum S^2/L - (sum S)^2 / sum L) / n."""
    squares, total, tokens, num = (sums[..., column] for column in range(4))
    return np.sqrt(ratio(centred_squares(tokens, total, squares), num))


def growth_of(rows: OffPolicy) -> Estimate:
    """Return the exponent with which the std of S grows over bins of length; nothing of one bin."""
    bins = length_bins(rows.length)
    columns = [np.ones(len(rows)), rows.log_ratio, rows.log_ratio**2, rows.length]

    def measure(sums: Floats) -> Floats:
        num, total, squares, tokens = np.moveaxis(sums.reshape(*sums.shape[:-1], 4, len(bins)), -2, 0)
        return slope(ratio(tokens, num), np.sqrt(ratio(centred_squares(num, total, squares), num)))

    return bootstrap(rows.prompt, columns, measure, bins.index, len(bins)).at(0) if len(bins) > 1 else NOTHING


def slope(length: Floats, std: Floats) -> Floats:
    """Return the slope of log std on log length over bins, [..., K] each; nan where a std is 0 or there is one bin."""
    with np.errstate(divide="ignore", invalid="ignore"):
        x, y = np.log(length), np.log(std)
        x = x - x.sum(-1, keepdims=True) / max(x.shape[-1], 1)
        found = (x * y).sum(-1) / (x * x).sum(-1)
    return np.where(np.isfinite(found), found, np.nan)


@dataclass(frozen=True)
class Replayed:
    """One rule on the recorded sequences."""

    rule: str
    low: float
    """Lower width, in the rule's own unit (WIDTHS); nan where no multiple of it gives the target."""
    high: float
    acceptance: Acceptance


def replay(log: Log, rules: Sequence[str], target: float) -> list[Replayed]:
    """Every rule at the multiple of its WIDTHS that accepts the target, a share above 0 and up to 1.

    The drift k is that of all sequences. Of the recorded run: with other bounds, later updates would have had other log ratios.
    """
    if not 0.0 < target <= 1.0:
        raise ValueError(f"target={target}: give a share above 0 and up to 1")
    rows, found = off_policy(log), []
    drift = max(np.nan_to_num(ratio_law(log).drift.value), 0.0)
    for rule in rules:
        low, high = WIDTHS[rule]
        critical = critical_factor(rule, rows.length, rows.log_ratio, drift, low, high)
        factor = factor_for(critical, target) if len(rows) else 1.0
        accepted = acceptance_by_length(rows.length, critical <= factor, rows.prompt)
        if factor == 0.0:
            accepted = replace(accepted, undefined=f"the drift alone accepts {accepted.overall.value:.1%}")
            factor = math.nan
        found.append(Replayed(rule, low * factor, high * factor, accepted))
    return found


def print_rule(found: Replayed) -> None:
    """One line of the table: the widths, the error with its floor and p-value, and q(L)."""
    accepted, widths = found.acceptance, f"{found.low:8.4f} {found.high:8.4f}"
    shares = " ".join(f"{share:.2f}" for share in accepted.share.value)
    error = f"{accepted.lre.value:.3f} [{accepted.lre.low:.3f}, {accepted.lre.high:.3f}]"
    print(f"{found.rule:13} {widths}  {error}  {accepted.floor:.3f}  {accepted.p_value:.3f}  {shares}")
    if accepted.undefined:
        print(f"{'':13} undefined: {accepted.undefined}")


def main(settings: Settings) -> None:
    folder = Path(settings.run) if settings.run else train(settings.threads, settings.rollout_batches)
    log = read([str(folder)]).sources[0].log
    law = ratio_law(log)
    print(f"drift {law.drift.value:.2e} [{law.drift.low:.2e}, {law.drift.high:.2e}] nats per token")
    print(
        f"scale of S per square root of a token {law.scale.value:.4f}, growth exponent {law.growth.value:.2f} (0.5 in theory)"
    )
    for target in settings.targets:
        print(f"\n{target:.0%} inside: rule, widths, LRE [95%], floor, p, q of ten length bins, short to long")
        for rule in replay(log, RULES, target):
            print_rule(rule)


if __name__ == "__main__":
    main(read_flags(Settings, "python recipes/replay_bands.py", sys.argv[1:]))
