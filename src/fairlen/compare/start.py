"""From settings to the table: runs what is missing, summarises, prints, writes results.json."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fairlen.compare.cells import Cell, open_comparison, run_cells
from fairlen.compare.config import FEW_SEEDS, CompareConfig
from fairlen.compare.report import write_comparison
from fairlen.compare.results import Result, summarize, write_results
from fairlen.console import make_console
from fairlen.evaluate.run import show_length
from fairlen.files.folders import going_on_in


def start_comparison(config: CompareConfig) -> list[Result]:
    """Runs the comparison. Raises ValueError for settings that do not fit together, before anything is trained."""
    console = make_console()
    folder = Path(config.train.out) if config.train.out else Path("runs") / f"compare-{time.strftime('%Y%m%d-%H%M%S')}"
    open_comparison(config, folder)
    with going_on_in(folder):
        cells = run_cells(config, folder, lambda line: console.print(f"compare: {line}", style="bold", soft_wrap=True))
    results = summarize(cells)
    write_results(results, folder / "results.json")
    write_comparison(config, results, folder)
    print_results(console, config, cells, results, folder)
    return results


def print_results(
    console: Console, config: CompareConfig, cells: Sequence[Cell], results: Sequence[Result], folder: Path
) -> None:
    """One line a method."""
    wide = make_console(200, console.file)
    samples = config.train.eval_samples
    table = Table(title=f"held-out problems, {config.seeds} seeds, matched by {config.match}", title_justify="left")
    headings = (
        "method", "accuracy at the end", "against the reference", "at its best", f"best@{samples}", f"pass@{samples}",
        "length right", "wrong", "coupling", "LRE", "updates", "generated", "seconds",
    )  # fmt: skip
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place == 0, justify="left" if place < 2 else "right")
    for result in results:
        table.add_row(*cells_of(result))
    wide.print(table)
    console.print(
        "intervals: 95%, resampling seeds and problems, the same for every method; `at its best` is chosen afterwards"
    )
    if config.seeds in FEW_SEEDS:
        console.print(f"note: {FEW_SEEDS[config.seeds]}", soft_wrap=True)
    console.print(f"folder: {folder}; the picture of it: report.html", soft_wrap=True)


def number(value: float) -> str:
    """Three digits, or a dash for what does not exist."""
    return f"{value:.3f}" if math.isfinite(value) else "-"


def cells_of(result: Result) -> tuple[str, ...]:
    """A line of the table."""
    difference = "reference"
    if result.difference:
        value, low, high = (100 * x for x in (result.difference.value, result.difference.low, result.difference.high))
        difference = f"{value:+.1f} [{low:+.1f}, {high:+.1f}] points"
    return (
        result.name, str(result.last), difference, f"{result.peak.value:.1%}", f"{result.best_at.value:.1%}",
        f"{result.pass_at.value:.1%}", show_length(result.length_correct), show_length(result.length_incorrect),
        number(result.coupling.value), number(result.lre.value), f"{result.updates:.0f}", f"{result.generated:,.0f}",
        f"{result.seconds:.0f}",
    )  # fmt: skip
