"""Whether the ledger is true: pages up to date, tests there, numbers in them, figures stored, and the quick tests pass."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fairlen.files.folders import write_file
from research.ledger.claims import RESULTS, Claim, Ledger
from research.ledger.page import claims_page, decisions_page

PAGES = {"docs/claims.md": claims_page, "docs/study/decisions.md": decisions_page}
RUNS = "docs/study/results.json.gz"
LIMIT = 240.0
"""Seconds for the quick tests, which take half a minute on an idle core."""
NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?")


def check(ledger: Ledger, root: Path, run: bool = True) -> list[str]:
    """Everything that is wrong, one line each."""
    found = [*check_pages(ledger, root), *check_study(root)]
    for claim in ledger.claims:
        found += check_tests(claim, root)
    return found + (run_quick(ledger, root) if run and not found else [])


def check_pages(ledger: Ledger, root: Path) -> Iterator[str]:
    """Pages that are not what would be written."""
    for name, make in PAGES.items():
        path = root / name
        if not path.exists():
            yield f"{name}: missing; write it with: python -m research.ledger --write"
        elif path.read_text(encoding="utf-8") != make(ledger):
            yield f"{name}: not what the ledger says; write it with: python -m research.ledger --write"


def check_study(root: Path) -> Iterator[str]:
    """The stored figures are those of the stored runs."""
    runs, stored = root / RUNS, root / RESULTS
    if runs.exists() != stored.exists():
        yield f"{RESULTS} and {RUNS} belong together; make study writes both"
    elif runs.exists():
        from research.study.results import measure_figures, read_results

        made, kept = measure_figures(read_results(runs.parent)[0]), json.loads(stored.read_text(encoding="utf-8"))
        for name in sorted({*made, *kept}):
            if not agree(made.get(name, {}), kept.get(name, {})):
                yield f"{RESULTS}: {name} is not what {RUNS} gives; make study writes it"


def agree(made: dict[str, Any], kept: dict[str, Any]) -> bool:
    """Whether two figures are one, but for the rounding of another processor: what is 0 here may be 1e-17 there."""
    numbers = [(made.get(key), kept.get(key)) for key in ("value", "low", "high")]
    same = all(a == b or (None not in (a, b) and math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9)) for a, b in numbers)  # type: ignore[arg-type]
    return same and made.keys() == kept.keys() and all(made[key] == kept[key] for key in ("seeds", "unit", "what"))


def check_tests(claim: Claim, root: Path) -> Iterator[str]:
    """Tests of a claim that do not exist, and numbers of its figure that occur in none of them."""
    sources = []
    for test in claim.tests:
        path, _, name = test.partition("::")
        source = test_source(root / path, name.partition("[")[0])
        if source is None:
            yield f"{claim.id}: there is no test {test}"
        elif "[" in name and "parametrize" not in source:
            yield f"{claim.id}: {test} has no parameters"
        else:
            sources.append(source)
    known = {number for source in sources for number in numbers(source)}
    for text, allowed in figure_numbers(claim.figure):
        if not known & allowed:
            yield f"{claim.id}: {text} of its figure occurs in none of its tests"


@cache
def functions(path: Path, _changed: int) -> dict[str, str]:
    """Source of every function of a file, decorators included, by name."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def test_source(path: Path, name: str) -> str | None:
    """The source of a test, or None where there is none."""
    return functions(path, path.stat().st_mtime_ns).get(name) if path.exists() else None


def numbers(text: str) -> set[float]:
    """Every number in a text; signs are left out, since a minus may be an operator."""
    return {float(found.replace(",", "").replace("_", "")) for found in NUMBER.findall(text)}


def figure_numbers(figure: str) -> Iterator[tuple[str, set[float]]]:
    """Numbers of a figure with the values that a test may hold for them: a percentage may be a share there."""
    for match in NUMBER.finditer(figure):
        value = float(match[0].rstrip(",").replace(",", ""))
        share = {round(value / 100, 12)} if figure[match.end() : match.end() + 1] == "%" else set()
        yield match[0], {value} | share


def run_quick(ledger: Ledger, root: Path) -> list[str]:
    """Runs the tests of the claims that are marked quick; what failed, if anything."""
    chosen = sorted({test for claim in ledger.claims if claim.quick for test in claim.tests})
    if not chosen:  # pytest would run everything
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *chosen]
    try:
        environment = os.environ | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"
        }  # plugins take longer to import than most tests
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return [
            f"the quick tests took longer than {LIMIT:.0f} s: is the machine busy? {' '.join(command[:3])} runs them"
        ]
    if done.returncode == 0:
        return []
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed or [f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"]


def write(ledger: Ledger, root: Path) -> list[str]:
    """Writes both pages; their names."""
    for name, make in PAGES.items():
        write_file(root / name, make(ledger))
    return list(PAGES)
