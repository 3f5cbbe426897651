"""Figures of length against outcome: distributions early and late, spread over training, accuracy by length."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Bools, Responses
from fairlen.diagnostics.log import Log
from fairlen.diagnostics.report.chart import Axis, Bars, Frame, Series, Tone, bars, lines, nice_axis, plain, share
from fairlen.diagnostics.report.figure import INTERVAL, Figure, Section, Table, as_series, intervals, whole
from fairlen.diagnostics.report.learning import BATCH, over_training, plain_rows
from fairlen.diagnostics.report.statistics import FEWEST, EdgeBins, nice_bins, quantiles_by, windows
from fairlen.diagnostics.uncertainty import rate

LENGTH = "length (tokens)"


def lengths_section(log: Log) -> Section:
    """What length says about the verdict."""
    rows = plain_rows(log)
    responses, batch = log.responses.take(rows), log.batch[rows]
    bins = nice_bins(responses.length)
    quarter = np.quantile(batch, (0.25, 0.75))
    early, late = responses.take(batch <= quarter[0]), responses.take(batch >= quarter[1])
    lead = "How long right and wrong answers are. Early and late are the first and the last quarter of the run."
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


def shares(bins: EdgeBins, responses: Responses, correct: bool) -> np.ndarray:
    """Of all responses, those of an outcome in each bin."""
    chosen = responses.length[responses.correct == correct]
    return np.bincount(bins.place(chosen), minlength=len(bins)) / max(len(responses), 1)


def median_words(responses: Responses) -> str:
    """ "the median right answer has 41 tokens, the median wrong one 76" """
    names = (("right answer", responses.correct), ("wrong answer", ~responses.correct))
    parts = [
        f"the median {name} has {plain(float(np.median(responses.length[rows])))} tokens"
        for name, rows in names
        if rows.any()
    ]
    return ", ".join(parts)


def histogram_figure(bins: EdgeBins, early: Responses, late: Responses) -> Figure:
    """Right answers upwards, wrong ones downwards; the run's beginning as marks."""
    late_shares, early_shares = ([shares(bins, part, c) for c in (True, False)] for part in (late, early))
    series = [
        Bars("right", late_shares[0], "right", marks=early_shares[0]),
        Bars("wrong", late_shares[1], "wrong", down=True, marks=early_shares[1]),
    ]
    columns = (early_shares[0], late_shares[0], early_shares[1], late_shares[1])
    rows = [(name, *(share(float(c[i])) for c in columns)) for i, name in enumerate(bins.names())]
    return Figure(
        f"Late in the run {median_words(late)}",
        "Share of all answers by length: bars late in the run, short lines early in it. Right above, wrong below.",
        bars(bins, series, LENGTH, "distribution of lengths by outcome"),
        Table(("tokens", "right, early", "right, late", "wrong, early", "wrong, late"), rows),
        f"{len(late):,} answers late, {len(early):,} early; counts, no estimate.",
    )


def spread_figure(responses: Responses, batch: np.ndarray) -> Figure:
    """Quartiles of length over training."""
    window, middle = windows(batch)
    series, rows = [], [list(map(whole, middle))]
    sides: tuple[tuple[Tone, Bools], ...] = (("right", responses.correct), ("wrong", ~responses.correct))
    for name, chosen in sides:
        found = quantiles_by(responses.length[chosen], window[chosen], len(middle), (0.25, 0.5, 0.75))
        series.append(Series(name, middle, found[:, 1], name, found[:, 0], found[:, 2]))
        rows.append([" / ".join(map(plain, quartiles)) for quartiles in found])
    return Figure(
        "How wide lengths spread",
        "Median length (line) and the middle half of answers (band) over training, in tokens.",
        lines(over_training(series, zero=True), series, "quartiles of length by outcome over training"),
        Table((BATCH, "right: quartiles", "wrong: quartiles"), list(zip(*rows, strict=True))),
        "The band is the spread of answers, not an error. Stretches with fewer than four answers are left out.",
    )


def accuracy_by_length(bins: EdgeBins, early: Responses, late: Responses) -> Figure:
    """Accuracy in bins of length."""
    found = [rate(p.correct, p.prompt, bins.place(p.length), len(bins)).of_at_least(FEWEST) for p in (early, late)]
    middle = (np.arange(len(bins)) + 0.5) / len(bins)
    shift = 0.12 / len(bins)
    series = [
        as_series("early", middle - shift, found[0], "fourth", "points"),
        as_series("late", middle + shift, found[1], "plain", "points"),
    ]
    counts = [[str(c) for c in one.count] for one in found]
    rows = zip(bins.names(), intervals(found[0]), counts[0], intervals(found[1]), counts[1], strict=True)
    return Figure(
        f"Late in the run {extremes(bins, found[1].value, found[1].count)}",
        "Share of right answers among answers of a length.",
        lines(binned(bins, series, 1.0), series, "accuracy by length"),
        Table(("tokens", "early", "answers", "late", "answers"), list(rows)),
        f"{INTERVAL} Harder problems need longer answers: this is not what length does to an answer.",
    )


def extremes(bins: EdgeBins, value: np.ndarray, count: np.ndarray) -> str:
    """Accuracy at both ends of length, of bins that hold at least 2% of the answers."""
    rows = np.flatnonzero((count >= max(5, 0.02 * count.sum())) & np.isfinite(value))
    if len(rows) < 2:
        return "answers are all of about one length"
    first, last = rows[0], rows[-1]
    (short, long), shares = [bins.names()[i] for i in (first, last)], [share(float(value[i])) for i in (first, last)]
    return f"{shares[0]} of answers of {short} tokens are right, {shares[1]} of {long}"


def binned(bins: EdgeBins, series: list[Series], most: float) -> Frame:
    """Shares against bins of length."""
    drawn = [v for s in series for v in (s.y, s.low, s.high) if v is not None]
    number, every = len(bins), int(np.ceil((len(bins) + 1) / 7))
    places = [(i / number, f"{bins.edges[i]:.0f}") for i in range(0, number + 1, every)]
    return Frame(Axis(0, 1, ()), nice_axis(drawn, share, zero=True, most=most), LENGTH, places)
