"""The rollouts behind the findings of an audit: which of them are shown, and their texts, read again from the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlen.audit.audit import Audit
from fairlen.audit.log import plain_samples
from fairlen.audit.readers import Source, fairlen_records
from fairlen.audit.readers.blocks import BlockForms
from fairlen.audit.readers.messages import Passages, content_of, said_in
from fairlen.audit.readers.rows import Found
from fairlen.audit.readers.spent import separate_blocks
from fairlen.batch import Bools, Floats, Ints
from fairlen.files.formats import Chunk, Unreadable, describe, stream
from fairlen.report.run import Passage, divide, shorten, show_passages, visible

NUM_ALONE, NUM_PAIRS = 3, 4  # responses of a kind, and prompts with a pair of them, that are shown
ROOM = 6000  # bytes that a response may take in the page; the end of a prompt a tenth of that
GONE = "the text cannot be read again"


@dataclass(frozen=True)
class Rollout:
    kind: str
    length: str
    step: int
    where: str
    prompt: str
    passages: list[Passage]


Texts = dict[int, tuple[str, Passages]]  # by row of a log, prompt and response
Group = tuple[str, str, list[list[Rollout]]]  # a title, what it shows, and rows of what stands side by side


def show_rollouts(one: Audit, room: int = ROOM) -> list[Group]:
    """Return the responses behind what an audit says about length; none where the log does not say where they stand."""
    groups = [group for group in choose_rollouts(one) if group[2]] if len(one.log.line) else []
    chosen = {row for _, _, rows in groups for side in rows for row in side}
    texts = read_texts(one.source, np.array(sorted(chosen), np.int64))
    return [
        (title, says, [[show(one.source, row, texts[row], room) for row in side] for side in rows])
        for title, says, rows in groups
    ]


def choose_rollouts(one: Audit) -> Iterator[tuple[str, str, list[list[int]]]]:
    """Yield a title, what it shows and rows of responses: pairs to one prompt, then the longest and shortest of each outcome."""
    log, rows = one.log, np.flatnonzero(plain_samples(one.log))
    correct, length, prompt = log.correct, log.responses.length, log.responses.prompt
    side = -1 if one.within.gap.value < 0 else 1
    pairs = far_pairs(log.strata, np.where(correct, side, -side) * np.log(length), correct, rows)
    word = "longer" if side > 0 else "shorter"
    text = f"Where the incorrect response is {word} by the largest ratio: the most extreme pairs, not typical ones."
    yield "Prompts where the difference is largest", text, pairs
    kinds = [("Longest incorrect", ~correct, -1), ("Shortest correct", correct, 1)]
    kinds += [("Shortest incorrect", ~correct, 1)] if any(f.measure == "within.bend" for f in one.findings) else []
    for title, is_kind, sign in kinds:
        of_kind = rows[is_kind[rows]]
        of_kind = of_kind[np.argsort(sign * length[of_kind], kind="stable")]
        _, first = np.unique(prompt[of_kind], return_index=True)
        chosen = of_kind[np.sort(first)[:NUM_ALONE]].tolist()
        left_out = ", truncated ones left out" if "truncated" in log.known else ""
        yield f"{title} responses", f"One for each prompt{left_out}.", [[row] for row in chosen]


def far_pairs(prompt: Ints, score: Floats, correct: Bools, rows: Ints) -> list[list[int]]:
    """Return for the prompts with the largest differences the incorrect and the correct response of least `score`."""
    order = rows[np.argsort(score[rows], kind="stable")]
    keys, first = np.unique(2 * prompt[order] + correct[order], return_index=True)
    best = dict(zip(keys.tolist(), order[first].tolist(), strict=True))
    pairs = (
        (score[row] + score[best[key + 1]], row, best[key + 1])
        for key, row in best.items()
        if key % 2 == 0 and key + 1 in best
    )
    return [[one, other] for gap, one, other in sorted(pairs)[:NUM_PAIRS] if gap < 0]


def read_texts(source: Source, rows: Ints) -> Texts:
    found: Texts = {}
    for number in np.unique(source.log.file[rows]).tolist():
        here = rows[source.log.file[rows] == number]
        try:
            found |= read_file(source, number, np.unique(source.log.line[here]))
        except (Unreadable, TypeError, AttributeError, KeyError, IndexError, ValueError, RecursionError) as error:
            found |= {int(row): ("", [(True, f"{GONE}: {describe(error)}")]) for row in here}
    return {int(row): found.get(int(row), ("", [(True, f"{GONE}: the file has changed since")])) for row in rows}


def read_file(source: Source, number: int, wanted: Ints) -> Texts:
    """Return texts on some lines of a file, by row of the log; of a line with several responses where none was left out."""
    log, is_own = source.log, source.format is fairlen_records.FORMAT
    names = ("problem", "text") if is_own else ("prompt", "response")
    found: Texts = {}
    path, columns = Path(source.files[number]), names if is_own else None
    for chunk in stream(path, lambda line, why: None, columns=columns, counts=True):
        if places := np.flatnonzero(np.isin(chunk.lines, wanted)).tolist():
            cells = {name: [cells[place] for place in places] for name, cells in chunk.columns.items()}
            read = source.format.read(Chunk(chunk.file, [chunk.lines[place] for place in places], cells), Found())
            for line in set(read.lines):
                rows = np.flatnonzero((log.file == number) & (log.line == line)).tolist()
                here = np.flatnonzero(np.equal(read.lines, line)).tolist()
                texts = [
                    (
                        words_of(read.get(names[0])[place]),
                        split_passages(read.get(names[1])[place], source.format.forms),
                    )
                    for place in here
                ]
                found |= dict(zip(rows, texts, strict=True)) if len(rows) == len(texts) else {}
        if chunk.lines[-1] >= wanted[-1]:
            break
    return found


def split_passages(response: Any, forms: BlockForms) -> Passages:
    """Return what the policy wrote and read of a response, in order; blocks that it read are passages of their own."""
    said = said_in(response)
    if said is None:
        return []
    if forms.has_turns or "read" in forms.origins.values():
        return [(is_own, "".join(text for _, text in parts)) for is_own, parts in separate_blocks(said, forms)]
    return [(is_own, "\n".join(text for _, text in parts)) for is_own, parts in said]


def words_of(prompt: Any) -> str:
    said = [content_of(one) for one in (prompt if isinstance(prompt, list) else [prompt])]
    return json.dumps(prompt, ensure_ascii=False, default=str) if None in said else "\n".join(map(str, said))


def number_blocks(passages: Passages) -> tuple[Ints, dict[int, str]]:
    """Return the block of each letter, 2 k - 1 for turn k and 2 k for what was read after it, and what stands above several."""
    turn, parts, labels = 0, [np.zeros(0, np.int64)], dict[int, str]()
    for is_own, text in passages:
        turn += is_own
        parts.append(np.full(len(text), 2 * turn - is_own))
        labels[2 * turn - is_own] = f"turn {turn}" if is_own else "read, not trained"
    return np.concatenate(parts), labels if len(labels) > 1 else {}


def show(source: Source, row: int, text: tuple[str, Passages], room: int) -> Rollout:
    log, table = source.log, source.log.responses
    letters, (block, labels) = "".join(one for _, one in text[1]), number_blocks(text[1])
    if source.format is fairlen_records.FORMAT and table.num_turns[row] > 1:
        labels = {1: "turns and what was read, which `fairlen report` tells apart"}
    more = max(len(letters) - 2 * room, 0)  # never shown, so not looked at letter by letter
    parts = list(map(visible, letters[:room] + letters[room + more :]))
    block = np.delete(block, slice(room, room + more))
    where = shorten(visible(f"{source.files[log.file[row]]}:{log.line[row]}"), 400)
    return Rollout(
        "correct" if log.correct[row] else "incorrect", f"{table.length[row]:,} {log.unit}", int(log.step[row]), where,
        shorten(visible(text[0]), room // 10, end=True), show_passages(parts, divide(parts, block, room), labels, more),
    )  # fmt: skip
