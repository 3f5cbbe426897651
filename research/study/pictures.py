"""Pictures of the study: means over seeds with 95% t intervals, each with the same numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats, Ints, count_by, mean_by, sum_by
from fairlen.diagnostics.acceptance import WIDTHS, critical_factor, factor_for
from fairlen.diagnostics.log import OffPolicy
from fairlen.diagnostics.report.figure import (
    Axis,
    Figure,
    Form,
    Frame,
    Series,
    Table,
    Tone,
    as_series,
    by_length,
    ends_of,
    intervals,
    lines,
    middles,
    nice_axis,
    plain,
    share,
    span_axis,
    whole,
)
from fairlen.diagnostics.uncertainty import Bins, Estimates, length_bins, ratio
from research.study.evidence import Evidence, RunTables
from research.study.intervals import LEAST_SEEDS, quantile

TONES: tuple[Tone, ...] = ("correct", "incorrect", "plain", "third", "fourth")
COSTS = {
    "seconds": ("seconds on an idle machine", 1.0),
    "tokens": ("generated tokens, thousands", 1e-3),
    "updates": ("updates", 1.0),
}
"""What a run spends: its name on an axis, and the factor of its unit there."""
NUM_STEPS = 20
"""Places between the start and the largest cost at which curves are read."""
NUM_BINS = 8
ACCEPTED = 0.8
"""Share of sequences inside a band that is replayed."""
BANDS = {"rloo": "RLOO", "gspo": "GSPO", "fspo": "FSPO", "fspo_v3": "FSPO v3"}
"""Bands that are replayed, and their names."""
NOTE = "Means over {} seeds; bands and whiskers are 95% t intervals over them."

Runs = Mapping[str, Sequence[RunTables]]
"""By name in the picture, one run a seed."""
Measure = Callable[[RunTables], Floats]


@dataclass(frozen=True)
class Picture:
    """What is drawn for a question."""

    kind: str
    """curves, lengths, streams or acceptance."""
    world: str
    variants: Mapping[str, str]
    """By text, the name in the picture; at most as many as there are colours."""
    replayed: str = ""
    """The variant on whose sequences bands are replayed, of an acceptance picture."""

    def find(self, evidence: Evidence) -> Runs:
        """Return the runs of the variants that have any."""
        found = {name: list(evidence.find(self.world, text).values()) for text, name in self.variants.items()}
        return {name: runs for name, runs in found.items() if runs}

    def draw(self, evidence: Evidence) -> list[Figure]:
        """Return the figures; none where there is no run to draw."""
        runs = self.find(evidence)
        if self.kind != "acceptance":
            return DRAWN[self.kind](runs) if runs else []
        replays = list(evidence.find(self.world, self.replayed).values())
        own = [draw_acceptance("Each run's own band", runs)] if runs else []
        return [*([draw_replay(self.replayed, replays)] if replays else []), *own]


def mean_over_seeds(values: Floats) -> Estimates:
    """Return the means of columns [S, K] with t intervals over the rows; nan where a row has none."""
    size, value = len(values), values.mean(0)
    half = np.full_like(value, np.nan)
    if size >= LEAST_SEEDS:
        half = quantile(0.975, size - 1) * values.std(0, ddof=1) / np.sqrt(size)
    return Estimates(value, value - half, value + half)


def count_seeds(runs: Runs) -> str:
    """Return "5" or "3 to 5"."""
    low, high = (pick(len(some) for some in runs.values()) for pick in (min, max))
    return str(low) if low == high else f"{low} to {high}"


def held_out(run: RunTables, name: str) -> Floats:
    """Return accuracy, or the mean length of correct or of incorrect responses, at every evaluation."""
    rows = {column: values.astype(np.float64) for column, values in run.evaluations.items()}
    _, place = np.unique(rows["rollout_batch"], return_inverse=True)
    size = int(place.max(initial=-1)) + 1
    if name == "accuracy":
        return mean_by(place, rows["right"] / rows["samples"], size)
    tokens, responses = rows["length_right"], rows["right"]
    if name == "incorrect":
        tokens, responses = rows["length"] * rows["samples"] - tokens, rows["samples"] - responses
    return ratio(sum_by(place, tokens, size), sum_by(place, responses, size))


def spent(run: RunTables, cost: str) -> Floats:
    """Return what every evaluation had cost, in the unit of its axis."""
    _, first = np.unique(run.evaluations["rollout_batch"], return_index=True)
    column = run.evaluations["generated" if cost == "tokens" else "update"]
    return column[first].astype(np.float64) * COSTS[cost][1]


def read_at(runs: Sequence[RunTables], cost: str, measure: Measure, grid: Floats) -> Estimates:
    """Return a measure where every run of a variant has spent the same, on straight lines between evaluations."""
    read = [np.interp(grid, spent(run, cost), measure(run), right=np.nan) for run in runs]
    return mean_over_seeds(np.array(read))


def against(cost: str, runs: Runs, measure: Measure, form: Form) -> list[Series]:
    """Return a curve a variant, read at the same costs."""
    most = max(float(spent(run, cost)[-1]) for some in runs.values() for run in some)
    grid = np.linspace(0.0, most, NUM_STEPS + 1)
    return [
        as_series(name, grid, read_at(some, cost, measure, grid), tone, form=form)
        for (name, some), tone in zip(runs.items(), TONES, strict=False)
    ]


def chart(title: str, says: str, series: Sequence[Series], y: Axis, x_label: str, note: str) -> Figure:
    """Return curves over a cost that all of them share, with their table."""
    x = series[0].x
    rows = list(zip(map(plain, x), *(table_column(one) for one in series), strict=True))
    return Figure(
        title, says, lines(Frame(span_axis(float(x[-1])), y, x_label), series, f"{title}: {says}"),
        Table((x_label, *(one.label for one in series)), rows), note,
    )  # fmt: skip


def table_column(one: Series) -> list[str]:
    """Return the numbers of a series as text."""
    assert one.low is not None and one.high is not None  # every series here has its interval
    return intervals(Estimates(one.y, one.low, one.high), one.form)


def draw_curves(runs: Runs) -> list[Figure]:
    """Draw held-out accuracy against each cost."""
    figures = []
    for cost, (label, _) in COSTS.items():
        series = against(cost, runs, lambda run: held_out(run, "accuracy"), share)
        says = "Share of correct responses to held-out problems, read where all runs have spent the same."
        y = nice_axis(ends_of(series), share, most=1.0)
        figures.append(chart(f"Accuracy against {cost}", says, series, y, label, NOTE.format(count_seeds(runs))))
    return figures


def draw_lengths(runs: Runs) -> list[Figure]:
    """Draw the lengths of correct and of incorrect responses over training, on one scale."""
    sides = ("correct", "incorrect")
    series = {side: against("updates", runs, lambda run, side=side: held_out(run, side), plain) for side in sides}
    y = nice_axis([values for some in series.values() for values in ends_of(some)])
    says = "Mean length of {} responses to held-out problems, in tokens; both pictures have one scale."
    note = NOTE.format(count_seeds(runs))
    return [chart(f"Length, {side}", says.format(side), series[side], y, "updates", note) for side in sides]


STREAMS: tuple[tuple[str, str, Measure, Form], ...] = (
    ("Rounds of a stream", "Mean over the streams of a rollout batch.",
     lambda run: run.batches["rounds"].astype(np.float64), plain),
    ("Pairs of a prompt", "Pairs formed for each prompt that was sampled.",
     lambda run: ratio(run.batches["pairs_formed"], run.batches["asked"]), plain),
    ("Pairs that train", "Share of pairs whose values differ, so that they have a gradient.",
     lambda run: ratio(run.batches["pairs_trained"], run.batches["pairs_formed"]), share),
)  # fmt: skip


def draw_streams(runs: Runs) -> list[Figure]:
    """Draw rounds and pairs over training."""
    figures = []
    for title, says, measure, form in STREAMS:
        series = []
        size = min(len(run.batches["rollout_batch"]) for some in runs.values() for run in some)
        for (name, some), tone in zip(runs.items(), TONES, strict=False):
            found = mean_over_seeds(np.array([measure(run)[:size] for run in some]))
            series.append(as_series(name, np.arange(1.0, size + 1), found, tone, form=form))
        y = nice_axis(ends_of(series), form, zero=True, most=1.0 if form is share else np.inf)
        figures.append(chart(title, says, series, y, "rollout batch", NOTE.format(count_seeds(runs))))
    return figures


def off_policy_rows(run: RunTables) -> OffPolicy:
    """Return the sequences of a run that a band could refuse."""
    rows = {name: values[run.sequences["off_policy"]] for name, values in run.sequences.items()}
    length, inside = rows["length"].astype(np.int64), rows["inside"].astype(np.float64)
    segment = np.arange(len(length))
    return OffPolicy(length, rows["log_ratio"].astype(np.float64), inside, 1.0 - inside, rows["prompt"], segment)


def draw_replay(variant: str, runs: Sequence[RunTables]) -> Figure:
    """Draw what each band would have accepted of the same sequences, at widths that accept the same share of each run."""
    rows = [off_policy_rows(run) for run in runs]
    accepted = {name: [(one.length, replay(rule, one)) for one in rows] for rule, name in BANDS.items()}
    says = (
        f"Share of sequences inside each band, replayed on the off-policy sequences of {variant} with the width that accepts "
        f"{share(ACCEPTED)} of each run."
    )
    return by_bins(f"Bands at {share(ACCEPTED)} acceptance", says, accepted)


def replay(rule: str, rows: OffPolicy) -> Floats:
    """Return whether each sequence is inside a band of a shape, at the width that accepts the share ACCEPTED."""
    drift = max(-float(rows.log_ratio.sum()) / max(float(rows.length.sum()), 1.0), 0.0)
    critical = critical_factor(rule, rows, drift, *WIDTHS[rule])
    return (critical <= factor_for(critical, ACCEPTED)).astype(np.float64)


def draw_acceptance(title: str, runs: Runs) -> Figure:
    """Draw what the band of each variant accepted of its own sequences."""
    rows = {name: [off_policy_rows(run) for run in some] for name, some in runs.items()}
    accepted = {name: [(one.length, one.inside) for one in some] for name, some in rows.items()}
    return by_bins(title, "Share of off-policy sequences inside the band that clipped them, by length.", accepted)


def by_bins(title: str, says: str, accepted: Mapping[str, Sequence[tuple[Ints, Floats]]]) -> Figure:
    """Draw shares by length: of each name one pair of lengths and shares a seed, in bins that all of them have in common."""
    pooled = np.concatenate([length for some in accepted.values() for length, _ in some])
    if not len(pooled):
        return Figure(title, "Every update was on-policy, so that no band could refuse anything.")
    bins, series = length_bins(pooled, NUM_BINS), []
    shift = 0.24 / len(bins) * np.linspace(-1, 1, len(accepted))
    for (name, some), tone, aside in zip(accepted.items(), TONES, shift, strict=False):
        found = mean_over_seeds(np.array([share_by_bin(bins, *columns) for columns in some]))
        series.append(as_series(name, middles(len(bins)) + aside, found, tone, "points"))
    y = nice_axis(ends_of(series), share, most=1.0)
    table = Table(("tokens", *accepted), list(zip(bins.names(), *map(table_column, series), strict=True)))
    drawn = lines(by_length(bins, y, "length", "tokens"), series, f"{title}: {says}")
    return Figure(title, says, drawn, table, NOTE.format(count_seeds(accepted)))  # type: ignore[arg-type]


def share_by_bin(bins: Bins, length: Ints, inside: Floats) -> Floats:
    """Return the mean of `inside` [N] in every bin; nan where there is none."""
    place = np.searchsorted(bins.high, length)
    return ratio(sum_by(place, inside, len(bins)), count_by(place, len(bins)))


DRAWN: dict[str, Callable[[Runs], list[Figure]]] = {
    "curves": draw_curves, "lengths": draw_lengths, "streams": draw_streams,
}  # fmt: skip
KINDS = (*DRAWN, "acceptance")
