"""Responses to pre-train on: one problem, many ways of answering, of very different length and care.

A style is a row of numbers, not a branch of code: how many passes over the moves, how many moves at a time, how often
the result of a written step is wrong, how many filler dots. Where a response gets careless is written (`?`): so the
model has a choice that training can unlearn, and careful steps are learned clean.

Not here: problems (`fairlen.tasks.playground`), tokens, the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from fairlen.tasks.playground import Chain, Family, follow, write_moves

MAX_LENGTH = 190
"""Characters at which an endless response is cut: beyond any budget that the playground is run with."""
CAREFUL = 0.003
"""Probability that a careful step is wrong."""
CARELESS = 0.4
"""Probability that a step after a doubt is wrong."""
ROOM = 150
"""Characters within which a response that ends keeps its passes, so that only loops are made to be truncated."""


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
    """False for a response that goes on for ever."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One response."""

    text: str
    ended: bool
    """Whether EOS follows."""


STYLES: dict[str, Style] = {
    "direct": Style(weight=0.30, passes=(0, 0), slip=0.20),
    "jump": Style(weight=0.18, moves_at_once=(2, 3), slip=0.08),
    "step": Style(weight=0.16, slip=CAREFUL),
    "dots": Style(weight=0.08, slip=CAREFUL, dots=6),
    "check": Style(weight=0.12, passes=(2, 3), slip=CAREFUL),
    "doubt": Style(weight=0.13, passes=(2, 4), moves_at_once=(1, 2), slip=CAREFUL, mark="?"),
    "loop": Style(weight=0.03, passes=(99, 99), moves_at_once=(1, 2), slip=CAREFUL, mark="?", ends=False),
}


def draw_style(rng: Random) -> Style:
    """A style, by weight."""
    styles = list(STYLES.values())
    return rng.choices(styles, [style.weight for style in styles])[0]


def write_trace(rng: Random, family: Family, chain: Chain, style: Style) -> Trace:
    """A response in one style."""
    state = follow(family, chain.start, chain.moves)
    if style.passes == (0, 0):
        return Trace(f"#{slip_or_keep(rng, family, state, style.slip)}", ended=True)
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
    return Trace(f"{text}#{state}", ended=True) if style.ends else Trace(text[:MAX_LENGTH], ended=False)


def write_pass(rng: Random, family: Family, chain: Chain, style: Style) -> tuple[str, int]:
    """One pass over the moves, and the state that it ends in."""
    text, state, done = "", chain.start, 0
    while done < len(chain.moves):
        moves = chain.moves[done : done + rng.randint(*style.moves_at_once)]
        result = slip_or_keep(rng, family, follow(family, state, moves), style.slip)
        text += f"{write_moves(family, state, moves)}={result};" + "." * rng.randint(0, style.dots)
        state = result
        done += len(moves)
    return text, state


def slip_or_keep(rng: Random, family: Family, state: int, slip: float) -> int:
    """A wrong state with probability `slip`."""
    return family.slip(rng, state) if rng.random() < slip else state
