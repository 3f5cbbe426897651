"""Runs a comparison: one run a method and seed, each in a folder of its own, none of them done twice; then the table.

OUT/comparison.json   OUT/<method>/seed-0/ (a run folder)   OUT/<method>/seed-0/done.json   OUT/results.json   OUT/report.html
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from math import nan
from pathlib import Path

from rich.console import Console

from fairlen.audit.numbers import plain
from fairlen.compare.config import FEW_SEEDS, CompareConfig, Match, Variant
from fairlen.compare.page import MATCHED, write_comparison
from fairlen.compare.results import COSTS, Cell, Result, Spent, describe_match, print_results, read_own, summarize
from fairlen.console import make_console, show_time
from fairlen.files.folders import choose_folder, going_on_in, refuse_links, refuse_occupied, write_json
from fairlen.files.foreign import read_json_object
from fairlen.report.page import FILE
from fairlen.report.run import read_metrics
from fairlen.secrets import hide_all
from fairlen.settings import flatten
from fairlen.train.run.config import TrainConfig

LIMITS: dict[Match, str] = {"generated": "max_generated", "seconds": "max_seconds", "updates": "max_updates"}
PATIENCE = 50
"""Rollout batches that a method may take for what the reference spent, relative to it: some skip updates or generate little."""


def start_comparison(config: CompareConfig) -> list[Result]:
    """Run the comparison. Raises ValueError for settings that do not fit together, before anything is trained."""
    console = make_console()
    if config.are_runs:
        return compare_runs(config, console)
    load_trainer()  # a missing package is an error before a folder is made
    folder = choose_folder(config.train.run.out, "compare")
    open_comparison(config, folder)
    with going_on_in(folder):
        cells = run_cells(config, folder, lambda line: console.print(f"compare: {line}", style="bold", soft_wrap=True))
    results = summarize(cells, config.match)
    write_json(folder / "results.json", plain(results), allow_nan=False)  # numbers that do not exist are null
    write_comparison(flatten(read_json_object(folder / "comparison.json")), cells, results, folder / FILE)
    seeds = f"held-out problems, {config.seeds} seeds, matched by {config.match}"
    print_results(console, results, seeds)
    if config.seeds in FEW_SEEDS:
        console.print(f"note: {FEW_SEEDS[config.seeds]}", soft_wrap=True)
    console.print(describe_match(results, MATCHED[config.match]), soft_wrap=True)
    console.print(f"folder: {folder}; the picture of it: {FILE}", soft_wrap=True)
    return results


def load_trainer() -> Callable[[TrainConfig], object]:
    """Return the function that trains. It needs torch, without which finished runs can be compared."""
    from fairlen.train.start import start_training

    return start_training


def compare_runs(config: CompareConfig, console: Console) -> list[Result]:
    """Compare runs that are there. Raises ValueError for one without evaluations, or with others than the first."""
    cells = [Cell(one, Path(one.text), read_spent(Path(one.text))) for one in config.variants]
    given = [read_json_object(cell.folder / "run.json") for cell in cells]
    sets = [one["data"].get("sets", ()) for one in given if one.get("data")]  # TRL's and verl's do not say
    if len({str([(of["fingerprint"], of["held_out"]) for of in one if of["held_out"]]) for one in sets}) > 1:
        raise ValueError("other held-out problems (data.sets of run.json): compare runs with the same --eval-data")
    results = summarize(cells)
    print_results(console, results, "held-out problems, paired by their order; each run spent what it did")
    return results


def open_comparison(config: CompareConfig, folder: Path) -> None:
    """Make the folder, or check that it holds the same comparison. Raises ValueError naming what differs."""
    asked = json.loads(json.dumps(asdict(config.train.replace(out="")) | {"match": config.match}))
    path = folder / "comparison.json"
    if not path.exists():
        refuse_occupied(folder, "comparison")
        write_json(path, hide_all(asked))
        return
    refuse_links(folder)
    old, new = read_own(path, flatten), flatten(hide_all(asked))
    changed = [f"{name}: {old.get(name)} -> {value}" for name, value in new.items() if old.get(name) != value]
    if changed:
        raise ValueError(
            f"out={folder}: a comparison with other settings is there ({'; '.join(changed)}); choose another folder"
        )
    refuse_losses(config, folder)


def refuse_losses(config: CompareConfig, folder: Path) -> None:
    """Raise ValueError where results would no longer have runs that are there."""
    asked = {f"{variant.folder}/seed-{seed}" for variant in config.variants for seed in config.all_seeds}
    there = {path.relative_to(folder).as_posix() for path in folder.glob("*/seed-*")}
    if lost := sorted(there - asked):
        raise ValueError(
            f"out={folder}: the comparison there has runs that this command does not name and its results would lose "
            f"({', '.join(lost)}); name them too, or choose another folder by --out"
        )


def run_cells(config: CompareConfig, folder: Path, log: Callable[[str], None]) -> list[Cell]:
    """Run what is not done, the reference's runs before those that go by them."""
    cells: list[Cell] = []
    for seed in config.all_seeds:
        reference: Spent | None = None
        for variant in config.variants:
            place = folder / variant.folder / f"seed-{seed}"
            train = settings_of(config, variant, seed, place, reference)
            number, spent = len(config.all_seeds) * len(config.variants), [one.spent.seconds for one in cells]
            left = f", {show_time(sum(spent) * (number / len(spent) - 1))} left" if spent else ""
            name = f"{variant.text}, seed {seed} (run {len(cells) + 1} of {number}{left})"
            cells.append(Cell(variant, place, run_cell(train, place, name, log)))
            reference = reference or cells[-1].spent
    return cells


def run_cell(train: TrainConfig, folder: Path, name: str, log: Callable[[str], None]) -> Spent:
    """Make one run, and return what it cost: read if it is done, resumed if it was started."""
    done = folder / "done.json"
    if done.exists():
        log(f"{name}: done before")
        return read_own(done, lambda found: Spent(**found))
    resume = any((folder / "checkpoints").glob("*"))
    if folder.exists() and not resume:
        shutil.rmtree(folder)  # ended before its first checkpoint: nothing to resume
    log(f"{name}: {'resumes' if resume else 'starts'}")
    load_trainer()(train.replace(resume=resume))
    spent = read_spent(folder)
    write_json(done, asdict(spent))
    return spent


def read_spent(folder: Path) -> Spent:
    """Return what a run had cost at its last evaluation. Raises ValueError where there is none."""
    _, evaluations = read_metrics(folder)
    if not evaluations:
        raise ValueError(
            f"{folder}: the run has no evaluation on held-out problems to compare; in TRL give eval_dataset and eval_strategy, "
            "in verl data.val_files and trainer.test_freq"
        )
    return Spent(**{field: evaluations[-1].get(name, nan) for field, name in COSTS.items()})


def settings_of(
    config: CompareConfig, variant: Variant, seed: int, folder: Path, reference: Spent | None
) -> TrainConfig:
    """Return a run's settings: the comparison's, limited to what the reference spent where there is one."""
    train = config.train.replace(method=variant.method, overrides=variant.settings, seed=seed, out=str(folder))
    if reference is None:
        return train
    limit = {LIMITS[config.match]: getattr(reference, config.match)}
    return train.replace(rollout_batches=PATIENCE * train.run.rollout_batches, **limit)
