"""docs/claims.md, the page of what stands, and one claim in full as Markdown, from the ledger alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from research.ledger.claims import DATA, UNCOUNTED, Claim, Ledger, Line
from research.ledger.real import Real
from research.ledger.rule import Measure, show
from research.ledger.worlds import Worlds

WIDTH = 130
DETAILS = "study/claims.html"
"""From docs/claims.md."""
NAMED = re.compile(r"\{([\w-]+)\}")
"""An estimand in a sentence, whose number stands in its place."""
PICTURE = (
    "![EqLen's pressure on stopping by proof, how longhand stops, and length and accuracy of runs under four rules]"
    "(study/stopping.svg)"
)


USUAL = ", 8 seeds"
LIMIT = "One limit"
"""Before it stands what was measured on a real model."""


def claims_page(ledger: Ledger, measured: Sequence[Real | Worlds]) -> str:
    """Return the page: sentences whose evidence is there under their headings, the picture, and the counts."""
    parts = [(DATA / "introduction.md").read_text(encoding="utf-8").rstrip(), PICTURE]
    for title, lines in ledger.summary.items():
        if title == LIMIT:
            parts += map(measured_part, measured)
        if shown := [bullet(line, ledger) for line in lines if ledger.shows(line)]:
            parts += [f"## {title}", "\n".join(shown)]
    return "\n\n".join([*parts, counts(ledger)]) + "\n"


def bullet(line: Line, ledger: Ledger) -> str:
    """Return a sentence with the claims that it rests on, and their numbers."""
    measures = {id: claim.measure for id in (*line.claims, *line.needs) if (claim := ledger.claim(id))}
    links = [f"[{id}]({DETAILS}#{id}){f' {short(m.estimand, ledger)}' if m else ''}" for id, m in measures.items()]
    text = NAMED.sub(lambda found: short(found[1], ledger), line.text)
    return fill(f"- {text} ({'; '.join(links)})")


def short(id: str, ledger: Ledger) -> str:
    """Return a figure without the usual number of seeds, which the introduction gives."""
    return figure(id, ledger).removesuffix(USUAL)


def measured_part(found: Real | Worlds) -> str:
    """Return what was measured on a real model, and what follows for training; or what a plan's runs showed."""
    bullets = "\n".join(fill(f"- {text}") for text in found.bullets())
    return f"## {found.title}\n\n{fill(found.filled(found.introduction), '')}\n\n{bullets}"


def fill(text: str, indent: str = "  ") -> str:
    """Return lines of one width; code and links are never broken."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def counts(ledger: Ledger) -> str:
    """Return the numbers of claims by status, and how firm they are."""
    found = ledger.count(ledger.claims)
    each = "; ".join(f"{number} {status}" for status, number in found.items() if status != UNCOUNTED)
    decided, hang = len(ledger.fragile), sum(map(bool, ledger.fragile.values()))
    text = (
        f"Of {counted(found)} claims: {each}. {found[UNCOUNTED]} more do not count. {len(ledger.family)} predict a sign: one "
        "that fails Benjamini-Hochberg at 5% over them is undecided. "
        f"{hang} of {decided} that runs decide hang on one seed."
    )
    return f"## Verdicts\n\n{fill(text, '')}"


def counted(found: Mapping[str, int]) -> int:
    """Return how many claims count."""
    return sum(found.values()) - found[UNCOUNTED]


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
    for name, premises in (("Premise", claim.premise), ("Arm without the cause", claim.arms)):
        for premise in premises:
            what = ledger.estimands[premise.estimand].what
            yield name, f"{what} is {premise}: {figure(premise.estimand, ledger)}"
    if claim.limit:
        yield "At most", f"{claim.limit.status}: {claim.limit.why}"


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
