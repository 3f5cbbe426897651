"""docs/claims.md and docs/study/decisions.md, from the ledger alone."""

from __future__ import annotations

import textwrap

from research.ledger.claims import VERDICTS, Claim, Ledger, Line, Paper
from research.ledger.rule import explain, judge

WIDTH = 130

INTRODUCTION = """# Claims

What the four papers behind this library claim, what we did about each claim, and what came of it. Made from
`research/ledger/data/` by `python -m research.ledger --write`; do not edit. `python -m research.ledger --check` finds every test
that is named here and the digits of every figure in it, computes the study's figures again from its stored runs, and runs the
quick tests again. How numbers of the study decide is in [study/decisions.md](study/decisions.md), and was fixed before it was
run.

- **proved**: a test shows it, exactly or to rounding, under the conditions named.
- **refuted**: a test holds a counterexample to the statement as it is written, or as a note says that we read it; it says nothing
  about the paper's training runs.
- **reproduced**, **not reproduced**: at our scale, by five seeds on the playground; never a verdict on large models.
- **out of reach**: needs hardware or data that we do not have; the command that would settle it, which
  nobody has run (verl accepts its settings).
- **open**: the study has not been run, or could not measure it.

Advice on this page rests on proofs and counterexamples about gradients and, where a figure stands beside it, on the study's
runs of a model of 0.8M parameters on sums and cups."""

DECISIONS = """# Decisions

Which figures the study delivers, and how they decide the claims of [claims.md](../claims.md). Made from `research/ledger/data/`
by `python -m research.ledger --write`. Rules and the figures that decide were fixed before the study was run; figures marked
*added* came later, for the reasons that [protocol.md](protocol.md) gives, and decide nothing. A claim is *reproduced* if all of
its conditions hold, *not reproduced* if one fails; whether the interval excludes the claim or leaves it undecided is said beside.
A condition on `low` or `high` is on an end of the 95% interval, so that a claim needs more than the right sign. There is no
correction for many claims: of forty false ones that need one end of an interval about one will pass. Conditions on the
families of experiment 3 themselves (variation, gap) must hold in a pilot on another seed, or the families are not what they
should be."""


def claims_page(ledger: Ledger) -> str:
    """The page of claims."""
    parts = [INTRODUCTION, summary(ledger), counts(ledger)]
    parts += [paper_section(paper, ledger) for paper in ledger.papers]
    return "\n\n".join(parts) + "\n"


def summary(ledger: Ledger) -> str:
    """The reader's page: sentences whose evidence is there."""
    parts = ["## In one page"]
    for title, lines in ledger.summary.items():
        shown = [line for line in lines if judge(line.decide, ledger.results) == "reproduced"]
        if shown:
            parts.append(f"### {title}")
            parts.append("\n".join(bullet(line, ledger) for line in shown))
    waiting = [claim for claim in ledger.claims if claim.judge(ledger.results) == "open"]
    if waiting:
        reason = "could not be measured by the study" if ledger.results else "wait for the study"
        text = f"{len(waiting)} claims {reason}; sentences that rest on them are left out of this page."
        parts[-1] += "\n" + fill("- " + text)
    return "\n\n".join(parts)


def bullet(line: Line, ledger: Ledger) -> str:
    """A sentence, the figures that it rests on, and the claims that say more."""
    found = dict.fromkeys(condition.figure for condition in line.decide)
    figures = "; ".join(f"`{id}` {ledger.results[id]}" for id in found)
    links = ", ".join(f"[{id}](#{id})" for id in line.claims)
    evidence = ". ".join(part for part in (figures, links) if part)
    return fill(f"- {line.text}{f' ({evidence})' if evidence else ''}")


def fill(text: str, indent: str = "  ") -> str:
    """Lines of one width; code and links are never broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counts(ledger: Ledger) -> str:
    """Claims by paper and verdict."""
    rows = [["paper", *VERDICTS, "all"], ["---"] * (len(VERDICTS) + 2)]
    total = dict.fromkeys(VERDICTS, 0)
    for paper in ledger.papers:
        found = ledger.count(paper)
        total = {verdict: total[verdict] + found[verdict] for verdict in VERDICTS}
        rows.append([f"[{paper.title}](#{paper.name})", *map(str, found.values()), str(sum(found.values()))])
    rows.append(["all", *map(str, total.values()), str(sum(total.values()))])
    return "## Verdicts\n\n" + table(rows)


def table(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def paper_section(paper: Paper, ledger: Ledger) -> str:
    head = f'<a id="{paper.name}"></a>\n\n## {paper.title}\n\n{fill(paper.source, "")}'
    return "\n\n".join([head, *(claim_block(claim, ledger) for claim in paper.claims)])


def claim_block(claim: Claim, ledger: Ledger) -> str:
    """One claim, with what links lead to."""
    return f'<a id="{claim.id}"></a>\n\n{write_claim(claim, ledger)}'


def write_claim(claim: Claim, ledger: Ledger) -> str:
    """Place, claim, what we did, the figure, the evidence and the command of one claim."""
    verdict = claim.judge(ledger.results)
    lines = [f"### {claim.id}: {verdict}", fill(f"*{claim.place}.* {claim.claim}", "")]
    points = [f"- What we did: {claim.done}"]
    if claim.figure:
        points.append(f"- Figure: {claim.figure}")
    points += figure_points(claim, ledger, verdict)
    if claim.note:
        points.append(f"- Note: {claim.note}")
    lines.append("\n".join(fill(point) for point in points))
    lines.append(f"```bash\n{command_of(claim)}\n```")
    return "\n\n".join(lines)


def figure_points(claim: Claim, ledger: Ledger, verdict: str) -> list[str]:
    """The study's figures of a claim, or which it waits for."""
    if not claim.decide:
        return []
    rule = " and ".join(f"`{condition}`" for condition in claim.decide)
    if verdict == "open":
        return [f"- Decided by: {rule}"]
    found = dict.fromkeys(condition.figure for condition in claim.decide)
    meaning = {figure.id: figure.what for figure in ledger.figures}
    points = [
        f"- Figure: {ledger.results[id]}, {ledger.results[id].seeds} seeds: {meaning[id]} (`{id}`)" for id in found
    ]
    why = explain(claim.decide, ledger.results)
    return [*points, f"- Decided by: {rule}{f'; {why}' if why else ''}"]


def command_of(claim: Claim) -> str:
    """What makes the evidence again."""
    if claim.command:
        return claim.command.strip()
    if claim.decide:
        return "make study"
    return "pytest " + " \\\n  ".join(f"'{test}'" if "[" in test else test for test in claim.tests)


def decisions_page(ledger: Ledger) -> str:
    """The contract of the study: the rule of every claim that rests on it, and the definition of every figure."""
    rows = [["claim", "what is claimed", "reproduced if"], ["---"] * 3]
    for claim in ledger.claims:
        if claim.decide:
            rule = " and ".join(f"`{condition}`" for condition in claim.decide)
            rows.append([f"[{claim.id}](../claims.md#{claim.id})", claim.claim, rule])
    parts = [
        DECISIONS,
        "## Rules\n\n" + table(rows),
        "## Words\n\n" + "\n".join(fill(f"- {text}") for text in ledger.words),
    ]
    used = {condition.figure for claim in ledger.claims for condition in claim.decide}
    for number, title in ledger.experiments.items():
        rows = [["figure", "unit", "decides", "definition"], ["---"] * 4]
        for figure in ledger.figures:
            if figure.experiment == number:
                rows.append(
                    [
                        f"`{figure.id}`",
                        figure.unit,
                        "yes" if figure.id in used else "added" if figure.added else "no",
                        figure.what,
                    ]
                )
        parts.append(f"## Experiment {number}\n\n{fill(title, '')}\n\n{table(rows)}")
    return "\n\n".join(parts) + "\n"
