"""The page of the study: what practitioners ask, each with the verdict, pictures, numbers and a link to the claim."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fairlen.files.folders import write_file
from fairlen.report.figure import Figure, Section, Table, plain, share
from fairlen.report.page import render_page
from research.ledger.claims import GIVEN, STATUSES, Claim, Ledger
from research.ledger.page import effect, number
from research.study.evidence import Evidence
from research.study.mistakes import find_mistakes
from research.study.pictures import DRAWN, TONES, Picture
from research.study.plan import Plan
from research.study.search import final_accuracy, search_table

QUESTIONS = Path(__file__).parent / "questions.toml"
FILE = "index.html"
CLAIMS = "claims.html"
MEASURED = [status for status in STATUSES if status not in GIVEN]
WRITTEN = {"proved": "By proof", "refuted": "By counterexample", "out of reach": "Not tried here"}
"""In place of a number, for verdicts that are written down."""
LOOKED_FOR = (
    "Looked for in every run: an on-policy update that clips, or that has a loss where the aggregation balances signs; updates "
    "skipped; batches that lack prompts, or pairs that train; responses truncated at the end; another model before training; "
    "the corrected bound exceeded; and searches whose best is at the edge of the widest grid. The protocol explains what came up."
)
NOTHING = Figure("No run yet", "Nothing is stored.")
VERDICT = Markup("<b>{status}.</b> {paper} claims: {claim} {reason}")
CLAIM = Markup('<dt>{number}</dt><dd>{claim}</dd><dd><b>{status}</b>{reason} · <a href="{page}#{id}">{id}</a></dd>')


@dataclass(frozen=True)
class Question:
    """What practitioners ask, and what answers it."""

    ask: str
    claims: tuple[str, ...]
    """The papers' headlines give the verdict, or else the first; the others stand beside it."""
    picture: Picture


def read_questions(path: Path = QUESTIONS) -> list[Question]:
    """Return the questions in the order of the page. Raises ValueError for a field or a picture that does not exist."""
    return [make_question(entry) for entry in tomllib.loads(path.read_text(encoding="utf-8"))["question"]]


def make_question(entry: Mapping[str, Any]) -> Question:
    """Return one question of questions.toml."""
    at = f"questions.toml, {entry.get('ask', 'a question without ask')!r}"
    for key in ("ask", "claims", "picture", "variants"):
        if not entry.get(key):
            raise ValueError(f"{at}: {key} is missing or empty")
    if unknown := sorted(set(entry) - {"ask", "claims", "picture", "variants", "world", "replayed"}):
        raise ValueError(f"{at}: unknown key {unknown[0]!r}; there are ask, claims, picture, variants, world, replayed")
    if entry["picture"] not in DRAWN:
        raise ValueError(f"{at}: picture={entry['picture']!r}: give one of {', '.join(DRAWN)}")
    if len(entry["variants"]) > len(TONES):
        raise ValueError(f"{at}: {len(entry['variants'])} variants: a picture has {len(TONES)} colours; leave some out")
    picture = Picture(entry["picture"], entry.get("world", "long"), entry["variants"], entry.get("replayed", ""))
    return Question(entry["ask"], tuple(entry["claims"]), picture)


def write_page(folder: Path, evidence: Evidence | None, ledger: Ledger) -> Path:
    """Write the page into a folder and return its path."""
    write_file(folder / FILE, study_page(evidence, ledger))
    return folder / FILE


def study_page(evidence: Evidence | None, ledger: Ledger) -> str:
    """Return the page; without evidence every measured claim is open and no picture is drawn."""
    sections = [answer(place, question, evidence, ledger) for place, question in enumerate(read_questions(), 1)]
    sections += [search_section(evidence), mistakes_section(evidence, ledger), runs_section(evidence)]
    statuses = Counter(finding.status for finding in ledger.findings.values())
    measured = f"of {sum(claim.measure is not None for claim in ledger.claims)} claims to measure"
    runs = sum(run.role == "study" for run in evidence.runs) if evidence else 0
    planned = f"of {sum(len(Plan().seeds(variant)) for variant in Plan().variants):,} planned, searches apart"
    facts = [("runs", f"{runs:,}", planned)]
    facts += [(name, str(statuses[name]), measured) for name in MEASURED if statuses[name]]
    facts += [("proved or refuted", str(statuses["proved"] + statuses["refuted"]), f"of {len(ledger.claims)} claims")]
    return render_page({"name": "What the study answers", "folder": "docs/study", "kind": "study"}, facts, sections)


def answer(place: int, question: Question, evidence: Evidence | None, ledger: Ledger) -> Section:
    """Return a question with its verdict, pictures, numbers and links."""
    known = {claim.id: claim for claim in ledger.claims}
    if missing := [id for id in question.claims if id not in known]:
        raise ValueError(f"questions.toml, {question.ask!r}: there is no claim {missing[0]}")
    figures = question.picture.draw(evidence) if evidence else []
    if not figures:
        waits = ", ".join(question.picture.variants)
        figures = [Figure("No picture yet", f"It needs runs of {waits} in the world {question.picture.world}.")]
    claims = [known[id] for id in question.claims]
    return Section(f"question-{place}", question.ask, verdict(claims, ledger), [*figures, numbers(claims, ledger)])  # type: ignore[arg-type]


def verdict(claims: Sequence[Claim], ledger: Ledger) -> Markup:
    """Return what became of the papers' headlines, or else of the first claim, in words, and how the others came out."""
    heads = [claim for claim in claims if claim.primary] or claims[:1]
    papers = {claim.id: paper.title for paper in ledger.papers for claim in paper.claims}
    found = [
        VERDICT.format(
            status=ledger.findings[claim.id].status.capitalize(), paper=papers[claim.id], claim=claim.claim.replace("`", ""),
            reason=sentence(ledger.findings[claim.id].reason),
        )
        for claim in heads
    ]  # fmt: skip
    others = Counter(ledger.findings[claim.id].status for claim in claims if claim not in heads)
    beside = ", ".join(f"{count} {status}" for status, count in others.items())
    return Markup("<br>").join([*found, *([f"Beside it: {beside}."] if beside else [])])


def sentence(reason: str) -> str:
    """Return a reason as a sentence of its own."""
    return f"{reason[0].upper()}{reason[1:]}.".replace("`", "") if reason else ""


def numbers(claims: Sequence[Claim], ledger: Ledger) -> Figure:
    """Return the number of every claim, its status, and the link to it."""
    rows = Markup("").join(numbered(claim, ledger) for claim in claims)
    says = (
        "Means over seeds with 95% intervals, decided by signs and sizes that were written down before the first run."
    )
    return Figure("The numbers", says, Markup('<dl class="defined">{}</dl>').format(rows))


def numbered(claim: Claim, ledger: Ledger) -> Markup:
    """Return one claim with its number."""
    status = ledger.findings[claim.id].status
    if claim.measure:
        unit = ledger.estimands[claim.measure.estimand].unit
        text = number(claim.measure, ledger)
        reason = f"; predicted is {effect(claim.measure)}, the smallest of interest {claim.measure.smallest:g} {unit}"
    else:
        text, reason = WRITTEN.get(status, status), f": {claim.figure or claim.done}".replace("`", "")
    return CLAIM.format(
        number=text, claim=claim.claim.replace("`", ""), status=status, reason=reason.rstrip("."), page=CLAIMS, id=claim.id
    )  # fmt: skip


def search_section(evidence: Evidence | None) -> Section:
    """Return what every search tried, and what it chose."""
    tables = search_table(evidence) if evidence else {}
    rates = sorted({row[0] for one in tables.values() for row in one["tried"]})
    rows = []
    for name, one in tables.items():
        scores = {(rate, factor): score for rate, factor, score, _ in one["tried"]}
        for factor in sorted({factor for _, factor in scores}):
            places = [(rate, factor) for rate in rates]
            marks = [" chosen" if place == (one.get("rate"), one.get("factor")) else "" for place in places]
            cells = [share(scores.get(place, np.nan)) + mark for place, mark in zip(places, marks, strict=True)]
            rows.append((name, f"x{factor:.3g}", *cells))
    lead = (
        "Every variant has its own search, on other seeds and other held-out problems than those that it is judged by."
    )
    says = "Mean held-out accuracy at the end. Width: times the published one. A grid was widened until the best was inside."
    table = Table(("variant", "width", *(f"rate {rate:g}" for rate in rates)), rows)
    shown = Figure("Accuracy by learning rate and width", says, None, table) if rows else NOTHING
    return Section("search", "Search", lead, [shown])


def mistakes_section(evidence: Evidence | None, ledger: Ledger) -> Section:
    """Return the controls and what would be our own mistake, with what became of each."""
    controls = [claim for paper in ledger.papers if paper.name == "controls" for claim in paper.claims]
    rows = [(claim.claim, status_and_number(claim, ledger)) for claim in controls]
    found = list(find_mistakes(evidence)) if evidence else []
    title = (
        f"{len(found)} findings to explain" if found else "No sign of a mistake" if evidence else "Nothing to check yet"
    )
    figures = [Figure(title, LOOKED_FOR, None, Table(("where", "what"), found))]
    if rows:
        says = "A method against itself must show nothing, and a planted effect must be found."
        figures.append(Figure("Controls", says, None, Table(("control", "came out"), rows)))
    return Section(
        "mistakes", "What would be our own mistake", "What has to be explained before a number is believed.", figures
    )


def status_and_number(claim: Claim, ledger: Ledger) -> str:
    """Return "reproduced, 2.1 points [0.9, 3.3], 8 seeds"."""
    numbers = [number(claim.measure, ledger)] if claim.measure else []
    return ", ".join([ledger.findings[claim.id].status, *numbers])


def runs_section(evidence: Evidence | None) -> Section:
    """Return how many runs of every variant there are, and which are missing."""
    plan, rows = Plan(), []
    for variant in plan.variants:
        runs = evidence.find(variant.world, variant.text, variant.label) if evidence else {}
        missing = spans([seed for seed in plan.seeds(variant) if seed not in runs])
        ends = [final_accuracy(run) for run in runs.values() if len(run.evaluations["update"])]
        rate = plain(next(iter(runs.values())).run.rate) if runs else "-"
        rows.append(
            (variant.name, missing or "none", str(len(runs)), rate, share(float(np.mean(ends))) if ends else "-")
        )
    num = sum(row[1] != "none" for row in rows)
    lead = (
        f"{num} of {len(rows)} variants lack runs; every number says how many seeds it rests on."
        if num
        else "None is missing."
    )
    table = Table(("variant", "seeds that are missing", "runs", "rate", "accuracy at the end"), rows)
    return Section("runs", "Runs, and which are missing", lead, [Figure("Runs of every variant", "", None, table)])


def spans(seeds: Sequence[int]) -> str:
    """Return [1, 2, 3, 7] as "1 to 3, 7"."""
    parts = np.split(np.array(seeds, int), np.flatnonzero(np.diff(seeds) > 1) + 1) if seeds else []
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
