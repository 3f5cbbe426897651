"""Guess: `python -m research.guess make --out DIR` makes its checkpoint.

Supervised pre-training of a 0.8M-parameter Qwen3 on games in four styles; what was read trains nothing. A turn has a guess,
`:389`, or before it the range that is left, `137-642:389`. In a game the style may change with every turn.

| style | share | guesses | writes the range | forgets the last answer |
|---|---|---|---|---|
| careful | 0.2 | about the middle of what is left | yes | 0.02 |
| quick | 0.3 | anywhere in what is left | no | 0.12 |
| creeping | 0.3 | close to the lower end of what is left | yes | 0.02 |
| careless | 0.2 | anywhere in what is left | no | 0.35 |

So a game is lost early, where an answer is forgotten, or late, where it creeps; a longer turn is the surer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import torch
import tyro
from transformers.utils.logging import disable_progress_bar

from fairlen.batch import mean_or_nan
from fairlen.console import log
from fairlen.tasks.task import Problem
from recipes.guess import (
    MAX_RESPONSE_LENGTH,
    MAX_TURNS,
    PATH,
    TOKEN_IDS,
    Game,
    Guess,
    encode,
    read_range,
    write,
)
from research.drawing import draw
from research.pretraining import EOS, IGNORED, Example, Shape, build_model, optimize, save

CONTEXT = 256
"""Positions of the model, prompt included."""
SHAPE = Shape(TOKEN_IDS, CONTEXT, intermediate_size=384, mean_length=73)
LEARNED_WIDTHS = (8, 900)
"""Of the ranges of pre-training, some of them narrower than those of the game."""
CHANGED = 0.05
"""Probability that a turn is in another style than the one before."""
STAGES = ((1600, 2e-3, 0.0), (200, 3e-4, 0.5))
"""Optimizer steps, peak learning rate, and weight of the silence of <pad> and <bos>, stage by stage."""


@dataclass(frozen=True, slots=True)
class Style:
    """One way of taking a turn."""

    weight: float
    """Share among the games of pre-training."""
    span: tuple[float, float]
    """Where guesses lie in what is left, from 0, its lower end, to 1."""
    writes: bool
    """The range is written before the guess."""
    forgets: float
    """Probability that the range is the one before the last answer."""


STYLES: dict[str, Style] = {
    "careful": Style(0.2, (0.35, 0.65), True, 0.02),
    "quick": Style(0.3, (0.0, 1.0), False, 0.12),
    "creeping": Style(0.3, (0.0, 0.06), True, 0.02),
    "careless": Style(0.2, (0.0, 1.0), False, 0.35),
}


@dataclass(frozen=True)
class Played:
    """A game of pre-training: turns of the player, answers between them."""

    turns: tuple[str, ...]
    answers: tuple[str, ...]
    is_won: bool


def play(rng: Random, problem: Problem) -> Played:
    """Play a game to its end, in styles that are drawn."""
    game = Game(*read_range(problem.text), int(problem.answer))
    turns, answers = list[str](), list[str]()
    before, style = (game.low, game.high), draw_style(rng)
    while len(turns) < MAX_TURNS:
        style = draw_style(rng) if rng.random() < CHANGED else style
        known = game.low, game.high
        first, last = before if rng.random() < style.forgets else known
        guess = round(first + (last - first) * rng.uniform(*style.span))
        turns.append(f"{write(first)}-{write(last)}" * style.writes + f":{write(guess)}")
        if not (answer := game.tell(guess)):
            break
        answers.append(answer)
        before = known
    return Played(tuple(turns), tuple(answers), game.guess == game.secret)


def draw_style(rng: Random) -> Style:
    """Draw a style by its share."""
    return rng.choices([*STYLES.values()], [style.weight for style in STYLES.values()])[0]


def draw_examples(seed: int) -> Iterator[Example]:
    """Yield an endless stream of games on training problems; of each only the player's turns are learned."""
    task, rng = Guess(LEARNED_WIDTHS), Random(seed)
    for index in count():
        problem = task.train(index)
        game = play(rng, problem)
        token_ids, labels = problem.token_ids, (IGNORED,) * len(problem.token_ids)
        for turn, answer in zip(game.turns, (*game.answers, ""), strict=False):
            written, read = (*encode(turn), EOS), encode(answer)
            token_ids, labels = token_ids + written + read, labels + written + (IGNORED,) * len(read)
        yield token_ids, labels


def make(out: Path, seed: int = 0) -> None:
    """Write the checkpoint to the folder `out`; torch is left with one thread."""
    torch.set_num_threads(1)
    model = build_model(SHAPE, seed)
    for steps, rate, silence in STAGES:
        optimize(model, draw_examples(seed + steps), steps, rate, silence, SHAPE.mean_length)
    save(model, SHAPE, out)


def measure(model: Path = PATH, problems: int = 200, samples: int = 4) -> None:
    """Print what the games of held-out problems are like.

    Args:
        model: Folder of the checkpoint.
        problems: Held-out problems that are played.
        samples: Games of each.
    """
    disable_progress_bar()
    found = draw(Guess(), MAX_RESPONSE_LENGTH, model, "grpo", problems, f"sampling.n={samples}").response_table
    won = found.correct
    rows = {
        "won, %": [100 * won.mean()],
        "turns: mean, of won ones, of lost ones": [
            found.num_turns.mean(), mean_or_nan(found.num_turns[won]), mean_or_nan(found.num_turns[~won])
        ],
        "turns of won ones, quartiles": [*np.percentile(found.num_turns[won], [25, 50, 75])],
        "tokens: mean, of won ones, of lost ones": [
            found.length.mean(), mean_or_nan(found.length[won]), mean_or_nan(found.length[~won])
        ],
        "truncated, %": [100 * found.truncated.mean()],
    }  # fmt: skip
    for name, values in rows.items():
        log(f"{name:42}" + "".join(f"{value:8.1f}" for value in values))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"make": make, "measure": measure})
