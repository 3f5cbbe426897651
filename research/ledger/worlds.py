"""What plans at one learning rate showed, two small worlds for EqLen and a real language model, in sentences whose words follow
from their intervals: parts of docs/claims.md, and the check of what they stand on."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from research.ledger.claims import ROOT, Ledger
from research.ledger.protocol import CHANGED, PROTOCOL, check_protocol, shown
from research.ledger.real import Row, Sentence, Told
from research.ledger.study import check_digests, check_runs, compare, make_figures, read_json
from research.study.estimands import Estimand, make_estimand, planned_seeds
from research.study.evidence import load_evidence
from research.study.plan import EQLEN, PLANS, REAL, Plan

DATA = "research/ledger/data/{}.toml"
"""By plan."""
TITLES = {REAL: "The same model, trained", "worlds": "Two small worlds for EqLen"}
"""Of the page's parts by plan, in their order."""
TOLD = tuple(PLANS[name] for name in TITLES)
PLAN = PLANS["worlds"]
FIGURES = "figures.json"
RULES = {name.upper(): EQLEN + name for name in ("max", "mean", "halving")}
"""Variants by what the file calls them."""


@dataclass(frozen=True)
class Worlds(Told):
    """Figures of a plan with the sentences about them, by world."""

    title: str
    figures: Mapping[str, Row]
    names: Mapping[str, str]
    introduction: str
    controls: Mapping[str, Sequence[Sentence]]

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        return self.figures

    def bullets(self) -> Iterator[str]:
        """Yield what is said by world; of one with a control that is not as it is to be, that alone."""
        for world, text in self.said():
            failed = [one.text(self.rows) for one in self.controls[world] if one.word(self.rows) != "does"]
            said = f"Nothing is said: {'; '.join(failed)}." if failed else text
            yield self.filled(f"**{self.names[world]}.** {said}")


def make_estimands(data: Mapping[str, Any]) -> dict[str, Estimand]:
    """Return the estimands of each world, by its name and their own."""
    found = {}
    for world in data["worlds"]:
        for name, one in data["estimands"].items():
            variants = [RULES.get(text, text) for text in one["variants"]]
            entry = one | {"world": world, "what": f"{world} {name}", "variants": variants}
            found[entry["what"]] = make_estimand(f"{world}-{name}", entry)
    return found


def make_sentences(data: Mapping[str, Any], kind: str) -> dict[str, list[Sentence]]:
    """Return sentences as they are said of each world."""

    def named(one: Mapping[str, Any], world: str) -> dict[str, Any]:
        texts = {key: text.replace("WORLD", world) for key, text in one.items() if isinstance(text, str)}
        return {**one, **texts, "row": f"{world} {one['row']}"}

    return {world: [Sentence(**named(one, world)) for one in data[kind]] for world in data["worlds"]}


def place_of(plan: Plan) -> str:
    """Return the file of a plan's sentences and estimands."""
    return DATA.format(name_of(plan))


def name_of(plan: Plan) -> str:
    """Return what a plan is called, which is the folder of its evidence."""
    return Path(plan.folder).name


def read_data(plan: Plan = PLAN) -> dict[str, Any]:
    """Return the sentences and estimands of a plan."""
    return tomllib.loads((ROOT / place_of(plan)).read_text(encoding="utf-8"))


def load_worlds(root: Path, plan: Plan = PLAN) -> Worlds | None:
    """Return what was measured; None where a run that an estimand needs is missing.

    Only what decides needs an interval: arms whose runs are the same have none.
    """
    data, rows = read_data(plan), read_json(root / plan.folder / FIGURES)
    sentences, controls = (make_sentences(data, kind) for kind in ("sentences", "controls"))
    deciding = {one.row for kind in (sentences, controls) for said in kind.values() for one in said}
    for name, one in make_estimands(data).items():
        is_whole = name in rows and rows[name]["runs"] == planned_seeds(one, plan)
        if not is_whole or (name in deciding and rows[name]["low"] is None):
            return None
    return Worlds(sentences, {}, TITLES[name_of(plan)], rows, data["worlds"], data["introduction"], controls)


def check_worlds(root: Path, plan: Plan = PLAN) -> Iterator[str]:
    """Yield everything that is not what the stored runs give, runs that nobody planned, and rules that were changed unsaid."""
    if not (root / plan.folder).is_dir():
        return
    evidence, data, place = load_evidence(root / plan.folder), read_data(plan), place_of(plan)
    commits = sorted({run.commit for run in evidence.runs})
    yield from check_digests(evidence, root, plan.folder)
    yield from check_runs(evidence, {}, plan)
    yield from compare(f"{plan.folder}/{FIGURES}", make_figures(evidence, make_estimands(data)), root, plan.folder)
    yield from check_protocol(Ledger((), {}), root, commits)
    said = (root / PROTOCOL).read_text(encoding="utf-8").partition(CHANGED)[2]
    for commit in commits if place not in said else ():
        if (before := shown(commit, place, root)) and tomllib.loads(before) != data:
            yield f"{place}: not what it was in {commit[:10]}, which made runs, and {PROTOCOL} does not say why"
