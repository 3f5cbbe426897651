"""The run folder that every trainer writes: run.json, metrics.jsonl, evaluations.jsonl, records/."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.console import warn
from fairlen.evaluate.run import Evaluation
from fairlen.files.folders import open_to_append, sync
from fairlen.files.foreign import read_file_lines
from fairlen.methods.compose import Composition
from fairlen.methods.description import hash_method, to_dict

GROWING = ("metrics.jsonl", "evaluations.jsonl")


@dataclass
class Journal:
    """Appends lines and does other writing that a run can do without: a full disk is one warning, and training goes on.

    A line is there whole or not at all, so that what is written after space was made can be read.
    """

    lost: Counter[str] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)

    def append(self, path: Path, line: str) -> None:
        with self.attempt(path), open_to_append(path) as file:
            size, rest = os.fstat(file.fileno()).st_size, memoryview(f"{line}\n".encode())
            try:
                while rest:
                    rest = rest[file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(size)
                raise

    @contextlib.contextmanager
    def attempt(self, path: Path) -> Iterator[None]:
        """Let writing to `path` within fail: what is lost is counted."""
        try:
            yield
        except OSError as error:
            self.lost[path.name] += 1
            if path.name not in self.failing:
                self.failing.add(path.name)
                warn(f"{path}: {error.strerror or error}; training goes on, and what cannot be written is left out")
            return
        if path.name in self.failing:
            self.failing.remove(path.name)
            warn(f"{path}: written again; left out until now: {self.lost[path.name]}")

    def close(self) -> None:
        for name, count in self.lost.items():
            warn(f"{name}: {count} entries could not be written and are missing")


@dataclass
class RunFolder:
    """Files written while a run goes on, by any trainer."""

    folder: Path
    journal: Journal = field(default_factory=Journal, kw_only=True)
    """Writes lines, and remembers those that found the disk full."""

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one object to metrics.jsonl; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        self.journal.append(self.metrics_path, json.dumps(clean))

    def log_evaluation(self, update: int, evaluation: Evaluation) -> None:
        """Append one evaluation, sample by sample, to evaluations.jsonl: what intervals and comparisons are made from."""
        entry = {
            "update": update,
            "correct": evaluation.correct.astype(int).tolist(),
            "length": evaluation.lengths.tolist(),
            "truncated": evaluation.is_truncated.astype(int).tolist(),
        }
        self.journal.append(self.folder / "evaluations.jsonl", json.dumps(entry))

    def read_first_evaluation(self) -> Evaluation | None:
        """Return the evaluation before any update, None where it was not written. Raises ValueError for a damaged file."""
        path = self.folder / "evaluations.jsonl"
        first = next(read_file_lines(path), b"") if path.exists() else b""
        try:
            entry = json.loads(first) if first else {"update": None}
            if entry["update"] != 0:
                return None
            correct, truncated = (np.array(entry[name], np.bool_) for name in ("correct", "truncated"))
            return Evaluation(correct, np.array(entry["length"], np.int64), truncated)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: its first line is damaged ({error}): restore the file, or remove it") from error

    def log_sizes(self) -> dict[str, int]:
        """Return the bytes of the files that grow, all on the disk: a checkpoint has them, so that a resume is exact."""
        paths = [self.folder / name for name in GROWING if (self.folder / name).exists()]
        for path in paths:
            with contextlib.suppress(OSError):  # of a full disk, of which whoever writes there tells
                sync(path)
        return dict.fromkeys(GROWING, 0) | {path.name: path.stat().st_size for path in paths}

    def truncate_logs(self, sizes: Mapping[str, int]) -> list[str]:
        """Take back what was logged after a checkpoint; return which files have lost something before it."""
        found = []
        for name in GROWING:
            path, size = self.folder / name, sizes.get(name, 0)
            there = path.stat().st_size if path.exists() else 0
            if there < size:
                found.append(f"{path} has {there} bytes, and had {size} at the checkpoint: what it lost stays missing")
                size = find_last_line_end(path) if there else 0
            if there > size:
                with open_to_append(path) as file:
                    file.truncate(size)
        return found

    def drop_records(self, batch: int) -> None:
        """Remove the records of rollout batches from `batch` on, which are made again."""
        for path in self.records.glob(f"*-{'[0-9]' * 6}.parquet"):  # others are somebody's own
            if int(path.stem.rpartition("-")[2]) >= batch:
                path.unlink()


def find_last_line_end(path: Path) -> int:
    """Return the number of bytes up to and including the last line end of a file."""
    return sum(len(line) for line in read_file_lines(path) if line.endswith(b"\n"))


def describe_composition(composition: Composition) -> dict[str, Any]:
    method, notes = composition.method, list(composition.notes)
    return {"name": composition.name, "hash": hash_method(method), "choices": to_dict(method), "notes": notes}
