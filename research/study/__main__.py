"""`python -m research.study`: runs the study of docs/study/protocol.md, and makes docs/study from what is finished.

python -m research.study run --out DIR            what is missing, two runs at a time; the same command resumes
python -m research.study status --out DIR         what is done and to do, and how long it takes
python -m research.study evidence --out DIR       finished runs into docs/study: tables, search, figures, pages
python -m research.study figure ESTIMAND          one figure, from docs/study/evidence
python -m research.study run --plan worlds --out DIR   the two small worlds for EqLen, or smollm2, a real language model
python -m research.study coverage                 how often intervals hold the truth, simulated
python -m research.study power                    which effects so many seeds see
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from research.study.plan import PLANS, Plan


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command and its options."""
    parser = argparse.ArgumentParser(
        "python -m research.study", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    worlds = [world for plan in PLANS.values() for world in plan.sizes]
    run, status, evidence = (commands.add_parser(name) for name in ("run", "status", "evidence"))
    for one in (run, status, evidence):
        one.add_argument("--out", type=Path, required=True, help="where runs are kept: what is there is not run again")
        one.add_argument(
            "--plan",
            choices=tuple(PLANS),
            default="papers",
            help="the study of the papers, small worlds, or a real model",
        )
    for one in (run, status):
        one.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
        one.add_argument("--world", choices=worlds, default="", help="only this world")
        one.add_argument(
            "--only", nargs="+", default=[], metavar="VARIANT", help="only these, and the searches they need"
        )
    run.add_argument(
        "--stage", choices=("search", "runs", "timed"), help="by default search and runs; timed runs one at a time"
    )
    run.add_argument(
        "--restore", type=Path, metavar="EVIDENCE", help="a folder of stored runs, which are not run again"
    )
    run.add_argument("--until", metavar="HH:MM", help="begin nothing that is likely to end later")
    run.add_argument("--minutes", type=float, help="the same, from now")
    run.add_argument("--dirty", action="store_true", help="also from files that are not committed: for trials")
    one = commands.add_parser("figure")
    one.add_argument("estimand", help="an estimand of research/ledger/data")
    for each in (evidence, one):
        each.add_argument("--root", type=Path, default=Path("."), help="the repository, whose docs are read or written")
    for name in ("coverage", "power"):
        commands.add_parser(name)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    """Run a command."""
    given = parse(arguments)
    try:
        COMMANDS[given.command](given)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def run(given: argparse.Namespace) -> None:
    """Run what is missing. Raises ValueError for options that do not fit, and where the code is not a commit."""
    from research.study.cells import restore
    from research.study.evidence import load_evidence
    from research.study.schedule import STAGES, Study

    if given.jobs < 1:
        raise ValueError(f"--jobs {given.jobs}: give at least 1")
    plan = plan_of(given)
    if given.restore:
        restore(load_evidence(given.restore), given.out)
    stages = (given.stage,) if given.stage else STAGES
    study = Study(plan, given.out, stages, tell=lambda line: print(f"{time.strftime('%H:%M')} {line}", flush=True))
    jobs = 1 if given.stage == "timed" else given.jobs
    failed = study.run(jobs, find_commit(given.dirty), find_deadline(given.until, given.minutes))
    print(*study.status(jobs), sep="\n")
    if failed:
        raise SystemExit(f"{len(failed)} runs failed, the first: {failed[0]}")


def plan_of(given: argparse.Namespace) -> Plan:
    """Return the plan, or the part of it that is wanted. Raises ValueError for a world or a variant that it does not have."""
    return replace(PLANS[given.plan], world=given.world, only=tuple(given.only))


def find_commit(dirty: bool = False) -> str:
    """Return the commit that is run. Raises ValueError where files differ from it."""
    git = ("git", "-C", str(Path(__file__).parent))
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True
    )
    if changed.stdout and not dirty:
        raise ValueError(
            f"files differ from the commit: {changed.stdout.split()[-1]}; commit them, or give --dirty for a trial"
        )
    return f"{commit} and changes" if changed.stdout else commit


def find_deadline(until: str | None, minutes: float | None) -> float:
    """Return the time of `time.time` at which all runs are to be done."""
    if minutes is not None:
        return time.time() + 60 * minutes
    if until is None:
        return float("inf")
    try:
        hour, minute = time.strptime(until, "%H:%M")[3:5]
    except ValueError:
        raise ValueError(f"--until {until}: give a time such as 14:30") from None
    now = time.localtime()
    return time.time() + ((hour - now.tm_hour) * 3600 + (minute - now.tm_min) * 60 - now.tm_sec) % 86400


def status(given: argparse.Namespace) -> None:
    """Print what is done and to do. Raises ValueError for a folder that is not there."""
    from research.study.schedule import Study

    if not given.out.is_dir():
        raise ValueError(f"--out {given.out}: no such folder; python -m research.study run --out {given.out} makes it")
    print(*Study(plan_of(given), given.out).status(given.jobs), sep="\n")


def evidence(given: argparse.Namespace) -> None:
    """Write everything of docs/study that is made from runs."""
    from research.ledger import worlds
    from research.ledger.check import write
    from research.ledger.claims import FIGURES, load_ledger
    from research.ledger.study import DIGESTS, SEARCH, digest_columns, make_figures
    from research.study.evidence import merge
    from research.study.search import search_table

    plan, root = PLANS[given.plan], given.root
    folder = root / plan.folder
    found = merge(finished(given.out), folder)
    write_json(folder / DIGESTS, digest_columns(folder))
    if plan in worlds.TOLD:
        write_json(folder / worlds.FIGURES, make_figures(found, worlds.make_estimands(worlds.read_data(plan))))
    else:
        write_json(root / SEARCH, search_table(found))
        write_json(root / FIGURES, make_figures(found, load_ledger().estimands))
    print(*write(load_ledger(results=root / FIGURES), root), sep="\n")
    print(f"{folder}: {len(found.runs)} runs")


def finished(out: Path) -> list[Path]:
    """Return the folders of finished runs. Raises ValueError where there are none."""
    found = sorted(path.parent for path in (out / "cells").glob("[!.]*/runs.parquet"))
    if not found:
        raise ValueError(f"--out {out}: no finished run there; python -m research.study run --out {out} makes them")
    return found


def write_json(path: Path, value: Any) -> None:
    """Write a file that is whole or not there."""
    from fairlen.files.folders import write_file

    write_file(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def figure(given: argparse.Namespace) -> None:
    """Print one figure, computed from the stored runs."""
    from research.ledger.claims import load_ledger
    from research.ledger.study import FOLDER, make_figures
    from research.study.evidence import load_evidence

    estimands = load_ledger().estimands
    if given.estimand not in estimands:
        near = ", ".join(get_close_matches(given.estimand, estimands)) or "their names are in docs/claims.md"
        raise ValueError(f"{given.estimand}: no estimand of research/ledger/data; the nearest: {near}")
    if not (given.root / FOLDER / "runs.parquet").exists():
        raise ValueError(f"{given.root / FOLDER}: no runs are stored; make them with: python -m research.study run")
    found = make_figures(load_evidence(given.root / FOLDER), {given.estimand: estimands[given.estimand]})
    print(json.dumps(found, indent=1))


def coverage(given: argparse.Namespace) -> None:
    """Print how often intervals hold the truth, in simulation."""
    from research.study.coverage import main as simulate

    simulate()


def power(given: argparse.Namespace) -> None:
    """Print which effects so many seeds see."""
    from research.study.power import main as compute

    compute()


COMMANDS = {"run": run, "status": status, "evidence": evidence, "figure": figure, "coverage": coverage, "power": power}

if __name__ == "__main__":
    main()
