"""docs/study/claims.html: all about every claim, with a search; one file that asks for nothing, in the style of the reports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fairlen.report import page as report
from research.ledger.claims import DATA, Claim, Ledger
from research.ledger.page import command_of, number, points, reason_of
from research.ledger.rule import HOLM

HERE = Path(__file__).parent
INLINE = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\[([^\]]+)\]\(([^)\s]+)\)|\b([a-z]+-\d\d)\b")
"""Code, bold text, a link, and what may be the id of a claim."""


def details_page(ledger: Ledger) -> str:
    """Return the page."""
    style = (report.HERE / "style.css").read_text(encoding="utf-8") + (HERE / "details.css").read_text(encoding="utf-8")
    script, ids = (HERE / "details.js").read_text(encoding="utf-8"), {claim.id for claim in ledger.claims}
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["inline"] = lambda text: inline(text, ids)
    counts = {status: number for status, number in ledger.count(ledger.claims).items() if number}
    papers = [
        (paper.name, paper.title, paper.source, [details(claim, ledger) for claim in paper.claims])
        for paper in ledger.papers
    ]
    return environment.get_template("details.html.j2").render(
        style=Markup(style), script=Markup(script), policy=report.policy(style, script), counts=counts, papers=papers,
        meanings=tomllib.loads((DATA / "verdicts.toml").read_text(encoding="utf-8")), total=len(ledger.claims),
    )  # fmt: skip


def details(claim: Claim, ledger: Ledger) -> dict[str, Any]:
    """Return what the page shows of a claim."""
    return {
        "id": claim.id,
        "status": ledger.findings[claim.id].status,
        "reason": reason_of(claim, ledger),
        "place": claim.place,
        "claim": claim.claim,
        "number": number(claim.measure, ledger) if claim.measure and claim.measure.estimand in ledger.results else "",
        "is_marked": HOLM in ledger.findings[claim.id].reason,
        "points": list(points(claim, ledger)),
        "command": command_of(claim, ledger),
    }


def inline(text: str, ids: set[str]) -> Markup:
    """Return Markdown within a line as HTML, all else escaped; links lead from docs/study, ids to their claims."""

    def show(found: re.Match[str]) -> str:
        code, bold, words, target, id = found.groups()
        if code or bold:
            return f"<code>{code}</code>" if code else f"<b>{bold}</b>"
        if words:
            return f'<a href="{target if "://" in target else f"../{target}"}">{words}</a>'
        return f'<a href="#{id}">{id}</a>' if id in ids else id

    return Markup(INLINE.sub(show, str(escape(text))))
