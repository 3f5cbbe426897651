r"""Capital and small letters. Math-Verify makes all symbols small, so that `R - r` is `r - R`. Text only, no algebra.

Where one text has a letter in both cases, they mean two things, and its capital becomes a Greek letter that is in no text.
Elsewhere `N` for `n` is a slip, and forgiven as Math-Verify forgives it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fairlen.verify.notation import read

TOKEN = re.compile(r"\\text[a-z]* ?\{[^{}]*\}|\\(?:begin|end|operatorname) ?\{[^{}]*\}|\\[A-Za-z]+|[A-Za-z]")
SPARE = ("kappa", "iota", "xi", "zeta", "tau", "upsilon", "nu", "eta", "chi", "psi", "sigma", "rho")


def tell_cases(texts: Sequence[str]) -> list[str]:
    """The texts, with the capitals of letters that one of them has in both cases written otherwise in all."""
    symbols = [text for text in texts if not is_prose(text)]
    found = [{token for token in TOKEN.findall(text) if len(token) == 1} for text in symbols]
    capitals = sorted(
        {letter for letters in found for letter in letters if letter.isupper() and letter.lower() in letters}
    )
    spare = [name for name in SPARE if not any("\\" + name in text for text in texts)]
    if not capitals or len(capitals) > len(spare):
        return list(texts)
    written = {letter: rf"\{name} " for letter, name in zip(capitals, spare, strict=False)}
    return [TOKEN.sub(lambda found: written.get(found.group(), found.group()), text) for text in texts]


def is_prose(text: str) -> bool:
    """Whether the letters of a text are words, a unit or the letter of an option."""
    reading = read(text)
    return bool(reading.words or reading.number or reading.choice or reading.option or reading.base)
