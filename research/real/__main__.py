"""`python -m research.real --out DIR`: filters, draws, differentiates, makes one update, and writes the figures of phase A;
`--keep docs/study/real` writes what the repository keeps of a finished DIR."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

from fairlen.console import log
from fairlen.files.folders import write_file
from research.real.draws import draw_all
from research.real.evidence import read_kept, read_run, write_kept
from research.real.figures import FIGURES_FILE, make_figures
from research.real.passes import sketch_all, take_step
from research.real.world import FULL, SMOKE, build_world, describe, read_settings, start
from research.study.__main__ import find_commit


def main(arguments: list[str] | None = None) -> None:
    """Do what is missing, in an order in which nothing has changed the weights before it."""
    parser = argparse.ArgumentParser(prog="python -m research.real", description="Phase A of docs/study/protocol.md.")
    parser.add_argument("--out", type=Path, required=True, help="evidence; what is there already is not done again")
    parser.add_argument("--model", default="models/smollm2", help="folder that recipes/smollm2.py makes")
    parser.add_argument("--data", default="models/words.jsonl", help="problems that recipes/word_problems.py writes")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--smoke", action="store_true", help="four problems: every part, and no number that counts")
    parser.add_argument("--dirty", action="store_true", help="run files that differ from the commit; for a trial")
    parser.add_argument(
        "--keep", type=Path, help="run nothing: write what figures are made from, and them, into docs/study/real"
    )
    given = parser.parse_args(arguments)
    if given.keep:
        return keep(given.out, given.keep)
    sizes, config = SMOKE if given.smoke else FULL, read_settings(given.model, given.data, given.dtype)
    try:
        start(given.out, describe(config, sizes, find_commit(given.dirty)))
        world = build_world(config, sizes, given.out)
        for work in (lambda one: asyncio.run(draw_all(one)), sketch_all, take_step):
            begun = time.process_time()
            work(world)
            log(f"{time.process_time() - begun:.0f} s of processor time")
        figures = json.dumps(make_figures(read_run(given.out)), indent=1)
    except ValueError as error:
        raise SystemExit(f"python -m research.real: {error}") from None
    write_file(given.out / FIGURES_FILE, figures + "\n")
    log(figures)


def keep(out: Path, folder: Path) -> None:
    """Write what is kept of a finished run, and the figures that it gives."""
    try:
        write_kept(read_run(out), folder)
    except (ValueError, OSError) as error:
        raise SystemExit(f"python -m research.real: {error}") from None
    write_file(folder / FIGURES_FILE, json.dumps(make_figures(read_kept(folder)), indent=1) + "\n")


if __name__ == "__main__":
    main()
