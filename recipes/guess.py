"""A task of one's own with an environment: a number to be guessed, higher or lower, in 1 to 12 turns, on a laptop.

fairlen train --task recipes/guess.py:make_guess --model recipes/guess --max-response-length 192 --method grpo

A problem is a range, `137-642?`, with a secret number in it. A turn of the policy ends with its guess, `:389`; before that it may
write what is left of the range, `137-642:389`. The answer, which the policy reads, is `<` where the secret is below the guess and
`>` where it is above. The game is won by naming the secret, and lost by a guess that an earlier answer has ruled out, by a turn
without a guess, or after 12 turns. Its model, in recipes/guess/, guesses in the middle, anywhere, or creeps up
from below, and it remembers what it was told or writes it down; research/guess.py has a table of the styles.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fairlen.rollouts import TokenIds, Verdict
from fairlen.tasks.environment import Observation
from fairlen.tasks.task import Problem, Synthetic

PATH = Path(__file__).with_suffix("")
"""Folder of its checkpoint, which research/guess.py made."""
SPECIALS = ("<pad>", "<eos>", "<bos>")
ALPHABET = "0123456789-?:<>"  # all characters of prompts, turns and answers
TOKEN_IDS = {token: i for i, token in enumerate((*SPECIALS, *ALPHABET))}
LOWER, HIGHER = "<", ">"
DIGITS = 3
LARGEST = 10**DIGITS - 1
MAX_TURNS = 12
MAX_RESPONSE_LENGTH = 192  # tokens of a trajectory: room for 12 turns that write the range
GUESS = re.compile(rf":(\d{{{DIGITS}}})$", re.ASCII)


@dataclass(frozen=True)
class Guess(Synthetic):
    """Ranges as wide as `widths`, drawn evenly on a logarithmic scale."""

    name: str = field(default="guess", init=False)
    max_turns: int = field(default=MAX_TURNS, init=False)
    widths: tuple[int, int] = (20, 900)

    def __post_init__(self) -> None:
        least, largest = self.widths
        if not 1 <= least <= largest <= LARGEST:
            raise ValueError(f"widths={self.widths}: give 1 <= least <= largest <= {LARGEST}")

    @property
    def kind(self) -> str:
        return f"{self.name}/{self.widths}"

    def draw(self, rng: Random, turn: int) -> Problem:
        least, largest = self.widths
        width = min(int(math.exp(rng.uniform(math.log(least), math.log(largest + 1)))), largest)
        low = rng.randint(0, LARGEST - width)
        secret, text = write(rng.randint(low, low + width)), f"{write(low)}-{write(low + width)}?"
        return Problem(
            id=f"{self.name}:{text}{secret}",
            text=text,
            token_ids=(TOKEN_IDS["<bos>"], *encode(text)),
            answer=secret,
            columns={"width": width},
        )

    @property
    def longest_prompt(self) -> int:
        """BOS, two numbers, `-` and `?`."""
        return 1 + 2 * DIGITS + 2

    def environment(self, problem: Problem, seed: int) -> Game:
        return Game(*read_range(problem.text), int(problem.answer))

    def encode_observation(self, text: str) -> TokenIds:
        return encode(text)

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Correct where the text ends with the secret as its guess, regardless of earlier turns."""
        return judge(read_guess(text), int(problem.answer))


def make_guess(tokenizer: Any) -> Guess:
    """Return the task, as `--task recipes/guess.py:make_guess` asks for it."""
    return Guess()


@dataclass
class Game:
    """One secret, and what is known of it: it lies from `low` to `high`."""

    low: int
    high: int
    secret: int
    guess: int | None = None

    async def start(self) -> str:
        return ""

    async def act(self, text: str) -> Observation:
        answer = self.tell(read_guess(text))
        return Observation(answer, is_last=not answer)

    def tell(self, guess: int | None) -> str:
        """Answer a guess, and narrow the range; empty where the game is won or lost."""
        self.guess = guess
        if guess is None or not self.low <= guess <= self.high or guess == self.secret:
            return ""
        if self.secret < guess:
            self.high = guess - 1
            return LOWER
        self.low = guess + 1
        return HIGHER

    async def grade(self) -> Verdict:
        return judge(self.guess, self.secret)

    async def end(self) -> None:
        """Do nothing: nothing is held."""


def read_guess(text: str) -> int | None:
    found = GUESS.search(text)
    return int(found[1]) if found else None


def judge(guess: int | None, secret: int) -> Verdict:
    if guess is None:
        return Verdict.of("no_answer")
    return Verdict.of("correct" if guess == secret else "incorrect", write(guess))


def write(number: int) -> str:
    return f"{number:0{DIGITS}d}"


def read_range(text: str) -> tuple[int, int]:
    return int(text[:DIGITS]), int(text[DIGITS + 1 : 2 * DIGITS + 1])


def encode(text: str) -> TokenIds:
    """Return one token a character, as its tokenizer does; KeyError for a character outside `ALPHABET`."""
    return tuple(TOKEN_IDS[character] for character in text)
