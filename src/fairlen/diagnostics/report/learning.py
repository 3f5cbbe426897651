"""Figures over training: accuracy, lengths of right and wrong answers, answers that the budget cut off."""

from __future__ import annotations

import numpy as np

from fairlen.diagnostics.log import Log
from fairlen.diagnostics.report.chart import Axis, Frame, Series, lines, nice_axis, plain, share, span_axis
from fairlen.diagnostics.report.figure import (
    INTERVAL,
    Figure,
    Section,
    Table,
    as_series,
    change,
    column,
    interval,
    intervals,
    sentence,
    whole,
)
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.report.statistics import windows
from fairlen.diagnostics.uncertainty import Counted, mean, rate

BATCH = "rollout batch"


def learning_section(run: Run) -> Section:
    """What a learning curve shows."""
    figures = [accuracy_figure(run)]
    if run.records:
        figures += [length_figure(run.records.log), truncation_figure(run, run.records.log)]
    lead = "Accuracy on problems that were never trained on, and what happened to lengths meanwhile."
    return Section("learning", "Learning", lead, figures)


def evaluations(run: Run, name: str, label: str) -> Series:
    """A held-out number over training."""
    entries, ends = run.evaluations, {}
    if name == "eval/accuracy":
        ends = {"low": column(entries, "eval/accuracy_low"), "high": column(entries, "eval/accuracy_high")}
    return Series(
        label, column(entries, "rollout_batch"), column(entries, name), "plain", mark="points", form=share, **ends
    )


def plain_rows(log: Log) -> np.ndarray:
    """Answers that started from their prompt: plain samples of the policy. Forks continue what survived, and are longer."""
    return log.responses.round == 0


def accuracy_figure(run: Run) -> Figure:
    """Held-out and training accuracy."""
    held_out = evaluations(run, "eval/accuracy", "held out")
    series, table = [held_out], evaluation_table(run)
    if run.records:
        log, rows = run.records.log, plain_rows(run.records.log)
        responses, (window, middle) = log.responses.take(rows), windows(log.batch[rows])
        found = rate(responses.correct, responses.prompt, window, len(middle))
        series.insert(0, as_series("training", middle, found, "third"))
    frame = over_training(series, zero=False)
    return Figure(
        sentence(change("held-out accuracy", held_out, share)),
        "Share of right answers over training: dots on held-out problems, line on the problems trained on.",
        lines(frame, series, "accuracy over training"),
        table,
        "Whiskers: 95% over held-out problems. Band: 95% over prompts. The two sets of problems differ, "
        "so that the line may run above or below the dots.",
    )


def evaluation_table(run: Run) -> Table:
    """Every held-out evaluation."""
    names = ("eval/accuracy", "eval/accuracy_low", "eval/accuracy_high")
    at, accuracy = column(run.evaluations, "rollout_batch"), [column(run.evaluations, n) for n in names]
    length = [column(run.evaluations, n) for n in ("eval/length", "eval/length_correct", "eval/length_incorrect")]
    cut = column(run.evaluations, "eval/truncated")
    rows = [
        (whole(at[i]), interval([a[i] for a in accuracy], share), *(plain(v[i]) for v in length), share(cut[i]))
        for i in range(len(at))
    ]
    return Table((BATCH, "held-out accuracy", "length", "of right ones", "of wrong ones", "cut off"), rows)


def over_training(series: list[Series], zero: bool) -> Frame:
    """Shares from 0 to at most 1, or another quantity, against rollout batches."""
    drawn = [v for s in series for v in (s.y, s.low, s.high) if v is not None]
    x = np.concatenate([s.x for s in series])
    form = series[0].form
    return Frame(
        batch_axis(x),
        nice_axis(drawn, form, zero=zero, most=1.0 if form is share else np.inf),
        BATCH,
    )


def batch_axis(middle: np.ndarray) -> Axis:
    """Rollout batches up to the last middle of a stretch; up to its end where there is one stretch alone."""
    last = float(np.max(middle, initial=1.0))
    return span_axis(0.0, 2 * last if len(np.unique(middle)) == 1 else last)


def by_outcome(log: Log) -> tuple[np.ndarray, dict[str, Counted]]:
    """Mean length of right and of wrong answers in stretches of training."""
    rows = plain_rows(log)
    responses, (window, middle) = log.responses.take(rows), windows(log.batch[rows])
    found = {
        name: mean(part.length, part.prompt, window[chosen], len(middle))
        for name, chosen in (("right", responses.correct), ("wrong", ~responses.correct))
        for part in (responses.take(chosen),)
    }
    return middle, found


def length_figure(log: Log) -> Figure:
    """Mean length of right and wrong answers over training."""
    middle, found = by_outcome(log)
    series = [
        as_series("right", middle, found["right"], "right", form=plain),
        as_series("wrong", middle, found["wrong"], "wrong", form=plain),
    ]
    rows = list(zip(map(whole, middle), *(intervals(found[n], plain) for n in ("right", "wrong")), strict=True))
    return Figure(
        sentence(change("length of right answers", series[0], plain)),
        "Mean length of right and wrong answers over training, in generated tokens.",
        lines(over_training(series, zero=True), series, "mean length of right and wrong answers over training"),
        Table((BATCH, "right (tokens)", "wrong (tokens)"), rows),
        f"{INTERVAL} Lines that drift apart mean that length and verdict are coupled.",
    )


def truncation_figure(run: Run, log: Log) -> Figure:
    """Answers that the budget stopped."""
    rows = plain_rows(log)
    responses, (window, middle) = log.responses.take(rows), windows(log.batch[rows])
    found = rate(responses.truncated, responses.prompt, window, len(middle))
    training = as_series("training", middle, found, "third")
    series = [training, evaluations(run, "eval/truncated", "held out")]
    return Figure(
        sentence(change("the share of cut-off answers", training, share)),
        f"Share of answers that the budget of {log.responses.max_response_length} tokens stopped.",
        lines(over_training(series, zero=True), series, "share of answers cut off over training"),
        Table(
            (BATCH, "cut off", "answers"),
            list(zip(map(whole, middle), intervals(found), map(str, found.count), strict=True)),
        ),
        f"{INTERVAL} A rise means that the budget is too small, or that answers run away.",
    )
