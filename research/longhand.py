"""Longhand: `python -m research.longhand make --out DIR` makes its checkpoint, `… measure` measures it.

Supervised pre-training of a 1.1M-parameter Qwen3 on traces, which are responses in four styles. A step adds a term to the total,
three digits, least significant first. It is hurried (`b28+740>921;`, 47 and 82 are 129) or careful, column by column: digits of
term and total, carry and digit of the result (`b28+740:2709|8402|0011|>921;`). After a careful step its columns may be written
again (`?`). A response that starts again (`~`) makes all steps once more, without need.

| style | share | a step is wrong |
|---|---|---|
| hurried: steps in one go | 0.18 | 0.22 |
| careful: each step in columns | 0.28 | 0.11 |
| checked: columns twice or three times | 0.28 | 0.03 |
| restless: starts again, any number of times | 0.26 | 0.20 |

So responses are wrong as they are short, or as they go on for too long; how often, and at which lengths, is what `measure` says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import torch
import tyro

from fairlen.tasks.longhand import LABELS, MAX_RESPONSE_LENGTH, TOKEN_IDS, Longhand, encode, read_terms, write
from research.pretraining import EOS, Example, Shape, build_model, optimize, save

CONTEXT = 1024
"""Positions of the model, prompt included."""
SHAPE = Shape(TOKEN_IDS, CONTEXT, intermediate_size=576, mean_length=220)
MAX_LENGTH = MAX_RESPONSE_LENGTH + 40
"""Characters at which a restless response is cut, so that it never learns to end there."""
MENDED = 0.08
"""Probability that the first columns of a step that is checked are wrong, and its checks are not."""
LEARNED_TERMS = (2, len(LABELS))
"""Fewest and most terms of a problem in pre-training."""


STAGES = ((3, 160, 2e-3, 0.0), (7, 1300, 2e-3, 0.0), (7, 60, 2e-4, 0.5))
"""Most terms, optimizer steps, peak learning rate, and weight of the silence of <pad> and <bos>, one stage after another."""


@dataclass(frozen=True, slots=True)
class Style:
    """One way of answering."""

    weight: float
    """Share among the responses of pre-training."""
    slip: float
    """Probability that the result of a step is wrong."""
    hurried: float = 0.0
    """Probability that a pass over the terms is hurried; the others are careful."""
    checks: tuple[int, int] = (0, 0)
    """Fewest and most times that the columns of a step are written again."""
    again: float = 0.0
    """Probability that a finished pass is followed by another."""


STYLES: dict[str, Style] = {
    "hurried": Style(weight=0.18, slip=0.22, hurried=1.0),
    "careful": Style(weight=0.28, slip=0.11),
    "checked": Style(weight=0.28, slip=0.03, checks=(1, 2)),
    "restless": Style(weight=0.26, slip=0.20, hurried=0.7, again=0.82),
}


def write_trace(rng: Random, terms: tuple[int, ...], style: Style) -> str:
    """Write a response in one style; one that reaches MAX_LENGTH is cut there, without an answer."""
    text, total = write_pass(rng, terms, style)
    while rng.random() < style.again and len(text) < MAX_LENGTH:
        more, total = write_pass(rng, terms, style)
        text += "~" + more
    return f"{text}#{write(total)}" if len(text) < MAX_LENGTH else text[:MAX_LENGTH]


def write_pass(rng: Random, terms: tuple[int, ...], style: Style) -> tuple[str, int]:
    """Write every step once; return the steps and the total that they end in."""
    is_hurried, text, total = rng.random() < style.hurried, "", terms[0]
    for label, term in zip(LABELS[1:], terms[1:], strict=False):
        result = total + term
        if rng.random() < style.slip:
            result = slip(rng, result)
        columns = f">{write(result)}" if is_hurried else ":" + write_columns(rng, term, total, result, style)
        text += f"{label}{write(term, 2)}+{write(total)}{columns};"
        total = result
    return text, total


def slip(rng: Random, result: int) -> int:
    """Return a wrong result that a careless solver could write instead: a digit off by one, or a carry lost."""
    return max(0, result + rng.choice((-10, -1, 1, 10)))


def write_columns(rng: Random, term: int, total: int, result: int, style: Style) -> str:
    """Write a careful step and its checks, of which the last comes to `result`."""
    checks = rng.randint(*style.checks)
    first = slip(rng, result) if checks and rng.random() < MENDED else result
    return "?".join([spell(term, total, first), *[spell(term, total, result)] * checks])


def spell(term: int, total: int, result: int) -> str:
    """Return three columns, `digit digit carry result|` each, and their result."""
    text, carry = "", 0
    for one, other, digit in zip(write(term), write(total), write(result), strict=True):
        text += f"{one}{other}{carry}{digit}|"
        carry = (int(one) + int(other) + carry) // 10
    return f"{text}>{write(result)}"


def draw_examples(seed: int, longest: int = LEARNED_TERMS[1]) -> Iterator[Example]:
    """Yield an endless stream of traces on training problems of two to `longest` terms."""
    task, rng, styles = Longhand(num_terms=(LEARNED_TERMS[0], longest)), Random(seed), list(STYLES.values())
    for index in count():
        problem = task.train(index)
        (style,) = rng.choices(styles, [style.weight for style in styles])
        text = write_trace(rng, tuple(read_terms(problem.text)), style)
        yield problem.token_ids, encode(text) + ((EOS,) if len(text) < MAX_LENGTH else ())


def make(out: Path, seed: int = 0) -> None:
    """Write the checkpoint to the folder `out`; torch is left with one thread.

    First it learns to answer, problems of two and three terms before all others; then never to write <pad> or <bos>.
    """
    torch.set_num_threads(1)
    model = build_model(SHAPE, seed)
    for longest, steps, rate, silence in STAGES:
        optimize(model, draw_examples(seed + steps, longest), steps, rate, silence, SHAPE.mean_length)
    save(model, SHAPE, out)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"make": make})
