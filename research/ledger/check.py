"""Whether the ledger is true: pages up to date, tests there, numbers in them, figures stored, and the quick tests pass."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from fairlen.files.folders import write_file
from research.ledger.arithmetic import holds
from research.ledger.claims import Claim, Ledger
from research.ledger.details import details_page
from research.ledger.page import claims_page
from research.ledger.picture import draw_stopping
from research.ledger.real import Real, check_real, load_real
from research.ledger.study import check_study, read_evidence
from research.ledger.worlds import TOLD, Worlds, check_worlds, load_worlds
from research.study.evidence import Evidence
from research.study.page import study_page

CLAIMS, DETAILS, STUDY = "docs/claims.md", "docs/study/claims.html", "docs/study/index.html"
STOPPING = "docs/study/stopping.svg"
LIMIT = 240.0
"""Seconds for the quick tests, which take half a minute on an idle core."""
NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?(?:e-?\d+)?")


def check(ledger: Ledger, root: Path, run: bool = True) -> list[str]:
    """Return everything that is wrong, one line each."""
    try:
        evidence = read_evidence(root)
        found = [*check_study(ledger, evidence, root), *check_real(root)]
        found += [line for plan in TOLD for line in check_worlds(root, plan)]
        found += check_pages(ledger, evidence, root)
    except ValueError as error:
        found = [str(error)]
    for claim in ledger.claims:
        found += check_tests(claim, root)
    return found + (run_quick(ledger, root) if run and not found else [])


def make_pages(ledger: Ledger, evidence: Evidence | None, root: Path) -> dict[str, str]:
    """Return the pages by file."""
    return {
        CLAIMS: claims_page(ledger, measured(root)),
        DETAILS: details_page(ledger),
        STUDY: study_page(evidence, ledger),
        STOPPING: draw_stopping(evidence),
    }


def measured(root: Path) -> list[Real | Worlds]:
    """Return what is told of a real model and of small worlds, so far as it is there."""
    found = [load_real(root), *(load_worlds(root, plan) for plan in TOLD)]
    return [one for one in found if one]


def check_pages(ledger: Ledger, evidence: Evidence | None, root: Path) -> Iterator[str]:
    """Yield pages that are not what would be written."""
    for name, text in make_pages(ledger, evidence, root).items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield f"{name}: not what the ledger says; write it with: python -m research.ledger --write"


def write(ledger: Ledger, root: Path) -> list[str]:
    """Write the pages and return their names."""
    pages = make_pages(ledger, read_evidence(root), root)
    for name, text in pages.items():
        write_file(root / name, text)
    return list(pages)


def check_tests(claim: Claim, root: Path) -> Iterator[str]:
    """Yield tests of a claim that do not exist, wrong arithmetic, and numbers of its figure that occur in neither."""
    sources = list(claim.arithmetic)
    yield from (f"{claim.id}: {line}: it is not so" for line in claim.arithmetic if not holds(line))
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
            yield f"{claim.id}: {text} of its figure occurs in none of its tests and lines"


@cache
def functions(path: Path, _changed: int) -> dict[str, str]:
    """Return the source of every function of a file, decorators included, by name."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def test_source(path: Path, name: str) -> str | None:
    """Return the source of a test, or None where there is none."""
    return functions(path, path.stat().st_mtime_ns).get(name) if path.exists() else None


def numbers(text: str) -> set[float]:
    """Return every number in a text; signs are left out, since a minus may be an operator."""
    return {float(found.replace(",", "").replace("_", "")) for found in NUMBER.findall(text)}


def figure_numbers(figure: str) -> Iterator[tuple[str, set[float]]]:
    """Yield numbers of a figure with the values that a test may hold for them: a percentage may be a share there."""
    for match in NUMBER.finditer(figure):
        value = float(match[0].rstrip(",").replace(",", ""))
        share = {round(value / 100, 12)} if figure[match.end() : match.end() + 1] == "%" else set()
        yield match[0], {value} | share


def run_quick(ledger: Ledger, root: Path) -> list[str]:
    """Run the tests of the claims that are marked quick and return what failed."""
    chosen = sorted({test for claim in ledger.claims if claim.quick for test in claim.tests})
    if not chosen:  # pytest would run everything
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", *chosen]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins take longer to import than most tests
    keywords: dict[str, Any] = {"cwd": root, "env": environment, "capture_output": True, "text": True, "timeout": LIMIT}
    try:
        done = subprocess.run(command, check=False, **keywords)
    except subprocess.TimeoutExpired:
        return [
            f"the quick tests took longer than {LIMIT:.0f} s: is the machine busy? {' '.join(command[:3])} runs them"
        ]
    if done.returncode == 0:
        return []
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed or [f"pytest ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}"]
