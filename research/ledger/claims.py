"""Claims as values, read from the TOML files beside this one and checked while they are read."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from research.ledger.rule import Condition, Result, judge, parse_condition

VERDICTS = ("proved", "refuted", "reproduced", "not reproduced", "out of reach", "open")
GIVEN = ("proved", "refuted", "out of reach")
"""Verdicts that are written down; the others follow from figures."""
TEST = re.compile(r"tests/[\w/]+\.py::test_\w+(\[[^\]]+\])?")
ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
RESULTS = "docs/study/figures.json"


@dataclass(frozen=True)
class Claim:
    """One claim of a paper."""

    id: str
    place: str
    """Where the paper makes it."""
    claim: str
    """In our words."""
    done: str
    """What we did about it; for what is out of reach, why."""
    verdict: str = ""
    """proved, refuted or out of reach; empty where `decide` gives it."""
    tests: tuple[str, ...] = ()
    """Node ids of pytest."""
    decide: tuple[Condition, ...] = ()
    """All must hold for "reproduced"."""
    figure: str = ""
    """What the tests found; every number in it occurs in one of them."""
    command: str = ""
    """What would settle a claim that is out of reach."""
    quick: bool = False
    """`python -m research.ledger --check` runs its tests again."""
    note: str = ""

    def judge(self, results: Mapping[str, Result]) -> str:
        """The verdict, from the stored figures where it rests on them."""
        return self.verdict or judge(self.decide, results)


@dataclass(frozen=True)
class Paper:
    """A paper and its claims in the order of its text."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Figure:
    """What the study has to deliver under a name."""

    id: str
    experiment: str
    unit: str
    what: str
    added: bool = False
    """After the study was begun; such a figure decides nothing."""


@dataclass(frozen=True)
class Line:
    """A sentence of the reader's summary; left out until all of `decide` holds."""

    text: str
    claims: tuple[str, ...] = ()
    decide: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """Everything, and the stored results of the study as far as there are any."""

    papers: tuple[Paper, ...]
    figures: tuple[Figure, ...]
    words: tuple[str, ...]
    experiments: Mapping[str, str]
    summary: Mapping[str, tuple[Line, ...]]
    results: Mapping[str, Result] = field(default_factory=dict)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for paper in self.papers for claim in paper.claims)

    def count(self, paper: Paper) -> dict[str, int]:
        """Claims of a paper by verdict."""
        verdicts = [claim.judge(self.results) for claim in paper.claims]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def load_ledger(data: Path = DATA, results: Path = ROOT / RESULTS) -> Ledger:
    """Read the claims, with the study's results where that file exists.

    Raises ValueError naming file, claim and field where the data contradict themselves.
    """
    order = read_toml(data / "figures.toml")
    figures = tuple(
        Figure(id, str(entry["experiment"]), entry["unit"], entry["what"], entry.get("added", False))
        for id, entry in order["figures"].items()
    )
    papers = tuple(read_paper(data / f"{name}.toml") for name in ("eqlen", "fspo", "balanced", "toplambda"))
    summary = {
        title: tuple(make_line(entry) for entry in lines) for title, lines in read_toml(data / "summary.toml").items()
    }
    ledger = Ledger(
        papers, figures, tuple(order["words"]), order["experiments"], summary,
        read_results(results) if results.is_file() else {},
    )  # fmt: skip
    check_names(ledger)
    return ledger


def read_toml(path: Any) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None


def read_paper(path: Any) -> Paper:
    data = read_toml(path)
    name = path.name.removesuffix(".toml")
    claims = tuple(make_claim(entry, name) for entry in data.get("claim", ()))
    return Paper(name, data["title"], data["source"], claims)


def make_claim(entry: Mapping[str, Any], paper: str) -> Claim:
    """Raises ValueError where a field is unknown or missing, or the verdict has no evidence of its kind."""
    at = f"{paper}.toml, {entry.get('id', 'a claim without id')}"
    known = {f.name for f in fields(Claim)}
    for key in entry:
        if key not in known:
            raise ValueError(f"{at}: unknown key {key!r}; there are {', '.join(sorted(known))}")
    for key in ("id", "place", "claim", "done"):
        if not entry.get(key):
            raise ValueError(f"{at}: {key} is missing")
    if not re.fullmatch(rf"{paper}-\d\d", entry["id"]):
        raise ValueError(f"{at}: id={entry['id']!r}: write {paper}- and two digits")
    lists = {"tests": tuple(entry.get("tests", ())), "decide": tuple(map(parse_condition, entry.get("decide", ())))}
    claim = Claim(**{**entry, **lists})
    check_evidence(claim, at)
    return claim


def check_evidence(claim: Claim, at: str) -> None:
    """Every verdict has evidence of its kind, and no other."""
    if bool(claim.verdict) == bool(claim.decide):
        raise ValueError(f"{at}: give either a verdict ({', '.join(GIVEN)}) or conditions to decide by")
    if claim.verdict and claim.verdict not in GIVEN:
        raise ValueError(f"{at}: verdict={claim.verdict!r}: give {', '.join(GIVEN)}, or conditions in decide")
    if claim.verdict in ("proved", "refuted") and not (claim.tests and claim.figure):
        raise ValueError(f"{at}: verdict={claim.verdict}: name the tests that show it, and the figure that they find")
    if (claim.verdict == "out of reach") != bool(claim.command):
        raise ValueError(f"{at}: a command belongs to what is out of reach, and what is out of reach needs one")
    if claim.figure and not claim.tests:
        raise ValueError(f"{at}: figure without tests: figures of experiments come from the study")
    if claim.quick and not claim.tests:
        raise ValueError(f"{at}: quick without tests to run")
    for test in claim.tests:
        if not TEST.fullmatch(test):
            raise ValueError(f"{at}: tests={test!r}: write tests/FILE.py::test_name")


def make_line(entry: Mapping[str, Any]) -> Line:
    return Line(entry["text"], tuple(entry.get("claims", ())), tuple(map(parse_condition, entry.get("decide", ()))))


def read_results(path: Any) -> dict[str, Result]:
    """Raises ValueError where a figure has no interval. One that is no number could not be measured, and is left out."""
    found = {}
    for id, entry in json.loads(path.read_text(encoding="utf-8")).items():
        try:
            result = Result(*(entry[f.name] for f in fields(Result)))
        except KeyError as error:
            raise ValueError(f"{path.name}: figure {id} has no {error.args[0]}") from None
        if all(isinstance(n, int | float) and math.isfinite(n) for n in (result.value, result.low, result.high)):
            found[id] = result
            if result.low > result.high:
                raise ValueError(f"{path.name}: figure {id}: low={result.low} is above high={result.high}")
    return found


def check_names(ledger: Ledger) -> None:
    """Ids are unique and everything that is referred to exists."""
    ids = [claim.id for claim in ledger.claims]
    for id in ids:
        if ids.count(id) > 1:
            raise ValueError(f"{id}: two claims have this id")
    defined = {figure.id: figure.unit for figure in ledger.figures}
    for id, result in ledger.results.items():
        if defined.get(id, result.unit) != result.unit:
            raise ValueError(f"figure {id}: unit={result.unit!r}: its definition says {defined[id]!r}")
    lines = [line for lines in ledger.summary.values() for line in lines]
    for owner in (*ledger.claims, *lines):
        for condition in owner.decide:
            if condition.figure not in defined:
                raise ValueError(f"{condition}: no figure {condition.figure} is defined in figures.toml")
    for line in lines:
        for id in line.claims:
            if id not in ids:
                raise ValueError(f"summary.toml: there is no claim {id}")
