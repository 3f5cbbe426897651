"""Whether claims are decided as it was written down before the runs that decide them."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.ledger.claims import Claim, Ledger, Paper, parse_paper

if TYPE_CHECKING:
    from research.study.estimands import Estimand

PROTOCOL, CHANGED = "docs/study/protocol.md", "## Changed since"
DATA = "research/ledger/data"
JUDGING = tuple(
    f"research/{name}.py" for name in ("study/quantities", "study/intervals", "study/estimands", "ledger/rule")
)
"""Files that measure and judge."""


def check_protocol(ledger: Ledger, root: Path, commits: Iterable[str]) -> Iterator[str]:
    """Yield claims that a commit that made runs decides otherwise, or does not know, and that the protocol does not name.

    A commit that this copy of the repository does not hold says nothing.
    """
    path = root / PROTOCOL
    named = path.read_text(encoding="utf-8").partition(CHANGED)[2] if path.is_file() else ""
    now, made = rules(ledger.papers), sorted(set(commits))
    for commit in made if len(made) > 1 else ():
        if commit[:10] not in named:
            yield f"{commit[:10]}: one of {len(made)} commits that made runs, and {PROTOCOL} does not say why"
    for commit in made:
        for name in JUDGING:
            before = shown(commit, name, root)
            if before and meaning(before) != meaning((root / name).read_text(encoding="utf-8")) and name not in named:
                yield f"{name}: not what it was in {commit[:10]}, which made runs, and {PROTOCOL} does not say why"
        before = rules(papers_at(commit, [paper.name for paper in ledger.papers], root))
        for id in sorted({*now, *before} if before else ()):
            if now.get(id) != before.get(id) and id not in named:
                yield f"{id}: decided otherwise in {commit[:10]}, which made runs, and {PROTOCOL} does not say why"


def rules(papers: Iterable[Paper]) -> dict[str, tuple[Any, ...]]:
    """Return what decides each claim: its verdict, or its measure and premise with the estimands that they name."""
    known = list(papers)
    estimands = {id: estimand for paper in known for id, estimand in paper.estimands.items()}
    return {claim.id: rule_of(claim, estimands) for paper in known for claim in paper.claims}


def rule_of(claim: Claim, estimands: Mapping[str, Estimand]) -> tuple[Any, ...]:
    """Return what decides a claim, without the words around it."""
    if claim.measure is None:
        return (claim.verdict, bool(claim.uncounted))
    used = (claim.measure.estimand, *(one.estimand for one in (*claim.premise, *claim.arms)))
    measured = tuple(asdict(estimands[id]) | {"what": ""} for id in used if id in estimands)
    limits = (claim.arms, claim.limit and claim.limit.status, bool(claim.uncounted))
    return (replace(claim.measure, why=""), claim.premise, claim.primary, measured, limits)


def papers_at(commit: str, names: Iterable[str], root: Path) -> list[Paper]:
    """Return the papers as a commit has them, those that it has."""
    found = {name: shown(commit, f"{DATA}/{name}.toml", root) for name in names}
    return [parse_paper(name, text) for name, text in found.items() if text]


def shown(commit: str, name: str, root: Path) -> str:
    """Return a file as a commit has it; empty where this copy of the repository does not."""
    command = ["git", "-C", str(root), "show", f"{commit}:{name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout if found.returncode == 0 else ""


def meaning(source: str) -> str:
    """Return Python source without comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))]  # type: ignore[attr-defined]
    return ast.dump(tree)
