"""One run of the study: its settings, and what is kept of it; everything else of the run is deleted.

OUT/cells/<key>/ is there once the run is finished, and then it is not run again.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

from fairlen import playground
from fairlen.compare.config import parse_variant
from fairlen.evaluate.run import Evaluation, evaluate
from fairlen.files.folders import open_to_append, remove, replace_folder, write_file
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem
from research import longhand
from research.longhand.task import SUMS, Longhand
from research.study.evidence import (
    SCHEMAS,
    Evidence,
    Kept,
    RunRow,
    RunTables,
    encode,
    keep_run,
    load_evidence,
    seal,
    write_kept,
)
from research.study.plan import DIRECTIONS, REAL, Plan, Variant, width_settings
from research.study.search import Settings

WORLDS: dict[str, tuple[Any, Path]] = {
    "long": (Longhand(), longhand.PATH),
    "short": (Playground(), playground.PATH),
    **{name: (SUMS, path) for name, path in longhand.SMALL.items()},
}
"""Problems, and the policy, of the worlds that this repository brings."""
MODEL, PROBLEMS = "models/smollm2", "models/words.jsonl"
"""Of the real one: what recipes/smollm2.py and recipes/word_problems.py make, from the repository's root."""
SIZED = ("max_response_length", "prompts_per_batch", "updates_per_batch")
"""Fields of a cell that are those of its world's sizes, and of the settings of a run."""
TABLES = {"study": tuple(SCHEMAS), "search": ("evaluations",), "timed": ("batches", "updates")}
"""What is kept of a run, by role."""


@dataclass(frozen=True)
class Cell:
    """Everything that decides one run."""

    role: str
    world: str
    variant: str
    label: str
    seed: int
    shift: int
    """Added to the seed to train with."""
    rate: float
    factor: float
    settings: tuple[str, ...]
    max_response_length: int
    rollout_batches: int
    prompts_per_batch: int
    updates_per_batch: int
    eval_every: int
    eval_problems: int
    eval_samples: int
    final_problems: int
    """In the last evaluation."""
    skipped: int = 0
    """Held-out problems left to the study: above 0 in its search."""

    @property
    def key(self) -> str:
        """A folder name that tells all settings apart."""
        parts = (
            self.world, self.variant, self.label, self.role, f"x{self.factor:.3g}", f"lr{self.rate:g}",
            f"m{self.max_response_length}b{self.rollout_batches}p{self.prompts_per_batch}u{self.updates_per_batch}",
            f"e{self.eval_every}x{self.eval_problems}-{self.final_problems}x{self.eval_samples}",
            f"skip{self.skipped}" if self.skipped else "", f"s{self.seed}+{self.shift}",
        )  # fmt: skip
        return re.sub(r"[^A-Za-z0-9_.+=-]+", "-", "_".join(filter(None, parts)))

    def path(self, out: Path) -> Path:
        """Return where its results are, or will be."""
        return out / "cells" / self.key


@dataclass(frozen=True)
class Drawn:
    """Problems, with the held-out ones from the `skipped`-th on."""

    family: Any
    """Of one of the worlds."""
    skipped: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def held_out(self, count: int) -> Sequence[Problem]:
        return self.family.held_out(self.skipped + count)[self.skipped :]

    def describe(self) -> dict[str, Any]:
        return self.family.describe() | {"skipped": self.skipped}


def make_cell(plan: Plan, variant: Variant, chosen: Settings, seed: int, role: str = "study") -> Cell:
    """Return the run of a variant with a seed."""
    sizes = plan.sizes[variant.world]
    batches = {"search": sizes.search_batches, "timed": sizes.timed_batches}.get(
        role, variant.batches or sizes.rollout_batches
    )
    is_judged = role != "timed" and variant.label != DIRECTIONS
    return Cell(
        role=role,
        world=variant.world,
        variant=variant.text,
        label=variant.label,
        seed=seed,
        shift=variant.shift,
        rate=chosen.rate * variant.share,
        factor=chosen.factor,
        settings=width_settings(variant, chosen.factor),
        rollout_batches=batches,
        eval_every=sizes.eval_every if role == "study" else 0,
        eval_problems=sizes.eval_problems if is_judged else 1,
        eval_samples=sizes.eval_samples if is_judged else 1,
        final_problems=sizes.final_problems if is_judged else 1,
        skipped=sizes.final_problems if role == "search" else 0,
        **{name: getattr(sizes, name) for name in SIZED},
    )


def run_cell(cell: Cell, out: Path, commit: str) -> Path:
    """Run a cell unless it is done; what it says goes to OUT/logs. The result is whole or not there."""
    path, start = cell.path(out), time.perf_counter()
    if path.exists():
        return path
    (out / "running").mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{cell.seed}-", dir=out / "running"))
    try:
        with logged(out / "logs" / f"{cell.key}.txt"):
            row = row_of(cell, commit)
            kept = measure_cell(cell, row) if cell.label == DIRECTIONS else train_cell(cell, folder / "run", row)
        write_kept([kept], folder / "kept")
        write_file(
            folder / "kept" / "cell.json", json.dumps(asdict(cell) | {"wall": round(time.perf_counter() - start, 1)})
        )
        path.parent.mkdir(exist_ok=True)
        (folder / "kept").replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def row_of(cell: Cell, commit: str) -> RunRow:
    """Return what is known of a run before it."""
    names = ("key", "role", "world", "variant", "label", "seed", "rate", "factor", "settings")
    return RunRow(**{name: getattr(cell, name) for name in names}, commit=commit, seconds=0.0)


def restore(evidence: Evidence, out: Path) -> None:
    """Write stored runs as if they had been run here, so that they are not run again."""
    (out / "cells").mkdir(parents=True, exist_ok=True)
    for number, row in enumerate(evidence.runs):
        path = out / "cells" / row.key
        if not path.exists():
            replace_folder(path, partial(write_kept, [evidence.kept(number)]))


def read_cell(cell: Cell, out: Path) -> RunTables:
    """Return a finished run. Raises FileNotFoundError where it was not run."""
    return load_evidence(cell.path(out)).run_tables(0)


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Send what is printed to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove(path)
    with (
        open_to_append(path) as raw,
        TextIOWrapper(raw, write_through=True) as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        yield


def train_cell(cell: Cell, folder: Path, row: RunRow) -> Kept:
    """Train as `fairlen train` does, on the problems of the study; then evaluate on those that are left for the end."""
    import torch

    from fairlen.engine.device import free_memory, keep_freed_memory
    from fairlen.loop.update import NonFiniteError
    from fairlen.methods.compose import explain
    from fairlen.train.start import train_on

    config = config_of(cell, str(folder))
    composition = explain(config.method, config.overrides)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.run.seed)
    policy, end = policy_of(cell, config.model.dtype), cell.rollout_batches
    try:
        train_on(task_of(cell, config, policy), config, composition, policy, free_memory("cpu"))
    except NonFiniteError:
        return keep_run(folder, replace(row, diverged=True), end, none_correct(cell), TABLES[cell.role])
    return keep_run(folder, row, end, evaluate_rest(cell, config, policy), TABLES[cell.role])


def evaluate_rest(cell: Cell, config: Any, policy: Any) -> Evaluation:
    """Return what a trained policy does on the problems of the last evaluation that the others did not have."""
    from fairlen.policy.engines import build_engine
    from fairlen.tasks.grader import Grader
    from fairlen.train.loop import EVALUATION_SEED
    from fairlen.train.start import sampling_of

    task = task_of(cell, config, policy)
    problems = task.held_out(cell.final_problems)[cell.eval_problems :]
    engine = build_engine(config, policy, task.longest_prompt + config.sampling.max_response_length)
    grader = Grader(task, policy.decode)
    return asyncio.run(
        evaluate(engine.extend, grader, problems, cell.eval_samples, sampling_of(config), EVALUATION_SEED + 1)
    )


def none_correct(cell: Cell) -> Evaluation:
    """Return the last evaluation of a run that diverged: there is no policy, and nothing that it gets right."""
    shape = cell.final_problems, cell.eval_samples
    return Evaluation(np.zeros(shape, bool), np.zeros(shape, np.int64), np.zeros(shape, bool))


def measure_cell(cell: Cell, row: RunRow) -> Kept:
    """Return the directions of clipped and whole gradients along a run."""
    from research.study.directions import measure_directions

    start = time.perf_counter()
    rows = measure_directions(cell)
    columns = {name: np.array([one[name] for one in rows]) for name in SCHEMAS["directions"]}
    return seal(row, {"directions": encode(columns, "directions")}, time.perf_counter() - start)


def policy_of(cell: Cell, dtype: str) -> Any:
    """Return the policy that training starts from in the cell's world."""
    from fairlen.policy.model import load_policy
    from research.drawing import load_weights

    if cell.world == REAL:
        return load_policy(MODEL, dtype, "cpu", False)
    return load_weights(WORLDS[cell.world][1], dtype)


def task_of(cell: Cell, config: Any, policy: Any) -> Any:
    """Return the problems of a cell: those of its seed, and the held-out ones of the study or of the search."""
    from fairlen.tasks.load import load_task

    seed = cell.seed + cell.shift
    if cell.world == REAL:
        return load_task(config, policy.tokenizer, seed)
    return Drawn(replace(WORLDS[cell.world][0], seed=seed), cell.skipped)


def config_of(cell: Cell, folder: str) -> Any:
    """Return the settings of the run (TrainConfig)."""
    from fairlen.train.run.config import TrainConfig
    from research.real.world import read_settings

    variant = parse_variant(cell.variant)
    sizes = dict(max_num_seqs=256, max_tokens_per_microbatch=16_384)
    config = TrainConfig()
    if cell.world == REAL:
        sizes = dict(max_num_seqs=64, max_tokens_per_microbatch=4096, warmup_updates=config.update.warmup_updates)
        config = read_settings(MODEL, PROBLEMS, "float32")
    return config.replace(
        method=variant.method,
        overrides=(*variant.settings, *cell.settings),
        learning_rate=cell.rate,
        save_every=0,
        seed=cell.seed + cell.shift,
        out=folder,
        threads=1,
        device="cpu",
        compile="off",
        problems=cell.eval_problems,
        samples=cell.eval_samples,
        **sizes,
        **{name: getattr(cell, name) for name in (*SIZED, "rollout_batches", "eval_every")},
    )
