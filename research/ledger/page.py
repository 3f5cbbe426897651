"""docs/claims.md, one line a claim, and one claim in full as Markdown, from the ledger alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from research.ledger.claims import DATA, STATUSES, Claim, Ledger, Line, Paper
from research.ledger.rule import Measure, show

WIDTH = 130
DETAILS = "study/claims.html"
"""From docs/claims.md."""


def claims_page(ledger: Ledger) -> str:
    """Return the page of claims."""
    parts = [(DATA / "introduction.md").read_text(encoding="utf-8").rstrip(), summary(ledger), counts(ledger)]
    parts += [paper_section(paper, ledger) for paper in ledger.papers]
    return "\n\n".join(parts) + "\n"


def summary(ledger: Ledger) -> str:
    """Return the reader's page: sentences whose evidence is there."""
    parts = ["## In one page"]
    for title, lines in ledger.summary.items():
        if shown := [bullet(line, ledger) for line in lines if ledger.shows(line)]:
            parts += [f"### {title}", "\n".join(shown)]
    if waiting := sum(finding.status == "open" for finding in ledger.findings.values()):
        parts.append(f"{waiting} claims are open; sentences that rest on them are left out of this page.")
    return "\n\n".join(parts)


def bullet(line: Line, ledger: Ledger) -> str:
    """Return a sentence with the claims that it rests on, and their numbers."""
    measures = {id: claim.measure for id in (*line.claims, *line.needs) if (claim := ledger.claim(id))}
    links = [f"[{id}](#{id}){f' {number(m, ledger)}' if m else ''}" for id, m in measures.items()]
    return fill(f"- {line.text} ({'; '.join(links)})")


def fill(text: str, indent: str = "  ") -> str:
    """Return lines of one width; code and links are never broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counts(ledger: Ledger) -> str:
    """Return the table of claims by paper and status."""
    total = ledger.count(ledger.claims)
    named = {f"[{paper.title}](#{paper.name})": ledger.count(paper.claims) for paper in ledger.papers} | {"all": total}
    rows = [["paper", *STATUSES, "all"], ["---"] * (len(STATUSES) + 2)]
    rows += [[name, *map(str, found.values()), str(sum(found.values()))] for name, found in named.items()]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    decided, hang = len(ledger.fragile), sum(map(bool, ledger.fragile.values()))
    excluded = sum(is_excluded(claim, ledger) for claim in ledger.claims)
    text = (
        f"{hang} of {decided} claims that are reproduced or contradicted would be neither if one seed were left out, which their "
        f"details name. {excluded} of {total['undecided']} that are undecided exclude the predicted effect, and do not show "
        "its opposite at that size."
    )
    return f"## Verdicts\n\n{table}\n\n{fill(text, '')}"


def is_excluded(claim: Claim, ledger: Ledger) -> bool:
    """Whether a claim is undecided though the effect that it predicts lies outside the interval."""
    if not claim.measure or ledger.findings[claim.id].status != "undecided" or claim.measure.predicted == "none":
        return False
    return claim.measure.toward(ledger.results[claim.measure.estimand])[2] < claim.measure.smallest


def paper_section(paper: Paper, ledger: Ledger) -> str:
    """Return a paper's heading, its source, and a line for each claim."""
    head = f'<a id="{paper.name}"></a>\n\n## {paper.title}\n\n{fill(paper.source, "")}'
    return "\n\n".join([head, "\n".join(claim_line(claim, ledger) for claim in paper.claims)])


def claim_line(claim: Claim, ledger: Ledger) -> str:
    """Return a claim's anchor, the link to all about it, its status, its number, and what it says."""
    found = number(claim.measure, ledger) if claim.measure and claim.measure.estimand in ledger.results else ""
    status = f"**{ledger.findings[claim.id].status}**{found and f', {found}'}"
    return f'- <a id="{claim.id}"></a>[{claim.id}]({DETAILS}#{claim.id}) {status}: {claim.claim}'


def write_claim(claim: Claim, ledger: Ledger) -> str:
    """Return one claim in full: status, claim, what was done, number, smallest effect, premise, evidence."""
    lines = [f"### {claim.id}: {ledger.findings[claim.id].status}"]
    if reason := reason_of(claim, ledger):
        lines.append(fill(reason, ""))
    lines.append(fill(f"*{claim.place}.* {claim.claim}", ""))
    lines.append("\n".join(fill(f"- {name}: {text}") for name, text in points(claim, ledger)))
    lines.append(f"```bash\n{command_of(claim, ledger)}\n```")
    return "\n\n".join(lines)


def reason_of(claim: Claim, ledger: Ledger) -> str:
    """Return why a claim has its status as a sentence; empty where the status says all."""
    reason = ledger.findings[claim.id].reason
    return f"{reason[0].upper()}{reason[1:]}." if reason else ""


def points(claim: Claim, ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of everything about a claim but its command."""
    yield "What we did", claim.done
    yield from measured(claim, ledger)
    if claim.figure:
        yield "Figure", claim.figure
    if claim.arithmetic:
        yield "Arithmetic of the paper's numbers", "; ".join(f"`{line}`" for line in claim.arithmetic)
    for id in claim.also:
        yield "Beside it", f"{ledger.estimands[id].what}: {figure(id, ledger)}"
    if claim.note:
        yield "Note", claim.note


def measured(claim: Claim, ledger: Ledger) -> Iterator[tuple[str, str]]:
    """Yield what was measured, its number, the smallest effect and the premise."""
    if not claim.measure:
        return
    measure, estimand = claim.measure, ledger.estimands[claim.measure.estimand]
    yield "Measured", f"{estimand.what} (`{measure.estimand}`{', primary' if claim.primary else ''})"
    yield "Number", number(measure, ledger)
    if seeds := ledger.fragile.get(claim.id):
        yield "Hangs on one seed", f"without {spell(seeds)} the status would be another"
    size = f"{show(measure.smallest)} {estimand.unit}".rstrip()
    yield "Predicted", f"{effect(measure)}; smallest effect of interest: {size}, {measure.why}"
    for premise in claim.premise:
        what = ledger.estimands[premise.estimand].what
        yield "Premise", f"{what} is {premise}: {figure(premise.estimand, ledger)}"


def spell(seeds: Sequence[int]) -> str:
    """Return "seed 3" or "any one of seeds 3, 5 and 7"."""
    *others, last = map(str, seeds)
    return f"any one of seeds {', '.join(others)} and {last}" if others else f"seed {last}"


def effect(measure: Measure) -> str:
    """Return the prediction in words."""
    named = {"none": "no effect", "silent": "an interval that holds 0"}
    return named.get(measure.predicted, f"a {measure.predicted} effect")


def number(measure: Measure, ledger: Ledger) -> str:
    """Return the figure that decides."""
    return figure(measure.estimand, ledger)


def figure(id: str, ledger: Ledger) -> str:
    """Return a figure with its interval and seeds."""
    result = ledger.results.get(id)
    if result is None:
        return "no run yet"
    unit = f" {result.unit}" if result.unit else ""
    interval = f" [{show(result.low)}, {show(result.high)}]" if result.has_interval else ""
    return f"{show(result.value)}{unit}{interval}, {result.seeds} seeds"


def command_of(claim: Claim, ledger: Ledger) -> str:
    """Return what makes the evidence again."""
    if claim.command:
        return claim.command.strip()
    if claim.arithmetic and not (claim.tests or claim.measure):
        return "python -m research.ledger --check  # computes the arithmetic"
    tests = [f"'{test}'" if "[" in test else test for test in claim.tests]
    lines = ["pytest " + " \\\n  ".join(tests)] if tests else []
    if claim.measure:
        estimand = ledger.estimands[claim.measure.estimand]
        variants = " ".join(dict.fromkeys(estimand.variants))
        lines.append(f"python -m research.study figure {claim.measure.estimand}")
        lines.append(f"python -m research.study run --only {variants} --world {estimand.world}  # to run it")
    return "\n".join(lines)
