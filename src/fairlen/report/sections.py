"""The figures of a run: learning curves, length and outcome, length in the update."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlen.audit.audit import Audit, find_missing
from fairlen.audit.conclusion import LENGTH, TURN_LENGTH, TURNS, Quantity
from fairlen.audit.log import Log, advantages, off_policy
from fairlen.audit.statistics.intervals import length_bins, mean, rate
from fairlen.batch import Ints, Responses, sum_by
from fairlen.report.figure import (
    INTERVAL,
    SIDES,
    Axis,
    Figure,
    Frame,
    Section,
    Series,
    Table,
    Tone,
    as_series,
    by_length,
    change,
    counted_rows,
    ends_of,
    interval,
    intervals,
    lines,
    middles,
    nice_axis,
    plain,
    share,
    span_axis,
    whole,
    windows,
)
from fairlen.report.prompts import difficulty_figure, within_figures
from fairlen.report.run import RecordedRun, column

BATCH = "rollout batch"


def find_sections(run: RecordedRun, audit: Audit | None) -> list[Section]:
    lead = "Accuracy on problems that were never trained on, and what happened to lengths meanwhile."
    learning = Section("learning", "Learning", lead, [accuracy_figure(run)])
    if run.records is None or audit is None:
        return [learning]
    log = run.records.log
    learning.figures.extend([length_figure(log), truncation_figure(log, held_out(run, "eval/truncated"))])
    lead = "Responses are compared with others to the same prompt in one rollout batch; what lies between prompts is difficulty."
    figures = [
        replace(one, id=f"lengths-{at}") for at, one in enumerate([*within_figures(log), difficulty_figure(log)])
    ]
    lengths = Section("lengths", "Length and outcome", lead, figures, audit, notes=find_missing(audit))
    return [lengths, *turns_sections(log), learning, *weights_sections(log)]


def plain_rows(log: Log) -> tuple[Responses, Ints]:
    """Return responses that started from their prompt, plain samples of the policy, and their rollout batches."""
    rows = log.responses.round == 0
    return log.responses.take(rows), log.batch[rows]


def held_out(run: RecordedRun, name: str) -> Series:
    x, y, low, high = (column(run.evaluations, n) for n in ("rollout_batch", name, f"{name}_low", f"{name}_high"))
    return Series("held out", x, y, "plain", low, high, "points", share)


def accuracy_figure(run: RecordedRun) -> Figure:
    series = [held_out(run, "eval/accuracy")]
    title = change("held-out accuracy", series[0])
    if run.records:
        responses, batch = plain_rows(run.records.log)
        window, middle = windows(batch)
        found = rate(responses.correct, responses.prompt, window, len(middle))
        series.insert(0, as_series("training", middle, found, "third"))
    names = ("accuracy", "accuracy_low", "accuracy_high", "length", "length_correct", "length_incorrect", "truncated")
    columns = [column(run.evaluations, n) for n in ("rollout_batch", *(f"eval/{name}" for name in names))]
    rows = [
        (whole(at), interval(row[:3], share), *map(plain, row[3:6]), share(row[6]))
        for at, *row in zip(*columns, strict=True)
    ]
    return Figure(
        title,
        "Share of correct responses over training: dots on held-out problems, line on the problems trained on.",
        lines(over_training(series, zero=False), series, "accuracy over training"),
        Table((BATCH, "held-out accuracy", "length", "of correct ones", "of incorrect ones", "truncated"), rows),
        "Whiskers: 95% over held-out problems. Band: 95% over prompts. The two sets of problems differ, "
        "so that the line may run above or below the dots.",
    )


def over_training(series: list[Series], zero: bool = True, level: float | None = None) -> Frame:
    form, x = series[0].form, np.concatenate([s.x for s in series])
    last = float(np.max(x, initial=1.0))
    y = nice_axis(ends_of(series), form, zero=zero, most=1.0 if form is share else np.inf)
    return Frame(span_axis(2 * last if len(np.unique(x)) == 1 else last), y, BATCH, level=level)


def share_axis(series: list[Series]) -> Axis:
    return nice_axis(ends_of(series), share, zero=True, most=1.0)


def length_figure(log: Log, quantity: Quantity = LENGTH, unit: str = "generated tokens") -> Figure:
    responses, batch = plain_rows(log)
    window, middle = windows(batch)
    series, cells, amount = [], [], quantity.of(responses)
    noun, short = quantity.noun.removeprefix("the "), unit.split()[-1]
    for name, is_correct in SIDES:
        rows = responses.correct == is_correct
        found = mean(amount[rows], responses.prompt[rows], window[rows], len(middle))
        series.append(as_series(name, middle, found, name, form=plain))
        cells.append(intervals(found, plain))
    return Figure(
        change(f"{noun} of correct responses", series[0]),
        f"Mean {noun} of correct and incorrect responses over training, in {unit}.",
        lines(over_training(series), series, f"mean {noun} of correct and incorrect responses over training"),
        Table(
            (BATCH, f"correct ({short})", f"incorrect ({short})"), list(zip(map(whole, middle), *cells, strict=True))
        ),
        f"{INTERVAL} Lines that drift apart mean that {noun} and verdict are coupled.",
    )


def turns_sections(log: Log) -> list[Section]:
    if not log.has_turns:
        return []
    figures = [length_figure(log, TURNS, "turns"), length_figure(log, TURN_LENGTH), *within_figures(log, TURNS)]
    lead = "A trajectory is written in turns, and reads between them: only what the policy wrote counts and trains."
    return [Section("turns", "Turns", lead, figures)]


def truncation_figure(log: Log, *others: Series) -> Figure:
    responses, batch = plain_rows(log)
    window, middle = windows(batch)
    found = rate(responses.truncated, responses.prompt, window, len(middle))
    series = [as_series("truncated", middle, found, "third"), *others]
    return Figure(
        change("the share of truncated responses", series[0]),
        describe_limit(log.responses),
        lines(over_training(series), series, "share of truncated responses over training"),
        Table((BATCH, "truncated", "responses"), counted_rows(map(whole, middle), found)),
        f"{INTERVAL} A rise means that the limit is too small, or that responses run away.",
        terms=("truncated",),
    )


def describe_limit(responses: Responses) -> str:
    tokens = f"the limit of {responses.max_response_length} tokens"
    if (responses.num_turns > 1).any():
        return f"Share of trajectories that {tokens}, or the task's limit on turns, ended."
    return f"Share of responses that reached {tokens} without EOS."


def weights_sections(log: Log) -> list[Section]:
    if not len(log.trained):
        return []
    figures = [weight_figure(log)]
    lead = "A sequence moves the model by its weight, the magnitude of its advantage and its number of tokens."
    if len(off_policy(log)):
        figures.append(acceptance_figure(log))
    else:
        lead += " Nothing could be clipped: each rollout batch served one update, so that every ratio is 1."
    return [Section("weights", "Length in the update", lead, figures)]


def weight_figure(log: Log) -> Figure:
    rows = log.trained.segment
    advantage, length = advantages(log)[rows], log.segments.length[rows]
    bins = length_bins(length)
    weight, tokens = log.trained.weight * np.abs(advantage) * length, np.where(advantage != 0, length, 0)
    series, columns = [], []
    sides: tuple[tuple[str, Tone], ...] = (("reinforced", "correct"), ("penalised", "incorrect"))
    for sign, (name, tone) in zip((1, -1), sides, strict=True):
        sums = [sum_by(bins.index, of * (np.sign(advantage) == sign), len(bins)) for of in (weight, tokens)]
        shares = [part / max(float(of.sum()), 1e-300) for part, of in zip(sums, (weight, tokens), strict=True)]
        series.append(Series(name, middles(len(bins)), shares[0], tone, form=share))
        series.append(Series(f"{name}, tokens", middles(len(bins)), shares[1], tone, mark="faint", form=share))
        columns += shares
    up = float(columns[0].sum())
    return Figure(
        f"{share(up)} of the weight reinforces, {share(1 - up)} penalises" if weight.any() else "No advantage differs from 0",
        "Share of weight x |advantage| x length by length and sign, all updates. Thin lines: share of tokens.",
        lines(by_length(bins, share_axis(series), "length", "tokens"), series, "weight by length and sign"),
        Table(("tokens", "reinforced: weight", "reinforced: tokens", "penalised: weight", "penalised: tokens"),
              list(zip(bins.names(), *(map(share, c) for c in columns), strict=True))),
        "A line above its thin one means that these tokens weigh more than others. Sums over the run, no estimate.",
        terms=("reinforced",),
    )  # fmt: skip


def acceptance_figure(log: Log) -> Figure:
    rows = off_policy(log)
    bins = length_bins(rows.length)
    inside, clipped = (rate(v, rows.prompt, bins.index, len(bins)) for v in (rows.inside, rows.clipped))
    series = [
        as_series("inside", middles(len(bins)), inside, "correct", "points"),
        as_series("clipped", middles(len(bins)), clipped, "incorrect", "points"),
    ]
    return Figure(
        f"Acceptance by length: {share(inside.value[0])} of the shortest, {share(inside.value[-1])} of the longest",
        "Off-policy updates: mean share of tokens within the two-sided bound (inside), and of those without gradient (clipped).",
        lines(by_length(bins, share_axis(series), "length", "tokens"), series, "acceptance and clipping by length"),
        Table(("tokens", "inside", "clipped", "sequences"), counted_rows(bins.names(), inside, clipped)),
        "Whiskers: 95% over prompts. A fair bound accepts all lengths alike.",
        terms=("acceptance.lre",),
    )
