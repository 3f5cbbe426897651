"""The responses that a report shows: some from every part of the run and of every outcome, or whole streams, with their texts.

Tokens are shown as text by the tokenizer.json that a run saves with its model: enough to show where one ends, no tokenizer.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.batch import Floats, Ints, count_by, sum_by
from fairlen.diagnostics.log import Log, advantages, rewards, values
from fairlen.diagnostics.readers.fairlen_records import Records
from fairlen.diagnostics.report.chart import plain
from fairlen.diagnostics.report.load import Run
from fairlen.diagnostics.uncertainty import ratio
from fairlen.files.formats import DAMAGED, describe

MAX_SHOWN = 200
"""Responses shown."""
MAX_TOKENIZER = 200_000_000
"""Bytes of a tokenizer.json that is read."""
END = "\u220e"
"""What a special token is shown as."""
LETTERS = 440_000
"""Bytes that all texts may take, and a fifth of that for all problems and answers."""
TEXTS = ("problem_id", "problem", "answer", "text", "status", "finish", "token_ids", "num_prompt", "logprobs")
HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@dataclass(frozen=True)
class Piece:
    """A segment of a response, in generated tokens."""

    number: int
    start: int
    stop: int
    role: str
    round: int
    value: float
    advantage: float
    weight: float
    """Mean over its updates; nan where it did not train."""


@dataclass(frozen=True)
class Shown:
    """A response as it is shown."""

    number: int
    batch: int
    prompt: int
    stream: int
    track: int
    round: int
    inherited: int
    length: int
    outcome: float
    reward: float
    correct: bool
    truncated: bool
    problem_id: str
    problem: str
    answer: str
    status: str
    finish: str
    head: str
    tail: str
    """Empty where the whole text is shown."""
    left_out: int
    """Letters between the two."""
    tokens: dict[str, Any] = field(default_factory=dict)
    """What a script needs to colour tokens: letters of each in head and tail, and probabilities in percent."""
    pieces: tuple[Piece, ...] = ()

    @property
    def kind(self) -> str:
        return "correct" if self.correct else "truncated" if self.truncated else "incorrect"

    @property
    def piece_rows(self) -> list[tuple[str, ...]]:
        """Its pieces as text."""
        return [
            (str(p.round), p.role, f"{p.start} to {p.stop}", plain(p.value), f"{p.advantage:+.3f}", plain(p.weight))
            for p in self.pieces
        ]


def visible(text: str) -> str:
    """Text whose control characters, and those that turn its direction or show as nothing, are written out."""
    return HIDDEN.sub(lambda found: f"\u27e8U+{ord(found[0]):04X}\u27e9", text)


def show_sample(run: Run, records: Records) -> list[Shown]:
    """The responses to show, in order of training."""
    rows = choose_streams(records) if "streams" in records.log.known else choose_responses(records.log)
    vocabulary, texts = read_vocabulary(run.folder), read_texts(records, rows)
    room, pieces = LETTERS // max(len(rows), 1), find_pieces(records, rows)
    return [show(records, row, texts[row], vocabulary, room, pieces[row]) for row in rows.tolist()]


def choose_responses(log: Log) -> Ints:
    """At most MAX_SHOWN rows, the same number of each outcome in each eighth of the run as far as there are."""
    responses = log.responses
    outcome = np.where(responses.correct, 0, np.where(responses.truncated, 1, 2))
    return np.sort(spread(period(log.batch) * 3 + outcome, np.ones(len(log)), MAX_SHOWN))


def choose_streams(records: Records) -> Ints:
    """Return rows of whole streams, at most MAX_SHOWN, from each eighth of the run; those with ends of both kinds first."""
    responses = records.log.responses
    key = responses.prompt * (int(responses.stream.max(initial=0)) + 1) + responses.stream
    _, first, of_row, size = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    correct = np.bincount(of_row, responses.correct)
    mixed = (correct > 0) & (correct < size)
    chosen = spread(period(records.log.batch[first]) * 2 + ~mixed, size, MAX_SHOWN, weights=np.where(mixed, 3, 1))
    rows = np.flatnonzero(np.isin(of_row, chosen))
    return rows[np.lexsort((records.track[rows], key[rows]))]


def period(batch: Ints) -> Ints:
    """The eighth of the run."""
    low, high = int(batch.min()), int(batch.max())
    return (batch - low) * 8 // (high - low + 1)


def spread(stratum: Ints, size: Ints | np.ndarray, most: int, weights: Ints | None = None) -> Ints:
    """Positions drawn from all strata in turn until `most` is full; `weights` are how many each stratum gives in a turn."""
    draw = np.random.default_rng(0)
    order = draw.permutation(len(stratum))
    order = order[np.argsort(stratum[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(stratum[order], stratum[order])
    turn = rank // (1 if weights is None else weights[order])
    order = order[np.lexsort((stratum[order], turn))]
    return order[np.cumsum(size[order]) <= most]


def read_texts(records: Records, rows: Ints) -> dict[int, dict[str, Any]]:
    """The texts and tokens of some rows; where a file's texts are damaged, a sentence that says so."""
    by_file: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        by_file[int(records.file[row])].append(row)
    found: dict[int, dict[str, Any]] = {}
    for number, members in by_file.items():
        path = records.files[number]
        try:
            names = [name for name in TEXTS if name in pq.read_schema(path).names]
            texts = pq.read_table(path, columns=names).take(records.row[members]).to_pylist()
        except (OSError, pa.ArrowException) as error:  # its numbers could be read, or it would not be in `files`
            texts = [{"text": f"{path}: {describe(error)}; {DAMAGED}"}] * len(members)
        found |= dict(zip(members, texts, strict=True))
    return found


def find_pieces(records: Records, rows: Ints) -> dict[int, tuple[Piece, ...]]:
    """The segments of some rows."""
    log, segments = records.log, records.log.segments
    weight, value, advantage = mean_weights(log), values(log), advantages(log)
    found: dict[int, tuple[Piece, ...]] = {row: () for row in rows.tolist()}
    for i in np.flatnonzero(np.isin(segments.response, rows)).tolist():
        row = int(segments.response[i])
        role = "survivor" if segments.survivor[i] else "finisher" if "streams" in log.known else "whole"
        start, size = int(records.start[i]), int(segments.length[i])
        found[row] += (
            Piece(i, start, start + size, role, int(segments.round[i]), float(value[i]),
                  float(advantage[i]), float(weight[i])),
        )  # fmt: skip
    return found


def mean_weights(log: Log) -> Floats:
    """Mean weight per token over the updates of each segment, [B]; nan where it did not train."""
    if not len(log.trained):
        return np.full(len(log.segments), np.nan)
    size = len(log.segments)
    return ratio(sum_by(log.trained.segment, log.trained.weight, size), count_by(log.trained.segment, size))


def show(
    records: Records,
    row: int,
    text: dict[str, Any],
    vocabulary: Vocabulary | None,
    room: int,
    pieces: tuple[Piece, ...],
) -> Shown:
    """One response."""
    responses, num_prompt = records.log.responses, int(text.get("num_prompt") or 0)
    head, tail, left_out, tokens = cut(text, vocabulary, room)
    words = {
        n: shorten(visible(str(text.get(n) or "")), max(room // 10, 60))
        for n in ("problem_id", "answer", "status", "finish")
    }
    return Shown(
        number=row, batch=int(records.log.batch[row]), prompt=int(responses.prompt[row]), stream=int(responses.stream[row]),
        track=int(records.track[row]), round=int(responses.round[row]), inherited=int(records.inherited[row]),
        length=int(responses.length[row]), outcome=float(responses.outcome[row]), reward=float(rewards(records.log)[row]),
        correct=bool(responses.correct[row]), truncated=bool(responses.truncated[row]), **words,
        problem=shorten(visible(str(text.get("problem") or "")), max(room // 5, 200)),
        head=head, tail=tail, left_out=left_out, tokens=tokens,
        pieces=tuple(Piece(p.number, p.start - num_prompt, p.stop - num_prompt, *list(vars(p).values())[3:]) for p in pieces),
    )  # fmt: skip


def size_of(text: str) -> int:
    """Bytes that a text takes in the page."""
    return len(text.encode()) + 4 * sum(map(text.count, "<>&\"'"))


def shorten(text: str, room: int) -> str:
    """The beginning of a text that is too long."""
    return text if size_of(text) <= room else text[: max(room * len(text) // size_of(text), 1)] + " \u2026"


def cut(text: dict[str, Any], vocabulary: Vocabulary | None, room: int) -> tuple[str, str, int, dict[str, Any]]:
    """The text in as many bytes as there are: two thirds from the beginning, one from the end."""
    words = str(text.get("text") or "")
    ids, logprobs = list(text.get("token_ids") or ()), list(text.get("logprobs") or ())
    answer = ids[int(text.get("num_prompt") or 0) :]
    pieces = vocabulary.split(answer, words) if vocabulary else None
    parts = [visible(p) for p in pieces] if pieces else list(visible(words))
    first, last = len(parts), len(parts)
    if sum(map(size_of, parts)) > room:
        sizes = np.array([size_of(p) for p in parts])
        first = int(np.searchsorted(np.cumsum(sizes), room * 2 // 3))
        last = max(first, len(parts) - int(np.searchsorted(np.cumsum(sizes[::-1]), room // 3)))
    head, middle, tail = ("".join(p) for p in (parts[:first], parts[first:last], parts[last:]))
    if not pieces or len(logprobs) != len(parts):
        return head, tail, len(middle), {}
    chance = [round(99 * float(np.exp(min(p, 0.0)))) for p in logprobs]
    shown = [*range(first), *range(last, len(parts))]
    tokens = {
        "n": [len(parts[i].encode("utf-16-le")) // 2 for i in shown],
        "p": "".join(f"{chance[i]:02d}" for i in shown),
        "head": first,
        "from": last,
    }
    return head, tail, len(middle), tokens


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
        if path.is_file() and path.stat().st_size <= MAX_TOKENIZER:
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
