"""What is kept of every run, as tables of Parquet: from a run folder, to one folder of all runs, and back as numpy columns.

A run's row and tables never change after it; `digest` is the SHA-256 over both, so that a number changed later is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.audit.readers.fairlen_records import read_records
from fairlen.batch import Bools, Ints
from fairlen.evaluate.run import Evaluation
from fairlen.files.folders import replacing

Table = dict[str, np.ndarray[Any, Any]]
NUMBERS = ("share", "cosine", "rho", "rho_paper", "rho_bound", "cosine_paper", "cosine_bound", "kappa", "eta", "lre",
           "lre_weighted")  # fmt: skip
"""Columns of directions, as research/study/directions.py measures them."""
SCHEMAS: dict[str, dict[str, str]] = {
    "batches": {
        "rollout_batch": "int16", "generated": "int32", "asked": "int16", "selected": "int16", "rounds": "float32",
        "pairs_formed": "float32", "pairs_trained": "float32", "optimism": "float32", "seconds": "float32",
        "truncated": "float32",
    },
    "updates": {
        "rollout_batch": "int16", "update": "int16", "loss": "float32", "entropy": "float32", "gradient_norm": "float32",
        "tokens_trained": "int32", "kl_old": "float32", "drift": "float32", "skipped": "bool", "seconds": "float32",
    },
    "sequences": {
        "rollout_batch": "int16", "update": "int16", "prompt": "int32", "length": "int16", "log_ratio": "int32",
        "advantage": "int32", "inside": "uint8", "correct": "bool", "truncated": "bool", "off_policy": "bool",
    },
    "evaluations": {
        "rollout_batch": "int16", "update": "int16", "generated": "int32", "problem": "int16", "samples": "int16",
        "right": "int16", "length": "float32", "length_right": "int32", "truncated": "int16",
    },
    "directions": {"update": "int16", "rule": "str", **dict.fromkeys(NUMBERS, "float32")},
}  # fmt: skip
"""Columns of every table, as stored, beside `run`. Numbers that a run does not have are nan."""
STEPS = {"log_ratio": 1e-5, "advantage": 1e-4, "inside": 0.01}
"""Columns that are stored as whole multiples of this, and loaded as what they mean."""
LARGEST = 20_000.0
"""Log ratio that is told from larger ones, which runs have that diverge."""
ORDER = ("rollout_batch", "update", "prompt", "length")
"""Of sequences: neighbours are alike, which takes half the space."""
COLLECTING = ("time/rollout", "time/verify")
PLACE = {"rollout_batch": "rollout_batch", "update": "update", "generated": "tokens/generated_total"}
"""Metrics by the columns that say when an evaluation was."""
FOUND = ("correct", "length", "truncated")


@dataclass(frozen=True)
class RunRow:
    """What decided a run, where it comes from, and what it took."""

    key: str
    role: str
    """study, search or timed."""
    world: str
    variant: str
    label: str
    """A control's name, or "directions"."""
    seed: int
    rate: float
    factor: float
    """Of the published width."""
    settings: tuple[str, ...]
    """Those that the run was given besides the variant's own."""
    commit: str
    seconds: float
    """Of training, on the machine as it was."""
    diverged: bool = False
    """It was given up for numbers that are not finite; the last evaluation is that of no policy, with nothing correct."""
    digest: str = ""


@dataclass(frozen=True)
class Kept:
    """One run: its row, and its tables as stored."""

    row: RunRow
    tables: Mapping[str, Table]

    @property
    def digest(self) -> str:
        """SHA-256 over the row and every column, in the order of their names."""
        row = {name: value for name, value in asdict(self.row).items() if name != "digest"}
        found = hashlib.sha256(json.dumps(row, sort_keys=True).encode())
        for name, schema in sorted(SCHEMAS.items()):
            for column, values in sorted(self.tables.get(name, empty(schema)).items()):
                found.update(f"{name}/{column}/{len(values)}:".encode())
                found.update(to_bytes(values))
        return found.hexdigest()


@dataclass(frozen=True)
class RunTables:
    """The numpy columns of one run; empty columns where it has none."""

    run: RunRow
    batches: Table
    updates: Table
    sequences: Table
    evaluations: Table
    directions: Table


@dataclass(frozen=True)
class Evidence:
    """All runs of a study, sorted by key."""

    runs: list[RunRow]
    tables: dict[str, Table]
    """As stored, with the column `run`, by which they are sorted."""
    cache: dict[int, RunTables] = field(default_factory=dict, repr=False)

    def kept(self, number: int) -> Kept:
        """Return a run as it was stored."""
        found: dict[str, Table] = {}
        for name, table in self.tables.items():
            first, last = np.searchsorted(table["run"], [number, number + 1])
            found[name] = {column: values[first:last] for column, values in table.items() if column != "run"}
        return Kept(self.runs[number], found)

    def run_tables(self, number: int) -> RunTables:
        """Return the columns of a run."""
        if number not in self.cache:
            tables = {name: decode(table) for name, table in self.kept(number).tables.items()}
            self.cache[number] = RunTables(self.runs[number], **tables)
        return self.cache[number]

    def find(self, world: str, variant: str, label: str = "", role: str = "study") -> dict[int, RunTables]:
        """Return the runs of a variant by seed, in its order."""
        wanted = (world, variant, label, role)
        rows = [i for i, run in enumerate(self.runs) if (run.world, run.variant, run.label, run.role) == wanted]
        return {self.runs[i].seed: self.run_tables(i) for i in sorted(rows, key=lambda i: self.runs[i].seed)}

    def altered(self) -> Iterator[str]:
        """Yield the keys of runs whose numbers are not those that were stored."""
        for number, run in enumerate(self.runs):
            if self.kept(number).digest != run.digest:
                yield run.key


def empty(schema: Mapping[str, str]) -> Table:
    """Return a table without rows."""
    return {name: np.zeros(0, kind) for name, kind in schema.items()}


def to_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """Return a column's bytes, the same on every machine."""
    if values.dtype.kind in "OU":
        return "\n".join(values.tolist()).encode()
    return np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()


def encode(rows: Mapping[str, Any], name: str) -> Table:
    """Return columns as they are stored. Raises ValueError for a number that the type cannot hold."""
    found: Table = {}
    for column, kind in SCHEMAS[name].items():
        values = np.asarray(rows[column])
        if column in STEPS:
            values = np.rint(values.astype(np.float64) / STEPS[column])
        if (whole := np.dtype(kind)).kind in "iu" and len(values):
            limits = np.iinfo(whole)
            if not (np.isfinite(values).all() and values.min() >= limits.min and values.max() <= limits.max):
                raise ValueError(f"{name}: {column} has {values.min()} to {values.max()}, and is stored as {kind}")
        found[column] = values.astype(kind)
    return found


def decode(table: Table) -> Table:
    """Return columns as what they mean."""
    return {name: values * STEPS[name] if name in STEPS else values for name, values in table.items()}


def keep_run(
    folder: Path, row: RunRow, rollout_batches: int, last: Evaluation, names: Sequence[str] = tuple(SCHEMAS)
) -> Kept:
    """Return what is kept of a run: its row and the named tables; `last` is part of the last evaluation, or all where it
    diverged. Raises ValueError where it was cut off."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval/accuracy" in line]
    if (done := evaluations[-1]["rollout_batch"]) != rollout_batches and not row.diverged:
        raise ValueError(f"{folder}: ended after {done} of {rollout_batches} rollout batches; run it again")
    readers = {
        "batches": lambda: read_batches(lines),
        "updates": lambda: read_updates(lines),
        "sequences": lambda: read_sequences(folder / "records"),
        "evaluations": lambda: read_evaluations(folder, evaluations, last, row.diverged),
    }
    tables = {name: encode(read(), name) if name in names else empty(SCHEMAS[name]) for name, read in readers.items()}
    return seal(row, tables, float(evaluations[-1]["time/training"]))


def seal(row: RunRow, tables: Mapping[str, Table], seconds: float) -> Kept:
    """Return a run with its time and its digest."""
    whole = {name: tables.get(name, empty(schema)) for name, schema in SCHEMAS.items()}
    kept = Kept(replace(row, seconds=round(seconds, 2)), whole)
    return replace(kept, row=replace(kept.row, digest=kept.digest))


def pick(
    lines: Sequence[Mapping[str, Any]], columns: Mapping[str, str], lacking: float = np.nan
) -> dict[str, list[Any]]:
    """Return metrics under the names of columns."""
    return {to: [lacking if line.get(name) is None else line[name] for line in lines] for to, name in columns.items()}


def read_batches(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row a rollout batch; its time stands with its first update."""
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        if "accuracy/mean" in line:
            found[line["rollout_batch"]] = line | found.get(line["rollout_batch"], {})
    batches = list(found.values())
    columns = {"rounds": "streams/rounds", "pairs_formed": "pairs/formed", "pairs_trained": "pairs/trained",
               "optimism": "pairs/optimism", "truncated": "length/truncated"}  # fmt: skip
    whole = {"rollout_batch": "rollout_batch", "generated": "tokens/generated", "asked": "prompts/asked",
             "selected": "prompts/selected"}  # fmt: skip
    seconds = [sum(line.get(name, 0.0) for name in COLLECTING) for line in batches]
    return pick(batches, columns) | pick(batches, whole, 0) | {"seconds": seconds}


def read_updates(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row an update, made or skipped."""
    rows = [line for line in lines if "loss/total" in line or "update/skipped" in line]
    columns = {"loss": "loss/total", "entropy": "entropy/mean", "gradient_norm": "gradient/norm", "kl_old": "kl/old",
               "drift": "state/surrogate.drift_average"}  # fmt: skip
    whole = {"rollout_batch": "rollout_batch", "update": "update", "tokens_trained": "tokens/trained"}
    seconds = [
        sum(v for k, v in line.items() if k.startswith("time/") and k not in COLLECTING and v is not None)
        for line in rows
    ]
    skipped = ["update/skipped" in line for line in rows]
    return pick(rows, columns) | pick(rows, whole, 0) | {"seconds": seconds, "skipped": skipped}


def read_sequences(folder: Path) -> dict[str, Any]:
    """Return one row a sequence of an update. Raises ValueError where records cannot be read, naming why."""
    log, left_out = read_records(sorted(folder.glob("*.parquet")), texts=False)
    if log is None or left_out:
        raise ValueError(f"{folder}: {'; '.join(left_out)}")
    trained = log.trained
    response = log.segments.response[trained.segment]
    assert log.advantage is not None  # records always have it
    found = {
        "rollout_batch": log.batch[response],
        "update": trained.update,
        "prompt": np.unique(log.responses.prompt, return_inverse=True)[1][response],
        "length": log.segments.length[trained.segment],
        "log_ratio": np.clip(np.nan_to_num(trained.log_ratio), -LARGEST, LARGEST),
        "advantage": log.advantage[trained.segment],
        "inside": trained.inside,
        "correct": log.correct[response],
        "truncated": log.responses.truncated[response],
        "off_policy": trained.log_ratio != 0.0,
    }
    order = np.lexsort([found[name] for name in reversed(ORDER)])
    return {name: values[order] for name, values in found.items()}


def read_evaluations(
    folder: Path, lines: Sequence[dict[str, Any]], last: Evaluation, has_diverged: bool
) -> dict[str, Any]:
    """Return one row a held-out problem and evaluation: `last` goes on where the last one ended, or comes after it."""
    found = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    rows = describe_evaluations(lines, 0, *(np.array([one[name] for one in found]) for name in FOUND))
    place = lines[-1] | ({name: lines[-1][name] + 1 for name in PLACE.values()} if has_diverged else {})
    start = 0 if has_diverged else len(found[-1]["correct"])
    other = describe_evaluations([place], start, last.correct[None], last.lengths[None], last.is_truncated[None])
    return {name: np.concatenate([values, other[name]]) for name, values in rows.items()}


def describe_evaluations(
    lines: Sequence[dict[str, Any]], start: int, correct: Ints | Bools, length: Ints, truncated: Ints | Bools
) -> dict[str, Any]:
    """Return one row an evaluation and problem, numbered from `start`, of samples [evaluations, problems, samples]."""
    size, problems, samples = correct.shape
    return {name: np.repeat(values, problems) for name, values in pick(lines, PLACE).items()} | {
        "problem": np.tile(np.arange(start, start + problems), size),
        "samples": np.full(size * problems, samples),
        "right": correct.sum(2).ravel(),
        "length": length.mean(2).ravel(),
        "length_right": (length * correct).sum(2).ravel(),
        "truncated": truncated.sum(2).ravel(),
    }


def write_kept(runs: Sequence[Kept], folder: Path) -> None:
    """Write runs in their order as one folder of tables, each whole or not there."""
    rows = [asdict(run.row) | {"settings": json.dumps(run.row.settings)} for run in runs]
    names = [column.name for column in fields(RunRow)]
    write_table(
        {"run": np.arange(len(rows), dtype=np.int32)} | {n: [row[n] for row in rows] for n in names},
        folder / "runs.parquet",
    )
    for name, schema in SCHEMAS.items():
        size = [len(next(iter(run.tables[name].values()))) for run in runs]
        columns: Table = {"run": np.repeat(np.arange(len(runs), dtype=np.int32), size)}
        for column in schema:
            columns[column] = np.concatenate([np.zeros(0, schema[column]), *(run.tables[name][column] for run in runs)])
        write_table(columns, folder / f"{name}.parquet")


def write_table(columns: Mapping[str, Any], path: Path) -> None:
    """Write a table; of numbers that are seldom the same, bytes of the same place stand together."""
    apart = [n for n, v in columns.items() if isinstance(v, np.ndarray) and (v.dtype == np.float32 or n == "log_ratio")]
    with replacing(path) as staging:
        pq.write_table(
            pa.table({name: pa.array(values) for name, values in columns.items()}), staging, compression="zstd",
            compression_level=19, column_encoding=dict.fromkeys(apart, "BYTE_STREAM_SPLIT"),
            use_dictionary=[name for name in columns if name not in apart],  # type: ignore[arg-type]
        )  # fmt: skip


def load_evidence(folder: Path) -> Evidence:
    """Return the runs of a folder of tables. Raises ValueError for a table of other columns, naming it."""
    rows = read_table(folder / "runs.parquet", {column.name: "" for column in fields(RunRow)})
    numbers = rows.pop("run")
    tables = {name: read_table(folder / f"{name}.parquet", schema) for name, schema in SCHEMAS.items()}
    if (np.diff(numbers) != 1).any() or any((np.diff(table["run"]) < 0).any() for table in tables.values()):
        raise ValueError(f"{folder}: rows are not sorted by run; write them again: python -m research.study evidence")
    rows["settings"] = np.array([*map(tuple, map(json.loads, rows["settings"])), None], object)[:-1]
    return Evidence(
        [RunRow(*values) for values in zip(*(rows[c.name].tolist() for c in fields(RunRow)), strict=True)], tables
    )


def read_table(path: Path, schema: Mapping[str, str]) -> Table:
    """Return the columns of a table, as stored. Raises ValueError for other columns."""
    table = pq.read_table(path)
    if table.column_names != ["run", *schema]:
        raise ValueError(f"{path}: columns {', '.join(table.column_names)}; want run, {', '.join(schema)}")
    return {name: table[name].combine_chunks().to_numpy(zero_copy_only=False) for name in table.column_names}


def merge(folders: Iterable[Path], to: Path) -> Evidence:
    """Write runs of a folder each as one, sorted by key, and return them. Raises ValueError for a run that was changed."""
    found = [load_evidence(folder) for folder in folders]
    runs = sorted((one.kept(0) for one in found), key=lambda kept: kept.row.key)
    if changed := [run.row.key for run in runs if run.digest != run.row.digest]:
        raise ValueError(f"{changed[0]}: its tables are not what its digest is of; remove its folder and run it again")
    write_kept(runs, to)
    return load_evidence(to)
