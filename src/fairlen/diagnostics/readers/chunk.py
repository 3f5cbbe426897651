"""What every format turns into: chunks of raw rows, named alike, and from them columns of numbers.

Texts live as long as their chunk. Prompts and answers are kept as hashes, lengths as counts.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.batch import Bools, Floats, Ints
from fairlen.diagnostics.log import Malformed, Unit
from fairlen.files.formats import Chunk, Columns, Reject

MAX_EXTRA = 64
"""Further columns of numbers that are kept."""
NAN = float("nan")

Values = list[Any]


@dataclass
class Found:
    """What reading came across besides rows."""

    malformed: list[Malformed] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    """Sentences about what was left out or taken how, and the rows of each; 0 where it is about all."""
    reader: dict[str, Any] = field(default_factory=dict)
    """What the reader of a format remembers from one chunk to the next."""

    def reject(self, chunk: Chunk, row: int, reason: str) -> None:
        self.malformed.append(Malformed(chunk.file, int(chunk.lines[row]), reason))

    def rejecting(self, path: Path) -> Reject:
        """Return what rejects rows of a file by their line."""
        return lambda line, reason: self.malformed.append(Malformed(str(path), line, reason))

    def note(self, text: str, rows: int = 0) -> None:
        self.notes[text] += rows

    def mark(self) -> tuple[int, Counter[str], dict[str, Any]]:
        """Where `restore` goes back to."""
        return len(self.malformed), self.notes.copy(), dict(self.reader)

    def restore(self, mark: tuple[int, Counter[str], dict[str, Any]]) -> None:
        """Forgets what came after the mark."""
        del self.malformed[mark[0] :]
        self.notes, self.reader = mark[1], mark[2]


@dataclass(frozen=True)
class Meter:
    """How long an answer is where the file does not say."""

    unit: Unit
    count: Callable[[list[str]], Sequence[int]]
    """Of each text."""


@dataclass(frozen=True)
class Raw:
    """Rows of any format under fairlen's names; only `response` or `tokens`, and `reward` or `correct`, are needed."""

    prompt: Values
    """Text, messages or anything else; equal for answers that are compared."""
    response: Values
    reward: Values
    step: Values | None = None
    correct: Values | None = None
    truncated: Values | None = None
    advantage: Values | None = None
    tokens: Values | None = None
    """Generated tokens, where the file has them."""
    extra: Columns = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Rows that could be read, [N]; nan or 0 where the file does not say."""

    step: Ints
    prompt: Ints
    """Hash of the prompt."""
    text: Ints
    """Hash of the answer; 0 where there is no text."""
    measured: Ints
    """Length of the text in the meter's unit."""
    tokens: Ints
    outcome: Floats
    correct: Floats
    truncated: Floats
    advantage: Floats
    extra: dict[str, Floats]

    def __len__(self) -> int:
        return len(self.step)


def make_part(chunk: Chunk, raw: Raw, meter: Meter, found: Found) -> Part:
    """Numbers of the rows; those that lack what every row needs are rejected by line with the reason."""
    problems = [""] * len(chunk)
    step = whole_numbers(raw.step, 0, "step", problems)
    outcome, correct = read_outcomes(raw, problems)
    texts = [text_of(value) for value in raw.response]
    tokens = whole_numbers(raw.tokens, 0, "number of tokens", problems)
    for row, text in enumerate(texts):
        if text is None and not tokens[row]:
            problems[row] = problems[row] or f"the answer {describe_no_text(raw.response[row])}"
    keep = np.array([not problem for problem in problems], np.bool_)
    for row in np.flatnonzero(~keep).tolist():
        found.reject(chunk, row, problems[row])
    named = [text or "" for text in texts]
    measured = np.fromiter(meter.count(named), np.int64, len(named))
    empty = int(((measured == 0) & (tokens == 0) & keep).sum())
    if empty:
        found.note("empty answers count as length 1", empty)
    part = Part(
        step, hashes(raw.prompt), np.array([hash(text) if text else 0 for text in texts], np.int64),
        np.maximum(measured, 1), tokens, outcome, correct, numbers(raw.truncated, len(chunk))[0],
        numbers(raw.advantage, len(chunk))[0], read_extra(raw.extra),
    )  # fmt: skip
    return part if keep.all() else take(part, keep)


def read_outcomes(raw: Raw, problems: list[str]) -> tuple[Floats, Floats]:
    """Rewards and verdicts; a row with neither has a problem. A verdict alone is worth 0 or 1."""
    reward, bad = numbers(raw.reward, len(problems))
    correct, bad_verdict = numbers(raw.correct, len(problems))
    outcome = np.where(np.isnan(reward) & ~bad, correct, reward)
    for row in np.flatnonzero(bad | ~np.isfinite(outcome)).tolist():
        value = raw.reward[row]
        problems[row] = problems[row] or (
            "no reward" if value is None else f"the reward {shorten(value)} is not a finite number"
        )
    for row in np.flatnonzero(bad_verdict).tolist():
        problems[row] = (
            problems[row] or f"the verdict {shorten((raw.correct or [])[row])} is not true, false or a number"
        )
    return outcome, correct


def numbers(values: Values | None, size: int) -> tuple[Floats, Bools]:
    """Numbers, nan for None, and which values are something else."""
    if values is None:
        return np.full(size, np.nan), np.zeros(size, np.bool_)
    try:
        return np.asarray(values, np.float64).reshape(size), np.zeros(size, np.bool_)
    except (TypeError, ValueError, OverflowError):
        read = [number_of(value) for value in values]
        return np.array([NAN if n is None else n for n in read]), np.array([n is None for n in read], np.bool_)


def number_of(value: Any) -> float | None:
    """A number from a cell: "true" is 1 and an empty cell nan; None for anything else."""
    if value is None:
        return NAN
    if isinstance(value, str):
        word = value.strip().lower()
        if word in ("", "none", "null"):
            return NAN
        value = {"true": 1.0, "false": 0.0}.get(word, word)
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole_numbers(values: Values | None, default: int, name: str, problems: list[str]) -> Ints:
    """Whole numbers of at least 0, `default` for None; other values are problems."""
    read, bad = numbers(values, len(problems))
    wrong = bad | (~np.isnan(read) & ((read != np.floor(read)) | (read < 0) | (read > 2**53)))
    for row in np.flatnonzero(wrong).tolist():
        problems[row] = problems[row] or f"the {name} {shorten((values or [])[row])} is not a whole number"
    return np.where(np.isnan(read) | wrong, default, read).astype(np.int64)


def read_extra(columns: Columns) -> dict[str, Floats]:
    """Columns that hold numbers only and at least one."""
    kept: dict[str, Floats] = {}
    for name, values in columns.items():
        if len(kept) == MAX_EXTRA:
            break
        first = next((value for value in values if value is not None), None)
        if isinstance(first, (bool, int, float)):
            read, bad = numbers(values, len(values))
            if not bad.any():
                kept[name] = read
    return kept


def text_of(value: Any) -> str | None:
    """The text of an answer: itself, or what messages of the assistant say; None where there is none."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list):
        return None
    said = [content_of(message) for message in value]
    return None if any(text is None for text in said) else "\n".join(text for text in said if text)


def describe_no_text(value: Any) -> str:
    """What is wrong with an answer of which `text_of` is None."""
    if value is None:
        return "is missing"
    is_count = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{shorten(value)} is {'a number' if is_count else type(value).__name__}, not text"


def content_of(message: Any) -> str | None:
    """What the assistant says in a message: reasoning, content, tool calls; empty for other roles, None for no message."""
    if isinstance(message, str):
        return message
    if not isinstance(message, dict) or not ({"content", "role", "text"} & message.keys()):
        return None
    if message.get("role", "assistant") not in ("assistant", "model"):
        return ""
    content = message.get("content", message.get("text"))
    parts = content if isinstance(content, list) else [content]
    texts = [
        message.get("reasoning_content"),
        *(part.get("text") if isinstance(part, dict) else part for part in parts),
    ]
    calls = message.get("tool_calls")
    return "\n".join(
        [*(text for text in texts if isinstance(text, str)), *([json.dumps(calls, default=str)] if calls else [])]
    )


def hashes(values: Values) -> Ints:
    """One whole number for each value, equal for equal ones within this process."""
    return np.array(
        [hash(v) if isinstance(v, str) else hash(json.dumps(v, sort_keys=True, default=str)) for v in values], np.int64
    )


def take(part: Part, rows: Bools | Ints) -> Part:
    """The chosen rows."""
    columns = {name: column[rows] for name, column in vars(part).items() if name != "extra"}
    return Part(**columns, extra={name: column[rows] for name, column in part.extra.items()})


def shorten(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def is_number(value: Any) -> bool:
    """A finite number or a verdict."""
    return isinstance(value, (bool, int, float)) and math.isfinite(value)
