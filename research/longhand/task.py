"""Sums in longhand for a small pre-trained reasoner: responses of hundreds of tokens, on a laptop.

A problem is four to seven labelled two-digit numbers, `a74b28c10d95=` for 47 + 82 + 1 + 59, least significant digit first as
everywhere here. Its answer is the sum in three digits, `#981` for 189. The model (`research.longhand.PATH`) adds in one go
or column by column, checks or does not, and may start again: responses are too short where steps are hurried, and too long where
they do not end before they are truncated. `research/longhand/make.py` has a table of the styles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fairlen.tasks.task import Problem, Synthetic

SPECIALS = ("<pad>", "<eos>", "<bos>")
LABELS = "abcdefg"
ALPHABET = "0123456789" + LABELS + "=+:|>;?~#"
"""Every character of prompts and responses; the vocabulary is the special tokens and these."""
TOKEN_IDS = {token: i for i, token in enumerate((*SPECIALS, *ALPHABET))}
DIGITS = 3
"""Of every total: seven numbers below 100 add up to at most 693."""
MAX_RESPONSE_LENGTH = 768
"""Tokens of a response, as the model is meant to be run: some 2% of its responses are truncated there."""


@dataclass(frozen=True)
class Longhand(Synthetic):
    """Sums with a number of terms drawn evenly from `num_terms`."""

    name: str = field(default="longhand", init=False)
    num_terms: tuple[int, int] = (4, len(LABELS))
    """Fewest and most terms of a problem."""

    def __post_init__(self) -> None:
        fewest, most = self.num_terms
        if not 2 <= fewest <= most <= len(LABELS):
            raise ValueError(f"num_terms={self.num_terms}: give 2 <= fewest <= most <= {len(LABELS)} terms")

    @property
    def kind(self) -> str:
        return f"{self.name}/{self.num_terms}"

    def draw(self, rng: Random, turn: int) -> Problem:
        """Draw a problem: terms from 1 to 99."""
        terms = tuple(rng.randint(1, 99) for _ in range(rng.randint(*self.num_terms)))
        text = "".join(label + write(term, 2) for label, term in zip(LABELS, terms, strict=False)) + "="
        return Problem(
            id=f"{self.name}:{text}",
            text=text,
            token_ids=(TOKEN_IDS["<bos>"], *encode(text)),
            answer=write(sum(terms)),
            columns={"num_terms": len(terms)},
        )

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt: BOS, a label and two digits a term, `=`."""
        return 2 + 3 * self.num_terms[1]


SUMS = Longhand(num_terms=(3, 3))
"""Problems of the small worlds."""


def make_longhand(tokenizer: Any) -> Longhand:
    """Return the task, as `fairlen train --task research/longhand/task.py:make_longhand` asks for it."""
    return Longhand()


def write(number: int, digits: int = DIGITS) -> str:
    """Return a number in so many digits, the least significant first."""
    return f"{number:0{digits}d}"[::-1]


def read_terms(text: str) -> Iterator[int]:
    """Yield the terms of a problem's text: the inverse of how it is drawn."""
    for start in range(0, len(text) - 1, 3):
        yield int(text[start + 1 : start + 3][::-1])


def encode(text: str) -> tuple[int, ...]:
    """Return one token a character, as its tokenizer does; KeyError for a character outside `ALPHABET`."""
    return tuple(TOKEN_IDS[character] for character in text)
