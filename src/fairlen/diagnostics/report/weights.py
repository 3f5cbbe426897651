"""Figures of what length does to an update: whose tokens it weighs, whether it presses against stopping, what it clips."""

from __future__ import annotations

import numpy as np
from markupsafe import Markup

from fairlen.diagnostics.log import Log, Trained, advantages
from fairlen.diagnostics.report.chart import Bars, Frame, bars, lines, nice_axis, plain, share
from fairlen.diagnostics.report.figure import (
    Figure,
    Section,
    Table,
    as_series,
    column,
    interval,
    intervals,
    whole,
)
from fairlen.diagnostics.report.learning import BATCH, batch_axis
from fairlen.diagnostics.report.lengths import LENGTH, binned
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.report.statistics import FEWEST, EdgeBins, nice_bins, windows
from fairlen.diagnostics.uncertainty import Counted, Estimates, mean, rate

BATCHES = 4
"""Rollout batches in a stretch of training, at least: what an interval over batches needs."""
BETWEEN_BATCHES = "Bands are 95% intervals over rollout batches."


def weights_section(run: Run, log: Log) -> Section:
    """What the method makes of lengths."""
    figures = [stopping_figure(run), coupling_figure(run)]
    if len(log.trained):
        bins = nice_bins(log.segments.length[log.trained.segment])
        figures = [mass_figure(log, log.trained, bins), *figures, acceptance_figure(log, log.trained, bins)]
    lead = "A sequence pushes the model by its weight, the size of its advantage and its number of tokens."
    return Section("weights", "Length in the update", lead, figures)


def mass_figure(log: Log, trained: Trained, bins: EdgeBins) -> Figure:
    """weight x |advantage| x length by length and sign."""
    advantage, length = advantages(log)[trained.segment], log.segments.length[trained.segment]
    mass, place = trained.weight * np.abs(advantage) * length, bins.place(length)
    sides = {"pushed up": advantage > 0, "pushed down": advantage < 0}
    masses = [np.bincount(place[s], mass[s], len(bins)) / max(mass.sum(), 1e-300) for s in sides.values()]
    tokens = [
        np.bincount(place[s], length[s], len(bins)) / max(length[advantage != 0].sum(), 1) for s in sides.values()
    ]
    series = [
        Bars("pushed up", masses[0], "right", marks=tokens[0]),
        Bars("pushed down", masses[1], "wrong", down=True, marks=tokens[1]),
    ]
    rows = [
        (name, *(share(float(c[i])) for c in (masses[0], tokens[0], masses[1], tokens[1])))
        for i, name in enumerate(bins.names())
    ]
    up = float(masses[0].sum())
    return Figure(
        f"{share(up)} of the weight pushes up, {share(1 - up)} down"
        if mass.sum() > 0
        else "No advantage differs from 0",
        "Share of weight x |advantage| x length by length and sign, all updates. Short lines: share of tokens.",
        bars(bins, series, LENGTH, "weight by length and sign"),
        Table(("tokens", "up: weight", "up: tokens", "down: weight", "down: tokens"), rows),
        "A bar above its line means that these tokens weigh more than others. Sums over the run, no estimate.",
    )


def stopping_figure(run: Run) -> Figure:
    """The sum of advantages at ends of answers."""
    entries = list({e.get("rollout_batch"): e for e in run.updates if e.get("advantage/eos") is not None}.values())
    found, middle = over_batches(column(entries, "rollout_batch"), column(entries, "advantage/eos"))
    total = overall(column(entries, "rollout_batch"), column(entries, "advantage/eos"))
    return Figure(
        signed_title(
            total,
            "Stopping is pushed down",
            "Stopping is pushed up",
            "Stopping is not clearly pushed either way",
        ),
        "Sum of advantages at the tokens that end an answer, per rollout batch.",
        zero_lines(middle, found, "pressure on stopping over training"),
        Table((BATCH, "sum of advantages"), list(zip(map(whole, middle), intervals(found, plain), strict=True))),
        f"Over the run {interval(total, plain)} per rollout batch. Below 0 presses against stopping; above it, answers "
        f"that stop may only be right more often than those that are cut off. {BETWEEN_BATCHES}",
    )


def coupling_figure(run: Run) -> Figure:
    """The mean advantage over tokens."""
    entries = [e for e in run.updates if e.get("coupling/sign_length") is not None]
    values = column(entries, "coupling/sign_length")
    batch = column(entries, "rollout_batch")
    found, middle = over_batches(batch, values)
    total = overall(batch, values)
    return Figure(
        signed_title(total, "Negative advantages fall on longer answers", "Positive advantages fall on longer answers",
                     "Sign and length are not clearly coupled"),
        "Mean advantage over trained tokens, per update: 0 where length and sign are not coupled.",
        zero_lines(middle, found, "coupling of sign and length over training"),
        Table((BATCH, "mean advantage of a token"), list(zip(map(whole, middle), intervals(found, plain), strict=True))),
        f"Over the run {interval(total, plain)}. Far from 0, a token mean pushes all log-probs one way. {BETWEEN_BATCHES}",
    )  # fmt: skip


def over_batches(batch: np.ndarray, values: np.ndarray) -> tuple[Estimates, np.ndarray]:
    """Means in stretches of training, with intervals over rollout batches."""
    if not len(values):
        return Counted(values, values, values, np.zeros(0, np.int64)), np.zeros(0)
    number = batch.astype(np.int64)
    window, middle = windows(number, BATCHES)
    return mean(values, number, window, len(middle)), middle


def overall(batch: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """The mean of all, with its interval over rollout batches, whose updates are alike."""
    if len(values) < 2:
        return (float(values[0]) if len(values) else np.nan), np.nan, np.nan
    found = mean(values, batch.astype(np.int64), np.zeros(len(values), np.int64), 1)
    return float(found.value[0]), float(found.low[0]), float(found.high[0])


def signed_title(total: tuple[float, float, float], below: str, above: str, neither: str) -> str:
    """What an interval says about the sign."""
    _, low, high = total
    return below if high < 0 else above if low > 0 else neither


def zero_lines(middle: np.ndarray, found: Estimates, label: str) -> Markup:
    """One line with its band around zero."""
    series = [as_series("", middle, found, "plain", form=plain)]
    y = nice_axis([found.value, found.low, found.high], zero=True)
    return lines(Frame(batch_axis(middle), y, BATCH, level=0.0), series, label)


def acceptance_figure(log: Log, trained: Trained, bins: EdgeBins) -> Figure:
    """Tokens within the bound, and tokens without a gradient, by length, of off-policy updates."""
    off = trained.log_ratio != 0
    if not off.any():
        why = "Every update was on-policy: each rollout batch served one update, so that ratios are 1 and nothing is clipped."
        return Figure("Nothing could be clipped", why)
    batch = log.batch[log.segments.response[trained.segment]][off]
    place = bins.place(log.segments.length[trained.segment][off])
    inside, clipped = (
        rate(v[off], batch, place, len(bins)).of_at_least(FEWEST) for v in (trained.inside, trained.clipped)
    )
    middle = (np.arange(len(bins)) + 0.5) / len(bins)
    series = [
        as_series("inside", middle, inside, "right", "points"),
        as_series("clipped", middle, clipped, "wrong", "points"),
    ]
    rows = zip(bins.names(), intervals(inside), intervals(clipped), map(str, inside.count), strict=True)
    used = np.flatnonzero(np.isfinite(inside.value))
    ends = [share(float(inside.value[i])) for i in used[[0, -1]]] if len(used) else ["-", "-"]
    return Figure(
        f"Acceptance by length: {ends[0]} of the shortest, {ends[1]} of the longest",
        "Off-policy updates: mean share of tokens within the two-sided bound (inside), and of those without gradient (clipped).",
        lines(binned(bins, series, 1.0), series, "acceptance and clipping by length"),
        Table(("tokens", "inside", "clipped", "sequences"), list(rows)),
        "Whiskers: 95% over rollout batches. A fair bound accepts all lengths alike.",
    )
