"""What a finished study comes to: results.json.gz (every run), figures.json (every figure), index.html (the page)."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

from fairlen.diagnostics.uncertainty import Estimate
from fairlen.files.folders import write_file
from research.study.cells import read_cell
from research.study.figures import DIRECTIONS, Runs, definitions, described
from research.study.schedule import Study

RESULTS, FIGURES, PAGE = "results.json.gz", "figures.json", "index.html"


def gather(study: Study) -> dict[str, list[dict[str, Any]]]:
    """What is kept of every run, by variant, in the order of seeds."""
    seeds = study.plan.sizes.seeds
    runs = {v.name: [read_cell(study.cell(v, seed), study.out) for seed in seeds] for v in study.plan.variants}
    directions = [read_cell(cell, study.out) for cell in study.direction_cells()]
    return runs | ({DIRECTIONS: directions} if directions else {})


def measure_figures(runs: Runs) -> dict[str, dict[str, Any]]:
    """Every figure that the runs have something for, as it is stored."""
    words, found = described(), {}
    for name, definition in definitions().items():
        estimate = definition.measure(runs)
        if estimate is not None:
            found[name] = store(estimate) | {
                "seeds": definition.num_seeds(runs),
                "unit": words[name]["unit"],
                "what": words[name]["what"],
            }
    return found


def store(estimate: Estimate) -> dict[str, float | None]:
    """Six digits; null for what does not exist."""
    parts = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: float(f"{x:.6g}") if math.isfinite(x) else None for name, x in parts.items()}


def write_results(study: Study, folder: Path) -> None:
    """All three files."""
    from research.study.page import write_study_page

    runs, search = gather(study), json.loads((study.out / "search.json").read_text())
    figures = measure_figures(runs)
    packed = json.dumps({"search": search, "runs": runs}, separators=(",", ":")).encode()
    write_file(folder / RESULTS, gzip.compress(packed, 9, mtime=0))
    write_file(folder / FIGURES, json.dumps(figures, indent=1) + "\n")
    write_study_page(study.plan, runs, search, figures, folder / PAGE)


def read_results(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """The runs and the search that were stored. Raises FileNotFoundError where there are none."""
    stored = json.loads(gzip.decompress((folder / RESULTS).read_bytes()))
    return stored["runs"], stored["search"]
