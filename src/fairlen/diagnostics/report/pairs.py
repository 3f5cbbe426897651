"""Figures of EqLen's streams: rounds, endings, who wins, and how optimistic the best of several ends is."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Bools
from fairlen.diagnostics.log import Log, values
from fairlen.diagnostics.report.chart import Axis, Bars, Frame, bars, lines, nice_axis, plain, share
from fairlen.diagnostics.report.figure import Figure, Section, Table, as_series, column, interval, intervals, whole
from fairlen.diagnostics.report.learning import BATCH, over_training
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.report.statistics import FEWEST, EdgeBins, windows
from fairlen.diagnostics.report.weights import BETWEEN_BATCHES, over_batches, overall, zero_lines
from fairlen.diagnostics.uncertainty import rate
from fairlen.sampling.stream_metrics import ENDINGS, LATER, Streams, compare_pairs, count_rounds, find_streams

NAMES = {
    "tie": ("tie", "both tracks stopped at one position", "right"),
    "one_truncated": ("one cut", "one stopped where the budget cut the other", "fourth"),
    "both_truncated": ("both cut", "the budget cut both", "wrong"),
    "max_rounds": ("limit", "the limit of rounds was reached", "third"),
}


def pairs_section(run: Run, log: Log) -> Section:
    """What the streams did."""
    streams = find_streams(log.responses)
    figures = [
        win_figure(log, streams),
        rounds_figure(log, streams),
        endings_figure(log, streams),
        optimism_figure(run),
    ]
    lead = (
        "A stream has two tracks; when one ends, a new one starts from what the other had written by then. "
        "The finisher is compared with that piece, the survivor, of equal length."
    )
    return Section("pairs", "Equal-length pairs", lead, [f for f in figures if f])


def win_figure(log: Log, streams: Streams) -> Figure:
    """Who was worth more, by the number of ends that came later."""
    segments = log.segments
    survivors, gap, later = compare_pairs(segments, values(log), streams)
    prompt = log.responses.prompt[segments.response[survivors]]
    names = [name.replace("_", " ") for name in LATER]
    wins: list[Bools] = [gap > 0, gap < 0]
    found = [rate(w, prompt, later - 1, len(names)).of_at_least(FEWEST) for w in wins]
    total = [rate(w, prompt, np.zeros(len(w), np.int64), 1) for w in wins]
    middle = (np.arange(len(names)) + 0.5) / len(names)
    series = [
        as_series("survivor", middle - 0.015, found[0], "plain", "points"),
        as_series("finisher", middle + 0.015, found[1], "fourth", "points"),
    ]
    places = [(float(m), n) for m, n in zip(middle, names, strict=True)]
    drawn = [v for s in series for v in (s.y, s.low, s.high) if v is not None]
    frame = Frame(Axis(0, 1, ()), nice_axis(drawn, share, zero=True, most=1.0), "ends that came later", places)
    return Figure(
        f"Survivors win {share(total[0].value[0])} of pairs, finishers {share(total[1].value[0])}",
        "Share of pairs in which one side is worth more, by the number of ends that came after the finisher's; the rest tie.",
        lines(frame, series, "win rates of survivors and finishers"),
        Table(("later ends", "survivor wins", "finisher wins", "pairs"),
              list(zip(names, *map(intervals, found), map(str, found[0].count), strict=True))),
        "Whiskers: 95% over prompts. Equal where lengths do not matter and values are fair; a survivor that wins more with "
        "more later ends is the optimism of taking the best.",
    )  # fmt: skip


def rounds_figure(log: Log, streams: Streams) -> Figure:
    """Rounds of a stream that formed a pair."""
    rounds = count_rounds(log.segments, streams)
    most = min(int(rounds.max(initial=1)), 24)
    bins = EdgeBins(np.arange(0, most + 2, dtype=np.float64))
    shares = np.bincount(bins.place(rounds), minlength=len(bins)) / max(len(rounds), 1)
    return Figure(
        f"A stream forms {plain(float(rounds.mean()))} pairs on average",
        "Share of streams by their number of pairs, one a round, all of the run.",
        bars(bins, [Bars("", shares, "plain")], "pairs", "pairs of a stream"),
        Table(("pairs", "streams"), list(zip(bins.names(), map(share, shares.tolist()), strict=True))),
        f"{len(rounds):,} streams.",
    )


def endings_figure(log: Log, streams: Streams) -> Figure:
    """How streams ended, over training."""
    first = np.full(len(streams.num_tracks), -1, np.int64)
    first[streams.of_response] = np.arange(len(log))
    window, middle = windows(log.batch[first])
    prompt = log.responses.prompt[first]
    found = {name: rate(streams.ending == code, prompt, window, len(middle)) for code, name in enumerate(ENDINGS)}
    happened = {name: f for name, f in found.items() if np.nansum(f.value) > 0}
    series = [as_series(NAMES[name][0], middle, f, NAMES[name][2]) for name, f in happened.items()]
    rows = zip(map(whole, middle), *map(intervals, happened.values()), strict=True)
    totals = np.bincount(streams.ending, minlength=len(ENDINGS)) / max(len(streams.ending), 1)
    legend = "; ".join(f"{NAMES[n][0]}: {NAMES[n][1]}" for n in happened)
    return Figure(
        f"{share(float(totals[0]))} of streams end in a tie, the budget cuts both tracks in {share(float(totals[2]))}",
        f"Share of streams by how they ended, over training. {legend[:1].upper() + legend[1:]}.",
        lines(over_training(series, zero=True), series, "how streams ended over training"),
        Table((BATCH, *(NAMES[n][0] for n in happened)), list(rows)),
        "Bands: 95% over prompts. A rise of streams with both tracks cut means that the budget is too small.",
    )


def optimism_figure(run: Run) -> Figure | None:
    """What the best of several ends is above its fair value."""
    entries = list({e.get("rollout_batch"): e for e in run.updates if e.get("pairs/optimism") is not None}.values())
    if not entries:
        return None
    batch, values = column(entries, "rollout_batch"), column(entries, "pairs/optimism")
    found, middle = over_batches(batch, values)
    total = overall(batch, values)
    return Figure(
        f"Taking the best end values survivors {interval(total, plain)} above their fair value",
        "Mean of what `max` would value a survivor above `halving`, on these streams, in units of reward.",
        zero_lines(middle, found, "optimism of the best end over training"),
        Table((BATCH, "optimism"), list(zip(map(whole, middle), intervals(found, plain), strict=True))),
        f"{BETWEEN_BATCHES} Far from 0, survivor_reward=max rewards not stopping.",
    )
