"""Chains of small moves for a tiny pre-trained reasoner: every effect of response length, on a laptop, in minutes.

Of the family `sums`, `3+5+9+2=?` is answered by `#19`. Of `cups`, `3|13|25|14=?` (a ball is under cup 3 of five, cups 1 and 3 are
swapped, …) is answered by `#4`: tracking a state, no arithmetic. The shipped model (`fairlen.playground.PATH`) answers both in
seven styles, of which research/playground.py has a table: incorrect responses are short *and* long, correct ones quick or wordy,
and step by step, once, can be learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from random import Random

from fairlen.playground import PATH
from fairlen.settings import ProblemSettings
from fairlen.tasks.task import Problem, Synthetic

PLAYGROUND = "playground"  # the name of the task, and of its model
MAX_RESPONSE_LENGTH = 160  # tokens, as the model is meant to be run
SPECIALS = ("<pad>", "<eos>", "<bos>")
ALPHABET = "0123456789+|=;#.c?"  # all characters of prompts and responses
TOKEN_IDS = {token: i for i, token in enumerate((*SPECIALS, *ALPHABET))}
MAX_MOVES = 8  # the shipped model was pre-trained on 1 to this many moves


@dataclass(frozen=True, slots=True)
class Chain:
    start: int
    moves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Sums:
    """Adding numbers from 1 to 9."""

    name: str = "sums"
    sign: str = "+"

    def draw(self, rng: Random, num_moves: int) -> Chain:
        return Chain(rng.randint(1, 9), tuple(rng.randint(1, 9) for _ in range(num_moves)))

    def move(self, state: int, move: int) -> int:
        return state + move


@dataclass(frozen=True, slots=True)
class Cups:
    """Following a ball under five cups; the move 25 swaps cups 2 and 5."""

    name: str = "cups"
    sign: str = "|"
    num_cups: int = 5

    def draw(self, rng: Random, num_moves: int) -> Chain:
        """No pair is swapped twice."""
        pairs = [10 * a + b for a, b in combinations(range(1, self.num_cups + 1), 2)]
        return Chain(rng.randint(1, self.num_cups), tuple(rng.sample(pairs, num_moves)))

    def move(self, state: int, move: int) -> int:
        pair = divmod(move, 10)
        return sum(pair) - state if state in pair else state


Family = Sums | Cups
FAMILIES: dict[str, Family] = {family.name: family for family in (Sums(), Cups())}


@dataclass(frozen=True)
class Playground(Synthetic):
    """The families in turn, with a number of moves drawn evenly from `num_moves`."""

    name: str = field(default=PLAYGROUND, init=False)
    families: tuple[str, ...] = ("sums", "cups")
    num_moves: tuple[int, int] = (3, MAX_MOVES)

    def __post_init__(self) -> None:
        fewest, most = self.num_moves
        if not (self.families and {*self.families} <= {*FAMILIES} and 0 < fewest <= most <= MAX_MOVES):
            raise ValueError(
                f"families={self.families}, num_moves={self.num_moves}: give families of "
                f"{', '.join(FAMILIES)}, and 0 < fewest <= most <= {MAX_MOVES} moves"
            )

    @property
    def longest_prompt(self) -> int:
        """BOS, a start, a sign and two digits a move, `=?`."""
        return 2 + 3 * self.num_moves[1] + 2

    @property
    def kind(self) -> str:
        return f"{self.families}/{self.num_moves}"

    def draw(self, rng: Random, turn: int) -> Problem:
        family = FAMILIES[self.families[turn % len(self.families)]]
        return pose(family, family.draw(rng, rng.randint(*self.num_moves)))


def pose(family: Family, chain: Chain) -> Problem:
    text = write_moves(family, chain.start, chain.moves) + "=?"
    return Problem(
        id=f"{family.name}:{text}",
        text=text,
        token_ids=(TOKEN_IDS["<bos>"], *encode(text)),
        answer=str(follow(family, chain.start, chain.moves)),
        columns={"family": family.name, "num_moves": len(chain.moves)},
    )


def write_moves(family: Family, state: int, moves: Sequence[int]) -> str:
    return family.sign.join(map(str, (state, *moves)))


def follow(family: Family, state: int, moves: Sequence[int]) -> int:
    for move in moves:
        state = family.move(state, move)
    return state


def encode(text: str) -> tuple[int, ...]:
    """Return one token a character, as the shipped tokenizer does; KeyError for a character outside `ALPHABET`."""
    return tuple(TOKEN_IDS[character] for character in text)


def is_playground(place: str) -> bool:
    """Whether a place of --data is the playground or a family of it, and no existing path."""
    return place.partition(":")[0] == PLAYGROUND and not Path(place).exists()


def make_playground(place: str) -> Playground:
    """Make the task of "playground" or "playground:sums". Raises ValueError listing the known ones."""
    name, _, family = place.partition(":")
    if name != PLAYGROUND or (family and family not in FAMILIES):
        known = ", ".join((PLAYGROUND, *(f"{PLAYGROUND}:{family}" for family in FAMILIES)))
        others = "data sets are named with --data, a task of your own as FILE.py:NAME"
        raise ValueError(f"--task {place}: there are {known}; {others}")
    return Playground((family,)) if family else Playground()


def find_response_limit(data: ProblemSettings) -> int:
    """Return the max response length of the playground where problems are its own, else 0."""
    place = data.task if not data.places else data.places[0] if is_playground(data.places[0]) else ""
    return MAX_RESPONSE_LENGTH if place.partition(":")[0] == PLAYGROUND else 0


def place_model(model: str, revision: str = "", random_init: bool = False) -> str:
    """Return the shipped checkpoint's folder for its name, others as they are."""
    if model != PLAYGROUND:
        return model
    if revision or random_init:
        raise ValueError(f"model={model} with revision or random_init: name a model folder or hub id with --model")
    return str(PATH)
