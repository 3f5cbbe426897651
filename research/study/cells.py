"""One run of the study: its settings, and what is kept of it; everything else of the run is deleted.

OUT/cells/<key>.json is there once the run is finished, and then it is not run again.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal

from fairlen.files.folders import open_to_append, remove, write_file
from research.study.problems import TASKS, Drawn

Kind = Literal["run", "direction"]
PATIENCE = 6
"""Rollout batches that a run matched by tokens may take, relative to the reference's: some methods reject prompts."""


@dataclass(frozen=True)
class Cell:
    """Everything that decides one run."""

    method: str
    set: tuple[str, ...]
    task: str
    seed: int
    rate: float
    rollout_batches: int
    max_generated: int
    """0: no limit but rollout_batches."""
    prompts_per_batch: int
    updates_per_batch: int
    eval_every: int
    eval_problems: int
    eval_samples: int
    skipped: int = 0
    """Held-out problems left to the study: above 0 in its search."""
    kind: Kind = "run"
    bands: tuple[tuple[str, float, float], ...] = ()
    """Of a "direction" cell: rule, lower and upper width."""
    is_timed: bool = False

    @property
    def key(self) -> str:
        """A file name that tells all settings apart."""
        limit = f"t{self.max_generated}" if self.max_generated else f"b{self.rollout_batches}"
        parts = (
            self.kind, self.method, *self.set, self.task, f"lr{self.rate:g}", limit, f"p{self.prompts_per_batch}",
            f"u{self.updates_per_batch}", f"e{self.eval_every}x{self.eval_problems}x{self.eval_samples}",
            *(("search",) if self.skipped else ()), *(("timed",) if self.is_timed else ()),
            *(f"{rule}{high:.3g}" for rule, _, high in self.bands), f"s{self.seed}",
        )  # fmt: skip
        return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", "_".join(parts))

    @property
    def weight(self) -> float:
        """About how long it takes, relative to others."""
        return self.rollout_batches * (2.0 if self.kind == "direction" else 1.0)


def path_of(cell: Cell, out: Path) -> Path:
    """Where the results of a cell are, or will be."""
    return out / "cells" / f"{cell.key}.json"


def read_cell(cell: Cell, out: Path) -> dict[str, Any]:
    """What is kept of a finished run. Raises FileNotFoundError where it was not run."""
    return json.loads(path_of(cell, out).read_text())


def run_cell(cell: Cell, out: Path) -> Path:
    """Runs a cell unless it is done; what it says goes to OUT/logs. The result is whole or not there."""
    path = path_of(cell, out)
    if path.exists():
        return path
    with logged(out / "logs" / f"{cell.key}.txt"):
        found = train_cell(cell, out) if cell.kind == "run" else measure_cell(cell)
    write_file(path, json.dumps({"cell": asdict(cell)} | found, allow_nan=False) + "\n")
    return path


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """What is printed goes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    with (
        open_to_append(path) as raw,
        TextIOWrapper(raw, write_through=True) as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        yield


def train_cell(cell: Cell, out: Path) -> dict[str, Any]:
    """One training run, in a folder that is deleted."""
    from research.study.extract import extract_run

    (out / "running").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{cell.seed}-", dir=out / "running"))
    try:
        train(cell, folder / "run")
        return extract_run(folder / "run", replays=cell.method == "grpo" and not cell.skipped)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_cell(cell: Cell) -> dict[str, Any]:
    """The directions of clipped and whole gradients along a run."""
    from research.study.directions import measure_directions

    return measure_directions(cell)


def train(cell: Cell, folder: Path) -> None:
    """The run itself: that of `fairlen train`, on the problems of the study."""
    import torch

    from fairlen import playground
    from fairlen.methods.compose import explain
    from fairlen.policy.model import load_policy
    from fairlen.train.requirements import estimate_memory, keep_freed_memory
    from fairlen.train.start import train_on

    config, composition = config_of(cell, str(folder)), explain(cell.method, cell.set)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    policy = load_policy(playground.PATH, config.dtype, "cpu", False)
    train_on(task_of(cell), config, composition, policy, estimate_memory(config, composition.method, "cpu"), ())


def task_of(cell: Cell) -> Drawn:
    """The problems of a cell: those of its seed, and the held-out ones of the study or of the search."""
    return Drawn(replace(TASKS[cell.task][0], seed=cell.seed), cell.skipped)


def config_of(cell: Cell, folder: str) -> Any:
    """The settings of the run (TrainConfig)."""
    from fairlen.train.run.config import TrainConfig

    return TrainConfig(
        method=cell.method,
        overrides=cell.set,
        max_response_length=TASKS[cell.task][1],
        learning_rate=cell.rate,
        rollout_batches=cell.rollout_batches * (PATIENCE if cell.max_generated else 1),
        max_generated=cell.max_generated,
        prompts_per_batch=cell.prompts_per_batch,
        updates_per_batch=cell.updates_per_batch,
        eval_every=cell.eval_every,
        eval_problems=cell.eval_problems,
        eval_samples=cell.eval_samples,
        save_every=0,
        seed=cell.seed,
        out=folder,
        threads=1,
        device="cpu",
        compile="off",
    )
