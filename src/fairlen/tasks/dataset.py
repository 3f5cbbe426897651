"""Problems from data sets as a task: an endless training stream, held-out problems that never train, verdicts of every kind.

The order of training problems is a function of a position alone: a run that resumes at 10,000 needs nothing before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, zip_longest
from math import gcd, lcm
from typing import Any, NoReturn

from fairlen.seeds import derive_seed
from fairlen.tasks.grader import Verifier
from fairlen.tasks.playground import is_held_out
from fairlen.tasks.prompt import Prompter
from fairlen.tasks.row import Row
from fairlen.tasks.rowset import RowSet
from fairlen.tasks.source import DataError
from fairlen.tasks.task import Problem, Verdict

HASHED = "one problem in eight is held out by a hash of its question, and of so few"
NONE_HELD_OUT = f"{HASHED} it is none: name some with --eval-data"
ALL_HELD_OUT = f"{HASHED} it is all: give more problems, or name those to evaluate on with --eval-data"
SHORTEN = "raise --max-prompt-length"
ROUNDS = 4
"""Of a permutation."""
MAX_PERIOD = 100_000
"""Positions after which a mixture repeats."""


@dataclass(frozen=True)
class Part:
    """The problems of one source: which train, which are held out, and how many were left out."""

    source: RowSet
    train: tuple[Row, ...] = ()
    held_out: tuple[Row, ...] = ()
    num_shared: int = 0
    """Problems left out of training because they are evaluated on."""
    num_long: int = 0
    """Problems left out because their prompts are too long."""
    num_long_held_out: int = 0
    """How many of those were held out."""
    longest: int = 0
    """Tokens of the longest prompt that is left."""

    def describe(self) -> dict[str, Any]:
        """Return the source and its counts for run.json."""
        return self.source.describe() | {
            "weight": self.source.source.weight,
            "train": len(self.train),
            "held_out": len(self.held_out),
            "shared_with_evaluation": self.num_shared,
            "too_long": self.num_long,
        }

    @property
    def line(self) -> str:
        """The counts in one line."""
        uses = {
            "to train on": len(self.train),
            "held out": len(self.held_out),
            "left out because evaluation has them": self.num_shared,
            "left out because their prompts are too long": self.num_long,
        }
        return f"{self.source.line}; " + ", ".join(f"{count:,} {use}" for use, count in uses.items() if count)


def divide(train: Sequence[RowSet], evaluation: Sequence[RowSet]) -> tuple[Part, ...]:
    """Return which problems train and which are held out.

    Without evaluation sets, one problem in eight is held out, by a hash of its question: the same ones in every run, mixture and
    copy of a set. With them, theirs are, and training loses every problem whose question they have.
    """
    if not evaluation:
        halves = ((one, [is_held_out(row.key) for row in one.rows]) for one in train)
        return tuple(Part(one, choose(one.rows, held, False), choose(one.rows, held, True)) for one, held in halves)
    taken = {row.key for one in evaluation for row in one.rows}
    trained = ((one, tuple(row for row in one.rows if row.key not in taken)) for one in train)
    return (
        *(Part(one, rows, num_shared=len(one.rows) - len(rows)) for one, rows in trained),
        *(Part(one, held_out=one.rows) for one in evaluation),
    )


def choose(rows: Sequence[Row], flags: Sequence[bool], wanted: bool) -> tuple[Row, ...]:
    """Return the rows whose flag is the wanted one."""
    return tuple(row for row, flag in zip(rows, flags, strict=True) if flag == wanted)


def fit_prompts(part: Part, prompter: Prompter, max_prompt_length: int) -> Part:
    """Return a part without the problems whose prompts have more than `max_prompt_length` tokens."""
    lengths = prompter.measure(part.train + part.held_out)
    fits, num_train = [length <= max_prompt_length for length in lengths], len(part.train)
    train = choose(part.train, fits[:num_train], True)
    held_out = choose(part.held_out, fits[num_train:], True)
    longest = max((length for length in lengths if length <= max_prompt_length), default=0)
    num_long_held_out = len(part.held_out) - len(held_out)
    num_long = num_train - len(train) + num_long_held_out
    return replace(
        part, train=train, held_out=held_out, num_long=num_long, num_long_held_out=num_long_held_out, longest=longest
    )


def check_parts(parts: Sequence[Part]) -> None:
    """Raise DataError where nothing is left of a source, to evaluate on, or to train on: what became of it, and the remedy."""
    for part in parts:
        if not part.train and not part.held_out:
            others = ["name other --eval-data, or more --data"] if part.num_shared else []
            refuse((part,), "no problem is left", ", or ".join(([SHORTEN] if part.num_long else []) + others))
    if not any(part.held_out for part in parts):
        too_long = any(part.num_long_held_out for part in parts)
        refuse(parts, "no problem is left to evaluate on", SHORTEN if too_long else NONE_HELD_OUT)
    if not any(part.train for part in parts):
        too_long = any(part.num_long > part.num_long_held_out for part in parts)
        refuse(parts, "no problem is left to train on", SHORTEN if too_long else ALL_HELD_OUT)


def refuse(parts: Sequence[Part], what: str, remedy: str) -> NoReturn:
    """Raise DataError for some sources."""
    sources = ", ".join(part.source.source.text for part in parts)
    raise DataError(sources, f"{what} ({' | '.join(part.line for part in parts)}); {remedy}")


@dataclass(frozen=True)
class DataTask:
    """Problems of data sets. Raises DataError where nothing is left to train on, or to evaluate."""

    parts: tuple[Part, ...]
    prompter: Prompter
    verifier: Verifier
    seed: int = 0
    """Of the order of training problems."""
    rows: dict[str, Row] = field(init=False, repr=False)
    """Every row that can be asked, by id."""

    def __post_init__(self) -> None:
        check_parts(self.parts)
        rows = chain.from_iterable(part.train + part.held_out for part in self.parts)
        object.__setattr__(self, "rows", {row.id: row for row in rows})

    @property
    def name(self) -> str:
        """Names of the sets that are trained on."""
        return "+".join(part.source.name for part in self.trained)

    @cached_property
    def trained(self) -> tuple[Part, ...]:
        """Parts of the mixture."""
        return tuple(part for part in self.parts if part.train)

    @property
    def num_train(self) -> int:
        """Problems to train on, each counted once."""
        return sum(len(part.train) for part in self.trained)

    @cached_property
    def mixture(self) -> Mixture:
        """The source of each position."""
        return Mixture(tuple(part.source.source.weight for part in self.trained))

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(part.longest for part in self.parts)

    def train(self, index: int) -> Problem:
        """Return problem `index` >= 0 of an endless stream, a function of `index`, `seed` and the data alone.

        Every source is gone through in a new order each epoch; sources take turns by their weights.
        """
        if index < 0:
            raise ValueError(f"index={index}: positions in the training stream start at 0")
        source, position = self.mixture.at(index)
        rows = self.trained[source].train
        return self.prompter.pose(rows[Shuffle(len(rows), (self.seed, source)).at(position)])

    def held_out(self, count: int) -> Sequence[Problem]:
        """Return at most `count` held-out problems, of the sets in turn; the same whatever the seed."""
        orders = [sorted(part.held_out, key=lambda row: row.mark) for part in self.parts]
        turns = (row for turn in zip_longest(*orders) for row in turn if row is not None)
        return tuple(self.prompter.pose(row) for row, _ in zip(turns, range(count), strict=False))

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Return the verdict on a finished response by the kind of its problem."""
        return await self.verifier(self.rows[problem.id], text, problem.starts_inside)

    def describe(self) -> dict[str, Any]:
        """Return for run.json where the problems are from, how they are asked and graded."""
        return {
            "sets": [part.describe() for part in self.parts],
            "longest_prompt": self.longest_prompt,
            "prompt": self.prompter.describe(),
            "verifier": self.verifier.describe(),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of each source, a line each."""
        return tuple(part.line for part in self.parts)

    def close(self) -> None:
        """End the verifier's workers."""
        self.verifier.close()


@dataclass(frozen=True)
class Shuffle:
    """All of `count` things once in every epoch, in another order each time."""

    count: int
    seed: tuple[int, ...]
    """Orders of different seeds have nothing to do with each other."""

    def at(self, position: int) -> int:
        """Return which thing is at position >= 0 of the endless stream."""
        epoch, place = divmod(position, self.count)
        return permute(place, self.count, (*self.seed, epoch))


def permute(place: int, count: int, seed: tuple[int, ...]) -> int:
    """Return where a place in 0..count-1 goes in a random permutation.

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
    """The source that each position draws from: shares are exact in every period, less than one problem off within."""

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
        """Return (source, position within that source) of a position of the mixture."""
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
