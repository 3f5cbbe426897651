"""Problems from data sets as a task: an endless training stream, held-out problems that never train, verdicts of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, zip_longest
from typing import Any, NoReturn

from fairlen.tasks.order import Mixture, Shuffle
from fairlen.tasks.playground import is_held_out
from fairlen.tasks.prompt import Prompter
from fairlen.tasks.row import Row
from fairlen.tasks.rowset import RowSet
from fairlen.tasks.task import Problem, Verdict
from fairlen.tasks.verifier import Verifier

HASHED = "one problem in eight is held out by a hash of its question, and of so few"
NONE_HELD_OUT = f"{HASHED} it is none: name some with --eval-data"
ALL_HELD_OUT = f"{HASHED} it is all: give more problems, or name those to evaluate on with --eval-data"


@dataclass(frozen=True)
class Part:
    """What became of the problems of one source."""

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
        """For run.json."""
        return self.source.describe() | {
            "weight": self.source.source.weight,
            "train": len(self.train),
            "held_out": len(self.held_out),
            "shared_with_evaluation": self.num_shared,
            "too_long": self.num_long,
        }

    @property
    def line(self) -> str:
        """In one line, for people."""
        uses = {
            "to train on": len(self.train),
            "held out": len(self.held_out),
            "left out because evaluation has them": self.num_shared,
            "left out because their prompts are too long": self.num_long,
        }
        return f"{self.source.line}; " + ", ".join(f"{count:,} {use}" for use, count in uses.items() if count)


def divide(train: Sequence[RowSet], evaluation: Sequence[RowSet]) -> tuple[Part, ...]:
    """Which problems train and which are held out.

    Without evaluation sets, one problem in eight is held out, by a hash of its question: the same ones in every run, mixture and
    copy of a set. With them, theirs are, and training loses every problem whose question they have.
    """
    if not evaluation:
        return tuple(
            Part(
                one,
                tuple(row for row in one.rows if not is_held_out(row.key)),
                tuple(row for row in one.rows if is_held_out(row.key)),
            )
            for one in train
        )
    taken = {row.key for one in evaluation for row in one.rows}
    trained = ((one, tuple(row for row in one.rows if row.key not in taken)) for one in train)
    return (
        *(Part(one, rows, num_shared=len(one.rows) - len(rows)) for one, rows in trained),
        *(Part(one, held_out=one.rows) for one in evaluation),
    )


def fit_prompts(part: Part, prompter: Prompter, max_prompt_length: int) -> Part:
    """A part without the problems whose prompts have more than `max_prompt_length` tokens."""
    rows = part.train + part.held_out
    lengths = prompter.measure(rows)
    fitting = [length <= max_prompt_length for length in lengths]
    train = tuple(row for row, fits in zip(part.train, fitting[: len(part.train)], strict=True) if fits)
    held_out = tuple(row for row, fits in zip(part.held_out, fitting[len(part.train) :], strict=True) if fits)
    longest = max((length for length in lengths if length <= max_prompt_length), default=0)
    num_long, num_long_held_out = len(rows) - sum(fitting), len(part.held_out) - len(held_out)
    return Part(part.source, train, held_out, part.num_shared, num_long, num_long_held_out, longest)


def check_parts(parts: Sequence[Part]) -> None:
    """Raises ValueError where nothing is left of a source, to evaluate on, or to train on: what became of it, and the remedy."""
    for part in parts:
        if not part.train and not part.held_out:
            longer = ["raise --max-prompt-length"] if part.num_long else []
            others = ["name other --eval-data, or more --data"] if part.num_shared else []
            refuse((part,), "no problem is left", ", or ".join(longer + others))
    if not any(part.held_out for part in parts):
        too_long = any(part.num_long_held_out for part in parts)
        refuse(parts, "no problem is left to evaluate on", "raise --max-prompt-length" if too_long else NONE_HELD_OUT)
    if not any(part.train for part in parts):
        too_long = any(part.num_long > part.num_long_held_out for part in parts)
        refuse(parts, "no problem is left to train on", "raise --max-prompt-length" if too_long else ALL_HELD_OUT)


def refuse(parts: Sequence[Part], what: str, remedy: str) -> NoReturn:
    """Raises ValueError."""
    sources = ", ".join(part.source.source.text for part in parts)
    raise ValueError(f"--data {sources}: {what} ({' | '.join(part.line for part in parts)}); {remedy}")


@dataclass(frozen=True)
class DataTask:
    """Problems of data sets. Raises ValueError where nothing is left to train on, or to evaluate."""

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
        return Mixture(tuple(part.source.source.weight for part in self.trained))

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return max(part.longest for part in self.parts)

    def train(self, index: int) -> Problem:
        """Problem `index` >= 0 of an endless stream, a function of `index`, `seed` and the data alone.

        Every source is gone through in a new order each epoch; sources take turns by their weights.
        """
        if index < 0:
            raise ValueError(f"index={index}: positions in the training stream start at 0")
        source, position = self.mixture.at(index)
        rows = self.trained[source].train
        return self.prompter.pose(rows[Shuffle(len(rows), (self.seed, source)).at(position)])

    def held_out(self, count: int) -> Sequence[Problem]:
        """At most `count` held-out problems, of the sets in turn; the same whatever the seed."""
        orders = [sorted(part.held_out, key=lambda row: row.mark) for part in self.parts]
        turns = (row for turn in zip_longest(*orders) for row in turn if row is not None)
        return tuple(self.prompter.pose(row) for row, _ in zip(turns, range(count), strict=False))

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Grades a finished response by the kind of its problem."""
        return await self.verifier(self.rows[problem.id], text, problem.starts_inside)

    def describe(self) -> dict[str, Any]:
        """For run.json: where the problems are from, how they are asked and graded."""
        return {
            "sets": [part.describe() for part in self.parts],
            "longest_prompt": self.longest_prompt,
            "prompt": self.prompter.describe(),
            "verifier": self.verifier.describe(),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of the data at the start of a run, a line a source."""
        return tuple(part.line for part in self.parts)

    def close(self) -> None:
        """Ends the verifier's workers."""
        self.verifier.close()
