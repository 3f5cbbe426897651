"""Samples on disk: one row a response, a file a set, in the columns that the records of training have.

OUT/samples/aime_2025.parquet              whole or not there
OUT/samples/.aime_2025-000003.parquet      problems that are done of a set that is not
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Finish, Status
from fairlen.files.folders import replacing

SCHEMA = pa.schema(
    {
        "problem_id": pa.string(), "problem": pa.string(), "answer": pa.string(), "sample": pa.int32(), "text": pa.string(),
        "token_ids": pa.list_(pa.int32()), "num_prompt": pa.int32(), "length": pa.int32(), "finish": pa.string(),
        "outcome": pa.float64(), "status": pa.string(), "extracted": pa.string(), "verify_seconds": pa.float64(),
        "seed": pa.int64(), "temperature": pa.float64(), "starts_inside": pa.bool_(),
    }
)  # fmt: skip
GROUP = 1024
"""Rows that are written at a time."""
VERDICTS = ("correct", "incorrect", "no_answer")
"""What a verifier came to; anything else is no verdict."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One response to one problem, graded."""

    problem_id: str
    problem: str
    """What the model was asked, before any chat template."""
    answer: str
    """The reference answer; empty where a problem has tests instead."""
    sample: int
    """From 0 within its problem."""
    text: str
    """Generated text, special tokens left out."""
    outcome: float = 0.0
    status: Status = "unverified"
    extracted: str | None = None
    """What the verifier took as the answer."""
    verify_seconds: float | None = None
    token_ids: tuple[int, ...] | None = None
    """Prompt and generated tokens, of a sample that was just drawn; read samples leave them on disk."""
    num_prompt: int | None = None
    length: int | None = None
    """Generated tokens, EOS included."""
    finish: Finish | None = None
    seed: int | None = None
    temperature: float | None = None
    starts_inside: bool = False
    """The prompt ended within the thinking of the model, so that its answer counts after </think> alone."""

    @property
    def has_verdict(self) -> bool:
        return self.status in VERDICTS


def file_name(name: str) -> str:
    """The name of a set as that of a file."""
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", name).strip("-.") or "set"


def sample_path(folder: Path, name: str) -> Path:
    """Where the samples of a set lie."""
    return folder / "samples" / f"{file_name(name)}.parquet"


def write_samples(samples: Sequence[Sample], path: Path, tokens: pa.ChunkedArray | None = None) -> None:
    """Writes a table that is whole or not there; `tokens` takes the place of the samples' own."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in SCHEMA.names}
    table = pa.table(columns | {"token_ids": tokens} if tokens is not None else columns, schema=SCHEMA)
    correct = [sample.status == "correct" if sample.has_verdict else None for sample in samples]
    write_tables([table.append_column("correct", pa.array(correct, pa.bool_()))], path)


def write_tables(tables: Iterable[pa.Table], path: Path) -> None:
    """Writes tables of one schema below each other, all or nothing."""
    rest = iter(tables)
    first = next(rest, None)
    if first is None:
        raise ValueError(f"{path}: nothing to write")
    with replacing(path) as staging, pq.ParquetWriter(staging, first.schema, compression="zstd") as writer:
        for table in chain((first,), rest):
            writer.write_table(table)


def is_ours(path: Path) -> bool:
    """Whether a file was written by `write_samples`."""
    try:
        return set(pq.read_schema(path).names) >= set(SCHEMA.names)
    except (OSError, pa.ArrowException):
        return False


def read_samples(path: Path) -> tuple[Sample, ...]:
    """The samples of a file without their tokens, which nothing here needs. Raises ValueError for a file that is damaged."""
    names = [name for name in SCHEMA.names if name != "token_ids"]
    try:
        with pq.ParquetFile(path) as file:
            table = file.read(names).select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; not a whole table of samples") from None
    return tuple(Sample(**row) for row in table.to_pylist())


def read_tokens(path: Path) -> pa.ChunkedArray:
    """Prompt and generated tokens of each row."""
    with pq.ParquetFile(path) as file:
        return file.read(["token_ids"])["token_ids"].cast(SCHEMA.field("token_ids").type)


class Progress:
    """The problems of one set that are done, kept in parts until all are. Tokens are on disk alone: they can be many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = sorted(path.parent.glob(f".{path.stem}-[0-9]*.parquet")) if path.parent.exists() else []
        self.done = [(part, row, sample) for part in self.parts for row, sample in enumerate(read_samples(part))]

    def add(self, samples: Sequence[Sample]) -> None:
        """Keeps the samples of problems that are done."""
        part = self.path.with_name(f".{self.path.stem}-{len(self.parts):06d}.parquet")
        write_samples(samples, part)
        self.parts.append(part)
        self.done += [(part, row, replace(sample, token_ids=None)) for row, sample in enumerate(samples)]

    def finish(self, place: Mapping[str, int]) -> tuple[Sample, ...]:
        """Writes the whole set in the order of its problems, and removes the parts."""
        ordered = sorted(self.done, key=lambda done: (place[done[2].problem_id], done[2].sample))
        tables = {part: pq.read_table(part) for part in self.parts}
        groups = (ordered[start : start + GROUP] for start in range(0, len(ordered), GROUP))
        write_tables(
            (pa.concat_tables([tables[part].slice(row, 1) for part, row, _ in some]) for some in groups), self.path
        )
        for part in self.parts:
            part.unlink()
        return tuple(sample for _, _, sample in ordered)
