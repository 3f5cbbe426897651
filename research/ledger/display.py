"""The ledger on a terminal and as JSON."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from fairlen.methods.describe import suggest
from research.ledger.claims import VERDICTS, Claim, Ledger
from research.ledger.page import command_of

STYLES = {
    "proved": "green",
    "reproduced": "green",
    "refuted": "red",
    "not reproduced": "red",
    "out of reach": "dim",
    "open": "yellow",
}


def ledger_data(ledger: Ledger) -> dict[str, Any]:
    """Papers, claims with their verdicts and evidence, and the figures of the study, as JSON data."""
    papers = [
        {
            "name": paper.name,
            "title": paper.title,
            "verdicts": ledger.count(paper),
            "claims": [claim_data(claim, ledger) for claim in paper.claims],
        }
        for paper in ledger.papers
    ]
    figures = {
        figure.id: {"experiment": figure.experiment, "unit": figure.unit, "what": figure.what}
        for figure in ledger.figures
    }
    return {"papers": papers, "figures": figures}


def claim_data(claim: Claim, ledger: Ledger) -> dict[str, Any]:
    results = {c.figure: vars(ledger.results[c.figure]) for c in claim.decide if c.figure in ledger.results}
    return {
        "id": claim.id,
        "place": claim.place,
        "claim": claim.claim,
        "done": claim.done,
        "verdict": claim.judge(ledger.results),
        "figure": claim.figure,
        "results": results,
        "decide": [str(condition) for condition in claim.decide],
        "tests": list(claim.tests),
        "command": command_of(claim),
        "note": claim.note,
    }


def find_claim(ledger: Ledger, id: str) -> Claim:
    """A claim by its name. Raises ValueError naming the nearest one."""
    known = {claim.id: claim for claim in ledger.claims}
    if id not in known:
        near = f": {suggest(id, known)}" if get_close_matches(id, known, 1) else ""
        raise ValueError(f"there is no claim {id!r}{near} (`python -m research.ledger` lists all {len(known)})")
    return known[id]


def print_ledger(ledger: Ledger) -> None:
    """One row a claim, by paper, and how many there are of each verdict."""
    from rich.table import Table
    from rich.text import Text

    from fairlen.console import make_console

    console = make_console(160)
    for paper in ledger.papers:
        table = Table(title=paper.title, title_justify="left")
        for heading, keep in (("claim", True), ("verdict", True), ("place", False), ("what is claimed", False)):
            table.add_column(heading, no_wrap=keep)
        for claim in paper.claims:
            verdict = claim.judge(ledger.results)
            table.add_row(claim.id, Text(verdict, STYLES[verdict]), claim.place, claim.claim)
        console.print(table)
    verdicts = [claim.judge(ledger.results) for claim in ledger.claims]
    parts = [f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS if verdict in verdicts]
    console.print(f"{len(verdicts)} claims: {', '.join(parts)}")
