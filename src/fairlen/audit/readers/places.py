"""Steps in the names of folders and files: paths that differ in one number, such as `step_3/rows.jsonl`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

NUMBER = re.compile(r"\d+")
PARTS = re.compile(
    r"(rank|worker|shard|part|seed|run|trial|gpu|node|replica|fold|split|process|proc|of|device|host)[-_. ]*$", re.I
)
"""Words before a number that counts parts of one step, or runs, and no steps."""

STEP_FOLDER = re.compile(
    r"(?:(?:\w*[-_.])?(?:step|iter|iteration|version|update|round|epoch|policy|v)[-_.]?)?(\d{1,6})", re.I
)


def find_numbers(paths: Iterable[Path]) -> dict[Path, tuple[str, int]]:
    """Return, for each path that differs from others in one number only, what they share and the number.

    A number after a word for a part of a step (`rank_3`, `part-00001-of-00004`) is not a step.
    """
    paths = list(paths)
    shapes: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        shapes[NUMBER.sub("*", str(path))].append(path)
    found: dict[Path, tuple[str, int]] = {}
    for same in shapes.values():
        runs = [NUMBER.findall(str(path)) for path in same]
        varying = [place for place in range(len(runs[0])) if len({run[place] for run in runs}) > 1]
        if len(varying) != 1:
            continue
        (place,) = varying
        mark = list(NUMBER.finditer(str(same[0])))[place]
        if PARTS.search(str(same[0])[: mark.start()]) or str(same[0])[mark.end() :].startswith("-of-"):
            continue
        shape = f"{str(same[0])[: mark.start()]}*{str(same[0])[mark.end() :]}"
        for path, run in zip(same, runs, strict=True):
            found[path] = (shape, int(run[place]))
    return found


def find_step(path: Path) -> int | None:
    """Return the number of the folder of a file that is alone, if its name says that it is a step: `step_12`, `v3`, `12`."""
    found = STEP_FOLDER.fullmatch(path.parent.name)
    return int(found[1]) if found else None
