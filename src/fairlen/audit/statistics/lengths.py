"""Length by outcome and accuracy of plain samples; forks of EqLen's streams are none, and are longer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.audit.log import Log, plain_samples
from fairlen.audit.statistics.intervals import Estimate, mean, mean_over, ratio, ratio_over
from fairlen.batch import Bools, Floats, Ints, mean_by, number_keys


@dataclass(frozen=True)
class Lengths:
    """Intervals are over prompts."""

    mean: Estimate
    correct: Estimate
    incorrect: Estimate
    difference: Estimate  # mean length of incorrect responses minus that of correct ones
    accuracy: Estimate
    batch: Ints  # rollout batches of the log, [batches]
    trend: Estimate  # change of the mean length a rollout batch: least squares over responses


def lengths(log: Log) -> Lengths:
    rows = plain_samples(log, with_truncated=True)
    table, correct = log.responses.take(rows), log.correct[rows]
    length, cluster = table.length.astype(np.float64), log.clusters[rows]
    x, y = (without_steps(0 * cluster, of) for of in (log.batch[rows].astype(np.float64), length))
    return Lengths(
        *split(cluster, length, correct),
        accuracy=mean_over(cluster, correct),
        batch=np.unique(log.batch[rows]),
        trend=ratio_over(cluster, x * y, x * x),
    )


def prompt_means(log: Log) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Return of each prompt of a step its cluster, step, number of responses, mean log length and accuracy, [P]."""
    rows = plain_samples(log, with_truncated=True)
    _, first, prompt, count = np.unique(log.responses.prompt[rows], True, True, True)
    cluster, step = log.clusters[rows][first], number_keys(log.batch[rows][first])
    x, y = np.log(log.responses.length[rows]), log.correct[rows].astype(np.float64)
    return cluster, step, count, mean_by(prompt, x, len(first)), mean_by(prompt, y, len(first))


def without_steps(step: Ints, values: Floats) -> Floats:
    """Return values [N] less the mean of their step."""
    return values - mean_by(step, values, int(step.max(initial=-1)) + 1)[step]


def split(prompt: Ints, length: Floats, correct: Bools) -> list[Estimate]:
    """Return the mean length of all, correct and incorrect responses, and incorrect minus correct."""
    side, nothing = correct.astype(np.int64), 0 * prompt
    of_side = mean(length, prompt, side, 2)
    apart = (length - of_side.value[side]) * ratio(len(length) * (1 - 2 * side), of_side.count[side])
    error = mean(apart, prompt, nothing, 1).at(0)  # how far residuals move the difference
    incorrect, right = of_side.at(0), of_side.at(1)
    gap = Estimate(*(incorrect.value - right.value + end for end in (0.0, error.low, error.high)))
    return [mean(length, prompt, nothing, 1).at(0), right, incorrect, gap]
