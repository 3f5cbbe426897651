"""The order of training problems, as functions of a position alone: a run that goes on at 10,000 needs nothing before it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

from fairlen.seeds import derive_seed

ROUNDS = 4
MAX_PERIOD = 100_000
"""Positions after which a mixture repeats."""


@dataclass(frozen=True)
class Shuffle:
    """All of `count` things once in every epoch, in another order each time."""

    count: int
    seed: tuple[int, ...]
    """Orders of different seeds have nothing to do with each other."""

    def at(self, position: int) -> int:
        """Which thing is at position >= 0 of the endless stream."""
        epoch, place = divmod(position, self.count)
        return permute(place, self.count, (*self.seed, epoch))


def permute(place: int, count: int, seed: tuple[int, ...]) -> int:
    """Where a place in 0..count-1 goes in a random permutation.

    A Feistel network over the next power of four; places beyond `count` are sent on until they fall within. No table, so that
    any position costs the same, and no random generator whose stream could change with a library.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (derive_seed(*seed, turn, right) & mask)
        place = left << half | right
        if place < count:
            return place


@dataclass(frozen=True)
class Mixture:
    """Which of several sources each position draws from: shares are exact in every period, less than one problem off within."""

    weights: tuple[float, ...]
    """Above 0, with at most three decimals."""

    def __post_init__(self) -> None:
        if sum(self.shares) > MAX_PERIOD:
            raise ValueError(
                f"weights {', '.join(map(str, self.weights))}: shares of one in {sum(self.shares):,} cannot be kept exactly; "
                "give weights that are closer to each other or rounder"
            )

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """The weights as the smallest whole numbers."""
        exact = [Fraction(round(weight * 1000), 1000) for weight in self.weights]
        scale = lcm(*(share.denominator for share in exact))
        whole = [int(share * scale) for share in exact]
        return tuple(share // gcd(*whole) for share in whole)

    def at(self, position: int) -> tuple[int, int]:
        """(source, position within that source) of a position of the mixture."""
        period, place = divmod(position, sum(self.shares))
        source, before = self.schedule[place]
        return source, period * self.shares[source] + before

    @cached_property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """One period. Of the sources that are behind their share by enough, the one that must be drawn soonest is next.

        Source: Tijdeman, "The chairman assignment problem", 1980: with k sources none is ever off by more than 1 - 1/(2k - 2).
        """
        total, slack = sum(self.shares), Fraction(1, max(1, 2 * len(self.shares) - 2))
        drawn = [0] * len(self.shares)
        schedule: list[tuple[int, int]] = []
        for place in range(1, total + 1):
            deadlines = (
                ((drawn[source] + 1 - slack) * total / share, source)
                for source, share in enumerate(self.shares)
                if share * place - drawn[source] * total >= slack * total or len(self.shares) == 1
            )
            source = min(deadlines)[1]
            schedule.append((source, drawn[source]))
            drawn[source] += 1
        return tuple(schedule)
