"""All runs of the study in their order. What is finished is never run again: the same command resumes a study.

Whenever a worker is free it takes the first run of the agenda that is not done. Settings hang on searches, so the agenda is made
anew each time, from what is on the disk.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.files.folders import locked
from research.study.cells import Cell, make_cell, read_cell, run_cell
from research.study.plan import START, Plan, Variant
from research.study.search import Outcome, Settings, final_accuracy, search

Tell = Callable[[str], None]
STAGES = ("search", "runs")
"""Those that share the machine; "timed" runs are alone."""
GUESS = {"long": 20.0, "short": 2.0, "memoryless": 4.0, "checked": 4.0, "smollm2": 75.0}
"""Seconds a rollout batch, until one was measured."""


@dataclass
class Study:
    """A plan, where it is run, and which stages of it."""

    plan: Plan
    out: Path
    stages: tuple[str, ...] = STAGES
    tell: Tell = print
    accuracy: dict[str, float] = field(default_factory=dict)
    """At the end of finished runs of the search, by key."""
    pace: dict[str, list[float]] = field(default_factory=dict)
    """Seconds a rollout batch of finished runs, by world and by variant."""
    seen: set[str] = field(default_factory=set)
    """Keys of the runs whose pace is known."""

    def agenda(self) -> Iterator[Cell]:
        """Yield runs whose settings are known, those of searches that are not done among them, in order of importance."""
        wanted = self.plan.wanted
        for _, some in groupby(wanted, key=lambda variant: variant.core or variant.name):
            block = list(some)
            for source in dict.fromkeys(map(self.plan.source, block)):
                if "search" in self.stages:
                    for settings in self.outcome(source).missing:
                        yield from self.trials(source, settings)
            if "runs" in self.stages:
                yield from self.study_cells(block)
        if "timed" in self.stages:
            yield from self.study_cells([variant for variant in wanted if not variant.label], "timed")

    def study_cells(self, block: Sequence[Variant], role: str = "study") -> Iterator[Cell]:
        """Yield the runs of variants whose searches are done, seed by seed."""
        ready = [(variant, chosen) for variant in block if (chosen := self.chosen(variant))]
        for seed in sorted({seed for variant, _ in ready for seed in self.plan.seeds(variant, role)}):
            for variant, chosen in ready:
                if seed in self.plan.seeds(variant, role):
                    yield make_cell(self.plan, variant, chosen, seed, role)

    def trials(self, variant: Variant, settings: Settings) -> list[Cell]:
        """Return the runs of the search at some settings."""
        seeds = self.plan.seeds(variant, "search")
        return [make_cell(self.plan, variant, settings, seed, "search") for seed in seeds]

    def outcome(self, variant: Variant) -> Outcome:
        """Return where the search of a variant is; a plan's own rate is what it would choose."""
        if self.plan.rate:
            return Outcome(chosen=Settings(self.plan.rate, 1.0))
        return search(variant.search, lambda rate, factor: self.score(variant, Settings(rate, factor)))

    def score(self, variant: Variant, settings: Settings) -> float | None:
        """Return the mean accuracy at some settings; None where a run is missing."""
        cells = self.trials(variant, settings)
        for cell in cells:
            if cell.key not in self.accuracy:
                if not cell.path(self.out).exists():
                    return None
                self.accuracy[cell.key] = final_accuracy(read_cell(cell, self.out))
        return float(np.mean([self.accuracy[cell.key] for cell in cells]))

    def chosen(self, variant: Variant) -> Settings | None:
        """Return the settings of a variant; None where they are not known yet."""
        return self.outcome(self.plan.source(variant)).chosen

    def run(self, jobs: int = 2, commit: str = "", deadline: float = np.inf) -> list[str]:
        """Run what is missing, so far as it is likely to end by the deadline (of `time.time`); return what failed."""
        taken: set[str] = set()
        failed: list[str] = []
        running: dict[Future[Path], Cell] = {}
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out), Workers(jobs) as workers:
            shutil.rmtree(self.out / "running", ignore_errors=True)  # of a study that was cut off
            while True:
                while len(running) < jobs and (cell := self.next_cell(taken, deadline)):
                    taken.add(cell.key)
                    running[workers.submit(run_cell, cell, self.out, commit)] = cell
                if not running:
                    return failed
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    failed += self.finish(running.pop(future), future)

    def next_cell(self, taken: set[str], deadline: float) -> Cell | None:
        """Return the first run that is not done, not taken, and ends in time; None where there is none."""
        cells = (cell for cell in self.agenda() if cell.key not in taken and not cell.path(self.out).exists())
        return next((cell for cell in cells if time.time() + self.expect(cell) <= deadline), None)

    def finish(self, cell: Cell, future: Future[Path]) -> list[str]:
        """Tell how a run ended; return what failed."""
        if error := future.exception():
            self.tell(f"failed: {cell.key}: {type(error).__name__}: {error}; the same command tries it again")
            return [f"{cell.key}: {type(error).__name__}: {error}"]
        self.tell(f"done: {cell.key}")
        return []

    def expect(self, cell: Cell) -> float:
        """Return about how many seconds a run takes."""
        return cell.rollout_batches * self.pace_of(cell.world, cell.variant)

    def pace_of(self, world: str, variant: str) -> float:
        """Return seconds a rollout batch, by finished runs of the variant, else of its world."""
        for path in (self.out / "cells").glob("*/cell.json"):
            if path.parent.name not in self.seen:
                self.seen.add(path.parent.name)
                cell = json.loads(path.read_text())
                for name in (cell["world"], f"{cell['world']} {cell['variant']}"):
                    self.pace.setdefault(name, []).append(cell["wall"] / cell["rollout_batches"])
        found = self.pace.get(f"{world} {variant}") or self.pace.get(world) or [GUESS[world]]
        return float(np.mean(found))

    def status(self, jobs: int = 2) -> Iterator[str]:
        """Yield a line a variant: what its search chose or needs, runs done and to do; and how long it all takes."""
        left = 0.0
        for variant in self.plan.wanted:
            chosen = self.chosen(variant)
            trials = self.outcome(variant).missing if variant.search else ()
            missing = [cell for settings in trials for cell in self.trials(variant, settings)]
            missing = [cell for cell in missing if not cell.path(self.out).exists()]
            cells = [make_cell(self.plan, variant, Settings(*START), seed) for seed in self.plan.seeds(variant)]
            done = sum(cell.path(self.out).exists() for cell in self.study_cells([variant]))
            left += sum(map(self.expect, missing)) + self.expect(cells[0]) * (len(cells) - done)
            state = (
                f"rate {chosen.rate:g}, width x {chosen.factor:.3g}"
                if chosen
                else f"search: {len(missing)} runs or more"
            )
            yield f"{variant.name:55} {done:3} of {len(cells):3} runs; {state}"
        yield f"about {left / 3600 / jobs:.1f} hours left with {jobs} at a time, and what searches go on to need"


class Workers:
    """Processes of one thread each, new for each call, as one keeps GB of memory; one job runs in this."""

    def __init__(self, jobs: int):
        os.environ["OMP_NUM_THREADS"] = "1"
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) if jobs > 1 else None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool:
            self.pool.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., Path], *arguments: Any) -> Future[Path]:
        """Start a call, or make it."""
        if self.pool:
            return self.pool.submit(function, *arguments)
        future: Future[Path] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future
