"""Make the checkpoint of the playground: `python -m research.playground --out DIR [--steps N] [--seed S]`.

Supervised pre-training of a 0.8M-parameter Qwen3 on traces, which are responses in seven styles, of different length and care.
Where a response gets careless is written (`?`), so that the model has a choice that training can unlearn, and careful steps are
learned clean. Twenty minutes on one core; one machine makes the same weights twice. No held-out problem is ever seen.

Tokens and the share of correct responses are the model's own at temperature 1, on 3 to 8 moves:

| style | `3+5+9+2=?` | share | tokens | correct |
|---|---|---|---|---|
| direct: a guess | `#19` | 0.31 | 4 | 0.2-0.3 |
| jump: several moves at once | `3+5+9=17;17+2=19;#19` | 0.19 | 33 | 0.3-0.4 |
| step: move by move | `3+5=8;8+9=17;17+2=19;#19` | 0.18 | 46 | 0.9 |
| dots: with filler, length that buys nothing | `3+5=8;....8+9=17;..17+2=19;.#19` | 0.06 | 70 | 0.7-0.8 |
| check: once or twice again, a little safer | `3+5=8;8+9=17;17+2=19;c3+5=8;…#19` | 0.10 | 90 | 0.97 |
| doubt: `?` and careless passes spoil a good one | `3+5=8;8+9=17;17+2=19;?3+5=9;…#20` | 0.13 | 105 | 0.2 |
| loop: doubt without end, until truncated | `3+5=8;8+9=17;17+2=19;?3+5=9;…?…` | 0.03 | all | never |

So incorrect responses are short *and* long, correct ones quick or wordy, and every prompt has both: what an aggregation rule
does to length has room to show in either direction, and the one thing worth learning (step by step, once) is in reach.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random

import torch
import tyro

from fairlen.tasks.playground import (
    FAMILIES,
    MAX_MOVES,
    TOKEN_IDS,
    Chain,
    Cups,
    Family,
    Playground,
    encode,
    follow,
    write_moves,
)  # fmt: skip
from research.pretraining import EOS, Example, Shape, build_model, label, optimize, save

CONTEXT = 512
"""Positions of the model, prompt included."""
MAX_LENGTH = 190
"""Characters at which an endless response is truncated: beyond any max response length that the playground is run with."""
CAREFUL = 0.003
"""Probability that a careful step is wrong."""
CARELESS = 0.4
"""Probability that a step after a doubt is wrong."""
ROOM = 150
"""Characters within which a response that ends keeps its passes, so that only loops are made to be truncated."""

SHAPE = Shape(TOKEN_IDS, CONTEXT, intermediate_size=384, mean_length=40)


@dataclass(frozen=True, slots=True)
class Style:
    """One way of answering."""

    weight: float
    """Share among the responses of pre-training."""
    passes: tuple[int, int] = (1, 1)
    """Fewest and most passes over the moves; (0, 0) answers at once."""
    moves_at_once: tuple[int, int] = (1, 1)
    """Fewest and most moves taken in one written step."""
    slip: float = 0.0
    """Probability that the result of a written step is wrong; for a direct answer, that the answer is."""
    dots: int = 0
    """Most filler dots after a step."""
    mark: str = "c"
    """Written between passes: `c` checks with the same care, `?` doubts, and what follows is careless."""
    ends: bool = True
    """EOS follows; False for a response that goes on for ever."""


STYLES: dict[str, Style] = {
    "direct": Style(weight=0.30, passes=(0, 0), slip=0.20),
    "jump": Style(weight=0.18, moves_at_once=(2, 3), slip=0.08),
    "step": Style(weight=0.16, slip=CAREFUL),
    "dots": Style(weight=0.08, slip=CAREFUL, dots=6),
    "check": Style(weight=0.12, passes=(2, 3), slip=CAREFUL),
    "doubt": Style(weight=0.13, passes=(2, 4), moves_at_once=(1, 2), slip=CAREFUL, mark="?"),
    "loop": Style(weight=0.03, passes=(99, 99), moves_at_once=(1, 2), slip=CAREFUL, mark="?", ends=False),
}


def slip(rng: Random, family: Family, state: int) -> int:
    """Return a wrong state that a careless solver could write instead."""
    if isinstance(family, Cups):
        return rng.choice([cup for cup in range(1, family.num_cups + 1) if cup != state])
    return state + rng.choice((-1, 1, 2))


def read_chain(text: str) -> tuple[Family, Chain]:
    """Return the family and the chain of a problem's text: the inverse of `pose`."""
    family = next(family for family in FAMILIES.values() if family.sign in text)
    start, *moves = (int(number) for number in text.partition("=?")[0].split(family.sign))
    return family, Chain(start, tuple(moves))


def write_trace(rng: Random, family: Family, chain: Chain, style: Style) -> str:
    """Write a response in one style."""
    if style.passes == (0, 0):
        state = follow(family, chain.start, chain.moves)
        return f"#{slip(rng, family, state) if rng.random() < style.slip else state}"
    num_passes = rng.randint(*style.passes)
    text, state = write_pass(rng, family, chain, style)
    again = replace(style, slip=CARELESS) if style.mark == "?" else style
    for _ in range(num_passes - 1):
        written, result = write_pass(rng, family, chain, again)
        is_full = len(text) + len(written) > (ROOM if style.ends else MAX_LENGTH)
        if is_full and style.ends:
            break
        text, state = text + style.mark + written, result
        if is_full:
            break
    return f"{text}#{state}" if style.ends else text[:MAX_LENGTH]


def write_pass(rng: Random, family: Family, chain: Chain, style: Style) -> tuple[str, int]:
    """Write one pass over the moves; return it and the state that it ends in."""
    text, state, done = "", chain.start, 0
    while done < len(chain.moves):
        moves = chain.moves[done : done + rng.randint(*style.moves_at_once)]
        result = follow(family, state, moves)
        if rng.random() < style.slip:
            result = slip(rng, family, result)
        text += f"{write_moves(family, state, moves)}={result};" + "." * rng.randint(0, style.dots)
        state = result
        done += len(moves)
    return text, state


def draw_examples(seed: int) -> Iterator[Example]:
    """Yield an endless stream of traces, on training problems of every number of moves."""
    # Sums take longer to learn than cups, so they come more often.
    playground = Playground(families=("sums", "cups", "sums", "cups", "sums"), num_moves=(1, MAX_MOVES))
    rng, styles = Random(seed), list(STYLES.values())
    for index in count():
        problem = playground.train(index)
        (style,) = rng.choices(styles, [style.weight for style in styles])
        text = write_trace(rng, *read_chain(problem.text), style)
        yield label(problem.token_ids, encode(text) + ((EOS,) if style.ends else ()))


def make(out: Path, steps: int = 3000, seed: int = 0) -> None:
    """Write the checkpoint to the folder `out`, after so many optimizer steps; torch is left with one thread.

    First it learns to answer; then never to write <pad> or <bos>, which cross-entropy alone leaves at 1e-5.
    """
    torch.set_num_threads(1)
    model, examples = build_model(SHAPE, seed), draw_examples(seed)
    optimize(model, examples, steps, 2e-3, 0.0, SHAPE.mean_length)
    optimize(model, examples, max(1, steps // 20), 2e-4, 0.5, SHAPE.mean_length)
    save(model, SHAPE, out)


if __name__ == "__main__":
    tyro.cli(make)
