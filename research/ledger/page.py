"""docs/claims.md, from the ledger alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from research.ledger.claims import STATUSES, Claim, Ledger, Line, Paper
from research.ledger.rule import Measure, show

WIDTH = 130

INTRODUCTION = """# Claims

What the four papers behind this library claim, what we did about each claim, and what came of it. Made from
`research/ledger/data/` and [study/figures.json](study/figures.json) by `python -m research.ledger --write`; do not edit.
`python -m research.ledger --check` finds every test that is named here and the digits of every figure in it, computes every
figure of the study again from its stored runs in `docs/study/evidence`, and runs the quick tests again.

- **proved**: a test shows it, exactly or to rounding, under the conditions named.
- **refuted**: a test holds a counterexample to the statement as it is written, or as a note says that we read it; it says nothing
  about the paper's training runs.
- **reproduced**: in our runs the 95% interval excludes 0 on the predicted side and the estimate is at least the smallest effect
  of interest; a primary claim of a paper also needs p < 0.05 after Holm's correction over all of them. Where no effect is
  predicted: the whole interval is closer to 0 than the smallest effect.
- **contradicted**: the whole interval is beyond the smallest effect on the other side; where no effect is predicted, on one side.
- **undecided**: neither; beside it stands the effect that as many seeds would have seen in four of five studies.
- **not testable here**: in our runs the premise of the claim does not hold; beside it stands the number that shows it.
- **out of reach**: needs hardware or data that we do not have; beside it stands the command that would settle it, which nobody
  has run.
- **open**: no run yet, fewer than three seeds, or no spread between them.

Predicted signs, smallest effects and premises were written down before the first run; every later change is dated in
[study/protocol.md](study/protocol.md), and the check compares them with the commit that made the runs. What is measured is a
mean over seeds, paired by seed where variants are compared, with a t interval. It is about small models that add and subtract,
and never a verdict on large ones."""


def claims_page(ledger: Ledger) -> str:
    """Return the page of claims."""
    parts = [INTRODUCTION, summary(ledger), counts(ledger)]
    parts += [paper_section(paper, ledger) for paper in ledger.papers]
    return "\n\n".join(parts) + "\n"


def summary(ledger: Ledger) -> str:
    """Return the reader's page: sentences whose evidence is there."""
    parts = ["## In one page"]
    for title, lines in ledger.summary.items():
        if shown := [line for line in lines if is_shown(line, ledger)]:
            parts.append(f"### {title}")
            parts.append("\n".join(bullet(line, ledger) for line in shown))
    if waiting := sum(finding.status == "open" for finding in ledger.findings.values()):
        parts.append(f"{waiting} claims are open; sentences that rest on them are left out of this page.")
    return "\n\n".join(parts)


def is_shown(line: Line, ledger: Ledger) -> bool:
    """Whether every claim that a sentence needs has one of the statuses that it needs."""
    return all(ledger.findings[id].status in statuses for id, statuses in line.needs.items())


def bullet(line: Line, ledger: Ledger) -> str:
    """Return a sentence, the numbers that it rests on, and the claims that say more."""
    measures = [(id, claim.measure) for id in line.needs if (claim := ledger.claim(id)).measure]
    numbers = [f"[{id}](#{id}) {number(measure, ledger)}" for id, measure in measures if measure]
    known = {id for id, _ in measures}
    links = [f"[{id}](#{id})" for id in dict.fromkeys((*line.claims, *line.needs)) if id not in known]
    return fill(f"- {line.text} ({'; '.join([*numbers, ', '.join(links)]).removesuffix('; ')})")


def fill(text: str, indent: str = "  ") -> str:
    """Return lines of one width; code and links are never broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counts(ledger: Ledger) -> str:
    """Return the table of claims by paper and status."""
    rows = [["paper", *STATUSES, "all"], ["---"] * (len(STATUSES) + 2)]
    total = dict.fromkeys(STATUSES, 0)
    for paper in ledger.papers:
        found = ledger.count(paper.claims)
        total = {status: total[status] + found[status] for status in STATUSES}
        rows.append([f"[{paper.title}](#{paper.name})", *map(str, found.values()), str(sum(found.values()))])
    rows.append(["all", *map(str, total.values()), str(sum(total.values()))])
    return "## Verdicts\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows)


def paper_section(paper: Paper, ledger: Ledger) -> str:
    """Return a paper's heading, source and claims."""
    head = f'<a id="{paper.name}"></a>\n\n## {paper.title}\n\n{fill(paper.source, "")}'
    blocks = [f'<a id="{claim.id}"></a>\n\n{write_claim(claim, ledger)}' for claim in paper.claims]
    return "\n\n".join([head, *blocks])


def write_claim(claim: Claim, ledger: Ledger) -> str:
    """Return one claim: status, claim, what was done, number, smallest effect, premise, evidence."""
    finding = ledger.findings[claim.id]
    lines = [f"### {claim.id}: {finding.status}"]
    if finding.reason:
        lines.append(fill(f"{finding.reason[0].upper()}{finding.reason[1:]}.", ""))
    lines.append(fill(f"*{claim.place}.* {claim.claim}", ""))
    points = [f"What we did: {claim.done}", *measured(claim, ledger)]
    points += [f"Figure: {claim.figure}"] if claim.figure else []
    points += [f"Beside it: {ledger.estimands[id].what}: {figure(id, ledger)}" for id in claim.also]
    points += [f"Note: {claim.note}"] if claim.note else []
    lines.append("\n".join(fill(f"- {point}") for point in points))
    lines.append(f"```bash\n{command_of(claim, ledger)}\n```")
    return "\n\n".join(lines)


def measured(claim: Claim, ledger: Ledger) -> Iterator[str]:
    """Yield what was measured, its number, the smallest effect and the premise."""
    if not claim.measure:
        return
    measure, estimand = claim.measure, ledger.estimands[claim.measure.estimand]
    yield f"Measured: {estimand.what} (`{measure.estimand}`{', primary' if claim.primary else ''})"
    yield f"Number: {number(measure, ledger)}"
    yield (
        f"Predicted: {effect(measure)}; smallest effect of interest: {show(measure.smallest)} {estimand.unit}, {measure.why}"
    )
    for premise in claim.premise:
        what = ledger.estimands[premise.estimand].what
        yield f"Premise: {what} is {premise}: {figure(premise.estimand, ledger)}"


def effect(measure: Measure) -> str:
    """Return the prediction in words."""
    return "no effect" if measure.predicted == "none" else f"a {measure.predicted} effect"


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
    lines = [" ".join(["pytest", *tests(claim)])] if claim.tests else []
    if claim.measure:
        estimand = ledger.estimands[claim.measure.estimand]
        variants = " ".join(dict.fromkeys(estimand.variants))
        lines.append(f"python -m research.study figure {claim.measure.estimand}")
        lines.append(f"python -m research.study run --only {variants} --world {estimand.world}  # to run it again")
    return "\n".join(lines)


def tests(claim: Claim) -> list[str]:
    """Return the tests as words of a shell, one a line after the first."""
    quoted = [f"'{test}'" if "[" in test else test for test in claim.tests]
    return [quoted[0], *(f"\\\n  {test}" for test in quoted[1:])]
