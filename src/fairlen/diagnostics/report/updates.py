"""Figures of what length does to an update: weights, stopping, clipping; and of EqLen's streams."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Bools, Floats
from fairlen.diagnostics.log import Log, advantages, values
from fairlen.diagnostics.report.chart import Axis, Bars, Frame, Tone, bars, lines, nice_axis, plain, share
from fairlen.diagnostics.report.figure import (
    BATCH,
    MIN_ROWS,
    EdgeBins,
    Figure,
    Section,
    Table,
    as_series,
    column,
    ends_of,
    interval,
    intervals,
    nice_bins,
    sentence,
    whole,
    windows,
)
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.report.training import LENGTH, batch_axis, binned, over_training
from fairlen.diagnostics.uncertainty import Counted, mean, rate
from fairlen.sampling.stream_metrics import ENDINGS, LATER, Streams, compare_pairs, count_rounds, find_streams

MIN_BATCHES = 4
"""Rollout batches in a stretch of training: what an interval over batches needs."""
BETWEEN_BATCHES = "Bands are 95% intervals over rollout batches."
Overall = tuple[float, float, float]
NAMES: dict[str, tuple[str, str, Tone]] = {
    "tie": ("tie", "both tracks stopped at one position", "correct"),
    "one_truncated": ("one cut", "one stopped where the other was truncated", "fourth"),
    "both_truncated": ("both cut", "both were truncated", "incorrect"),
    "max_rounds": ("limit", "the limit of rounds was reached", "third"),
}


def weights_section(run: Run, log: Log) -> Section:
    """Return what the method makes of lengths."""
    figures = [eos_figure(run), coupling_figure(run)]
    if len(log.trained):
        bins = nice_bins(log.segments.length[log.trained.segment])
        figures = [mass_figure(log, bins), *figures, acceptance_figure(log, bins)]
    lead = "A sequence moves the model by its weight, the magnitude of its advantage and its number of tokens."
    return Section("weights", "Length in the update", lead, figures)


def mass_figure(log: Log, bins: EdgeBins) -> Figure:
    """Return weight x |advantage| x length by length and sign."""
    rows = log.trained.segment
    advantage, length = advantages(log)[rows], log.segments.length[rows]
    mass = log.trained.weight * np.abs(advantage) * length
    series, columns = [], []
    sides: tuple[tuple[str, Tone, Bools], ...] = (
        ("reinforced", "correct", advantage > 0),
        ("penalised", "incorrect", advantage < 0),
    )
    for name, tone, chosen in sides:
        weight = bins.count(length[chosen], mass[chosen]) / max(mass.sum(), 1e-300)
        tokens = bins.count(length[chosen], length[chosen]) / max(length[advantage != 0].sum(), 1)
        series.append(Bars(name, weight, tone, down=tone == "incorrect", marks=tokens))
        columns += [weight, tokens]
    up = float(columns[0].sum())
    title = f"{share(up)} of the weight reinforces, {share(1 - up)} penalises"
    head = ("tokens", "reinforced: weight", "reinforced: tokens", "penalised: weight", "penalised: tokens")
    return Figure(
        title if mass.sum() > 0 else "No advantage differs from 0",
        "Share of weight x |advantage| x length by length and sign, all updates. Short lines: share of tokens.",
        bars(bins.edges, bins.names(), series, LENGTH, "weight by length and sign"),
        Table(head, list(zip(bins.names(), *(map(share, c.tolist()) for c in columns), strict=True))),
        "A bar above its line means that these tokens weigh more than others. Sums over the run, no estimate.",
    )


def metric_figure(
    run: Run, name: str, once: bool, title: tuple[str, str, str], says: str, head: str, note: str
) -> Figure:
    """Return a metric over training around zero. `once`: each rollout batch counts once.

    `title` is for an interval below 0, above 0, and around it; {} in it and in the note is the mean over the run.
    """
    entries = [entry for entry in run.updates if entry.get(name) is not None]
    entries = list({entry.get("rollout_batch"): entry for entry in entries}.values()) if once else entries
    batch, numbers = column(entries, "rollout_batch").astype(np.int64), column(entries, name)
    total = overall(batch, numbers)
    if len(numbers):
        window, middle = windows(batch, MIN_BATCHES)
        found = mean(numbers, batch, window, len(middle))
    else:
        found, middle = Counted(numbers, numbers, numbers, batch), numbers
    series = [as_series("", middle, found, "plain", form=plain)]
    frame = Frame(batch_axis(middle), nice_axis(ends_of(series), zero=True), BATCH, level=0.0)
    chosen, over_run = title[0 if total[2] < 0 else 1 if total[1] > 0 else 2], interval(total, plain)
    rows = list(zip(map(whole, middle), intervals(found, plain), strict=True))
    return Figure(
        chosen.format(over_run), says, lines(frame, series, f"{head} over training"), Table((BATCH, head), rows),
        f"{note.format(over_run)} {BETWEEN_BATCHES}",
    )  # fmt: skip


def overall(batch: np.ndarray, numbers: Floats) -> Overall:
    """Return the mean of all, with its interval over rollout batches, whose updates are alike."""
    if len(numbers) < 2:
        return (float(numbers[0]) if len(numbers) else np.nan), np.nan, np.nan
    found = mean(numbers, batch, np.zeros(len(numbers), np.int64), 1).at(0)
    return found.value, found.low, found.high


def eos_figure(run: Run) -> Figure:
    """Return the net advantage on EOS."""
    return metric_figure(
        run, "advantage/eos", True,
        ("Stopping is penalised", "Stopping is reinforced", "Stopping is neither clearly reinforced nor penalised"),
        "Net advantage on EOS: the sum of advantages at EOS tokens, per rollout batch.", "net advantage on EOS",
        "Over the run {} per rollout batch. Below 0 stopping is penalised; above it, responses that stop may only be "
        "correct more often than those that are truncated.",
    )  # fmt: skip


def coupling_figure(run: Run) -> Figure:
    """Return the mean advantage over tokens."""
    return metric_figure(
        run, "coupling/sign_length", False,
        ("Negative advantages fall on longer responses", "Positive advantages fall on longer responses",
         "Sign and length are not clearly coupled"),
        "Mean advantage over trained tokens, per update: 0 where length and sign are not coupled.", "mean advantage of a token",
        "Over the run {}. Far from 0, a token mean moves all log-probs one way.",
    )  # fmt: skip


def acceptance_figure(log: Log, bins: EdgeBins) -> Figure:
    """Return tokens within the bound, and tokens without a gradient, by length, of off-policy updates."""
    rows = log.trained.take(log.trained.log_ratio != 0)
    if not len(rows):
        why = "Every update was on-policy: each rollout batch served one update, so that ratios are 1 and nothing is clipped."
        return Figure("Nothing could be clipped", why)
    batch, place = log.batch[log.segments.response[rows.segment]], bins.place(log.segments.length[rows.segment])
    inside, clipped = (rate(v, batch, place, len(bins)).of_at_least(MIN_ROWS) for v in (rows.inside, rows.clipped))
    series = [
        as_series("inside", bins.middle(), inside, "correct", "points"),
        as_series("clipped", bins.middle(), clipped, "incorrect", "points"),
    ]
    used = np.flatnonzero(np.isfinite(inside.value))
    ends = [share(float(inside.value[i])) for i in used[[0, -1]]] if len(used) else ["-", "-"]
    return Figure(
        f"Acceptance by length: {ends[0]} of the shortest, {ends[1]} of the longest",
        "Off-policy updates: mean share of tokens within the two-sided bound (inside), and of those without gradient (clipped).",
        lines(binned(bins, series), series, "acceptance and clipping by length"),
        Table(("tokens", "inside", "clipped", "sequences"),
              list(zip(bins.names(), intervals(inside), intervals(clipped), map(str, inside.count), strict=True))),
        "Whiskers: 95% over rollout batches. A fair bound accepts all lengths alike.",
    )  # fmt: skip


def pairs_section(run: Run, log: Log) -> Section:
    """Return what the streams did."""
    streams = find_streams(log.responses)
    figures = [win_figure(log, streams), rounds_figure(log, streams), endings_figure(log, streams)]
    if any(entry.get("pairs/optimism") is not None for entry in run.updates):
        figures.append(optimism_figure(run))
    lead = (
        "A stream has two tracks; when one ends, a new one starts from what the other had written by then. "
        "The finisher is compared with that segment, the survivor, of equal length."
    )
    return Section("pairs", "Equal-length pairs", lead, figures)


def win_figure(log: Log, streams: Streams) -> Figure:
    """Return who had the higher value, by the number of ends that came later."""
    survivors, gap, later = compare_pairs(log.segments, values(log), streams)
    prompt = log.responses.prompt[log.segments.response[survivors]]
    names = [name.replace("_", " ") for name in LATER]
    wins = [rate(won, prompt, later - 1, len(names)).of_at_least(MIN_ROWS) for won in (gap > 0, gap < 0)]
    total = [float(won.mean()) if len(won) else np.nan for won in (gap > 0, gap < 0)]
    middle = (np.arange(len(names)) + 0.5) / len(names)
    series = [
        as_series("survivor", middle - 0.015, wins[0], "plain", "points"),
        as_series("finisher", middle + 0.015, wins[1], "fourth", "points"),
    ]
    places = [(float(m), n) for m, n in zip(middle, names, strict=True)]
    y = nice_axis(ends_of(series), share, zero=True, most=1.0)
    return Figure(
        f"Survivors win {share(total[0])} of pairs, finishers {share(total[1])}",
        "Share of pairs in which one side has the higher value, by the number of ends after the finisher's; the rest tie.",
        lines(Frame(Axis(0, 1, ()), y, "ends that came later", places), series, "win rates of survivors and finishers"),
        Table(("later ends", "survivor wins", "finisher wins", "pairs"),
              list(zip(names, *map(intervals, wins), map(str, wins[0].count), strict=True))),
        "Whiskers: 95% over prompts. Equal where lengths do not matter and values are fair; a survivor that wins more with "
        "more later ends is the optimism of taking the best.",
    )  # fmt: skip


def rounds_figure(log: Log, streams: Streams) -> Figure:
    """Return how many rounds of a stream formed a pair."""
    rounds = count_rounds(log.segments, streams)
    bins = EdgeBins(np.arange(0, min(int(rounds.max(initial=1)), 24) + 2, dtype=np.float64))
    shares = bins.count(rounds) / max(len(rounds), 1)
    return Figure(
        f"A stream forms {plain(float(rounds.mean()))} pairs on average",
        "Share of streams by their number of pairs, one a round, all of the run.",
        bars(bins.edges, bins.names(), [Bars("", shares, "plain")], "pairs", "pairs of a stream"),
        Table(("pairs", "streams"), list(zip(bins.names(), map(share, shares.tolist()), strict=True))),
        f"{len(rounds):,} streams.",
    )


def endings_figure(log: Log, streams: Streams) -> Figure:
    """Return how streams ended, over training."""
    first = np.full(len(streams.num_tracks), -1, np.int64)
    first[streams.of_response] = np.arange(len(log))
    window, middle = windows(log.batch[first])
    found = {
        name: rate(streams.ending == code, log.responses.prompt[first], window, len(middle))
        for code, name in enumerate(ENDINGS)
        if (streams.ending == code).any()
    }
    series = [as_series(NAMES[name][0], middle, f, NAMES[name][2]) for name, f in found.items()]
    totals = np.bincount(streams.ending, minlength=len(ENDINGS)) / max(len(streams.ending), 1)
    legend = sentence("; ".join(f"{NAMES[name][0]}: {NAMES[name][1]}" for name in found))
    return Figure(
        f"{share(float(totals[0]))} of streams end in a tie, both tracks are truncated in {share(float(totals[2]))}",
        f"Share of streams by how they ended, over training. {legend}.",
        lines(over_training(series, zero=True), series, "how streams ended over training"),
        Table((BATCH, *(NAMES[n][0] for n in found)),
              list(zip(map(whole, middle), *map(intervals, found.values()), strict=True))),
        "Bands: 95% over prompts. A rise of streams with both tracks truncated means that the limit is too small.",
    )  # fmt: skip


def optimism_figure(run: Run) -> Figure:
    """Return what the best of several ends is above its fair value."""
    title = "Taking the best end values survivors {} above their fair value"
    return metric_figure(
        run, "pairs/optimism", True, (title, title, title),
        "Mean of what `max` would value a survivor above `halving`, on these streams, in units of reward.", "optimism",
        "Over the run {}. Far from 0, survivor_reward=max rewards not stopping.",
    )  # fmt: skip
