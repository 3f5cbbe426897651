"""All runs of the study in their order: the search, the references, everything else, and last what is timed, alone.

Every stage's runs go to a pool of worker processes, the longest first. What is finished is never run again: the same command
resumes a study.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fairlen.files.folders import write_file
from research.study.cells import Cell, path_of, read_cell, run_cell
from research.study.plan import Plan, Variant, clip_fields
from research.study.search import (
    Settings,
    choose,
    make_cell,
    rate_candidates,
    score_of,
    search_cell,
    width_candidates,
)

Tell = Callable[[str], None]
REFERENCE = "grpo"
BANDS = ("fspo", "rloo", "gspo")


@dataclass
class Study:
    """A plan and where it is run."""

    plan: Plan
    out: Path
    jobs: int = 2
    tell: Tell = print
    chosen: dict[str, Settings] = field(default_factory=dict)
    """By name of the variant."""
    scores: dict[str, list[tuple[float, float, float]]] = field(default_factory=dict)
    """(rate, factor, accuracy) of every run of the search, by name of the variant."""

    def run(self) -> None:
        """Everything that is missing."""
        shutil.rmtree(self.out / "running", ignore_errors=True)  # of a study that was cut off
        self.search()
        variants = self.plan.variants
        self.finish("references", self.cells_of([self.variant(REFERENCE)]))
        alone = [variant for variant in variants if variant.is_timed]
        others = [variant for variant in variants if not variant.is_timed]
        self.finish("runs", [*self.cells_of(others), *self.direction_cells()])
        self.finish("timed runs, one at a time", self.cells_of(alone), jobs=1)

    def search(self) -> None:
        """Width, then learning rate, for every variant that has its own."""
        own = [variant for variant in self.plan.variants if not variant.settings_of]
        first = self.variant(REFERENCE)
        start = width_candidates(self.plan, first)[0]
        self.finish("search: the reference", [search_cell(self.plan, first, start, 0)])
        tokens = read_cell(search_cell(self.plan, first, start, 0), self.out)["generated"]
        found = {variant.name: width_candidates(self.plan, variant) for variant in own}
        self.try_all("search: widths", own, found, tokens)
        self.try_all(
            "search: learning rates", own, {n: rate_candidates(self.plan, s) for n, s in self.chosen.items()}, tokens
        )
        for variant in self.plan.variants:
            if variant.settings_of:
                self.chosen[variant.name] = self.chosen[variant.settings_of]
        self.write_search()

    def try_all(self, title: str, own: Sequence[Variant], candidates: dict[str, list[Settings]], tokens: int) -> None:
        """Runs the candidates of every variant and keeps the best."""
        cells = {v.name: [search_cell(self.plan, v, one, tokens) for one in candidates[v.name]] for v in own}
        self.finish(title, [cell for some in cells.values() for cell in some])
        for variant in own:
            scores = [score_of(cell, self.out) for cell in cells[variant.name]]
            self.chosen[variant.name] = choose(candidates[variant.name], scores)
            tried = self.scores.setdefault(variant.name, [])
            tried += [(s.rate, s.factor, x) for s, x in zip(candidates[variant.name], scores, strict=True)]

    def write_search(self) -> None:
        """What was tried and chosen."""
        rows = {
            name: asdict(chosen) | {"tried": self.scores.get(name, [])} for name, chosen in sorted(self.chosen.items())
        }
        write_file(self.out / "search.json", json.dumps(rows, indent=1) + "\n")

    def variant(self, name: str) -> Variant:
        """A variant of the plan by its name."""
        return next(variant for variant in self.plan.variants if variant.name == name)

    def cell(self, variant: Variant, seed: int) -> Cell:
        """The run of a variant with a seed; those matched by tokens go by the reference's run with that seed."""
        tokens = 0
        if variant.match == "tokens":
            tokens = read_cell(self.cell(self.variant(REFERENCE), seed), self.out)["generated"]
        return make_cell(self.plan, variant, self.chosen[variant.name], seed, tokens)

    def cells_of(self, variants: Iterable[Variant]) -> list[Cell]:
        """Every seed of some variants."""
        return [self.cell(variant, seed) for variant in variants for seed in self.plan.sizes.seeds]

    def direction_cell(self, seed: int) -> Cell:
        """The gradients along a run of the reference, under the bands with the widths that their own search found."""
        run = self.cell(self.variant(REFERENCE), seed)
        return Cell(**{**asdict(run), "set": run.set, "kind": "direction", "bands": tuple(map(self.band, BANDS))})

    def band(self, rule: str) -> tuple[str, float, float]:
        """A rule with its lower and upper width."""
        variant = self.variant(rule)
        published, factor = list(clip_fields(variant.method).values()), self.chosen[rule].factor
        return (rule, min(published[0] * factor, 1.0), published[-1] * factor)

    def direction_cells(self) -> list[Cell]:
        """Those of every seed, where the plan has the bands."""
        is_part = set(BANDS) <= {variant.name for variant in self.plan.variants} and 2 in self.plan.experiments
        return [self.direction_cell(seed) for seed in self.plan.sizes.seeds] if is_part else []

    def finish(self, title: str, cells: Sequence[Cell], jobs: int | None = None) -> None:
        """Runs the cells that are not done. Raises RuntimeError naming those that failed, after all others."""
        missing = {cell.key: cell for cell in cells if not path_of(cell, self.out).exists()}
        self.tell(f"{title}: {len(missing)} of {len({cell.key for cell in cells})} runs to do")
        order = sorted(missing.values(), key=lambda cell: -cell.weight)
        failed = run_all(order, self.out, jobs or self.jobs, self.tell)
        if failed:
            raise RuntimeError(
                f"{title}: {len(failed)} runs failed, the first: {failed[0]}; the same command tries them again"
            )


def run_all(cells: Sequence[Cell], out: Path, jobs: int, tell: Tell) -> list[str]:
    """Runs cells in worker processes of one thread each; returns what failed. With one job and one cell it runs here."""
    failed: list[str] = []
    if not cells:
        return failed
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(cells)), mp_context=context) as pool:
        waiting = {pool.submit(run_cell, cell, out): cell for cell in cells}
        for number, done in enumerate(as_completed(waiting), 1):
            error = done.exception()
            if error is not None:
                failed.append(f"{waiting[done].key}: {type(error).__name__}: {error}")
            tell(f"  {number}/{len(cells)} {'failed: ' + failed[-1] if error else waiting[done].key}")
    return failed
