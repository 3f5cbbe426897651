"""The page of the study: what practitioners ask, each with the verdict, pictures, numbers and a link to the claim."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from fairlen.diagnostics.report.figure import Figure, Section, Table, plain, share
from fairlen.diagnostics.report.page import render_page
from fairlen.files.folders import write_file
from research.ledger.claims import STATUSES, Claim, Ledger
from research.ledger.page import effect, number
from research.study.evidence import Evidence, RunTables
from research.study.pictures import KINDS, TONES, Picture
from research.study.plan import Plan
from research.study.search import final_accuracy, search_table

QUESTIONS = Path(__file__).parent / "questions.toml"
FILE = "index.html"
CLAIMS = "../claims.md"
WRITTEN = {"proved": "By proof", "refuted": "By counterexample", "out of reach": "Not tried here"}
"""In place of a number, for verdicts that are written down."""
MAX_TRUNCATED = 0.25
"""Of held-out responses at the end, above which lengths say more about the limit than about the method."""
LEAD = Markup("<b>{status}.</b> {paper}: {claim} {reason}{others}")
CLAIM = Markup('<dt>{number}</dt><dd>{claim}</dd><dd><b>{status}</b>{reason} · <a href="{page}#{id}">{id}</a></dd>')


@dataclass(frozen=True)
class Question:
    """What practitioners ask, and what answers it."""

    ask: str
    claims: tuple[str, ...]
    """The first gives the verdict; the others stand beside it."""
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
    if entry["picture"] not in KINDS:
        raise ValueError(f"{at}: picture={entry['picture']!r}: give one of {', '.join(KINDS)}")
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
    runs = [run for run in evidence.runs if run.role == "study"] if evidence else []
    sections = [answer(place, question, evidence, ledger) for place, question in enumerate(read_questions(), 1)]
    sections += [search_section(evidence), mistakes_section(evidence, ledger), runs_section(evidence)]
    statuses = Counter(finding.status for finding in ledger.findings.values())
    measured = sum(claim.measure is not None for claim in ledger.claims)
    facts = [
        ("runs", f"{len(runs):,}", f"of {sum(len(Plan().seeds(v)) for v in Plan().variants):,} planned, searches apart"),
        *((status, str(statuses[status]), f"of {measured} measured claims") for status in STATUSES[2:6]),
        ("proved or refuted", str(statuses["proved"] + statuses["refuted"]), f"of {len(ledger.claims)} claims"),
    ]
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
    """Return the status of the first claim in words, and how the others came out."""
    first, found = claims[0], ledger.findings
    paper = next(paper.title for paper in ledger.papers if first in paper.claims)
    others = Counter(found[claim.id].status for claim in claims[1:])
    beside = ", ".join(f"{count} {status}" for status, count in others.items())
    return LEAD.format(
        status=found[first.id].status.capitalize(), paper=paper, claim=first.claim.replace("`", ""),
        reason=sentence(found[first.id].reason), others=f" Besides: {beside}." if beside else "",
    )  # fmt: skip


def sentence(reason: str) -> str:
    """Return a reason as a sentence of its own."""
    return f"{reason[0].upper()}{reason[1:]}.".replace("`", "") if reason else ""


def numbers(claims: Sequence[Claim], ledger: Ledger) -> Figure:
    """Return the number of every claim, its status, and the link to it."""
    rows = Markup("").join(numbered(claim, ledger) for claim in claims)
    says = "Means over seeds with 95% intervals, decided by signs and sizes that were written down before the first run."
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
            chosen = [(rate, factor) == (one.get("rate"), one.get("factor")) for rate in rates]
            cells = [share(scores.get((rate, factor), np.nan)) for rate in rates]
            marked = [f"{cell} chosen" if is_chosen else cell for cell, is_chosen in zip(cells, chosen, strict=True)]
            rows.append((name, f"x{factor:.3g}", *marked))
    head = ("variant", "width", *(f"rate {rate:g}" for rate in rates))
    lead = "Every variant has its own search, on other seeds and other held-out problems than those that it is judged by."
    says = "Mean held-out accuracy at the end. Width: times the published one. A grid was widened until the best was inside."
    shown = Figure("Accuracy by learning rate and width", says, None, Table(head, rows)) if rows else None
    return Section("search", "Search", lead, [shown or Figure("No search yet", "No run of a search is stored.")])


def mistakes_section(evidence: Evidence | None, ledger: Ledger) -> Section:
    """Return what would be our own mistake, and what became of each."""
    controls = [claim for paper in ledger.papers if paper.name == "controls" for claim in paper.claims]
    rows = [(claim.claim.replace("`", ""), f"{ledger.findings[claim.id].status}: {number(claim.measure, ledger)}")
            for claim in controls if claim.measure]  # fmt: skip
    for what, found in find_mistakes(evidence) if evidence else ():
        rows.append((what, ", ".join(found) if found else "none"))
    lead = "What has to be explained before any number above is believed."
    table = Table(("sign of a mistake, or control", "found"), rows)
    return Section("mistakes", "What would be our own mistake", lead, [Figure("Checks", "Of all stored runs.", None, table)])


def find_mistakes(evidence: Evidence) -> Iterator[tuple[str, list[str]]]:
    """Yield each sign of a mistake with the variants that show it."""
    tables = search_table(evidence)
    study = [evidence.run_tables(i) for i, run in enumerate(evidence.runs) if run.role == "study"]
    yield "A stored number that is not what the run wrote", list(evidence.altered())
    yield "A search whose best lies at the edge of the widest grid", [name for name, one in tables.items() if one["edges"]]
    chosen = {name: (one.get("rate"), one.get("factor")) for name, one in tables.items()}
    yield "A run at other settings than its search chose", variants_of(
        run for run in study if not run.run.label
        and chosen.get(name_of(run), (run.run.rate, run.run.factor)) != (run.run.rate, run.run.factor)
    )  # fmt: skip
    yield "A skipped update", variants_of(run for run in study if run.updates["skipped"].any())
    yield "A sequence outside the band in an on-policy update", variants_of(run for run in study if refuses_on_policy(run))
    yield "Another model before training than others of its world", variants_of(other_starts(study))
    yield f"More than {share(MAX_TRUNCATED)} of held-out responses truncated at the end", variants_of(
        run for run in study if truncated(run) > MAX_TRUNCATED
    )
    yield "A rollout batch without a pair that trains", variants_of(
        run for run in study if (run.batches["pairs_trained"] == 0).any()
    )


def variants_of(runs: Any) -> list[str]:
    """Return the names of the variants of some runs, with how many there are of each."""
    return [f"{name} ({count})" for name, count in Counter(map(name_of, runs)).items()]


def name_of(run: RunTables) -> str:
    """Return world, variant and label, as the plan names them."""
    return " ".join(filter(None, (run.run.world, run.run.variant, run.run.label)))


def refuses_on_policy(run: RunTables) -> bool:
    return bool((run.sequences["inside"][~run.sequences["off_policy"]] < 1).any())


def other_starts(runs: Sequence[RunTables]) -> Iterator[RunTables]:
    """Yield runs whose first evaluation is not that of the first run of their world."""
    first: dict[str, list[int]] = {}
    for run in runs:
        start = run.evaluations["update"] == run.evaluations["update"].min(initial=0)
        right = run.evaluations["right"][start].tolist()
        if first.setdefault(run.run.world, right) != right:
            yield run


def truncated(run: RunTables) -> float:
    """Return the share of held-out responses that were truncated at the end."""
    last = run.evaluations["update"] == run.evaluations["update"].max(initial=0)
    return float(run.evaluations["truncated"][last].sum() / max(run.evaluations["samples"][last].sum(), 1))


def runs_section(evidence: Evidence | None) -> Section:
    """Return how many runs of every variant there are, and which are missing."""
    rows = []
    for variant in Plan().variants:
        runs = evidence.find(variant.world, variant.text, variant.label) if evidence else {}
        ends = [final_accuracy(run) for run in runs.values()]
        missing = [str(seed) for seed in Plan().seeds(variant) if seed not in runs]
        rate = plain(next(iter(runs.values())).run.rate) if runs else "-"
        rows.append((variant.name, ", ".join(missing) or "none", str(len(runs)), rate, share(np.mean(ends)) if ends else "-"))
    num = sum(row[1] != "none" for row in rows)
    lead = f"{num} of {len(rows)} variants lack runs; every claim says how many seeds it rests on." if num else "None is missing."
    table = Table(("variant", "seeds that are missing", "runs", "rate", "accuracy at the end"), rows)
    return Section("runs", "Runs, and which are missing", lead, [Figure("Runs of every variant", "", None, table)])
