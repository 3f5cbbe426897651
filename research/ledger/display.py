"""The ledger on a terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from research.ledger.claims import Claim, Ledger
from research.ledger.page import command_of

STYLES = dict(proved="green", reproduced="green", refuted="red", contradicted="red", undecided="yellow", open="yellow")


def ledger_data(ledger: Ledger) -> dict[str, Any]:
    """Return papers and claims with their statuses and evidence, and all estimands, as JSON data."""
    papers = [
        {"name": one.name, "title": one.title, "statuses": ledger.count(one.claims),
         "claims": [claim_data(claim, ledger) for claim in one.claims]}
        for one in ledger.papers
    ]  # fmt: skip
    return {"papers": papers, "estimands": {id: asdict(estimand) for id, estimand in ledger.estimands.items()}}


def claim_data(claim: Claim, ledger: Ledger) -> dict[str, Any]:
    """Return one claim as JSON data: what is written down, what became of it, and its figures."""
    figures = {id: asdict(ledger.results[id]) for id in claim.estimands if id in ledger.results}
    return (
        asdict(claim) | asdict(ledger.findings[claim.id]) | {"results": figures, "command": command_of(claim, ledger)}
    )


def print_ledger(ledger: Ledger) -> None:
    """Print one row a claim, by paper, and how many there are of each status."""
    from rich.table import Table
    from rich.text import Text

    from fairlen.console import make_console

    console = make_console(160)
    for paper in ledger.papers:
        table = Table(title=paper.title, title_justify="left")
        for heading, keep in (("claim", True), ("status", True), ("place", False), ("what is claimed", False)):
            table.add_column(heading, no_wrap=keep)
        for claim in paper.claims:
            status = ledger.findings[claim.id].status
            table.add_row(claim.id, Text(status, STYLES.get(status, "dim")), claim.place, claim.claim)
        console.print(table)
    parts = [f"{number} {status}" for status, number in ledger.count(ledger.claims).items() if number]
    console.print(f"{len(ledger.claims)} claims: {', '.join(parts)}")
