"""The figures of a run: learning curves, length and outcome, length in the update, EqLen's streams, and every logged metric."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from fairlen.audit import numbers
from fairlen.audit.audit import Audit, find_missing
from fairlen.audit.conclusion import LENGTH, TURN_LENGTH, TURNS, Quantity
from fairlen.audit.log import Log, advantages, ended_samples, off_policy, values
from fairlen.audit.statistics.coupling import ALL_RULES
from fairlen.audit.statistics.intervals import length_bins, mean, rate
from fairlen.batch import Floats, Ints, Responses, sum_by
from fairlen.console import first_of
from fairlen.methods.compose import summarize
from fairlen.metrics import SECTIONS, Metric, find_metric
from fairlen.report import figure
from fairlen.report.prompts import difficulty_figure, within_figures
from fairlen.report.run import RecordedRun, column
from fairlen.sampling.stream_metrics import ENDINGS, LATER, Streams, compare_pairs, count_rounds, find_streams

BATCH = "rollout batch"
ENDS: tuple[tuple[str, str, figure.Tone], ...] = (
    ("tie", "both tracks stopped at one position", "correct"),
    ("one cut", "one stopped where the other was truncated", "fourth"),
    ("both cut", "both tracks were truncated", "incorrect"),
    ("limit", "the limit of rounds was reached", "third"),
)
"""Of a stream, by position in ENDINGS: name, meaning, colour."""
TITLES = {name: title for title, metrics in SECTIONS.items() for one in metrics for name in one.names.split()}
OTHERS = "Other"
"""Group of logged metrics that metrics.py does not have."""
MAX_CURVES = 150
SAME = 1e-12  # a spread that rounding makes
X = ("update", "rollout_batch")


def find_sections(run: RecordedRun, audit: Audit | None) -> list[figure.Section]:
    lead = "Accuracy on problems that were never trained on, and what happened to lengths meanwhile."
    learning = figure.Section("learning", "Learning", lead, [accuracy_figure(run)])
    if run.records is None or audit is None:
        return [learning, *curves_section(run)]
    log = run.records.log
    learning.figures.extend([length_figure(log), truncation_figure(log, held_out(run, "eval/truncated"))])
    lead = "Responses are compared with others to the same prompt in one rollout batch; what lies between prompts is difficulty."
    drawn = [*within_figures(log), difficulty_figure(log), *channel_figures(audit)]
    figures = [replace(one, id=f"lengths-{at}") for at, one in enumerate(drawn)]
    lengths = figure.Section("lengths", "Length and outcome", lead, figures, audit, notes=find_missing(audit))
    found = [learning, lengths, *([turns_section(log)] if log.has_turns else []), weights_section(log)]
    found += [pairs_section(log)] if "streams" in log.known else []
    return [*found, *curves_section(run)]


def channel_figures(one: Audit) -> list[figure.Figure]:
    """Show where tokens go; nothing of a log with one channel."""
    table = figure.Table(("", *numbers.CHANNELS_HEAD[1:]), list(numbers.channel_rows(one)))
    title, says = numbers.CHANNELS_HEAD[0].capitalize(), f"Mean {one.log.unit} of a response. Observations were read."
    return [figure.Figure(title, says, table=table, terms=("channels", "interval"))] if one.channels else []


def plain_rows(log: Log) -> tuple[Responses, Ints, Ints]:
    """Return responses that started from their prompt and ended there, their steps, and what intervals are over."""
    rows = ended_samples(log)
    return log.responses.take(rows), log.step[rows], log.clusters[rows]


def held_out(run: RecordedRun, name: str) -> figure.Series:
    x, y, low, high = (column(run.evaluations, n) for n in ("rollout_batch", name, f"{name}_low", f"{name}_high"))
    return figure.Series("held out", x, y, "plain", low, high, "points", figure.share)


def accuracy_figure(run: RecordedRun) -> figure.Figure:
    series = [held_out(run, "eval/accuracy")]
    if run.records:
        responses, batch, cluster = plain_rows(run.records.log)
        window, middle = figure.windows(batch)
        found = rate(responses.correct, cluster, window, len(middle))
        series.insert(0, figure.as_series("training", middle, found, "third"))
    names = ("accuracy", "accuracy_low", "accuracy_high", "length", "length_correct", "length_incorrect", "truncated")
    columns = [column(run.evaluations, n) for n in ("rollout_batch", *(f"eval/{name}" for name in names))]
    rows = [
        (figure.whole(at), figure.interval(row[:3], figure.share), *map(figure.plain, row[3:6]), figure.share(row[6]))
        for at, *row in zip(*columns, strict=True)
    ]
    of_training = bool(run.records and not run.evaluations)
    return figure.Figure(
        figure.change("training accuracy" if of_training else "held-out accuracy", series[0 if of_training else -1]),
        f"Share of correct responses: {'' if of_training else 'dots on held-out problems, '}line on the problems trained on.",
        figure.lines(over_training(series, zero=False), series, "accuracy over training"),
        figure.Table((BATCH, "held-out accuracy", "length", "of correct ones", "of incorrect ones", "truncated"), rows),
        "Whiskers: 95% over held-out problems. Band: 95% over prompts. The two sets of problems differ.",
    )


def over_training(series: list[figure.Series], zero: bool = True, step: str = BATCH) -> figure.Frame:
    form, x = series[0].form, np.concatenate([s.x for s in series])
    first, last = float(np.min(x, initial=np.inf)), float(np.max(x, initial=1.0))
    y = figure.nice_axis(figure.ends_of(series), form, zero=zero, most=1.0 if form is figure.share else np.inf)
    return figure.Frame(figure.span_axis(last, first) if first < last else figure.span_axis(2 * last), y, step)


def share_axis(series: list[figure.Series]) -> figure.Axis:
    return figure.nice_axis(figure.ends_of(series), figure.share, zero=True, most=1.0)


def length_figure(log: Log, quantity: Quantity = LENGTH, unit: str = "generated tokens") -> figure.Figure:
    responses, batch, cluster = plain_rows(log)
    window, middle = figure.windows(batch)
    series, cells, amount = [], [], quantity.of(responses)
    noun, short = quantity.noun.removeprefix("the "), unit.split()[-1]
    for name, is_correct in figure.SIDES:
        side = responses.correct == is_correct
        found = mean(amount[side], cluster[side], window[side], len(middle)).within(0.0, np.inf)
        series.append(figure.as_series(name, middle, found, name, form=figure.plain))
        cells.append(figure.intervals(found, figure.plain))
    rows = list(zip(map(figure.whole, middle), *cells, strict=True))
    return figure.Figure(
        figure.change(f"{noun} of correct responses", series[0]),
        f"Mean {noun} of correct and incorrect responses over training, in {unit}.",
        figure.lines(over_training(series), series, f"mean {noun} of correct and incorrect responses over training"),
        figure.Table((BATCH, f"correct ({short})", f"incorrect ({short})"), rows),
        f"{figure.INTERVAL} Lines that drift apart mean that {noun} and verdict are coupled.",
    )


def turns_section(log: Log) -> figure.Section:
    figures = [length_figure(log, TURNS, "turns"), length_figure(log, TURN_LENGTH), *within_figures(log, TURNS)]
    lead = "A trajectory is written in turns, and reads between them: only what the policy wrote counts and trains."
    return figure.Section("turns", "Turns", lead, figures)


def truncation_figure(log: Log, *others: figure.Series, step: str = BATCH) -> figure.Figure:
    responses, batch, cluster = plain_rows(log)
    window, middle = figure.windows(batch)
    found = rate(responses.truncated, cluster, window, len(middle))
    series = [figure.as_series("truncated", middle, found, "third"), *others]
    return figure.Figure(
        figure.change("the share of truncated responses", series[0]),
        f"Share that the limit of {responses.max_response_length} tokens ended{', or that on turns' * log.has_turns}.",
        figure.lines(over_training(series, step=step), series, "share of truncated responses over training"),
        figure.Table((step, "truncated", "responses"), figure.counted_rows(map(figure.whole, middle), found)),
        f"{figure.INTERVAL} A rise means that the limit is too small, or that responses run away.",
        terms=("truncated",),
    )


def weights_section(log: Log) -> figure.Section:
    figures = [weight_figure(log)] if len(log.trained) else []
    lead = "A sequence moves the model by its weight, the magnitude of its advantage and its number of tokens."
    if len(off_policy(log)):
        figures.append(acceptance_figure(log))
    elif figures:
        lead += " Nothing could be clipped: each rollout batch served one update, so that every ratio is 1."
    return figure.Section("weights", "Length in the update", lead, figures)


def weight_figure(log: Log) -> figure.Figure:
    rows = log.trained.segment
    advantage, length = advantages(log)[rows], log.segments.length[rows]
    bins = length_bins(length)
    weight, tokens = log.trained.weight * np.abs(advantage) * length, np.where(advantage != 0, length, 0)
    series, columns, middle = [], [], figure.middles(len(bins))
    sides: tuple[tuple[str, figure.Tone], ...] = (("reinforced", "correct"), ("penalised", "incorrect"))
    for sign, (name, tone) in zip((1, -1), sides, strict=True):
        sums = [sum_by(bins.index, of * (np.sign(advantage) == sign), len(bins)) for of in (weight, tokens)]
        shares = [part / max(float(of.sum()), 1e-300) for part, of in zip(sums, (weight, tokens), strict=True)]
        series.append(figure.Series(name, middle, shares[0], tone, form=figure.share))
        series.append(figure.Series(f"{name}, tokens", middle, shares[1], tone, mark="faint", form=figure.share))
        columns += shares
    up = float(columns[0].sum())
    title = f"{figure.share(up)} of the weight reinforces, {figure.share(1 - up)} penalises"
    return figure.Figure(
        title if weight.any() else "No advantage differs from 0",
        "Share of weight x |advantage| x length by length and sign, all updates. Thin lines: share of tokens.",
        figure.lines(figure.by_length(bins, share_axis(series), "length", "tokens"), series, "weight by length and sign"),
        figure.Table(("tokens", "reinforced: weight", "reinforced: tokens", "penalised: weight", "penalised: tokens"),
              list(zip(bins.names(), *(map(figure.share, c) for c in columns), strict=True))),
        "A line above its thin one means that these tokens weigh more than others. Sums over the run, no estimate.",
        terms=("reinforced",),
    )  # fmt: skip


def acceptance_figure(log: Log) -> figure.Figure:
    rows = off_policy(log)
    bins = length_bins(rows.length)
    inside, clipped = (rate(v, rows.prompt, bins.index, len(bins)) for v in (rows.inside, rows.clipped))
    series = [
        figure.as_series("inside", figure.middles(len(bins)), inside, "correct", "points"),
        figure.as_series("clipped", figure.middles(len(bins)), clipped, "incorrect", "points"),
    ]
    frame = figure.by_length(bins, share_axis(series), "length", "tokens")
    return figure.Figure(
        f"Acceptance by length: {figure.share(inside.value[0])} of the shortest, {figure.share(inside.value[-1])} of the longest",
        "Off-policy updates: mean share of tokens within the two-sided bound (inside), and of those without gradient (clipped).",
        figure.lines(frame, series, "acceptance and clipping by length"),
        figure.Table(("tokens", "inside", "clipped", "sequences"), figure.counted_rows(bins.names(), inside, clipped)),
        "Whiskers: 95% over prompts. A fair bound accepts all lengths alike.",
        terms=("acceptance.lre",),
    )


def pairs_section(log: Log) -> figure.Section:
    pairs = figure.plain(float(count_rounds(log.segments, find_streams(log.responses)).mean()))
    lead = (
        "A stream has two tracks; when one ends, a new one starts from what the other had written by then. "
        "The finisher is compared with that segment, the survivor, of equal length. "
        f"A stream forms {pairs} pairs on average, one a round."
    )
    return figure.Section("pairs", "Equal-length pairs", lead, stream_figures(log))


def stream_figures(log: Log) -> list[figure.Figure]:
    streams = find_streams(log.responses)
    return [win_figure(log, streams), endings_figure(log, streams)]


def win_figure(log: Log, streams: Streams) -> figure.Figure:
    survivors, gap, later = compare_pairs(log.segments, values(log), streams)
    prompt = log.clusters[log.segments.response[survivors]]
    middle, names = figure.middles(len(LATER)), [name.replace("_", " ") for name in LATER]
    wins = [rate(won, prompt, later - 1, len(names)).of_at_least(figure.MIN_ROWS) for won in (gap > 0, gap < 0)]
    total = [figure.share(float(won.mean())) if len(won) else "-" for won in (gap > 0, gap < 0)]
    series = [
        figure.as_series("survivor", middle - 0.015, wins[0], "plain", "points"),
        figure.as_series("finisher", middle + 0.015, wins[1], "fourth", "points"),
    ]
    places = [(float(at), name) for at, name in zip(middle, names, strict=True)]
    label, y = "ends that came later", share_axis(series)
    frame = figure.Frame(
        figure.Axis(0, 1), y, label, places, names=lambda x: f"{names[int(x * len(names))]} later ends"
    )
    return figure.Figure(
        f"Survivors win {total[0]} of pairs, finishers {total[1]}",
        "Share of pairs in which one side has the higher value, by the number of ends after the finisher's; the rest tie.",
        figure.lines(frame, series, "win rates of survivors and finishers"),
        figure.Table(("later ends", "survivor wins", "finisher wins", "pairs"), figure.counted_rows(names, *wins)),
        "Whiskers: 95% over prompts. Equal where lengths do not matter and values are fair; a survivor that wins more with "
        "more later ends is the optimism of taking the best.",
        terms=("streams.optimism",),
    )


def endings_figure(log: Log, streams: Streams) -> figure.Figure:
    first = np.full(len(streams.num_tracks), -1, np.int64)
    first[streams.of_response] = np.arange(len(log))
    window, middle = figure.windows(log.step[first])
    totals = np.bincount(streams.ending, minlength=len(ENDINGS)) / max(len(streams.ending), 1)
    series, cells, legend = [], [], []
    for code in np.flatnonzero(totals):
        name, meaning, tone = ENDS[code]
        found = rate(streams.ending == code, log.clusters[first], window, len(middle))
        series.append(figure.as_series(name, middle, found, tone))
        cells.append(figure.intervals(found))
        legend.append(f"{name}: {meaning}")
    rows = list(zip(map(figure.whole, middle), *cells, strict=True))
    ties, cut = (figure.share(float(totals[place])) for place in (0, 2))
    return figure.Figure(
        f"{ties} of streams end in a tie, both tracks are truncated in {cut}",
        f"Share of streams by how they ended, over training. {'; '.join(legend)}.",
        figure.lines(over_training(series), series, "how streams ended over training"),
        figure.Table((BATCH, *(one.label for one in series)), rows),
        "Bands: 95% over prompts. A rise of streams with both tracks truncated means that the limit is too small.",
        terms=("streams.eos_advantage",),
    )


def curves_section(run: RecordedRun) -> list[figure.Section]:
    """Return every number of metrics.jsonl over training, one that never changes as a row; nothing of a run without updates."""
    found, fixed = defaultdict[str, list[figure.Figure]](list), list[tuple[str, ...]]()
    names = list(dict.fromkeys(name for entry in run.updates for name in entry if name not in X))
    for name in names[:MAX_CURVES]:
        x, y = column(run.updates, "rollout_batch") + 1, column(run.updates, name)
        x, y = x[np.isfinite(y)], y[np.isfinite(y)]
        known = find_metric(name)
        if len(y) and np.ptp(y) > SAME:
            found[TITLES.get(name, OTHERS)].append(curve(name, known, x, y))
        elif len(y):
            fixed.append((name, figure.plain(float(y[0])), known.unit, known.meaning))
    if not found and not fixed:
        return []
    groups = [(title, found[title]) for title in (*SECTIONS, OTHERS) if found[title]]
    if fixed:
        table = figure.Table(("name", "value", "unit", "meaning"), fixed)
        groups.append(("Constant", [figure.Figure("", "Numbers that were the same in every update.", table=table)]))
    lead = "Each number of metrics.jsonl, as docs/metrics.md of fairlen defines it."
    if len(names) > MAX_CURVES:
        lead += f" Not shown: {', '.join(first_of(names[MAX_CURVES:], 5))}."
    return [figure.Section("logged", "Everything logged", lead, groups=groups)]


def curve(name: str, known: Metric, x: Floats, y: Floats) -> figure.Figure:
    """Draw a metric: means of stretches of training, in a band from the lowest to the highest."""
    window, middle = figure.windows(x.astype(np.int64))
    count = np.bincount(window, minlength=len(middle))
    average = np.bincount(window, y, minlength=len(middle)) / np.where(count, count, np.nan)
    low, high = np.full(len(middle), np.inf), np.full(len(middle), -np.inf)
    np.minimum.at(low, window, y)
    np.maximum.at(high, window, y)
    low, high = (np.where(count > 1, end, np.nan) for end in (low, high))
    series = [figure.Series("", middle, average, "plain", low, high)]
    rows = [
        (figure.whole(at), figure.interval(of, figure.plain))
        for at, *of in zip(middle, average, low, high, strict=True)
    ]
    band = " Band: from the lowest to the highest of several updates." if (count > 1).any() else ""
    look = f"To look for: {known.look}." if known.look else ""
    return figure.Figure(
        name,
        ": ".join(filter(None, (known.unit, known.meaning))),
        figure.lines(over_training(series, zero=False), series, f"{name} over training"),
        figure.Table((BATCH, name), rows),
        look + band,
    )


VERDICTS = {"effect": "Length and correctness go together", "none": "Length and correctness do not go together"}
VERDICTS["unknown"] = "Not known yet"
OF_TURNS = {"effect": "An effect of", "none": "No effect of", "unknown": "Not known yet of"}
TERMS = {
    "verdict": ("Verdict", "Effect: one of length within prompts stands at a false discovery rate of 5% over all findings. No "
                "effect: by their 90% intervals all are below the smallest that matter. An effect is an association: a response "
                "may be incorrect because it is long, or long because it was lost."),
    "reinforced": ("Reinforced, penalised", "Tokens whose advantage is above 0 are reinforced: an update makes them more likely. "
                   "Those below 0 are penalised: it makes them less likely."),
    "samples": ("avg@n, pass@k, best@k, maj@n", "Of c correct ones of n samples to a problem: c/n; the chance that one of k "
                "samples is correct; 1 - (1 - c/n)^k; whether the most frequent answer is correct."),
    "interval": ("Interval", "95%, over prompts: responses to one prompt are not independent of each other."),
    "difficulty": ("Difficulty", "What lies between prompts: long responses may be those to hard prompts. It gives no advice."),
    "truncated": ("Truncated", "At the limit of generation: long and mostly incorrect by construction, so left out of effects "
                  "where it is known."),
    "selection.dropped": ("Without a verdict", "Aborted, timed out or too old responses. Those that are missing may be long."),
    "within.length": ("Length within prompts", "Mean difference of log lengths of incorrect and correct responses to one prompt "
                      "in one step: 40% longer means that a typical incorrect response has 1.4 times the length. And "
                      "the share of such pairs in which the incorrect response is longer: 50% is no effect."),
    "within.bend": ("A best length in the middle", "Share of pairs in which the incorrect response is farther, by rank, from the "
                    "prompt's median length: above 50% where medium lengths are best. And the accuracy that is lost one standard "
                    "deviation of log length away from the best length: below 0 where the middle is worst."),
    "within.turns": ("Turns within prompts", "As length within prompts, of the number of turns that the policy wrote."),
    "within.turns_bend": ("A best number of turns", "As a best length in the middle, of the number of turns."),
    "within.turn_length": ("Length of turns within prompts", "As length within prompts, of a response's mean over its turns."),
    "within.turn_length_bend": ("A best length of turns", "As a best length in the middle, of a response's mean over its turns."),
    "channels": ("Channels", "Thinking, answers, tool calls, told by tags or fields of messages, and observations, which tools "
                 "wrote. Incorrect over correct compares responses to one prompt; beside it those that spend as much on every "
                 "other channel. A channel is named where both differ, with one chance in 20 that any is in error."),
    "weights": ("Weight under an aggregation", "Weight times size of the advantage over the tokens of incorrect responses, over "
                "the same of correct ones, of pairs the worse over the better; and the weight of a token of the longest "
                "responses over one of the shortest. Of trajectories, the weight of a whole turn of those of the most turns over "
                "one of the fewest."),
    "acceptance.lre": ("Length reweighting error", "Half the mean distance from 1 of (share accepted at this length / share "
                       "accepted), 0 to 1. The noise is what a fair bound would show."),
    "coupling": ("Sign and length", "Mean advantage of a trained token: above 0 positive advantages fall on longer responses."),
    "streams.optimism": ("Optimism of max", "What `max` values survivors above `halving`, in units of reward."),
    "streams.eos_advantage": ("Net advantage on EOS", "Sum of advantages at EOS, a response: below 0 stopping is penalised."),
}  # fmt: skip


def define(*names: str) -> list[tuple[str, str, list[str]]]:
    """Return the id, the term and what it means, of some terms or of everything that a page may link to."""
    scope = {"update": " Here of the update instead of the prompt."}
    rules = [f"{name}: {summarize(type(rule))}{scope.get(per, '')}" for name, (rule, per) in ALL_RULES.items()]
    found = [*((name, term, [text]) for name, (term, text) in TERMS.items()), ("aggregations", "Aggregations", rules)]
    return [one for one in found if one[0] in names or not names]
