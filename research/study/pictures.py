"""Pictures of the study: means over seeds with 95% t intervals, each with the same numbers as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairlen.audit.statistics.intervals import Estimates, length_bins, ratio
from fairlen.batch import Bools, Floats, Ints, count_by, sum_by
from fairlen.report import figure
from fairlen.report.figure import Axis, Figure, Form, Series, ends_of, nice_axis, plain, share
from recipes.replay_bands import WIDTHS, critical_factor, factor_for
from research.study import quantities as q
from research.study.estimands import rates_of
from research.study.evidence import Evidence, RunTables
from research.study.intervals import LEAST_SEEDS, quantile

TONES: tuple[figure.Tone, ...] = ("correct", "incorrect", "plain", "third", "fourth")
COSTS = {
    "seconds": ("seconds on an idle machine", 1.0),
    "tokens": ("tokens, thousands", 1e-3),
    "updates": ("updates", 1.0),
}
"""What a run spends: its name on an axis, and the factor of its unit there."""
NUM_STEPS = 20
"""Places between the start and the largest cost at which curves are read."""
ACCEPTED = 0.8
"""Share of sequences inside a band that is replayed."""
BANDS = {"rloo": "RLOO", "gspo": "GSPO", "fspo": "FSPO", "fspo_v3": "FSPO v3"}
"""Bands that are replayed, and their names."""

Runs = Mapping[str, Sequence[RunTables]]
"""By name in the picture, one run a seed."""
Clock = Mapping[str, q.Rates | None]
"""By variant, where it was timed."""
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

    def draw(self, evidence: Evidence) -> list[Figure]:
        """Return the figures; none where there is no run to draw."""
        found = {name: list(evidence.find(self.world, text).values()) for text, name in self.variants.items()}
        runs = {name: some for name, some in found.items() if some}
        rates = {text: rates_of(evidence, self.world, text) for text in self.variants}
        replays = list(evidence.find(self.world, self.replayed).values())
        figures = [replace(draw_replay(self.replayed, replays), note=count_seeds([replays]))] if replays else []
        names = ", ".join(f"{name} is {text}" for text, name in self.variants.items() if name in runs)
        drawn = DRAWN[self.kind](runs, rates) if runs else []
        return [*figures, *(replace(one, note=f"{count_seeds(runs.values())} {names}.") for one in drawn)]


def count_seeds(runs: Iterable[Sequence[RunTables]]) -> str:
    """Say of how many seeds means and intervals are."""
    size = sorted({len(some) for some in runs})
    return f"Means over {' to '.join(map(str, size[:1] + size[1:][-1:]))} seeds, with 95% t intervals over them."


def mean_over_seeds(values: Sequence[Floats]) -> Estimates:
    """Return the means of numbers [K] of each seed with t intervals, none of few seeds; nan where a seed has none."""
    rows = np.array(values)
    mean, half = rows.mean(0), np.full(rows.shape[1], np.nan)
    if len(rows) >= LEAST_SEEDS:
        half = quantile(0.975, len(rows) - 1) * rows.std(0, ddof=1) / np.sqrt(len(rows))
    return Estimates(mean, mean - half, mean + half)


def against(cost: str, runs: Runs, measure: Measure, form: Form, rates: Clock) -> list[Series]:
    """Return a curve a variant, read where all runs have spent the same, on straight lines between evaluations."""

    def spent(run: RunTables) -> Floats:
        return q.costs(run, cost, rates[run.run.variant]) * COSTS[cost][1]

    grid = np.linspace(0.0, max(float(spent(run)[-1]) for some in runs.values() for run in some), NUM_STEPS + 1)
    return [
        make_series(name, grid, [np.interp(grid, spent(run), measure(run), right=np.nan) for run in some], form)
        for name, some in runs.items()
    ]


def make_series(name: str, x: Floats, by_seed: Sequence[Floats], form: Form, mark: str = "line") -> Series:
    """Return the mean over seeds as something to draw; its colour comes with its place."""
    return figure.as_series(name, x, mean_over_seeds(by_seed), "plain", mark, form)


def chart(title: str, says: str, series: Sequence[Series], frame: figure.Frame, names: Sequence[str]) -> Figure:
    """Return series as a figure with their table, whose rows have the given names."""
    coloured = [replace(one, tone=tone) for one, tone in zip(series, TONES, strict=False)]
    columns = [figure.intervals(Estimates(one.y, one.low, one.high), one.form) for one in series]  # type: ignore[arg-type]
    table = figure.Table((frame.x_label, *(one.label for one in series)), list(zip(names, *columns, strict=True)))
    return Figure(title, says, figure.lines(frame, coloured, f"{title}: {says}"), table)


def over(title: str, says: str, series: Sequence[Series], y: Axis, x_label: str) -> Figure:
    """Return series against what all of them share: a cost, or rollout batches."""
    x = series[0].x
    return chart(title, says, series, figure.Frame(figure.span_axis(float(x[-1])), y, x_label), [*map(plain, x)])


def draw_curves(runs: Runs, rates: Clock) -> list[Figure]:
    """Draw held-out accuracy against each cost; against seconds where all variants were timed."""
    untimed = [some[0].run.variant for some in runs.values() if rates[some[0].run.variant] is None]
    if not untimed:
        return [draw_accuracy(runs, rates, cost) for cost in COSTS]
    missing = Figure("No picture against seconds yet", f"It needs timed runs of {', '.join(untimed)}.")
    return [missing, *(draw_accuracy(runs, rates, cost) for cost in COSTS if cost != "seconds")]


def draw_accuracy(runs: Runs, rates: Clock, cost: str) -> Figure:
    """Draw held-out accuracy against a cost."""
    series = against(cost, runs, lambda run: q.accuracies(q.shared(run)) / 100, share, rates)
    says = "Share of correct responses to the 64 held-out problems of all evaluations; a curve ends where its first run does."
    return over(f"Accuracy against {cost}", says, series, nice_axis(ends_of(series), share, most=1.0), COSTS[cost][0])


def draw_lengths(runs: Runs, rates: Clock) -> list[Figure]:
    """Draw the lengths of correct and of incorrect responses over training, on one scale, and accuracy."""
    sides = {"correct": True, "incorrect": False}
    measures = {side: lambda run, one=one: q.lengths(q.shared(run), one) for side, one in sides.items()}
    lengths = {side: against("updates", runs, measure, plain, rates) for side, measure in measures.items()}
    y = nice_axis([values for series in lengths.values() for values in ends_of(series)])
    says = "Mean length of {} responses to held-out problems, in tokens; both pictures have one scale."
    figures = [over(f"Length, {side}", says.format(side), series, y, "updates") for side, series in lengths.items()]
    return [*figures, draw_accuracy(runs, rates, "updates")]


STREAMS: tuple[tuple[str, str, Measure, Form], ...] = (
    ("Rounds of a stream", "Mean over the streams of a rollout batch.",
     lambda run: run.batches["rounds"].astype(np.float64), plain),
    ("Pairs of a prompt", "Pairs formed for each prompt that was sampled.",
     lambda run: ratio(run.batches["pairs_formed"], run.batches["asked"]), plain),
    ("Pairs that train", "Share of the pairs formed that were trained on.",
     lambda run: ratio(run.batches["pairs_trained"], run.batches["pairs_formed"]), share),
)  # fmt: skip


def draw_streams(runs: Runs, _rates: Clock) -> list[Figure]:
    """Draw rounds and pairs over training."""
    x = np.arange(1.0, 1 + min(len(run.batches["rounds"]) for some in runs.values() for run in some))
    figures = []
    for title, says, measure, form in STREAMS:
        series = [make_series(name, x, [measure(r)[: len(x)] for r in some], form) for name, some in runs.items()]
        y = nice_axis(ends_of(series), form, zero=True, most=1.0 if form is share else np.inf)
        figures.append(over(title, says, series, y, "rollout batch"))
    return figures


def draw_replay(variant: str, runs: Sequence[RunTables]) -> Figure:
    """Draw what each band would have accepted of the same sequences, at widths that accept the same share of each run."""
    rows = [q.off_policy(run)["length"] for run in runs]
    accepted = {name: list(zip(rows, (replay(rule, run) for run in runs), strict=True)) for rule, name in BANDS.items()}
    width = f"with the width that accepts {share(ACCEPTED)} of each run"
    says = f"Share of sequences inside each band, replayed on the off-policy sequences of {variant} {width}."
    return by_bins(f"Bands at {share(ACCEPTED)} acceptance", says, accepted)


def replay(rule: str, run: RunTables) -> Bools:
    """Return which off-policy sequences are inside a band of a shape, at the width that accepts the share ACCEPTED of them."""
    rows, drift = q.off_policy(run), q.drifts(run) if rule in q.FOLLOWING else 0.0
    critical = critical_factor(rule, rows["length"], rows["log_ratio"], drift, *WIDTHS[rule])
    return critical <= (factor_for(critical, ACCEPTED) if len(critical) else 0.0)


def draw_acceptance(runs: Runs, _rates: Clock) -> list[Figure]:
    """Draw what the band of each variant accepted of its own sequences."""
    rows = {name: map(q.off_policy, some) for name, some in runs.items()}
    accepted = {name: [(one["length"], one["inside"]) for one in some] for name, some in rows.items()}
    shares = ", ".join(f"{share(mean_inside(some))} {name}" for name, some in accepted.items())
    says = f"Share of off-policy sequences inside the band that clipped them, by length; of all lengths: {shares}."
    return [by_bins("Each run's own band", says, accepted)]


def mean_inside(accepted: Sequence[tuple[Ints, Floats | Bools]]) -> float:
    """Return the mean over seeds of the share of sequences that are inside; nan where no seed has any."""
    return q.mean_of(np.array([inside.mean() if len(inside) else np.nan for _, inside in accepted]))


def by_bins(title: str, says: str, accepted: Mapping[str, Sequence[tuple[Ints, Floats | Bools]]]) -> Figure:
    """Draw shares by length: of each name one pair of lengths and shares a seed, in bins that all of them have in common."""
    bins = length_bins(np.concatenate([length for some in accepted.values() for length, _ in some]), q.NUM_BINS)
    if not len(bins):
        return Figure(title, "Every update was on-policy, so that no band could refuse anything.")
    size, series = len(bins), []
    for (name, some), aside in zip(accepted.items(), np.linspace(-0.24, 0.24, len(accepted)) / size, strict=True):
        places = [(np.searchsorted(bins.high, length), inside) for length, inside in some]
        shares = [ratio(sum_by(place, inside, size), count_by(place, size)) for place, inside in places]
        series.append(make_series(name, figure.middles(size) + aside, shares, share, "points"))
    frame = figure.by_length(bins, nice_axis(ends_of(series), share, most=1.0), "length", "tokens")
    return chart(title, says, series, frame, bins.names())


DRAWN: dict[str, Callable[[Runs, Clock], list[Figure]]] = {
    "curves": draw_curves, "lengths": draw_lengths, "streams": draw_streams, "acceptance": draw_acceptance,
}  # fmt: skip
