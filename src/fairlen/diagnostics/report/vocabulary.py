"""Tokens as text, from the tokenizer.json that a run saves with its model: enough to show where one token ends, no tokenizer."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LARGEST = 200_000_000
"""Bytes of a tokenizer.json that is read."""
END = "\u220e"
"""What a special token is shown as."""


@dataclass(frozen=True)
class Vocabulary:
    """What each token is written as."""

    pieces: dict[int, str]
    special: frozenset[int]
    byte_level: bool

    def split(self, token_ids: Sequence[int], text: str) -> list[str] | None:
        """The text of each token; None where they do not add up to `text`, as then nobody knows where a token ends."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found: list[str] = []
        for token in token_ids:
            piece = "" if token in self.special else self.pieces.get(token)
            if piece is None:
                return None
            if self.byte_level and token not in self.special:
                if not set(piece) <= set(byte_table()):
                    return None
                piece = decoder.decode(bytes(byte_table()[letter] for letter in piece))
            found.append(piece)
        if "".join(found) != text:
            return None
        return [END if token in self.special else piece for token, piece in zip(token_ids, found, strict=True)]


@cache
def byte_table() -> dict[str, int]:
    """The letter that byte-level tokenizers write for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


def read_vocabulary(run: Path) -> Vocabulary | None:
    """The vocabulary of a run's model; None where there is none or its kind is not known."""
    for path in (run / "model" / "tokenizer.json", run / "best" / "tokenizer.json"):
        if path.is_file() and path.stat().st_size <= LARGEST:
            try:
                return parse(json.loads(path.read_text()))
            except (ValueError, KeyError, TypeError, AttributeError):
                return None
    return None


def parse(data: dict[str, Any]) -> Vocabulary | None:
    """A vocabulary from tokenizer.json."""
    words = data["model"]["vocab"]
    pairs = words.items() if isinstance(words, dict) else ((entry[0], i) for i, entry in enumerate(words))
    decoder = json.dumps(data.get("decoder"))
    spaces = "Metaspace" in decoder or "\u2581" in decoder
    pieces = {int(i): str(word).replace("\u2581", " ") if spaces else str(word) for word, i in pairs}
    added = data.get("added_tokens") or []
    pieces |= {int(entry["id"]): str(entry["content"]) for entry in added}
    return Vocabulary(pieces, frozenset(int(e["id"]) for e in added if e.get("special")), "ByteLevel" in decoder)
