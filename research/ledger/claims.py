"""Claims as values, read from the TOML files beside this one and checked while they are read."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from research.ledger.rule import Finding, Measure, Premise, adjust, judge, make_measure, make_premise, p_value
from research.study.intervals import Result

if TYPE_CHECKING:
    from research.study.estimands import Estimand

GIVEN = ("proved", "refuted", "out of reach")
"""Statuses that are written down as a verdict; the others follow from figures."""
STATUSES = (
    "proved", "refuted", "reproduced", "contradicted", "undecided", "not testable here", "out of reach", "open",
)  # fmt: skip
TEST = re.compile(r"tests/[\w/]+\.py::test_\w+(\[[^\]]+\])?")
ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
PAPERS = ("controls", "eqlen", "fspo", "balanced", "toplambda")
FIGURES = "docs/study/figures.json"


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
    """proved, refuted or out of reach; empty where `measure` decides."""
    tests: tuple[str, ...] = ()
    """Node ids of pytest."""
    figure: str = ""
    """What the tests found; every number in it occurs in one of them."""
    command: str = ""
    """What would settle a claim that is out of reach."""
    quick: bool = False
    """`python -m research.ledger --check` runs its tests again."""
    measure: Measure | None = None
    premise: tuple[Premise, ...] = ()
    also: tuple[str, ...] = ()
    """Estimands that are shown beside the one that decides."""
    primary: bool = False
    """One of the paper's headlines, which are corrected for being several."""
    note: str = ""

    @property
    def estimands(self) -> tuple[str, ...]:
        """Every estimand that the claim names, the one that decides first."""
        first = (self.measure.estimand,) if self.measure else ()
        return (*first, *(premise.estimand for premise in self.premise), *self.also)


@dataclass(frozen=True)
class Paper:
    """A paper, or the study's own controls, with its claims in the order of its text."""

    name: str
    title: str
    source: str
    claims: tuple[Claim, ...]
    estimands: Mapping[str, Estimand]


@dataclass(frozen=True)
class Line:
    """A sentence of the reader's summary, shown where every needed claim has one of the statuses that it needs."""

    text: str
    claims: tuple[str, ...] = ()
    """Claims whose verdict is written down."""
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Statuses by measured claim."""


@dataclass(frozen=True)
class Ledger:
    """Papers, the reader's summary, and the figures of the study as far as there are any."""

    papers: tuple[Paper, ...]
    summary: Mapping[str, tuple[Line, ...]]
    results: Mapping[str, Result] = field(default_factory=dict)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for paper in self.papers for claim in paper.claims)

    @cached_property
    def estimands(self) -> dict[str, Estimand]:
        """Estimands of all papers by id."""
        return {id: estimand for paper in self.papers for id, estimand in paper.estimands.items()}

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What became of each claim, by id."""
        return {id: found for paper in self.papers for id, found in judge_paper(paper, self.results).items()}

    def claim(self, id: str) -> Claim:
        """Return a claim by its id."""
        return next(claim for claim in self.claims if claim.id == id)

    def count(self, claims: Sequence[Claim]) -> dict[str, int]:
        """Count claims by status."""
        found = [self.findings[claim.id].status for claim in claims]
        return {status: found.count(status) for status in STATUSES}


def judge_paper(paper: Paper, results: Mapping[str, Result]) -> dict[str, Finding]:
    """Return the findings of a paper's claims; its primary claims are corrected together, those without a figure counted."""
    primary = {
        c.id: p_value(c.measure, results.get(c.measure.estimand)) for c in paper.claims if c.measure and c.primary
    }
    adjusted = adjust(primary)
    return {
        c.id: judge(c.measure, c.premise, results, adjusted.get(c.id)) if c.measure else Finding(c.verdict)
        for c in paper.claims
    }


def load_ledger(data: Path = DATA, results: Path = ROOT / FIGURES) -> Ledger:
    """Read the claims, with the study's figures where that file exists.

    Raises ValueError naming file, claim and field where the data contradict themselves.
    """
    papers = tuple(read_paper(data / f"{name}.toml") for name in PAPERS if (data / f"{name}.toml").is_file())
    ledger = Ledger(papers, read_summary(data / "summary.toml"), read_results(results) if results.is_file() else {})
    check_names(ledger)
    return ledger


def read_paper(path: Path) -> Paper:
    """Read the claims and the estimands of one file."""
    return parse_paper(path.stem, path.read_text(encoding="utf-8"))


def parse_paper(name: str, text: str) -> Paper:
    """Return the claims and the estimands that a file NAME.toml with this text has."""
    data = parse_toml(f"{name}.toml", text)
    for key in data:
        if key not in ("title", "source", "claim", "estimands"):
            raise ValueError(f"{name}.toml: unknown key {key!r}; there are title, source, claim, estimands")
    for key in ("title", "source"):
        if key not in data:
            raise ValueError(f"{name}.toml: {key} is missing")
    claims = tuple(make_claim(entry, name) for entry in data.get("claim", ()))
    return Paper(name, data["title"], data["source"], claims, make_estimands(data.get("estimands", {}), f"{name}.toml"))


def parse_toml(name: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name}: {error}") from None


def make_estimands(entries: Mapping[str, Any], file: str) -> dict[str, Estimand]:
    """Return the estimands of a file by id."""
    try:
        from research.study.estimands import make_estimand
    except ImportError:  # until the study has them
        return dict(entries)
    found = {}
    for id, entry in entries.items():
        try:
            found[id] = make_estimand(id, entry)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from None
    return found


def make_claim(entry: Mapping[str, Any], paper: str) -> Claim:
    """Return one claim. Raises ValueError where a field is unknown or missing, or the verdict has no evidence of its kind."""
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
    try:
        measure = make_measure(entry["measure"]) if "measure" in entry else None
        premise = tuple(map(make_premise, entry.get("premise", ())))
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from None
    lists = {key: tuple(entry.get(key, ())) for key in ("tests", "also")}
    claim = Claim(**{**entry, **lists, "measure": measure, "premise": premise})
    check_evidence(claim, at)
    return claim


def check_evidence(claim: Claim, at: str) -> None:
    """Raise ValueError unless the claim has evidence of its kind, and no other."""
    if bool(claim.verdict) == bool(claim.measure):
        raise ValueError(f"{at}: give either a verdict ({', '.join(GIVEN)}) or a measure that decides")
    if claim.verdict and claim.verdict not in GIVEN:
        raise ValueError(f"{at}: verdict={claim.verdict!r}: give {', '.join(GIVEN)}, or a measure that decides")
    if claim.verdict and (claim.premise or claim.primary):
        raise ValueError(f"{at}: premise and primary belong to what is measured")
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


def read_summary(path: Path) -> dict[str, tuple[Line, ...]]:
    """Return the sentences of the summary by heading."""
    entries = parse_toml(path.name, path.read_text(encoding="utf-8"))
    return {title: tuple(map(make_line, lines)) for title, lines in entries.items()}


def make_line(entry: Mapping[str, Any]) -> Line:
    """Return one sentence. Raises ValueError where it names no claim or no status."""
    for key in entry:
        if key not in ("text", "claims", "needs"):
            raise ValueError(f"summary.toml: unknown key {key!r}; there are text, claims, needs")
    line = Line(entry["text"], tuple(entry.get("claims", ())), {k: tuple(v) for k, v in entry.get("needs", {}).items()})
    if not (line.claims or line.needs):
        raise ValueError(f"summary.toml: {line.text[:40]!r} names no claim: say what it rests on, in claims or needs")
    for id, statuses in line.needs.items():
        for status in statuses:
            if status not in STATUSES:
                raise ValueError(f"summary.toml: needs {id} {status!r}: give {', '.join(STATUSES)}")
    return line


def read_results(path: Path) -> dict[str, Result]:
    """Return the study's figures by estimand."""
    return {id: Result(**entry) for id, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def check_names(ledger: Ledger) -> None:
    """Raise ValueError unless ids are unique and everything that is referred to exists."""
    claims = [claim.id for claim in ledger.claims]
    estimands = [id for paper in ledger.papers for id in paper.estimands]
    for ids, kind in ((claims, "claims"), (estimands, "estimands")):
        for id in ids:
            if ids.count(id) > 1:
                raise ValueError(f"{id}: two {kind} have this id")
    for claim in ledger.claims:
        for id in claim.estimands:
            if id not in estimands:
                raise ValueError(f"{claim.id}: there is no estimand {id}: define it under [estimands.{id}]")
    known = {claim.id: claim for claim in ledger.claims}
    for line in (line for lines in ledger.summary.values() for line in lines):
        for id in (*line.claims, *line.needs):
            if id not in known:
                raise ValueError(f"summary.toml: there is no claim {id}")
        for id in line.claims:
            if not known[id].verdict:
                raise ValueError(
                    f'summary.toml: {id} is measured: say which status it needs, needs = {{"{id}" = [...]}}'
                )
