"""Which channel goes with correctness, and does so given the others, within prompts and steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairlen.audit.log import Log, plain_samples
from fairlen.audit.statistics.intervals import Estimate
from fairlen.audit.statistics.lengths import split
from fairlen.audit.statistics.within import MIN_PROMPTS, Effect, error_of
from fairlen.batch import Floats, Ints, mean_by, sum_by
from fairlen.channels import CHANNELS

RIDGE = 1e-9
"""Share of a channel's squares that is added to them, so that one that never varies has an effect of 0."""


@dataclass(frozen=True)
class ChannelEffect:
    """Tokens that responses spend on a channel, and how incorrect ones differ from correct ones, in log(1 + tokens).

    `alone` compares responses to one prompt; `given`, by least squares, those that spend as much on every other channel. What
    follows another channel differs alone and not given it, what another hides the other way round: both have to differ.
    """

    channel: str
    mean: Estimate
    correct: Estimate
    incorrect: Estimate
    alone: Effect
    given: Effect
    p_value: float
    """The larger of both, times the number of channels (Bonferroni): the chance to name any channel in error."""

    def is_named(self, bar: float, margin: float) -> bool:
        """Return whether it stands at a p-value, and may be as large as the smallest difference that matters."""
        both = (self.alone, self.given)
        is_known = self.alone.num_prompts >= MIN_PROMPTS and self.p_value <= bar
        return is_known and not any(one.is_within(margin) for one in both)


def channel_effects(log: Log) -> tuple[ChannelEffect, ...]:
    """Return the effect of every channel; none of a log with one. Truncated responses count in means alone."""
    table, rows = log.responses, plain_samples(log)
    names = sorted(table.channels, key=lambda name: ([*CHANNELS, name].index(name), name))
    if len(names) < 2:
        return ()
    shown = plain_samples(log, with_truncated=True)
    means = [split(log.clusters[shown], table.channels[n][shown].astype(np.float64), log.correct[shown]) for n in names]
    x = np.log1p(np.stack([table.channels[name][rows] for name in names], 1).astype(np.float64))
    products = sum_products(log.strata[rows], log.clusters[rows], ~log.correct[rows], x)
    alone, given = measure(products, gaps_alone), measure(products, gaps_given)
    size = sum(one.error > 0 for one in alone)
    return tuple(
        ChannelEffect(name, mean, correct, incorrect, one, other, combine(one, other, size))
        for name, (mean, correct, incorrect, _), one, other in zip(names, means, alone, given, strict=True)
    )


def combine(alone: Effect, given: Effect, number: int) -> float:
    """Return the p-value that an effect alone and one given the others are both there, of so many channels."""
    if not alone.value * given.value > 0:
        return 1.0 if alone.exists else math.nan
    return min(number * max(alone.p_value, given.p_value), 1.0)


def sum_products(stratum: Ints, prompt: Ints, incorrect: np.ndarray, x: Floats) -> Floats:
    """Return products of `incorrect` and the columns of x [N, K], centred by stratum, summed over prompts, [P, K + 1, K + 1].

    Of strata with correct and incorrect responses alone.
    """
    number = np.unique(stratum, return_inverse=True)[1]
    size = int(number.max(initial=-1)) + 1
    share = mean_by(number, incorrect, size)[number]
    mixed = (share > 0) & (share < 1)
    z = np.column_stack([incorrect.astype(np.float64), x])
    z -= np.stack([mean_by(number, column, size)[number] for column in z.T], 1)
    place, width = np.unique(prompt[mixed], return_inverse=True)[1], z.shape[1]
    found = np.zeros((int(place.max(initial=-1)) + 1, width, width))
    for i in range(width):
        for j in range(i + 1):
            found[:, i, j] = found[:, j, i] = sum_by(place, z[mixed, i] * z[mixed, j], len(found))
    return found


def gaps_alone(products: Floats) -> Floats:
    """Return the slope of each channel on `incorrect`, [..., K], from products [..., K + 1, K + 1]."""
    return products[..., 1:, 0] / products[..., :1, 0]


def gaps_given(products: Floats) -> Floats:
    """Return the slope of each channel on `incorrect` beside all other channels, [..., K]: of the inverse, -p_c0 / p_cc."""
    diagonal = np.diagonal(products, axis1=-2, axis2=-1)
    ridge = np.where(diagonal > 0, RIDGE * diagonal, 1.0)
    inverse = np.linalg.inv(products + ridge[..., None] * np.eye(products.shape[-1]))
    return -inverse[..., 1:, 0] / np.diagonal(inverse, axis1=-2, axis2=-1)[..., 1:]


def measure(products: Floats, statistic: Callable[[Floats], Floats]) -> list[Effect]:
    """Return a statistic of the sum of products [P, ...] as an effect of each channel, with delete-one errors over prompts."""
    size, total = len(products), products.sum(0)
    if size < 2:
        return [Effect(math.nan, math.nan, 0.0, size)] * (products.shape[-1] - 1)
    weight, values, without = products[:, 0, 0], statistic(total), statistic(total - products)
    freedom = float(weight.sum() ** 2 / (weight**2).sum()) - 1.0
    pairs = zip(values.tolist(), without.T, strict=True)
    return [Effect(value, max(error_of(one), abs(value) / size), freedom, size) for value, one in pairs]
