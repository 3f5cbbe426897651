"""The run folder of a framework's run, by the writer of our own trainer: run.json, metrics.jsonl, evaluations.jsonl, records/.

One process writes it. A rollout batch waits in memory until its updates are made. A checkpoint of the framework has fairlen.json:
what the method has learned, and where the run folder was.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.batch import Floats, Ints
from fairlen.console import warn
from fairlen.evaluate.run import Evaluation
from fairlen.files.folders import PACKAGES, describe_program, write_file, write_json
from fairlen.files.foreign import read_json_object
from fairlen.loop.folder import RunFolder, describe_composition
from fairlen.methods.compose import Composition
from fairlen.methods.description import to_dict
from fairlen.methods.method import Method, Scored
from fairlen.rollouts import Response, Rollouts
from fairlen.tasks.task import Problem
from fairlen.train.records import BatchRecord, Decode, count_generated, rollout_metrics

STATE_FILE = "fairlen.json"
NOWHERE: Mapping[str, Any] = {}


def save_method(folder: Path, method: Method, **kept: Any) -> None:
    """Write into a checkpoint the method's choices and state, and what else a home keeps: `run` is the position of its folder."""
    kept |= {"method": to_dict(method), "state": method.state}
    write_file(folder / STATE_FILE, f"{json.dumps(kept)}\n".encode())


def resume_method(folder: Path, method: Method) -> tuple[Method, Mapping[str, Any]]:
    """Return the method with the state of a checkpoint, and all that was kept there.

    Raises ValueError for a checkpoint of another method, FileNotFoundError for one that was saved without a method.
    """
    path = folder / STATE_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no state of the method was saved there; start a new run from its weights")
    kept = read_json_object(path)
    before, now = kept["method"], to_dict(method)
    if changed := [name for name in now if before.get(name) != now[name]]:
        differences = "; ".join(f"{name} {before.get(name)} -> {now[name]}" for name in changed)
        raise ValueError(
            f"{path}: resuming with another method would not continue the same run ({differences}); give the method that the "
            "checkpoint was trained with, or start a new run from its weights in another folder"
        )
    return method.with_state(kept["state"]), kept


ROWS = 1 << 32
"""A row of a rollout batch is told from those of others by the batch's key times this, added to it."""

COUNTERS = ("num_batches", "num_updates", "generated", "seconds")
"""State that a checkpoint keeps, besides the sizes of files that grow."""


@dataclass
class PendingBatch:
    """A rollout batch whose updates are being made."""

    record: BatchRecord
    weight: Floats
    """Of every segment."""
    facts: dict[str, float]
    """Logged with every update."""
    is_written: bool = False


@dataclass
class HomeRun(RunFolder):
    """The run folder that a framework's trainer leaves. What it reads back of its own is `capture`, from a checkpoint."""

    decode: Decode
    num_batches: int = 0
    num_updates: int = 0
    generated: int = 0
    seconds: float = 0.0
    """Of training, evaluations apart."""
    since: float | None = None
    """When what `seconds` does not have yet began; None before training."""
    pending: dict[int, PendingBatch] = field(default_factory=dict)
    """By key, in order."""
    description: dict[str, Any] = field(default_factory=dict)
    """Of run.json, which is written when training starts."""
    is_open: bool = False
    """Between `start` and the end of training."""

    def describe(self, composition: Composition, config: Mapping[str, Any], package: str) -> None:
        """Take what run.json says. `config` has `max_response_length` and `overrides`, as that of our own trainer."""
        self.description = {"config": config, "method": describe_composition(composition), "home": package}
        self.description |= describe_program((package, *PACKAGES)) | {"run": secrets.token_hex(8)}

    def capture(self) -> dict[str, Any]:
        """Write what is not written yet, and return where the run is, for `start`."""
        self.write()
        where = {name: getattr(self, name) for name in COUNTERS}
        return where | {"sizes": self.log_sizes(), "run": self.description.get("run")}

    def start(self, position: Mapping[str, Any]) -> None:
        """Begin to train where `capture` was called, or from nothing; what the folder has from later is removed.

        Raises FileExistsError where the folder has another run, or one that would be lost.
        """
        self.description |= {"run": position["run"]} if position.get("run") else {}
        self.refuse_others(position)
        write_json(self.folder / "run.json", self.description, default=repr)
        for name in COUNTERS:
            setattr(self, name, position.get(name, 0))
        self.since, self.is_open = time.perf_counter(), True
        for loss in self.truncate_logs(position.get("sizes", {})):
            warn(loss)
        for path in self.records.glob("*-[0-9]*.parquet"):
            if int(path.stem.rpartition("-")[2]) >= self.num_batches:
                path.unlink()

    def refuse_others(self, position: Mapping[str, Any]) -> None:
        """Raise FileExistsError for what the folder has of a run that does not go on from this position."""
        path = self.folder / "run.json"
        if not path.is_file() or not (any(self.records.glob("*.parquet")) or any(self.log_sizes().values())):
            return
        try:
            before = read_json_object(path)
            name, run = before["method"]["name"], before.get("run")
        except (ValueError, KeyError, TypeError):
            name, run = "run.json is damaged", None
        if not position or run != position.get("run"):
            raise FileExistsError(
                f"{self.folder}: another run is there already ({name}); "
                "choose another folder, or resume that run from a checkpoint of its own, with its method"
            )

    def add_batch(
        self, key: int, rollouts: Rollouts, scored: Scored, weight: Floats, method: Method, answers: Sequence[str]
    ) -> None:
        """Take a rollout batch that is planned, with the weights of its segments and the answer to each response's prompt."""
        rows = rollouts.responses
        asked = {row.prompt: (row.token_ids[: row.num_prompt], text) for row, text in zip(rows, answers, strict=True)}
        problems = tuple(
            Problem(name_prompt(ids), self.decode(ids), ids, text) for _, (ids, text) in sorted(asked.items())
        )
        facts = rollout_metrics(rollouts, scored, method)
        record = BatchRecord(self.num_batches, rollouts, problems, scored, self.decode)
        self.pending[key] = PendingBatch(record, weight, facts)
        self.num_batches += 1
        self.generated += count_generated(rows)

    def add_update(
        self, update: int, rows: Ints, measured: Floats, metrics: Mapping[str, Any], scale: float = 1.0
    ) -> None:
        """Log an update, [B] rows with their keys and [3, B] of `measure_sequences`; write the rollout batches before it."""
        if "update/skipped" in metrics:
            rows, measured = rows[:0], measured[:, :0]
        keys, now = rows // ROWS, time.perf_counter()
        for key in np.unique(keys).tolist():
            batch, mine = self.pending[key], keys == key
            own, batch.is_written = rows[mine] % ROWS, False
            batch.record.add_update(update, own, scale * batch.weight[own], *measured[:, mine])
        self.num_updates = update
        self.write([key for key in self.pending if len(keys) and key < keys.min()])
        self.seconds, self.since = self.seconds + now - (self.since or now), now
        last = next(reversed(self.pending.values()))
        self.log({"update": update, "rollout_batch": last.record.number} | last.facts | dict(metrics))

    def add_evaluation(self, update: int, found: Evaluation) -> None:
        """Log an evaluation in training; none before it begins."""
        if self.since is not None:
            spent = {"tokens/generated_total": self.generated, "time/training": self.seconds}
            self.log({"update": update, "rollout_batch": self.num_batches} | found.metrics() | spent)
            self.log_evaluation(update, found)
            self.since = time.perf_counter()

    def write(self, done: Sequence[int] | None = None) -> None:
        """Write all rollout batches that are not written yet, or those that are done with, which are forgotten."""
        for key in list(self.pending) if done is None else done:
            batch = self.pending[key] if done is None else self.pending.pop(key)
            if not batch.is_written:
                with self.journal.attempt(self.records):
                    batch.record.write(self.records)
                batch.is_written = True


def build_evaluation(groups: Iterable[Sequence[Response]]) -> Evaluation:
    """Return the evaluation that responses to held-out problems are, as many to each of them."""
    rows = [[(one.status == "correct", one.length, one.finish == "length") for one in group] for group in groups]
    table = np.array(rows, np.int64)
    return Evaluation(table[..., 0] > 0, table[..., 1], table[..., 2] > 0)


def name_prompt(token_ids: Sequence[int]) -> str:
    """Return an id that a prompt has in every run: frameworks give it none."""
    return hashlib.sha256(np.asarray(token_ids, "<i8").tobytes()).hexdigest()[:12]
