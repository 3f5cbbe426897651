"""Samples on disk, one row a response, a file a set, and foreign samples.

OUT/samples/aime_2025.parquet is whole or not there; OUT/samples/.aime_2025-000003.parquet has problems of an unfinished set.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.audit.readers.columns import choose
from fairlen.audit.readers.finish import read_finish
from fairlen.audit.readers.formats import count_of
from fairlen.audit.readers.messages import describe_no_text, text_of
from fairlen.audit.readers.rows import Found
from fairlen.files.folders import replacing
from fairlen.files.formats import READABLE, Chunk, stream
from fairlen.files.limits import name_special
from fairlen.rollouts import VERDICTS, Finish, Status
from fairlen.schema import arrow_type

GROUP = 1024
COLUMNS = {
    "answer": "gold gold_answer ground_truth reference_answer answer target reference gts label",
    "id": "problem_id prompt_id question_id unique_id doc_id id",
}
"""Names of columns in foreign files, the surest first, besides those that the audit knows."""
FINISH: dict[float | None, Finish | None] = {1.0: "length", 0.0: "stop", None: None}
ENDINGS = (".parquet", ".jsonl", ".json", ".csv", ".tsv", ".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Sample:
    problem_id: str
    problem: str
    """Question and instruction, before any chat template."""
    answer: str
    """The reference answer; empty where a problem has tests instead."""
    sample: int
    """From 0 within its problem."""
    text: str
    """Generated text, special tokens left out."""
    outcome: float = 0.0
    status: Status = "unverified"
    extracted: str | None = None
    verify_seconds: float | None = None
    token_ids: tuple[int, ...] | None = None
    """Prompt and generated tokens of a sample that was just drawn; read samples leave them on disk."""
    num_prompt: int | None = None
    length: int | None = None
    """Generated tokens, EOS included."""
    finish: Finish | None = None
    seed: int | None = None
    temperature: float | None = None
    starts_inside: bool = False
    """The prompt ended within the thinking of the model, so that its answer counts after </think> alone."""

    asked: tuple[str, ...] = ()
    """For each budget the question and answer after the response cut there; empty text of one that had ended."""
    forced: tuple[Status, ...] = ()
    """Statuses of those answers, or of the response that had ended."""

    @property
    def has_verdict(self) -> bool:
        return self.status in VERDICTS


SCHEMA = pa.schema([(name, arrow_type(kind)) for name, kind in get_type_hints(Sample).items()])
ADDED = {"asked", "forced"}
"""Columns that files of earlier versions lack."""


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


def is_ours(path: Path) -> bool:
    try:
        return set(pq.read_schema(path).names) >= set(SCHEMA.names) - ADDED
    except (OSError, pa.ArrowException):
        return False


def read_samples(path: Path) -> tuple[Sample, ...]:
    """Read the samples without their tokens, which are not needed. Raises ValueError for a damaged file."""
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in SCHEMA.names if name != "token_ids" and name in file.schema_arrow.names]
            table = file.read(names).select(names).cast(pa.schema([SCHEMA.field(name) for name in names]))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}; not a whole table of samples") from None
    lists = [name for name in table.column_names if name in ADDED]
    return tuple(Sample(**row | {name: tuple(row[name]) for name in lists}) for row in table.to_pylist())


def read_tokens(path: Path) -> pa.ChunkedArray | None:
    """Prompt and generated tokens of each row; None for a foreign file."""
    return pq.read_table(path, columns=["token_ids"], schema=SCHEMA)["token_ids"] if is_ours(path) else None


def find_files(place: str) -> dict[str, Path]:
    """Files of samples by name. Raises ValueError where none can be read, FileNotFoundError where nothing is."""
    path = Path(place)
    if not path.exists():
        raise FileNotFoundError(f"--from-samples {place}: there is no such file or folder")
    if special := name_special(path):
        raise ValueError(f"--from-samples {place}: {special}")
    folder = path / "samples" if (path / "samples").is_dir() else path
    inside = (file for file in sorted(folder.rglob("[!.]*")) if file.is_file() and file.suffix in ENDINGS)
    named: dict[str, Path] = {}
    for file in [path] if path.is_file() else inside:
        name = file.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[0]
        if first := named.get(name):
            raise ValueError(f"--from-samples {place}: {first} and {file} are of one name, the set's; rename one")
        named[name] = file
    if not named:
        raise ValueError(f"--from-samples {place}: no samples there; give {READABLE}")
    return named


def read_file(path: Path) -> tuple[Sample, ...]:
    return read_samples(path) if is_ours(path) else read_foreign(path)


def read_foreign(path: Path) -> tuple[Sample, ...]:
    """Read the samples of any table. Raises ValueError for broken rows, and, naming the columns, where there are no texts."""
    seen: Counter[str] = Counter()
    samples = [sample for chunk in stream(path, counts=True) for sample in read_chunk(chunk, seen)]
    if not samples:
        raise ValueError(f"{path}: no rows")
    return tuple(samples)


def read_chunk(chunk: Chunk, seen: Counter[str]) -> list[Sample]:
    """Samples of rows. A problem is known by its id, else its text, else its row; `seen` counts its earlier samples."""
    columns = set(chunk.columns)
    own = {role: next((name for name in names.split() if name in columns), "") for role, names in COLUMNS.items()}
    chosen = choose(columns - set(own.values()), {}) | own
    if "response" not in chosen:
        named = ", ".join(sorted(columns))
        raise ValueError(f"{chunk.file}: no column of texts among {named}: call it text, response or completion")
    roles = ("response", "prompt", "answer", "id", "tokens", "finish")
    cells = zip(*(chunk.get(chosen.get(role, "")) for role in roles), strict=True)
    samples = []
    for line, (response, prompt, answer, ident, tokens, finish) in zip(chunk.lines, cells, strict=True):
        if (text := text_of(response)) is None:
            raise ValueError(f"{chunk.file}:{line}: the text {describe_no_text(response)}")
        length, problem = count_of(tokens), cell_text(prompt)
        name = cell_text(ident) or problem or f"row {line}"
        sample = Sample(
            name, problem, cell_text(answer), seen[name], text,
            length=int(length) if isinstance(length, int | float) and length >= 1 else None,
            finish=FINISH[read_finish(finish, Found(), chosen.get("finish", ""))[0]],
        )  # fmt: skip
        seen[name] += 1
        samples.append(sample)
    return samples


def cell_text(value: Any) -> str:
    """A cell as text; a list of one is that one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value or "" if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


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
        table = pa.concat_tables(map(pq.read_table, self.parts))
        groups = (rows[start : start + GROUP] for start in range(0, len(rows), GROUP))
        write_tables((pa.concat_tables([table.slice(row, 1) for row in some]) for some in groups), self.path)
        for part in self.parts:
            part.unlink()
        return tuple(self.done[row] for row in rows)
