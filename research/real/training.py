"""Phase B of the protocol: SmolLM2 trained by pairs of methods, and controls; runs of one commit, kept as those of the study.

python -m research.real.training filter --out DIR     problems that the model solves in 20% to 80% of other draws, into a file
python -m research.real.training pilot --out DIR      two methods, three seeds, a quarter of the batches
python -m research.real.training seeds --out DIR      how many the pilot's spread asks for
python -m research.real.training run --out DIR --seeds 4 --only grpo dr_grpo
python -m research.real.training figures --out DIR    as JSON, from finished runs
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.console import log
from fairlen.evaluate.run import Evaluation
from fairlen.files.folders import remove, write_file
from fairlen.train.run.config import TrainConfig
from research.ledger.study import rounded
from research.real.draws import choose_problems
from research.real.world import Sizes, build_world, read_settings
from research.study.__main__ import find_commit
from research.study.cells import logged
from research.study.estimands import Estimand, measure
from research.study.evidence import Evidence, RunRow, keep_run, merge, write_kept
from research.study.intervals import Result
from research.study.power import seeds_needed, spread

WORLD = "smollm2"
FILTER = Sizes(prompts=1024, chunk=64, candidates=3456)
"""The first half of the problems is trained on, the other held out."""
FILES = ("words-train.jsonl", "words-held-out.jsonl")
PROBLEMS, SAMPLES, EVERY = 512, 16, 16
"""Held-out problems, responses to each, and rollout batches between two evaluations."""


@dataclass(frozen=True)
class Arm:
    """A method that is trained, or a control."""

    method: str
    label: str = ""
    rollout_batches: int = 32
    share: float = 1.0
    """Of the learning rate."""
    shift: int = 0
    """Added to the seed that it is trained with; it is paired by the seed without it."""

    def key(self, seed: int) -> str:
        """A folder name of its own."""
        return "-".join(filter(None, (self.method, self.label, f"b{self.rollout_batches}", f"s{seed}")))


ARMS = (
    Arm("grpo"), Arm("dr_grpo"), Arm("grpo", "slow", share=0.2), Arm("grpo", "again", shift=20),
    Arm("grpo+toplambda", rollout_batches=64), Arm("grpo+lp", rollout_batches=64),
)  # fmt: skip
"""In the order of the protocol's pairs; those of a pair that is not run are left out by name."""
PILOT, PILOT_SEEDS = (Arm("grpo", "pilot", 8), Arm("dr_grpo", "pilot", 8)), (91, 92, 93)
SMALLEST_GAP = 2.5
"""Points, half of what the long world has."""
PAIRS = {"sequence mean": ("grpo", "dr_grpo"), "penalties": ("grpo+toplambda", "grpo+lp")}


def run_arm(arm: Arm, seed: int, config: TrainConfig, out: Path, commit: str) -> str:
    """Train unless it was done, and keep the numbers; OUT/cells/KEY is whole or not there."""
    from fairlen.train.start import start_training

    key = arm.key(seed)
    kept, folder = out / "cells" / key, out / "running" / key
    if kept.exists():
        return key
    remove(folder / "run")
    settings = dict(
        method=arm.method, overrides=("sampling.n=16",), rollout_batches=arm.rollout_batches, seed=seed + arm.shift,
        learning_rate=config.update.learning_rate * arm.share, out=str(folder / "run"),
    )  # fmt: skip
    row = RunRow(
        key, "study", WORLD, arm.method, arm.label, seed, config.update.learning_rate * arm.share, 1.0,
        ("sampling.n=16",), commit, 0.0,
    )  # fmt: skip
    with logged(out / "logs" / f"{key}.txt"):
        try:
            start_training(config.replace(**settings))
        except ValueError as error:
            raise RuntimeError(f"{key}: {error}") from None  # which passes between processes
        none = np.zeros((0, config.run.samples), np.int64)
        found = keep_run(
            folder / "run", row, arm.rollout_batches, Evaluation(none.astype(bool), none, none.astype(bool))
        )
    write_kept([found], folder / "kept")
    kept.parent.mkdir(parents=True, exist_ok=True)
    (folder / "kept").replace(kept)
    shutil.rmtree(folder)
    return key


def compared(found: Evidence, first: str, second: str, labels: tuple[str, str] = ("", "")) -> Iterator[dict[str, Any]]:
    """Yield what two methods end with, first against second, at equal prompts and updates and at equal tokens."""
    wanted = (
        ("length_gap", "difference", "points"), ("length", "ratio", "percent"), ("truncated", "difference", "points"),
        ("accuracy", "difference", "points"), ("drop", "difference", "points"),
    )  # fmt: skip
    for quantity, combine, unit in wanted:
        for cost in ("",) if quantity == "drop" else ("", "tokens"):
            one = Estimand("phase-b", WORLD, quantity, (first, second), combine, unit, quantity, labels, cost)
            yield {"what": f"{quantity}{' at equal tokens' if cost else ''}"} | shown(measure(found, one))


def shown(result: Result | None) -> dict[str, Any]:
    """Return value and interval, and each seed's number."""
    if result is None:
        return {"value": None, "low": None, "high": None, "seeds": 0}
    row = {name: value for name, value in asdict(result).items() if name in ("value", "low", "high", "seeds")}
    return row | {"by_seed": [value for _, value in result.by_seed]}


def value(found: Evidence, quantity: str, method: str) -> dict[str, Any]:
    """Return what a method ends with: percent, or tokens."""
    unit = "tokens" if quantity == "length" else "percent"
    return shown(measure(found, Estimand("phase-b", WORLD, quantity, (method,), "value", unit, quantity)))


def make_figures(found: Evidence) -> Iterator[dict[str, Any]]:
    """Yield the figures of phase B."""
    for name, (first, second) in PAIRS.items():
        for method in (first, second):
            for quantity in ("length_gap", "length", "truncated", "accuracy"):
                yield {"pair": name, "what": f"{quantity} of {method}"} | value(found, quantity, method)
        yield from ({"pair": name} | row for row in compared(found, first, second))
    for control, label in (("positive", "slow"), ("negative", "again")):
        yield from ({"pair": f"{control} control"} | row for row in compared(found, "grpo", "grpo", ("", label)))


def seeds_of_pilot(found: Evidence) -> int:
    """Return how many seeds see twice the smallest difference of the gap of length by verdict, from the pilot's spread."""
    one = Estimand("pilot", WORLD, "length_gap", ("grpo", "dr_grpo"), "difference", "points", "gap", ("pilot",) * 2)
    result = measure(found, one)
    if result is None:
        raise ValueError("there is no finished pilot: python -m research.real.training pilot")
    deviation = spread(result)
    log(f"pilot: {json.dumps(shown(result))}; a standard deviation over seeds of {deviation:.3g} points")
    return seeds_needed(deviation, SMALLEST_GAP)


def make_settings(given: argparse.Namespace) -> TrainConfig:
    """Return the settings of every run, which are those of recipes/real.toml but for what follows."""
    train, held_out = (str(given.problems / name) for name in FILES)
    return read_settings(given.model, train, given.dtype).replace(
        eval_data=(held_out,), device=given.device, threads=1, compile="off", max_num_seqs=256, problems=PROBLEMS,
        samples=SAMPLES, eval_every=EVERY, save_every=0, max_tokens_per_microbatch=8192,
        warmup_updates=TrainConfig().update.warmup_updates,
    )  # fmt: skip


def filter_problems(given: argparse.Namespace) -> None:
    """Write the rows of problems that are solved neither too seldom nor too often."""
    config = make_settings(given).replace(data=(str(given.source),), eval_data=(), max_num_seqs=512)
    world = build_world(config, FILTER, given.out)
    texts = {world.task.train(position).text for position in asyncio.run(choose_problems(world))}
    lines = given.source.read_text(encoding="utf-8").splitlines(keepends=True)
    chosen = [line for line in lines if json.loads(line)["prompt"][-1]["content"] in texts]
    for name, half in zip(FILES, (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]), strict=True):
        write_file(given.problems / name, "".join(half))
        log(f"{given.problems / name}: {len(half)} problems")


def train(given: argparse.Namespace) -> None:
    """Train what is missing, one seed of all arms after another."""
    arms, seeds = (PILOT, PILOT_SEEDS) if given.command == "pilot" else (ARMS, range(1, given.seeds + 1))
    wanted = [(arm, seed) for seed in seeds for arm in arms if not given.only or arm.method in given.only]
    work = partial(run_arm, config=make_settings(given), out=given.out, commit=given.commit or find_commit())
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(work, arm, seed) for arm, seed in wanted]):
            failed += bool(done.exception())
            log(f"failed: {done.exception()!r}" if done.exception() else f"done: {done.result()}")
    if failed:
        raise SystemExit(f"{failed} of {len(wanted)} runs failed; the same command runs them again")


def figures(given: argparse.Namespace) -> None:
    """Print the figures of finished runs, which are kept beside OUT/cells as one folder."""
    print(json.dumps(rounded(list(make_figures(gather(given.out)))), indent=1))


def seeds(given: argparse.Namespace) -> None:
    """Print how many seeds the pilot asks for."""
    print(seeds_of_pilot(gather(given.out)))


def gather(out: Path) -> Evidence:
    """Return finished runs as one folder, which is written beside them."""
    return merge(sorted(path.parent for path in (out / "cells").glob("*/runs.parquet")), out / "kept")


COMMANDS = {"filter": filter_problems, "pilot": train, "seeds": seeds, "run": train, "figures": figures}


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    parser = argparse.ArgumentParser(
        "python -m research.real.training", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=tuple(COMMANDS))
    parser.add_argument("--out", type=Path, required=True, help="evidence; what is there already is not done again")
    parser.add_argument("--model", default="models/smollm2", help="folder that recipes/smollm2.py makes")
    parser.add_argument("--source", type=Path, default=Path("models/words.jsonl"), help="problems to filter")
    parser.add_argument("--problems", type=Path, default=Path("models"), help="folder of the chosen problems")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=[], metavar="METHOD", help="these methods")
    parser.add_argument("--commit", default="", help="of a copy without .git")
    given = parser.parse_args(arguments)
    COMMANDS[given.command](given)


if __name__ == "__main__":
    main()
