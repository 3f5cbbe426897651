"""Problems of data sets: all of one source, and sources as a task with an endless training stream and problems held out of it.

The order of training problems is a function of a position alone: a run that resumes at 10,000 needs nothing before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice, zip_longest
from math import gcd
from pathlib import Path
from typing import Any

from fairlen.console import plural
from fairlen.files.formats import Unreadable, columns_of, stream
from fairlen.rollouts import Verdict
from fairlen.sampling.extend import derive_seed
from fairlen.tasks.data_row import FROM_ONE, Answers, DataRow, Program, Reference, UnusableRow
from fairlen.tasks.grader import Verifier
from fairlen.tasks.prompt import Prompter
from fairlen.tasks.schemas import Schema, choose_schema
from fairlen.tasks.source import DataError, DataSource, locate
from fairlen.tasks.task import Problem, is_held_out
from fairlen.verify.answer import match_exactly
from fairlen.verify.program import CAN_BE_CHEATED

REMEDY = (
    "raise --max-prompt-length, give more problems (one in eight is held out by a hash of its question), or name others "
    "to evaluate on with --eval-data"
)
ROUNDS = 4
MAX_PERIOD = 100_000  # positions after which a mixture repeats
FileSchema = tuple[Path, list[str], Schema]
"""A file, the columns that it has, and its schema; files of a folder need not have the same."""


@dataclass
class RowSet:
    name: str
    source: DataSource
    schema: str
    revision: str = ""  # commit of a hub data set; empty for files
    rows: tuple[DataRow, ...] = ()
    num_read: int = 0
    num_filtered: int = 0
    num_copies: int = 0
    num_shots: int = 0
    dropped: Counter[str] = field(default_factory=Counter)  # rows that cannot be used, by reason

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(row.canonical().encode() + b"\n")
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        return {
            "name": self.name, "source": self.source.text, "schema": self.schema, "revision": self.revision,
            "fingerprint": self.fingerprint, "problems": len(self.rows), "rows": self.num_read,
            "filtered": self.num_filtered, "copies": self.num_copies, "dropped": dict(self.dropped),
        }  # fmt: skip

    @property
    def line(self) -> str:
        size, num_read, copies = len(self.rows), self.num_read, self.num_copies
        counts = {
            f"{plural('problem', size)} in {num_read:,} {plural('row', num_read)}": size,
            "filtered out": self.num_filtered,
            f"{plural('copy', copies, 'copies')} left out": copies,
            "left out because --shots shows them": self.num_shots,
        } | {f"dropped: {reason}": count for reason, count in self.dropped.items()}
        return f"{self.name}: " + ", ".join(f"{count:,} {use}" for use, count in counts.items() if count)


def read_rows(source: DataSource, name: str = "") -> RowSet:
    """All problems of a source but copies and contradictions. Raises DataError where none can be used."""
    paths, revision = locate(source)
    try:
        tables = ((path, columns_of(path)) for path in paths)
        files = [(path, names, choose_schema(f"{source.text}, file {path.name}", names)) for path, names in tables]
        columns = dict.fromkeys(name for _, names, _ in files for name in names)
        if missing := [one.column for one in source.filters if one.column not in columns]:
            raise DataError(source.text, f"no column {missing[0]!r} to filter by; there are {', '.join(columns)}")
        schemas = ", ".join(dict.fromkeys(schema.name for _, _, schema in files))
        found = RowSet(name or source.name, source, schemas, revision)
        rows: dict[str, DataRow] = {}
        contradicted: Counter[str] = Counter()
        for row in select(found, files):
            known = rows.setdefault(row.mark, row)
            if known is not row and is_same(known.reference, row.reference):
                found.num_copies += 1
            elif known is not row:
                contradicted[row.mark] += 1
    except Unreadable as error:
        raise ValueError(f"--data {error}") from None
    if contradicted:
        found.dropped["copies with different answers"] = contradicted.total() + len(contradicted)
    found.rows = with_ids([row for key, row in rows.items() if key not in contradicted], found.name)
    if not found.rows:
        uses = {**found.dropped, "copies of other rows": found.num_copies, "filtered out": found.num_filtered}
        account = [f"{found.num_read:,} rows", *(f"{count:,} {use}" for use, count in uses.items() if count)]
        raise DataError(source.text, f"no problem is left ({', '.join(account)}); check the filter, split and columns")
    return found


def leave_out(found: RowSet, keys: Collection[str]) -> RowSet:
    """The set without the problems that are shown solved. Raises DataError where none is left."""
    rows = tuple(row for row in found.rows if row.key not in keys)
    if not rows:
        raise DataError(found.source.text, "--shots shows all of its problems; give more, or fewer examples")
    return replace(found, rows=rows, num_shots=len(found.rows) - len(rows))


def select(found: RowSet, files: list[FileSchema]) -> Iterator[DataRow]:
    """Yield usable rows, and count the others; rows of the same cells are read once, of a hundred copies."""
    seen: set[bytes] = set()
    filters = found.source.filters
    for path, columns, schema in files:
        wanted = schema.columns([*columns], [one.column for one in filters])
        for raw in (raw for chunk in stream(path, columns=wanted) for raw in chunk.rows()):
            found.num_read += 1
            if not all(one.accepts(raw.get(one.column)) for one in filters):
                found.num_filtered += 1
                continue
            cells = hashlib.sha256(repr([raw[name] for name in raw if schema.asks(name)]).encode()).digest()
            if cells in seen:
                found.num_copies += 1
                continue
            seen.add(cells)
            try:
                yield schema.parse(raw)
            except UnusableRow as reason:
                if str(reason) == FROM_ONE:  # those of other rows would be wrong by one
                    raise DataError(str(path), f"{reason}; give letters") from None
                found.dropped[str(reason)] += 1


def is_same(one: Reference, other: Reference) -> bool:
    """27 and 27.0 are the same."""
    if isinstance(one, Answers) and isinstance(other, Answers) and len(one.parts) == len(other.parts) == 1:
        return match_exactly(one.parts[0], other.parts[0]) or one == other
    return one == other


def with_ids(rows: list[DataRow], dataset: str) -> tuple[DataRow, ...]:
    """Ids have the form set/id: the source's own id where it is unique, with a hash of the question where not."""
    counts = Counter(row.id for row in rows)
    own = [[row.id] if row.id and counts[row.id] == 1 else [row.id, row.mark[:12]] for row in rows]
    ids = ["-".join(filter(None, parts)) for parts in own]
    return tuple(replace(row, id=f"{dataset}/{one}", dataset=dataset) for row, one in zip(rows, ids, strict=True))


@dataclass(frozen=True)
class DataSplit:
    source: RowSet
    train: tuple[DataRow, ...] = ()
    held_out: tuple[DataRow, ...] = ()
    num_shared: int = 0
    num_long: int = 0
    longest: int = 0

    def describe(self) -> dict[str, Any]:
        return self.source.describe() | {
            "weight": self.source.source.weight, "train": len(self.train), "held_out": len(self.held_out),
            "shared_with_evaluation": self.num_shared, "too_long": self.num_long,
        }  # fmt: skip

    @property
    def line(self) -> str:
        uses = {
            "to train on": len(self.train),
            "held out": len(self.held_out),
            "left out because evaluation has them": self.num_shared,
            "left out because their prompts are too long": self.num_long,
        }
        return f"{self.source.line}; " + ", ".join(f"{count:,} {use}" for use, count in uses.items() if count)


def divide(train: Sequence[RowSet], evaluation: Sequence[RowSet]) -> tuple[DataSplit, ...]:
    """Without evaluation sets one in eight is held out by a hash of its question, the same in every run and copy; else training
    loses every problem whose question they have."""
    taken = {row.key for one in evaluation for row in one.rows}
    parts = []
    for one in train:
        is_taken = [row.key in taken if evaluation else is_held_out(row.key) for row in one.rows]
        left = tuple(row for row, gone in zip(one.rows, is_taken, strict=True) if not gone)
        held_out = tuple(row for row, gone in zip(one.rows, is_taken, strict=True) if gone)
        parts.append(DataSplit(one, left, num_shared=len(held_out)) if evaluation else DataSplit(one, left, held_out))
    return (*parts, *(DataSplit(one, held_out=one.rows) for one in evaluation))


def fit_prompts(part: DataSplit, prompter: Prompter, max_prompt_length: int) -> DataSplit:
    rows = part.train + part.held_out
    lengths = {row.id: length for row, length in zip(rows, prompter.measure(rows), strict=True)}
    fitting = {name: length for name, length in lengths.items() if length <= max_prompt_length}
    train, held_out = (tuple(row for row in half if row.id in fitting) for half in (part.train, part.held_out))
    longest = max(fitting.values(), default=0)
    return replace(part, train=train, held_out=held_out, num_long=len(lengths) - len(fitting), longest=longest)


def warn_of_cheats(rows: Sequence[DataRow]) -> str:
    """Return a warning for rows to train on whose tests a program can make pass; empty if there are none."""
    number = sum(isinstance(row.reference, Program) and bool(row.reference.check) for row in rows)
    if not number:
        return ""
    remedy = "train on rows with inputs and outputs (docs/data.md), and keep these to evaluate"
    return f"warning: {number:,} of {len(rows):,} rows to train on: {CAN_BE_CHEATED}, and training may teach that; {remedy}"


@dataclass(frozen=True)
class DataTask:
    """Problems of data sets. Raises DataError where nothing is left of a source, to train on, or to evaluate."""

    parts: tuple[DataSplit, ...]
    prompter: Prompter
    verifier: Verifier
    seed: int = 0
    shots: str = ""  # a line on the solved examples

    def __post_init__(self) -> None:
        found = [("no problem is left", [part]) for part in self.parts if not part.train and not part.held_out]
        if not any(part.held_out for part in self.parts):
            found.append(("no problem is left to evaluate on", [*self.parts]))
        if not self.trained:
            found.append(("no problem is left to train on", [*self.parts]))
        for problem, empty in found:
            sources = ", ".join(part.source.source.text for part in empty)
            raise DataError(sources, f"{problem} ({' | '.join(part.line for part in empty)}); {REMEDY}")

    @cached_property
    def rows(self) -> dict[str, DataRow]:
        return {row.id: row for part in self.parts for row in part.train + part.held_out}

    @property
    def name(self) -> str:
        return "+".join(part.source.name for part in self.trained)

    @cached_property
    def trained(self) -> tuple[DataSplit, ...]:
        return tuple(part for part in self.parts if part.train)

    @property
    def num_train(self) -> int:
        return sum(len(part.train) for part in self.trained)

    @cached_property
    def mixture(self) -> Mixture:
        return Mixture(tuple(part.source.source.weight for part in self.trained))

    @property
    def longest_prompt(self) -> int:
        return max(part.longest for part in self.parts)

    def train(self, index: int) -> Problem:
        """Problem `index` >= 0 of an endless stream, a function of it, `seed` and the data; a source once an epoch."""
        source, position = self.mixture.at(index)
        rows = self.trained[source].train
        return self.prompter.pose(rows[shuffle(position, len(rows), (self.seed, source))])

    def held_out(self, count: int) -> Sequence[Problem]:
        """At most `count` held-out problems, of the sets in turn; the same for every seed."""
        orders = [sorted(part.held_out, key=lambda row: row.mark) for part in self.parts]
        turns = (row for turn in zip_longest(*orders) for row in turn if row is not None)
        return tuple(self.prompter.pose(row) for row in islice(turns, count))

    async def verify(self, problem: Problem, text: str) -> Verdict:
        return await self.verifier(self.rows[problem.id], text, problem.starts_inside)

    def describe(self) -> dict[str, Any]:
        return {
            "sets": [part.describe() for part in self.parts],
            "longest_prompt": self.longest_prompt,
            "prompt": self.prompter.describe(),
            "verifier": self.verifier.describe(),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        rows = [row for part in self.trained for row in part.train]
        return tuple(filter(None, (self.shots, *(part.line for part in self.parts), warn_of_cheats(rows))))

    def close(self) -> None:
        self.verifier.close()


def shuffle(position: int, count: int, seed: tuple[int, ...]) -> int:
    """Which of `count` things is at a position of an endless stream that has each once an epoch, in a new order: a Feistel
    network over the next power of four, walked until it falls within `count`, without a table or a generator of a library."""
    epoch, place = divmod(position, count)
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for turn in range(ROUNDS):
            left, right = right, left ^ (derive_seed(*seed, epoch, turn, right) & mask)
        place = left << half | right
        if place < count:
            return place


@dataclass(frozen=True)
class Mixture:
    """The source of each position: shares are exact in every period, less than one problem off within."""

    weights: tuple[float, ...]  # above 0, with at most three decimals

    def __post_init__(self) -> None:
        if sum(self.shares) > MAX_PERIOD:
            raise ValueError(
                f"weights {', '.join(map(str, self.weights))}: shares of one in {sum(self.shares):,} cannot be kept exactly; "
                "give weights that are closer to each other or rounder"
            )

    @cached_property
    def shares(self) -> tuple[int, ...]:
        thousandths = [round(weight * 1000) for weight in self.weights]
        return tuple(number // gcd(*thousandths) for number in thousandths)

    def at(self, position: int) -> tuple[int, int]:
        """(source, position within that source) of a position of the mixture."""
        period, place = divmod(position, sum(self.shares))
        source, before = self.schedule[place]
        return source, period * self.shares[source] + before

    @cached_property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """One period. Of the sources that are behind their share by enough, the one that must be drawn soonest is next (Tijdeman,
        "The chairman assignment problem", 1980: with k sources none is ever off by more than 1 - 1/(2k - 2))."""
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
