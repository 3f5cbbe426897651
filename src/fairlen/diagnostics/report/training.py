"""Figures over training, accuracy, lengths, truncation; and of length against outcome, early and late in the run."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Bools, Floats, Ints, Responses
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.report.chart import (
    Axis,
    Bars,
    Frame,
    Series,
    Tone,
    bars,
    lines,
    nice_axis,
    plain,
    share,
    span_axis,
)
from fairlen.diagnostics.report.figure import (
    BATCH,
    INTERVAL,
    MIN_ROWS,
    EdgeBins,
    Figure,
    Section,
    Table,
    as_series,
    change,
    column,
    ends_of,
    interval,
    intervals,
    nice_bins,
    quantiles_by,
    sentence,
    whole,
    windows,
)
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.uncertainty import mean, rate

LENGTH = "length (tokens)"
SIDES: tuple[Tone, Tone] = ("correct", "incorrect")


def plain_rows(log: Log) -> tuple[Responses, Ints]:
    """Return responses that started from their prompt, plain samples of the policy, and their rollout batches."""
    rows = log.responses.round == 0
    return log.responses.take(rows), log.batch[rows]


def sides_of(responses: Responses) -> list[tuple[Tone, Bools]]:
    """Return correct and incorrect rows."""
    return list(zip(SIDES, (responses.correct, ~responses.correct), strict=True))


def learning_section(run: Run) -> Section:
    """Return the figures of a learning curve."""
    figures = [accuracy_figure(run)]
    if run.records:
        figures += [length_figure(run.records.log), truncation_figure(run, run.records.log)]
    lead = "Accuracy on problems that were never trained on, and what happened to lengths meanwhile."
    return Section("learning", "Learning", lead, figures)


def evaluations(run: Run, name: str) -> Series:
    """Return a held-out number over training."""
    entries, ends = run.evaluations, {}
    if name == "eval/accuracy":
        ends = {end: column(entries, f"eval/accuracy_{end}") for end in ("low", "high")}
    x, y = column(entries, "rollout_batch"), column(entries, name)
    return Series("held out", x, y, "plain", mark="points", form=share, **ends)


def accuracy_figure(run: Run) -> Figure:
    """Return held-out and training accuracy."""
    held_out = evaluations(run, "eval/accuracy")
    series = [held_out]
    if run.records:
        responses, batch = plain_rows(run.records.log)
        window, middle = windows(batch)
        found = rate(responses.correct, responses.prompt, window, len(middle))
        series.insert(0, as_series("training", middle, found, "third"))
    return Figure(
        sentence(change("held-out accuracy", held_out, share)),
        "Share of correct responses over training: dots on held-out problems, line on the problems trained on.",
        lines(over_training(series, zero=False), series, "accuracy over training"),
        evaluation_table(run),
        "Whiskers: 95% over held-out problems. Band: 95% over prompts. The two sets of problems differ, "
        "so that the line may run above or below the dots.",
    )


def evaluation_table(run: Run) -> Table:
    """Return every held-out evaluation."""
    names = ("accuracy", "accuracy_low", "accuracy_high", "length", "length_correct", "length_incorrect", "truncated")
    rows = zip(
        column(run.evaluations, "rollout_batch"), *(column(run.evaluations, f"eval/{n}") for n in names), strict=True
    )
    written = [(whole(at), interval(row[:3], share), *map(plain, row[3:6]), share(row[6])) for at, *row in rows]
    return Table((BATCH, "held-out accuracy", "length", "of correct ones", "of incorrect ones", "truncated"), written)


def over_training(series: list[Series], zero: bool) -> Frame:
    """Return shares from 0 to at most 1, or another quantity, against rollout batches."""
    form = series[0].form
    most = 1.0 if form is share else np.inf
    x = np.concatenate([s.x for s in series])
    return Frame(batch_axis(x), nice_axis(ends_of(series), form, zero=zero, most=most), BATCH)


def batch_axis(middle: Floats) -> Axis:
    """Return rollout batches up to the last middle of a stretch; up to its end where there is one stretch alone."""
    last = float(np.max(middle, initial=1.0))
    return span_axis(0.0, 2 * last if len(np.unique(middle)) == 1 else last)


def length_figure(log: Log) -> Figure:
    """Return the mean length of correct and incorrect responses over training."""
    responses, batch = plain_rows(log)
    window, middle = windows(batch)
    parts = [(name, responses.take(rows), window[rows]) for name, rows in sides_of(responses)]
    found = [mean(part.length, part.prompt, place, len(middle)) for _, part, place in parts]
    series = [as_series(name, middle, f, name, form=plain) for (name, *_), f in zip(parts, found, strict=True)]
    return Figure(
        sentence(change("length of correct responses", series[0], plain)),
        "Mean length of correct and incorrect responses over training, in generated tokens.",
        lines(over_training(series, zero=True), series, "mean length of correct and incorrect responses over training"),
        Table((BATCH, "correct (tokens)", "incorrect (tokens)"),
              list(zip(map(whole, middle), *(intervals(f, plain) for f in found), strict=True))),
        f"{INTERVAL} Lines that drift apart mean that length and verdict are coupled.",
    )  # fmt: skip


def truncation_figure(run: Run, log: Log) -> Figure:
    """Return the share of truncated responses over training."""
    responses, batch = plain_rows(log)
    window, middle = windows(batch)
    found = rate(responses.truncated, responses.prompt, window, len(middle))
    training = as_series("training", middle, found, "third")
    series = [training, evaluations(run, "eval/truncated")]
    rows = list(zip(map(whole, middle), intervals(found), map(str, found.count), strict=True))
    return Figure(
        sentence(change("the share of truncated responses", training, share)),
        f"Share of responses that reached the limit of {log.responses.max_response_length} tokens without EOS.",
        lines(over_training(series, zero=True), series, "share of truncated responses over training"),
        Table((BATCH, "truncated", "responses"), rows),
        f"{INTERVAL} A rise means that the limit is too small, or that responses run away.",
    )


def lengths_section(log: Log) -> Section:
    """Return what length says about the verdict."""
    responses, batch = plain_rows(log)
    bins, quarter = nice_bins(responses.length), np.quantile(batch, (0.25, 0.75))
    early, late = responses.take(batch <= quarter[0]), responses.take(batch >= quarter[1])
    lead = "How long correct and incorrect responses are. Early and late are the first and the last quarter of the run."
    if "streams" in log.known:
        lead += (
            " Only the two tracks that start from the prompt are counted: forks continue what survived, and are longer."
        )
    figures = [
        histogram_figure(bins, early, late),
        spread_figure(responses, batch),
        accuracy_by_length(bins, early, late),
    ]
    return Section("lengths", "Length and outcome", lead, figures)


def median_words(responses: Responses) -> str:
    """Return "the median correct response has 41 tokens, the median incorrect one 76"."""
    medians = [(name, np.median(responses.length[rows])) for name, rows in sides_of(responses) if rows.any()]
    return ", ".join(f"the median {name} response has {plain(float(median))} tokens" for name, median in medians)


def histogram_figure(bins: EdgeBins, early: Responses, late: Responses) -> Figure:
    """Return correct responses upwards, incorrect ones downwards; the run's beginning as marks."""
    series, columns = [], []
    for name, is_correct in zip(SIDES, (True, False), strict=True):
        before, now = (
            bins.count(part.length[part.correct == is_correct]) / max(len(part), 1) for part in (early, late)
        )
        series.append(Bars(name, now, name, down=not is_correct, marks=before))
        columns += [before, now]
    return Figure(
        f"Late in the run {median_words(late)}",
        "Share of all responses by length: bars late in the run, short lines early in it. Correct above, incorrect below.",
        bars(bins.edges, bins.names(), series, LENGTH, "distribution of lengths by outcome"),
        Table(("tokens", "correct, early", "correct, late", "incorrect, early", "incorrect, late"),
              list(zip(bins.names(), *(map(share, c.tolist()) for c in columns), strict=True))),
        f"{len(late):,} responses late, {len(early):,} early; counts, no estimate.",
    )  # fmt: skip


def spread_figure(responses: Responses, batch: Ints) -> Figure:
    """Return quartiles of length over training."""
    window, middle = windows(batch)
    series, rows = [], [list(map(whole, middle))]
    for name, chosen in sides_of(responses):
        found = quantiles_by(responses.length[chosen], window[chosen], len(middle), (0.25, 0.5, 0.75))
        series.append(Series(name, middle, found[:, 1], name, found[:, 0], found[:, 2]))
        rows.append([" / ".join(map(plain, quartiles)) for quartiles in found])
    return Figure(
        "How wide lengths spread",
        "Median length (line) and the middle half of responses (band) over training, in tokens.",
        lines(over_training(series, zero=True), series, "quartiles of length by outcome over training"),
        Table((BATCH, "correct: quartiles", "incorrect: quartiles"), list(zip(*rows, strict=True))),
        "The band is the spread of responses, not an error. Stretches with fewer than four responses are left out.",
    )


def accuracy_by_length(bins: EdgeBins, early: Responses, late: Responses) -> Figure:
    """Return accuracy in bins of length."""
    found = [rate(p.correct, p.prompt, bins.place(p.length), len(bins)).of_at_least(MIN_ROWS) for p in (early, late)]
    shift = 0.12 / len(bins)
    series = [
        as_series("early", bins.middle() - shift, found[0], "fourth", "points"),
        as_series("late", bins.middle() + shift, found[1], "plain", "points"),
    ]
    cells = [cell for one in found for cell in (intervals(one), map(str, one.count))]
    return Figure(
        f"Late in the run {extremes(bins, found[1].value, found[1].count)}",
        "Share of correct responses among responses of a length.",
        lines(binned(bins, series), series, "accuracy by length"),
        Table(("tokens", "early", "responses", "late", "responses"), list(zip(bins.names(), *cells, strict=True))),
        f"{INTERVAL} Harder problems need longer responses: this is not what length does to a response.",
    )


def extremes(bins: EdgeBins, value: Floats, count: Ints) -> str:
    """Return accuracy at both ends of length, of bins that hold at least 2% of the responses."""
    rows = np.flatnonzero((count >= max(5, 0.02 * count.sum())) & np.isfinite(value))
    if len(rows) < 2:
        return "responses are all of about one length"
    (short, long), shares = (
        [f(i) for i in rows[[0, -1]]] for f in (bins.names().__getitem__, lambda i: share(float(value[i])))
    )
    return f"{shares[0]} of responses of {short} tokens are correct, {shares[1]} of {long}"


def binned(bins: EdgeBins, series: list[Series]) -> Frame:
    """Return shares against bins of length."""
    number, every = len(bins), int(np.ceil((len(bins) + 1) / 7))
    places = [(i / number, f"{bins.edges[i]:.0f}") for i in range(0, number + 1, every)]
    return Frame(Axis(0, 1, ()), nice_axis(ends_of(series), share, zero=True, most=1.0), LENGTH, places)
