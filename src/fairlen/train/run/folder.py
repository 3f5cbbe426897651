"""The run folder: what was asked, what happened, and what came out.

run.json  metrics.jsonl  records/  checkpoints/  debug/  model/ (last)  best/
adapter/  best-adapter/  where adapters are trained, of which model/ and best/ are then the sum
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fairlen.console import warn
from fairlen.evaluate.folder import PACKAGES, find_versions
from fairlen.evaluate.run import Evaluation
from fairlen.files.folders import choose_folder, open_to_append, refuse_links, refuse_occupied, write_json
from fairlen.methods.compose import Composition
from fairlen.methods.description import hash_method, to_dict
from fairlen.policy.layout import ROWS, Layout
from fairlen.secrets import hide_all, restore, seal
from fairlen.train.run.checkpoint import sync
from fairlen.train.run.config import Change, TrainConfig, find_changes, hash_configuration, refuse_changes

NOTHING: Mapping[str, Any] = {}
GROWING = ("metrics.jsonl", "evaluations.jsonl")


@dataclass
class Journal:
    """Appends lines and does other writing that a run can do without: a full disk is one warning, and training goes on.

    A line is there whole or not at all, so that what is written after space was made can be read.
    """

    lost: Counter[str] = field(default_factory=Counter)
    failing: set[str] = field(default_factory=set)

    def append(self, path: Path, line: str) -> None:
        """Write one line at the end of a file."""
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
        """Warn of what was lost in all."""
        for name, count in self.lost.items():
            warn(f"{name}: {count} entries could not be written and are missing")


@dataclass
class RunFolder:
    """What is written while a run goes on, whoever trains."""

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

    def read_evaluation(self, place: Literal[0, -1]) -> Evaluation | None:
        """Return the first or the last evaluation, None where there is none."""
        path = self.folder / "evaluations.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            return None
        entry = json.loads(lines[place])
        correct, truncated = (np.array(entry[name], np.bool_) for name in ("correct", "truncated"))
        return Evaluation(correct, np.array(entry["length"], np.int64), truncated)

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
                found.append(
                    f"{path} has {there} bytes, and had {size} at the checkpoint: what it has lost stays missing"
                )
                size = path.read_bytes().rfind(b"\n") + 1 if there else 0
            if there > size:
                with open_to_append(path) as file:
                    file.truncate(size)
        return found


@dataclass
class Run(RunFolder):
    """An open run folder of our own trainer's."""

    config: TrainConfig
    composition: Composition
    layout: Layout
    data: Mapping[str, Any]
    """Where the problems are from, as the task describes it."""
    facts: Mapping[str, Any]
    """What was found out of the model: its engine, its adapters, the memory that it needs."""
    changes: tuple[Change, ...] = ()
    """What differs from the settings that the run had before it was resumed."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def describe(self) -> dict[str, Any]:
        """Return run.json: settings, method as a value, versions."""
        return seal(self.decisive()) | {
            "configuration": self.configuration,
            "layout": {"kind": self.layout.kind, "reason": self.layout.reason},
            **describe_program(PACKAGES),
        }

    def decisive(self) -> dict[str, Any]:
        """Return what decides every update: settings, the method, the problems, what was found of the model."""
        method = describe_composition(self.composition)
        return {"config": asdict(self.config), "method": method, "data": self.data, **self.facts}

    def resume_from(self, before: dict[str, Any]) -> None:
        """Note what differs from an earlier description. Raises ValueError where it would change the mathematics."""
        changes = find_changes(before, restore(json.loads(json.dumps(self.decisive())), before))
        refuse_changes(changes)
        self.changes = tuple(changes)
        if changes:
            self.write(self.describe() | {"resumed": [*before.get("resumed", ()), [str(change) for change in changes]]})

    def write(self, description: dict[str, Any]) -> None:
        """Write run.json, whole or as it was."""
        write_json(self.folder / "run.json", description)

    @property
    def configuration(self) -> str:
        """Return the hash of what decides every update; checkpoints of another one are refused."""
        return hash_configuration(hide_all(self.decisive()))


def describe_composition(composition: Composition) -> dict[str, Any]:
    """Return the method of run.json."""
    method, notes = composition.method, list(composition.notes)
    return {"name": composition.name, "hash": hash_method(method), "choices": to_dict(method), "notes": notes}


def describe_program(packages: Sequence[str]) -> dict[str, Any]:
    """Return what runs, and where."""
    machine = {"system": platform.platform(), "processor": platform.machine()}
    return {"versions": find_versions(packages), "machine": machine, "command": sys.argv}


def open_run(
    config: TrainConfig,
    composition: Composition,
    layout: Layout = ROWS,
    data: Mapping[str, Any] = NOTHING,
    facts: Mapping[str, Any] = NOTHING,
) -> Run:
    """Make the run folder, or open it to resume.

    Raises FileExistsError for a folder that holds a run already, and ValueError where a resumed run would change its mathematics.
    """
    folder = Path(config.out) if config.out else choose_folder(composition.name.replace("+", "-"))
    run = Run(folder, config, composition, layout, data, facts)
    if (folder / "run.json").exists():
        if not config.resume:
            raise FileExistsError(
                f"out={folder}: a run is there already; choose another folder, or go on with it: --resume"
            )
        refuse_links(folder)
        try:
            before = json.loads((folder / "run.json").read_text())
        except ValueError as error:
            raise ValueError(
                f"{folder}/run.json: not JSON ({error}), so that nobody can tell whether the same run would go on; "
                "restore it from a backup, or start a new run in another folder with --model and the weights of this one"
            ) from None
        run.resume_from(before)
        return run
    if config.resume:
        raise FileNotFoundError(f"out={folder}: no run to resume there; leave --resume out to start one")
    refuse_occupied(folder, "run")
    folder.mkdir(parents=True, exist_ok=True)
    run.write(run.describe())
    return run
