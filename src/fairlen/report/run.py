"""Contents of a run folder for a report: its numbers, and the texts of a sample of responses from every part and outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fairlen.audit.log import Log, advantages, rewards, values
from fairlen.audit.readers import Source
from fairlen.audit.readers.fairlen_records import FORMAT, read_records
from fairlen.audit.statistics.intervals import ratio
from fairlen.batch import Floats, Ints, count_by, sum_by
from fairlen.console import plural
from fairlen.console import visible_lines as visible
from fairlen.files.foreign import Unreadable, read_file_lines, read_json_object, require_regular_file
from fairlen.files.formats import DAMAGED, describe
from fairlen.files.limits import NotJSONError, parse_json

MAX_SHOWN = 200
OF_PROMPT = 8  # responses to a prompt that are shown together
END = "\u220e"  # what a special token is shown as
TEXT_BYTES = 440_000  # that all texts may take, and a fifth of that for all problems and answers
TEXTS = (
    "problem_id", "problem", "answer", "text", "status", "finish", "token_ids", "num_prompt", "logprobs", "turns", "turn_rewards",
)  # fmt: skip


@dataclass(frozen=True)
class RecordedRun:
    folder: Path
    description: dict[str, Any]  # run.json
    updates: list[dict[str, Any]]  # of metrics.jsonl, updates and skipped ones
    evaluations: list[dict[str, Any]]
    records: Source | None  # None where no rollout batch was recorded
    left_out: tuple[str, ...] = ()  # a sentence for everything in records/ that could not be read


def read_run(folder: Path) -> RecordedRun:
    """Read a run folder, also of a run that still goes on.

    Raises FileNotFoundError where there is no run, and ValueError where run.json or metrics.jsonl is not what a run writes.
    """
    path = folder / "run.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: there is no such file; give the folder that `fairlen train` printed as its run folder; rollouts of other "
            f"programs are read by: fairlen audit {folder}"
        )
    description = read_json_object(path)
    updates, evaluations = read_metrics(folder)
    tables = [path for kind in ("responses", "segments") for path in sorted(folder.glob(f"records/{kind}-*.parquet"))]
    log, left_out = read_records(tables, texts=False) if tables else (None, ())
    records = Source(FORMAT, visible(folder.name), tuple(map(str, tables)), log, ()) if log else None
    return RecordedRun(folder, description, updates, evaluations, records, left_out)


def read_metrics(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Read metrics.jsonl of a run; its last line may be half written.

    Args:
        folder: The run folder. Without metrics.jsonl both lists are empty.

    Returns:
        The objects of updates, and those of evaluations.

    Raises:
        ValueError: A line is not JSON, or its `rollout_batch` or `update`, the x of all curves, is not a whole number.
    """
    path = folder / "metrics.jsonl"
    updates, evaluations = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, line in enumerate(read_file_lines(path) if path.exists() else (), 1):
        if not line.strip() or not line.endswith(b"\n"):
            continue
        entry = parse_object(line, f"{path}:{number}")
        for name in ("rollout_batch", "update"):
            value = entry.get(name)
            if not isinstance(value, int | float) or not 0 <= value <= 2**53 or value != int(value):
                raise ValueError(
                    f"{path}:{number}: {name}={value!r}: give a whole number from 0, or take the line out of the file"
                )
        (evaluations if "eval/accuracy" in entry else updates).append(entry)
    return updates, evaluations


def parse_object(text: bytes, where: Path | str) -> dict[str, Any]:
    """Parse a JSON object.

    Args:
        text: The JSON.
        where: Its file and line, for the message.

    Raises:
        ValueError: The text is not UTF-8, not JSON, or not an object.
    """
    try:
        value = parse_json(text)
    except NotJSONError as error:
        raise ValueError(f"{where}: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not JSON of the expected form: an object is expected")
    return value


def column(entries: Sequence[dict[str, Any]], name: str) -> Floats:
    """Return a metric of some entries; nan where it is absent or not a number."""
    values = [entry.get(name) for entry in entries]
    return np.array([float(v) if isinstance(v, int | float) else np.nan for v in values], np.float64)


@dataclass(frozen=True)
class Piece:
    """A segment of a response, in generated tokens."""

    start: int
    stop: int
    role: str
    round: int
    value: float
    advantage: float
    weight: float  # mean over its updates; nan where it did not train


@dataclass(frozen=True)
class Passage:
    """A stretch of a response as it is shown: what one turn wrote, what was read, or how many letters are left out."""

    kind: Literal["own", "read", "left-out"]
    text: str
    label: str = ""  # what stands above it; empty where a response is one turn


@dataclass(frozen=True)
class Shown:
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
    active: bool
    problem_id: str
    problem: str
    answer: str
    status: str
    finish: str
    num_turns: int
    passages: list[Passage]
    tokens: dict[str, Any]
    """Data with which a script colours the policy's own tokens: letters of each, probabilities in percent, and of each passage
    its first and last ones and how much later they stand among all."""
    pieces: list[Piece]

    @property
    def opening(self) -> str:
        """How the policy begins, by which responses to one prompt are told apart."""
        return next((passage.text for passage in self.passages if passage.kind == "own"), "")

    @property
    def kind(self) -> str:
        if self.correct or self.truncated:
            return "correct" if self.correct else "truncated"
        return "incorrect" if self.active else "ungraded"


def show_sample(folder: Path, records: Source) -> list[Shown]:
    log, of, size = records.log, records.log.trained.segment, len(records.log.segments)
    rows = choose_rows(log)
    tokenizer, texts, room = read_tokenizer(folder), read_texts(records, rows), TEXT_BYTES // max(len(rows), 1)
    numbers = [values(log), advantages(log), ratio(sum_by(of, log.trained.weight, size), count_by(of, size))]
    return [show(log, row, texts[row], tokenizer, room, numbers) for row in rows.tolist()]


def choose_rows(log: Log) -> Ints:
    """Return at most MAX_SHOWN rows, whole streams or OF_PROMPT of a prompt: of each eighth as many with mixed ends as others."""
    responses, part = log.responses, log.responses.stream
    if "streams" not in log.known:
        order = np.argsort(responses.prompt, kind="stable")
        prompt, part = responses.prompt[order], np.empty(len(log), np.int64)
        part[order] = (np.arange(len(log)) - np.searchsorted(prompt, prompt)) // OF_PROMPT
    _, unit = np.unique(np.stack([responses.prompt, part]), axis=1, return_inverse=True)
    hits, size = np.bincount(unit, responses.correct)[unit], np.bincount(unit)[unit]
    kind = np.where((hits > 0) & (hits < size), 0, 1)
    _, first, size = np.unique(unit, return_index=True, return_counts=True)
    since = log.batch - log.batch.min()
    stratum = (since * 8 // (since.max() + 1) * 3 + kind)[first]
    order = np.random.default_rng(0).permutation(len(first))
    order = order[np.argsort(stratum[order], kind="stable")]
    rank = np.arange(len(order)) - np.searchsorted(stratum[order], stratum[order])
    order = order[np.argsort(rank, kind="stable")]  # one of each stratum in turn
    chosen = order[np.cumsum(size[order]) <= MAX_SHOWN]
    rows = np.flatnonzero(np.isin(unit, chosen))
    return rows[np.lexsort((log.columns["track"][rows], unit[rows]))]


def read_texts(records: Source, rows: Ints) -> dict[int, dict[str, Any]]:
    """Return the texts and tokens of some rows; where a file's texts are damaged, a sentence that says so."""
    by_file: dict[int, list[int]] = defaultdict(list)
    for row in rows.tolist():
        by_file[int(records.log.file[row])].append(row)
    found: dict[int, dict[str, Any]] = {}
    for number, members in by_file.items():
        path = Path(records.files[number])
        try:
            regular = require_regular_file(path)
            names = [name for name in TEXTS if name in pq.read_schema(regular).names]
            texts = pq.read_table(regular, columns=names).take(records.log.line[members] - 1).to_pylist()
        except (
            OSError,
            Unreadable,
            pa.ArrowException,
        ) as error:  # its numbers could be read, or it would not be in `files`
            texts = [{"text": f"{path}: {describe(error)}; {DAMAGED}"}] * len(members)
        found |= dict(zip(members, texts, strict=True))
    return found


def find_pieces(log: Log, row: int, num_prompt: int, numbers: list[Floats]) -> list[Piece]:
    segments, found = log.segments, []
    for i in np.flatnonzero(segments.response == row).tolist():
        role = "survivor" if segments.survivor[i] else "finisher" if "streams" in log.known else "whole"
        start, (value, advantage, weight) = int(log.start[i]) - num_prompt, (float(column[i]) for column in numbers)
        stop = start + int(segments.length[i])
        found.append(Piece(start, stop, role, int(segments.round[i]), value, advantage, weight))
    return found


def show(log: Log, row: int, text: dict[str, Any], tokenizer: Any, room: int, numbers: list[Floats]) -> Shown:
    num_prompt = int(text.get("num_prompt") or 0)
    names = ("prompt", "stream", "round", "length", "outcome", "correct", "truncated", "active", "num_turns")
    columns = {name: getattr(log.responses, name) for name in names}
    columns |= {"batch": log.step, "reward": rewards(log)} | {of: log.columns[of] for of in ("track", "inherited")}
    rooms: dict[str, int] = dict.fromkeys(("problem_id", "answer", "status", "finish"), room // 10)
    fields: dict[str, Any] = {name: column[row].item() for name, column in columns.items()}
    fields |= {name: shorten(visible(str(text.get(name) or "")), max(size, 60)) for name, size in rooms.items()}
    fields["problem"] = shorten(visible(str(text.get("problem") or "")), max(room // 5, 60), end=True)
    pieces = find_pieces(log, row, num_prompt, numbers)
    passages, tokens = cut(
        text, tokenizer, room, [p.advantage for p in pieces] if len(pieces) == fields["num_turns"] else []
    )
    tokens |= {"inherited": fields["inherited"]} if tokens else {}
    return Shown(number=row, passages=passages, tokens=tokens, pieces=pieces, **fields)


def size_of(text: str) -> int:
    return len(text.encode()) + 4 * sum(map(text.count, "<>&\"'"))


def shorten(text: str, room: int, end: bool = False) -> str:
    """Return as much of the beginning as has room, or of the `end`, where the question of a prompt stands."""
    kept = max(room * len(text) // max(size_of(text), 1), 1)
    return text if size_of(text) <= room else f"\u2026 {text[-kept:]}" if end else f"{text[:kept]} \u2026"


def cut(
    text: dict[str, Any], tokenizer: Any, room: int, advantages: Sequence[float] = ()
) -> tuple[list[Passage], dict[str, Any]]:
    """Return a response as passages, and what a script needs to colour its tokens; `advantages` are of turns."""
    words, first = str(text.get("text") or ""), int(text.get("num_prompt") or 0)
    answer, logprobs = list(text.get("token_ids") or ())[first:], list(text.get("logprobs") or ())
    spans = np.array(text.get("turns") or [first, first + len(answer)], np.int64).reshape(-1, 2) - first
    tokens = split_tokens(tokenizer, answer, words) if tokenizer else None
    parts = [visible(p) for p in tokens] if tokens else list(visible(words))
    block = blocks_of(np.arange(len(parts)), spans) if tokens else np.ones(len(parts), np.int64)
    labels: dict[int, str] = {}
    if len(spans) > 1 or block.min(initial=1) == 0:
        size = np.bincount(block, minlength=2 * len(spans) + 1)
        rewards = text.get("turn_rewards") or ()
        labels = label_turns(size, rewards, advantages) if tokens else {1: "turns and what was read, not told apart"}
    stretches = divide(parts, block, room)
    own = [(start, stop) for at, start, stop in stretches if at > 0 and at % 2]
    if not tokens or len(logprobs) != np.count_nonzero(block % 2):
        return show_passages(parts, stretches, labels), {}
    chance = [round(99 * float(np.exp(min(p, 0.0)))) for p in logprobs]
    shown, place = [i for start, stop in own for i in range(start, stop)], np.cumsum(block % 2) - 1
    ends = np.cumsum([0, *(stop - start for start, stop in own)]).tolist()
    return show_passages(parts, stretches, labels), {
        "n": [len(parts[i].encode("utf-16-le")) // 2 for i in shown],
        "p": "".join(f"{chance[place[i]]:02d}" for i in shown),
        "parts": [
            [begin, end, int(place[at]) - begin] for (at, _), (begin, end) in zip(own, pairwise(ends), strict=True)
        ],
    }


def blocks_of(position: Ints, spans: Ints) -> Ints:
    """Return 2 k - 1 for positions that turn k of `spans` [K, 2] wrote, k from 1, and 2 k for those read after it."""
    begun = np.searchsorted(spans[:, 0], position, side="right")
    return 2 * begun - ((begun > 0) & (position < spans[np.maximum(begun, 1) - 1, 1]))


def label_turns(size: Ints, rewards: Sequence[float], advantages: Sequence[float]) -> dict[int, str]:
    tokens = [f"{number} {plural('token', number)}" for number in size.tolist()]
    labels = {at: f"read, {tokens[at]}, not trained" for at in range(0, len(tokens), 2)}
    for turn, number in enumerate(tokens[1::2]):
        paid = f", reward {rewards[turn]:.3g}" if len(rewards) else ""
        paid += f", advantage {advantages[turn]:+.3f}" if len(advantages) else ""
        labels[2 * turn + 1] = f"turn {turn + 1}, {number}{paid}"
    return labels


def divide(parts: Sequence[str], block: Ints, room: int) -> list[tuple[int, int, int]]:
    """Return (block, first part, one past the last) of what fits: two thirds of the room from the beginning; -1 is left out."""
    first, last = len(parts), len(parts)
    if sum(map(size_of, parts)) > room:
        sizes = np.array([size_of(p) for p in parts])
        first = int(np.searchsorted(np.cumsum(sizes), room * 2 // 3))
        last = max(first, len(parts) - int(np.searchsorted(np.cumsum(sizes[::-1]), room // 3)))
    seen = np.array(block)
    seen[first:last] = -1
    edges = [0, *(np.flatnonzero(np.diff(seen)) + 1).tolist(), len(parts)]
    return [(int(seen[start]), start, stop) for start, stop in pairwise(edges) if start < stop]


def show_passages(
    parts: Sequence[str], stretches: list[tuple[int, int, int]], labels: dict[int, str], more: int = 0
) -> list[Passage]:
    left, found = dict(labels), []
    for at, start, stop in stretches:
        text = "".join(parts[start:stop])
        out = Passage("left-out", f" \u2026 {len(text) + more:,} letters left out \u2026 ")
        found.append(out if at < 0 else Passage("own" if at % 2 else "read", text, left.pop(at, "")))
    return found


def split_tokens(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[str] | None:
    """Return the text of each token; None where they do not add up to `text`, as token boundaries are then unknown."""
    from tokenizers.decoders import DecodeStream

    stream, added = DecodeStream(skip_special_tokens=True), tokenizer.get_added_tokens_decoder()
    found = [stream.step(tokenizer, token) or "" for token in token_ids]
    if "".join(found) != text:
        return None
    is_special = [token in added and added[token].special for token in token_ids]
    return [END if special else piece for special, piece in zip(is_special, found, strict=True)]


def read_tokenizer(run: Path) -> Any:
    """Return the tokenizer of a run's model, or None if the run has no readable tokenizer.json."""
    try:
        from tokenizers import Tokenizer

        paths = (run / kind / "tokenizer.json" for kind in ("model", "best"))
        return Tokenizer.from_file(str(require_regular_file(next(filter(Path.is_file, paths)))))
    except Exception:  # whatever the library raises for a damaged file, StopIteration where there is none
        return None
