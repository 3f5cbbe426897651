"""Pictures of length within prompts, and of what lies between them, which is difficulty."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from fairlen.audit.conclusion import LENGTH, Quantity
from fairlen.audit.log import Log, plain_samples
from fairlen.audit.statistics.intervals import bootstrap, length_bins, mean, ratio
from fairlen.audit.statistics.lengths import prompt_means, without_steps
from fairlen.batch import Bools, Floats, Ints, sum_by
from fairlen.report import figure

NUM_BINS = 9  # of length relative to the prompt's median; an odd number, so that the median is in the middle of one
LEFT_OUT = {True: "Truncated responses are left out.", False: "Which responses were truncated is not known."}


def relate(stratum: Ints, x: Floats, correct: Bools) -> tuple[Floats, Floats]:
    """Return x minus the median of its stratum, and correct minus the accuracy there: exactly 0 where all are the same, [N]."""
    _, stratum, size = np.unique(stratum, return_inverse=True, return_counts=True)
    ordered, start = x[np.lexsort((x, stratum))], np.cumsum(size) - size
    median = (ordered[start + (size - 1) // 2] + ordered[start + size // 2]) / 2
    return x - median[stratum], correct - (sum_by(stratum, correct, len(size)) / size)[stratum]


def within_figures(log: Log, quantity: Quantity = LENGTH) -> list[figure.Figure]:
    rows, noun = np.flatnonzero(plain_samples(log)), quantity.noun.removeprefix("the ")
    amount = quantity.of(log.responses)[rows]
    relative, above = relate(log.strata[rows], np.log(amount), log.correct[rows])
    problem, relative, above = log.clusters[rows[above != 0]], relative[above != 0], above[above != 0]
    if not len(above):
        return []
    reach = max(float(np.quantile(np.abs(relative), 0.95)), 0.01)
    edges, middle, series = np.linspace(-reach, reach, NUM_BINS + 1)[1:-1], figure.middles(NUM_BINS), []
    place = np.searchsorted(edges, relative, side="right")
    for name, is_correct in figure.SIDES:
        side = (above > 0) == is_correct
        ones = np.ones(int(side.sum()))
        found = bootstrap(problem[side], [ones], lambda s: ratio(s, s.sum(-1, keepdims=True)), place[side], NUM_BINS)
        series.append(figure.as_series(name, middle, found, name))
    over = mean(above, problem, place, NUM_BINS).of_at_least(figure.MIN_ROWS).within(-1.0, 1.0)
    points = [figure.as_series("", middle, over, "plain", "points", lambda value: f"{round(100 * value):+}")]
    frames, names = [relative_frame(edges, one, noun) for one in (series, points)], relative_names(edges)
    cells = [[figure.interval(of, figure.share) for of in zip(one.y, one.low, one.high, strict=True)] for one in series]
    counted = figure.counted_rows(names, over, form=points[0].form)
    note = f"{figure.INTERVAL} {LEFT_OUT['truncated' in log.known]}"
    return [
        figure.Figure(
            f"Correct and incorrect responses to the same prompts{'' if quantity is LENGTH else f': {noun}'}",
            f"Share of correct responses, and of incorrect ones, by {noun} relative to the median of their prompt in one step.",
            figure.lines(frames[0], series, f"{noun} within prompts by outcome"),
            figure.Table((f"relative {noun}", "correct", "incorrect"), list(zip(names, *cells, strict=True))),
            f"{note} The lines are the same where {noun} says nothing about the outcome.",
            terms=(quantity.measures[0], "interval"),
        ),
        figure.Figure(
            f"Accuracy by {noun} within prompts",
            f"Points of accuracy above or below that of the prompt in its step, by {noun} relative to the prompt's median.",
            figure.lines(replace(frames[1], level=0.0), points, f"accuracy within prompts by {noun}"),
            figure.Table((f"relative {noun}", "points", "responses"), counted),
            f"{note} Falling: more {noun} goes with incorrect responses. A peak in the middle: a medium {noun} is the best.",
            terms=quantity.measures[::-1],
        ),
    ]


def relative_names(edges: Floats) -> list[str]:
    """Return what bins between log ratios of lengths are called: "+4% to +12%"."""
    ends = [f"{np.expm1(edge):+.0%}" for edge in edges]
    return [f"below {ends[0]}", *(f"{low} to {high}" for low, high in pairwise(ends)), f"above {ends[-1]}"]


def relative_frame(edges: Floats, series: list[figure.Series], noun: str) -> figure.Frame:
    names = relative_names(edges)
    ends = [(place / NUM_BINS, f"{np.expm1(edges[place - 1]):+.0%}") for place in (1, NUM_BINS - 1)]
    places = [ends[0], (0.5, "median"), ends[1]]
    y = figure.nice_axis(figure.ends_of(series), series[0].form, zero=True)
    label = f"{noun} relative to the prompt's median"
    return figure.Frame(figure.Axis(0, 1), y, label, places, names=lambda x: f"{noun} {names[int(x * NUM_BINS)]}")


def difficulty_figure(log: Log) -> figure.Figure:
    cluster, step, _, *means = prompt_means(log)
    length, accuracy = (without_steps(step, of) + of.sum() / max(len(of), 1) for of in means)
    bins = length_bins(np.rint(np.exp(length)).astype(np.int64), 8, figure.MIN_ROWS)
    found = mean(accuracy, cluster, bins.index, len(bins)).within(0.0, 1.0)
    series = [figure.as_series("", figure.middles(len(bins)), found, "fourth", "points")]
    y = figure.nice_axis([np.array([0.0, 1.0])], figure.share)
    frame = figure.by_length(bins, y, "mean length of a prompt's responses", log.unit)
    return figure.Figure(
        "Between prompts: difficulty, not an effect of length",
        "Mean accuracy of prompts by the mean length of their responses; what differs between steps is taken out.",
        figure.lines(frame, series, "accuracy of prompts by their mean length"),
        figure.Table((f"mean length ({log.unit})", "accuracy", "prompts"), figure.counted_rows(bins.names(), found)),
        "Whiskers: 95% over prompts. Hard prompts may have long responses: no advice about length follows from this.",
        terms=("difficulty",),
    )
