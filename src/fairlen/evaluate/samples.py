"""Samples on disk, one row a response, a file a set.

OUT/samples/aime_2025.parquet is whole or not there; OUT/samples/.aime_2025-000003.parquet has problems of an unfinished set.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.files.folders import replacing
from fairlen.files.foreign import require_regular_file
from fairlen.files.limits import bounded_memory, check_rows, max_rows
from fairlen.rollouts import VERDICTS, Finish, Status
from fairlen.schema import arrow_type

GROUP = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    problem_id: str
    problem: str  # question and instruction, before any chat template
    answer: str  # the reference answer; empty where a problem has tests instead
    sample: int  # from 0 within its problem
    text: str  # generated text, special tokens left out
    outcome: float = 0.0
    status: Status = "unverified"
    extracted: str | None = None
    verify_seconds: float | None = None
    token_ids: tuple[int, ...] | None = None
    """Prompt and generated tokens of a sample that was just drawn; read samples leave them on disk."""
    num_prompt: int | None = None
    length: int | None = None  # generated tokens, EOS included
    finish: Finish | None = None
    seed: int | None = None
    temperature: float | None = None
    starts_inside: bool = False
    """The prompt ended within the thinking of the model, so that its answer counts after </think> alone."""

    asked: tuple[str, ...] = ()
    """For each budget the question and answer after the response cut there; empty text of one that had ended."""
    forced: tuple[Status, ...] = ()  # statuses of those answers, or of the response that had ended

    @property
    def has_verdict(self) -> bool:
        return self.status in VERDICTS


SCHEMA = pa.schema([(name, arrow_type(kind)) for name, kind in get_type_hints(Sample).items()])


def file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", name).strip("-.") or "set"


def sample_path(folder: Path, name: str) -> Path:
    return folder / "samples" / f"{file_name(name)}.parquet"


def write_samples(samples: Sequence[Sample], path: Path, tokens: pa.ChunkedArray | None = None) -> None:
    """Write a table that is whole or not there; `tokens` takes the place of the samples' own."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in SCHEMA.names}
    table = pa.table(columns | {"token_ids": tokens} if tokens is not None else columns, schema=SCHEMA)
    correct = [sample.status == "correct" if sample.has_verdict else None for sample in samples]
    write_tables([table.append_column("correct", pa.array(correct, pa.bool_()))], path)


def write_tables(tables: Iterable[pa.Table], path: Path) -> None:
    """Write tables of one schema below each other, all or nothing."""
    rest = iter(tables)
    first = next(rest)
    with replacing(path) as staging, pq.ParquetWriter(staging, first.schema, compression="zstd") as writer:
        for table in chain((first,), rest):
            writer.write_table(table)


def read_samples(path: Path) -> tuple[Sample, ...]:
    """Read the samples without their tokens, which are not needed. Raises ValueError for a damaged file."""
    try:
        with bounded_memory(), pq.ParquetFile(require_regular_file(path)) as file:
            check_rows(file.metadata.num_rows, max_rows(path))
            names = [name for name in SCHEMA.names if name != "token_ids"]
            table = file.read(names).select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
            lists = ("asked", "forced")
            return tuple(Sample(**row | {name: tuple(row[name]) for name in lists}) for row in table.to_pylist())
    except (OSError, pa.ArrowException, ValueError, MemoryError) as error:
        reason = f"{error or 'too large for memory'}".splitlines()[0]
        raise ValueError(f"{path}: {reason}; not a whole table of samples") from None


def read_tokens(path: Path) -> pa.ChunkedArray:
    """Prompt and generated tokens of each row."""
    return pq.read_table(require_regular_file(path), columns=["token_ids"], schema=SCHEMA)["token_ids"]


def find_files(folder: Path) -> list[Path]:
    """Return the files of an evaluation's samples, a set each. Raises ValueError where there are none."""
    if found := sorted(file for file in (folder / "samples").glob("[!.]*.parquet") if file.is_file()):
        return found
    raise ValueError(f"--from-samples {folder}: no set was finished there; its command goes on with it")


class SampleProgress:
    """The finished problems of one set, in parts until all are. Tokens are on disk alone: they can be many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = sorted(path.parent.glob(f".{path.stem}-[0-9]*.parquet")) if path.parent.exists() else []
        self.done = [sample for part in self.parts for sample in read_samples(part)]
        """In the order of the parts' rows."""

    def add(self, samples: Sequence[Sample]) -> None:
        part = self.path.with_name(f".{self.path.stem}-{len(self.parts):06d}.parquet")
        write_samples(samples, part)
        self.parts.append(part)
        self.done += [replace(sample, token_ids=None) for sample in samples]

    def finish(self, place: Mapping[str, int]) -> tuple[Sample, ...]:
        """Write the whole set in the order of its problems, and remove the parts."""
        rows = sorted(range(len(self.done)), key=lambda row: (place[self.done[row].problem_id], self.done[row].sample))
        table = pa.concat_tables([pq.read_table(require_regular_file(part)) for part in self.parts])
        groups = (rows[start : start + GROUP] for start in range(0, len(rows), GROUP))
        write_tables((pa.concat_tables([table.slice(row, 1) for row in some]) for some in groups), self.path)
        for part in self.parts:
            part.unlink()
        return tuple(self.done[row] for row in rows)
