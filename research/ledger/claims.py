"""Claims as values, read from the TOML files beside this one and checked while they are read."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from fairlen.console import suggest
from research.ledger.rule import (
    DIRECTIONAL,
    EXCLUDED,
    NOTHING,
    SIGN,
    Corrected,
    Finding,
    Limit,
    Measure,
    Premise,
    adjust,
    discovery_rates,
    judge,
    p_value,
)  # fmt: skip
from research.study.estimands import Estimand, make_estimand, planned_seeds
from research.study.intervals import Result, summarize
from research.study.plan import Plan

GIVEN = ("proved", "refuted", "out of reach")
"""Statuses that are written down as a verdict; the others follow from figures."""
UNCOUNTED = "not counted"
STATUSES = (
    *GIVEN[:2], "reproduced", SIGN, "contradicted", EXCLUDED, "undecided", "not testable here", GIVEN[2], "open", UNCOUNTED,
)  # fmt: skip
DECIDED = ("reproduced", SIGN, "contradicted", EXCLUDED)
TEST = re.compile(r"tests/[\w/]+\.py::test_\w+(\[[^\]]+\])?")
ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"
CONTROLS = "controls"
PAPERS = (CONTROLS, "eqlen", "fspo", "balanced", "toplambda")
FIGURES = "docs/study/figures.json"
Built = TypeVar("Built")


@dataclass(frozen=True)
class Claim:
    """One claim of a paper: where it stands, what it says in our words, and what we did about it."""

    id: str
    place: str
    claim: str
    done: str
    verdict: str = ""
    """proved, refuted or out of reach; empty where `measure` decides."""
    tests: tuple[str, ...] = ()
    figure: str = ""
    """What tests or arithmetic found; every number in it occurs in one of them."""
    arithmetic: tuple[str, ...] = ()
    """Lines on numbers that the paper prints, such as "34.48 - 31.56 = 2.92"; the check computes them."""
    command: str = ""
    """What would settle a claim that is out of reach."""
    quick: bool = False
    """`python -m research.ledger --check` runs its tests again."""
    measure: Measure | None = None
    premise: tuple[Premise, ...] = ()
    arms: tuple[Premise, ...] = ()
    """Of a claim on a cause: what holds where the cause is left out, if the cause it is."""
    limit: Limit | None = None
    uncounted: str = ""
    """Why the claim is shown and has no status of its own: it is a part of another entry, or a third party's sentence."""
    also: tuple[str, ...] = ()
    """Estimands that are shown beside and decide nothing."""
    primary: bool = False
    """One of the paper's headlines, which are corrected for being several."""
    note: str = ""

    @property
    def estimands(self) -> tuple[str, ...]:
        """Every estimand that the claim names, the one that decides first."""
        first = (self.measure.estimand,) if self.measure else ()
        return (*first, *(premise.estimand for premise in (*self.premise, *self.arms)), *self.also)


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
    """Papers, the reader's summary by heading, and the figures of the study as far as there are any."""

    papers: tuple[Paper, ...]
    summary: Mapping[str, tuple[Line, ...]]
    results: Mapping[str, Result] = field(default_factory=dict)
    plan: Plan = field(default_factory=Plan)

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        return tuple(claim for paper in self.papers for claim in paper.claims)

    @cached_property
    def estimands(self) -> dict[str, Estimand]:
        """Estimands of all papers by id."""
        return {id: estimand for paper in self.papers for id, estimand in paper.estimands.items()}

    @cached_property
    def findings(self) -> dict[str, Finding]:
        """What became of each claim, by id: until the controls are as they are to be, no measured claim has a verdict."""
        found = {paper.name: judge_paper(paper, self.results, self.planned, self.family) for paper in self.papers}
        controls = found.get(CONTROLS, {})
        gate = next((gate_of(id, one) for id, one in controls.items() if one.status != "reproduced"), None)
        waiting = (
            {c.id for c in self.claims if c.measure and not c.uncounted and c.id not in controls} if gate else set()
        )
        every = {id: one for part in found.values() for id, one in part.items()}
        return {id: gate if gate and id in waiting and one.status != "open" else one for id, one in every.items()}

    @cached_property
    def planned(self) -> dict[str, int]:
        """Seeds that are to be run, by estimand."""
        return {id: planned_seeds(estimand, self.plan) for id, estimand in self.estimands.items()}

    @cached_property
    def family(self) -> dict[str, float]:
        """Two-sided p values of every directional claim that counts and has its figures, by id: corrected together."""
        claims = [c for p in self.papers if p.name != CONTROLS for c in p.claims if c.measure and not c.uncounted]
        asked = {c.id: c.measure for c in claims if c.measure and c.measure.predicted in DIRECTIONAL}
        figures = {id: self.results.get(one.estimand) for id, one in asked.items()}
        return {
            id: one.p for id, one in figures.items() if one and one.has_interval and self.is_ready(asked[id].estimand)
        }

    def is_ready(self, estimand: str) -> bool:
        """Whether every planned seed of an estimand was run."""
        return self.results[estimand].runs >= self.planned.get(estimand, 0)

    @cached_property
    def fragile(self) -> dict[str, tuple[int, ...]]:
        """Seeds without which a claim that is reproduced or contradicted would be neither, by its id; an empty tuple is none."""
        measured = [(paper, claim) for paper in self.papers for claim in paper.claims if claim.measure]
        return {c.id: self.leave_one_out(p, c) for p, c in measured if self.findings[c.id].status in DECIDED}

    def leave_one_out(self, paper: Paper, claim: Claim) -> tuple[int, ...]:
        """Return the seeds without which a measured claim would have another status, other claims and premises as they are."""
        assert claim.measure
        id, status = claim.measure.estimand, self.findings[claim.id].status
        part = replace(paper, claims=tuple(one for one in paper.claims if one.primary or one is claim))
        is_ratio = self.estimands[id].combine == "ratio"
        found = {
            seed: judge_paper(part, {**self.results, id: one}, family=self.family | {claim.id: one.p})[claim.id].status
            for seed, one in ((seed, without(self.results[id], seed, is_ratio)) for seed, _ in self.results[id].by_seed)
        }
        return tuple(seed for seed, one in found.items() if one != status)

    def claim(self, id: str) -> Claim:
        """Return a claim by its id. Raises ValueError naming the nearest one."""
        known = {claim.id: claim for claim in self.claims}
        if id not in known:
            near = f": {suggest(id, known)}" if get_close_matches(id, known, 1) else ""
            raise ValueError(f"there is no claim {id!r}{near} (`python -m research.ledger` lists all {len(known)})")
        return known[id]

    def shows(self, line: Line) -> bool:
        """Whether every claim that a sentence needs has one of the statuses that it needs."""
        return all(self.findings[id].status in statuses for id, statuses in line.needs.items())

    def count(self, claims: Sequence[Claim]) -> dict[str, int]:
        """Count claims by status."""
        found = [self.findings[claim.id].status for claim in claims]
        return {status: found.count(status) for status in STATUSES}


def without(result: Result, seed: int, is_ratio: bool) -> Result:
    """Return a result with one of its seeds left out."""
    kept = {one: value for one, value in result.by_seed if one != seed}
    values = {one: math.log1p(value / 100.0) for one, value in kept.items()} if is_ratio else kept
    return summarize(values, result.unit, result.what, is_ratio, result.other) or replace(result, seeds=0)


def gate_of(control: str, finding: Finding) -> Finding:
    """Return the finding of every measured claim where a control is not as it is to be."""
    if finding.status == "open":
        return Finding("open", f"a control has no verdict yet: {control}")
    return Finding("undecided", f"a control failed, and no verdict stands: {control} is {finding.status}")


def judge_paper(
    paper: Paper,
    results: Mapping[str, Result],
    planned: Mapping[str, int] = NOTHING,
    family: Mapping[str, float] = NOTHING,
) -> dict[str, Finding]:
    """Return the findings of a paper's claims; its primary claims are corrected together, those that wait for runs counted, and
    all directional ones with the p values of the family."""
    ready = {id: result for id, result in results.items() if result.runs >= planned.get(id, 0)}
    measured = [(claim, claim.measure) for claim in paper.claims if claim.measure]
    adjusted = adjust({c.id: p_value(measure, ready.get(measure.estimand)) for c, measure in measured if c.primary})
    found = {claim.id: Finding(claim.verdict) for claim in paper.claims}
    rates, every = discovery_rates(family), adjust(family)
    for c, measure in measured:
        corrected = Corrected(adjusted.get(c.id), rates.get(c.id, 0.0), every.get(c.id, 0.0), len(family))
        found[c.id] = judge(measure, c.premise, results, corrected, planned, c.arms, c.limit)
    return found | {claim.id: Finding(UNCOUNTED, claim.uncounted) for claim in paper.claims if claim.uncounted}


def load_ledger(data: Path = DATA, results: Path = ROOT / FIGURES) -> Ledger:
    """Read the claims, with the study's figures where that file exists.

    Raises ValueError naming file, claim and field where the data contradict themselves.
    """
    texts = {name: (data / f"{name}.toml").read_text(encoding="utf-8") for name in (*PAPERS, "summary")}
    entries = parse_toml("summary.toml", texts.pop("summary"))
    papers = tuple(parse_paper(name, text) for name, text in texts.items())
    summary = {title: tuple(map(make_line, lines)) for title, lines in entries.items()}
    stored = json.loads(results.read_text(encoding="utf-8")) if results.is_file() else {}
    known = {id: {key: value for key, value in entry.items() if value is not None} for id, entry in stored.items()}
    ledger = Ledger(papers, summary, {id: build(Result, entry, results.name) for id, entry in known.items()})
    check_names(ledger)
    return ledger


def parse_paper(name: str, text: str) -> Paper:
    """Return the claims and the estimands of a file NAME.toml with this text."""
    file = f"{name}.toml"
    data = parse_toml(file, text)
    claims = tuple(make_claim(entry, name) for entry in data.pop("claim", ()))
    with located(file):
        estimands = {id: make_estimand(id, entry) for id, entry in data.pop("estimands", {}).items()}
    return build(Paper, data | {"name": name, "claims": claims, "estimands": estimands}, file)


def parse_toml(name: str, text: str) -> dict[str, Any]:
    with located(name):
        return tomllib.loads(text)


@contextmanager
def located(at: str) -> Iterator[None]:
    """Name the place of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{at}: {error}") from None


def build(kind: type[Built], entry: Mapping[str, Any], at: str) -> Built:
    """Return a table as a value, lists as tuples. Raises ValueError for a key that is unknown or missing, or a bad value."""
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in entry:
        if key not in known:
            raise ValueError(f"{at}: unknown key {key!r}; there are {', '.join(known)}")
    for key, f in known.items():
        if f.default is MISSING and f.default_factory is MISSING and entry.get(key, "") == "":
            raise ValueError(f"{at}: {key} is missing")
    with located(at):
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()})


def make_claim(entry: Mapping[str, Any], paper: str) -> Claim:
    """Return one claim. Raises ValueError where a field is unknown or missing, or the verdict has no evidence of its kind."""
    at = f"{paper}.toml, {entry.get('id', 'a claim without id')}"
    premise = [build(Premise, one, f"{at}, premise") for one in entry.get("premise", ())]
    measure = build(Measure, entry["measure"], f"{at}, measure") if "measure" in entry else None
    arms = [build(Premise, one, f"{at}, arms") for one in entry.get("arms", ())]
    limit = build(Limit, entry["limit"], f"{at}, limit") if "limit" in entry else None
    claim = build(Claim, {**entry, "premise": premise, "measure": measure, "arms": arms, "limit": limit}, at)
    if not re.fullmatch(rf"{paper}-\d\d", claim.id):
        raise ValueError(f"{at}: id={claim.id!r}: write {paper}- and two digits")
    for wrong, text in mistakes(claim):
        if wrong:
            raise ValueError(f"{at}: {text}")
    return claim


def mistakes(claim: Claim) -> list[tuple[bool, str]]:
    """Return what may be wrong with a claim's evidence, and whether it is: each verdict has evidence of its kind alone."""
    verdict, is_far = claim.verdict, claim.verdict == "out of reach"
    shown = f"verdict={verdict!r}: give {', '.join(GIVEN)}, or a measure that decides"
    return [
        (bool(verdict) == bool(claim.measure), f"give either a verdict ({', '.join(GIVEN)}) or a measure that decides"),
        (bool(verdict) and verdict not in GIVEN, shown),
        (
            bool(verdict) and bool(claim.premise or claim.primary or claim.arms or claim.limit),
            "premise, arms, limit and primary belong to what is measured",
        ),
        (claim.primary and bool(claim.uncounted), "a primary claim counts"),
        (
            verdict in GIVEN[:2] and not ((claim.tests or claim.arithmetic) and claim.figure),
            f"verdict={verdict}: name its tests or its arithmetic, and their figure",
        ),
        (
            is_far != bool(claim.command),
            "a command belongs to what is out of reach, and what is out of reach needs one",
        ),
        (
            bool(claim.figure) and not (claim.tests or claim.arithmetic),
            "figure without tests or arithmetic: figures of experiments come from the study",
        ),
        (claim.quick and not claim.tests, "quick without tests to run"),
        (not all(map(TEST.fullmatch, claim.tests)), f"tests={claim.tests}: write tests/FILE.py::test_name"),
    ]


def make_line(entry: Mapping[str, Any]) -> Line:
    """Return one sentence. Raises ValueError where it names no claim or no status."""
    needs = {id: tuple(statuses) for id, statuses in entry.get("needs", {}).items()}
    line = build(Line, {**entry, "needs": needs}, "summary.toml")
    if not (line.claims or needs):
        raise ValueError(f"summary.toml: {line.text[:40]!r} names no claim: say what it rests on, in claims or needs")
    if unknown := [(id, status) for id in needs for status in needs[id] if status not in STATUSES]:
        raise ValueError(f"summary.toml: needs {unknown[0][0]} {unknown[0][1]!r}: give {', '.join(STATUSES)}")
    return line


def check_names(ledger: Ledger) -> None:
    """Raise ValueError unless ids are unique and everything that is referred to exists."""
    claims = {claim.id: claim for claim in ledger.claims}
    estimands = [id for paper in ledger.papers for id in paper.estimands]
    for ids, kind in (([claim.id for claim in ledger.claims], "claims"), (estimands, "estimands")):
        if twice := [id for id in ids if ids.count(id) > 1]:
            raise ValueError(f"{twice[0]}: two {kind} have this id")
    same: dict[str, str] = {}
    for id, one in ledger.estimands.items():
        if (other := same.setdefault(repr(asdict(one) | {"id": "", "what": ""}), id)) != id:
            raise ValueError(f"{id}: it measures what {other} does: name that one, or say what is different")
    for owner, id in ((claim.id, id) for claim in ledger.claims for id in claim.estimands):
        if id not in estimands:
            raise ValueError(f"{owner}: there is no estimand {id}: define it under [estimands.{id}]")
    for line in (line for lines in ledger.summary.values() for line in lines):
        if unknown := [id for id in (*line.claims, *line.needs) if id not in claims]:
            raise ValueError(f"summary.toml: there is no claim {unknown[0]}")
        if uncounted := [id for id in (*line.claims, *line.needs) if claims[id].uncounted]:
            raise ValueError(f"summary.toml: {uncounted[0]} is not counted: name what it is a part of")
        if unsure := [id for id in line.claims if claims[id].measure]:
            raise ValueError(
                f"summary.toml: {unsure[0]} is measured: put it under needs, with the statuses that will do"
            )
