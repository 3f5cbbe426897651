"""The runs of a comparison: one a method and seed, each in a folder of its own, none of them done twice.

OUT/comparison.json   OUT/<method>/seed-0/ (a run folder)   OUT/<method>/seed-0/done.json
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fairlen.compare.config import CompareConfig, Match, Variant
from fairlen.files.folders import refuse_links, write_file
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

LIMITS: dict[Match, str] = {"generated": "max_generated", "seconds": "max_seconds", "updates": "max_updates"}
PATIENCE = 50
"""Rollout batches that a method may take for the budget, relative to the reference's: some skip updates, some generate little."""


@dataclass(frozen=True)
class Spent:
    """What a finished run cost."""

    updates: int
    generated: int
    seconds: float
    rollout_batches: int


@dataclass(frozen=True)
class Cell:
    """One finished run."""

    variant: Variant
    seed: int
    folder: Path
    spent: Spent


def open_comparison(config: CompareConfig, folder: Path) -> None:
    """Makes the folder, or checks that it holds the same comparison. Raises ValueError naming what differs."""
    description = json.loads(json.dumps({"train": asdict(config.train) | {"out": ""}, "match": config.match}))
    path = folder / "comparison.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(f"out={folder}: the folder is not empty and holds no comparison; choose another one")
        write_file(path, json.dumps(description, indent=2) + "\n")
        return
    refuse_links(folder)
    before = json.loads(path.read_text())
    old, new = before["train"] | {"match": before["match"]}, description["train"] | {"match": description["match"]}
    changed = [f"{name}: {old.get(name)} -> {value}" for name, value in new.items() if old.get(name) != value]
    if changed:
        raise ValueError(
            f"out={folder}: a comparison with other settings is there ({'; '.join(changed)}); choose another folder"
        )
    refuse_losses(config, folder)


def refuse_losses(config: CompareConfig, folder: Path) -> None:
    """Raises ValueError where results would no longer have runs that are there."""
    seeds = range(config.train.seed, config.train.seed + config.seeds)
    asked = {f"{variant.folder}/seed-{seed}" for variant in config.variants for seed in seeds}
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/seed-*")}
    if lost := sorted(there - asked):
        raise ValueError(
            f"out={folder}: the comparison there has runs that this command does not name and its results would lose "
            f"({', '.join(lost)}); name them too, or choose another folder by --out"
        )


def run_cells(config: CompareConfig, folder: Path, tell: Callable[[str], None]) -> list[Cell]:
    """Runs what is not done, the reference's runs before those that go by them."""
    cells: list[Cell] = []
    for seed in range(config.train.seed, config.train.seed + config.seeds):
        budget: Spent | None = None
        for variant in config.variants:
            cell = run_cell(config, variant, seed, folder / variant.folder / f"seed-{seed}", budget, tell)
            budget = budget or cell.spent
            cells.append(cell)
    return cells


def run_cell(
    config: CompareConfig, variant: Variant, seed: int, folder: Path, budget: Spent | None, tell: Callable[[str], None]
) -> Cell:
    """One run: read if it is done, resumed if it was begun, else started."""
    done = folder / "done.json"
    if done.exists():
        tell(f"{variant.text}, seed {seed}: done before")
        return Cell(variant, seed, folder, Spent(**json.loads(done.read_text())))
    is_begun = any((folder / "checkpoints").glob("*")) if folder.exists() else False
    if folder.exists() and not is_begun:
        shutil.rmtree(folder)  # ended before its first checkpoint: nothing to go on with
    tell(f"{variant.text}, seed {seed}: {'goes on' if is_begun else 'starts'}")
    start_training(settings_of(config, variant, seed, folder, budget, is_begun))
    spent = read_spent(folder)
    write_file(done, json.dumps(asdict(spent)) + "\n")
    return Cell(variant, seed, folder, spent)


def settings_of(
    config: CompareConfig, variant: Variant, seed: int, folder: Path, budget: Spent | None, resume: bool
) -> TrainConfig:
    """The run's settings: the comparison's, with the reference's budget as a limit where there is one."""
    train = replace(
        config.train, method=variant.method, set=variant.settings, seed=seed, out=str(folder), resume=resume
    )
    if budget is None:
        return train
    limit = {LIMITS[config.match]: getattr(budget, config.match)}
    return replace(train, rollout_batches=PATIENCE * train.rollout_batches, **limit)


def read_spent(folder: Path) -> Spent:
    """What the last line of metrics.jsonl, the final evaluation, says that the run has cost."""
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return Spent(last["update"], last["tokens/generated_total"], last["time/training"], last["rollout_batch"])
