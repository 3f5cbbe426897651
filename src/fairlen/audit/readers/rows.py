"""Rows of every format as columns of numbers, and logs of those; texts are kept as hashes and lengths alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairlen import channels
from fairlen.audit.log import Log, Malformed, Question, Unit, halfway
from fairlen.audit.readers import broken, messages
from fairlen.audit.readers.alternatives import (
    ask_about_bar,
    ask_about_beside,
    ask_about_blocks,
    ask_about_errors,
    ask_about_repeated,
    ask_about_ungraded,
    ask_about_words,
    name_value,
)  # fmt: skip
from fairlen.audit.readers.blocks import BlockForms
from fairlen.audit.readers.context import Choices, ContextChunk
from fairlen.audit.readers.grouping import is_by_response
from fairlen.audit.readers.spent import Meter, Pieces, add_up, characters, count_words, divide, split_all
from fairlen.audit.readers.truncation import find_truncated
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.batch import NO_VERDICT, Bools, Columns, Floats, Ints, build_responses, build_segments, number_keys
from fairlen.files.formats import Chunk, Unreadable
from fairlen.schema import number_text

WORDS: dict[str, float] = dict.fromkeys(
    ("true", "correct", "right", "yes", "pass", "passed", "c", "win", "won", "success", "solved"), 1.0
)
WORDS |= dict.fromkeys(
    ("false", "incorrect", "wrong", "no", "fail", "failed", "i", "loss", "lost", "lose", "failure", "unsolved"), 0.0
)
SAME_TEXT = (
    "most prompts have one text for correct and incorrect responses, as references have: name what the policy wrote: "
    "--columns response=NAME"
)
MAX_UNSPACED = 0.02
"""Share of texts without spaces between words up to which words are counted, and above which from one end words are not."""

MIN_USUAL = 1.5  # responses to a prompt in a step, from which on files can be steps
ERRORLESS = frozenset({"", "none", "null", "nan", "false", "no", "[]", "{}", "0", "ok"})
MIN_LOST = 0.01  # share of rows that could not be read from which on the verdict's sentence says so
MAX_UNSAID = 0.1
"""Share of rows that may not say whether a limit ended them, and count as not truncated; with more it is not known of any."""
WITHOUT_STEP = "rows without a step, where others have one, are left out"
NO_CHOICES = Choices()
Values = list[Any]
NO_BLOCKS, NO_MESSAGES = BlockForms(), broken.Messages()
WHOLE, FAILED, REPEATED, WITH_ERROR = 0, 1, 2, 3
"""Whether a response is whole, an empty or failed one, a text that many prompts have as an incorrect response, or one with an
error beside it."""


@dataclass(frozen=True)
class Options:
    columns: dict[str, str] = field(default_factory=dict)  # role to column, for files of no known format
    unit: Unit | None = None  # None: tokens where the files have them, words elsewhere
    tokenizer: str = ""
    """Folder with a tokenizer.json, that file, or the name of a model on the hub whose file is in the local cache."""
    max_response_length: int = 0  # in tokens; 0 is unknown
    pool: bool = False
    """Read files of one format as one log, in whatever folders, and compare responses of one step across them."""
    processes: int = 1  # forks of this one, that read large files of one log
    meanings: dict[str, str] = field(default_factory=dict)
    """What names in the files mean: of blocks in texts "read" or "written", of finish words "truncated", "ended" or "failed"."""
    groups: Choices = NO_CHOICES  # columns that form groups besides prompt and step, and columns that do not


@dataclass
class Found:
    malformed: list[Malformed] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # what was left out or taken how, and its rows, 0 for all
    chosen: dict[str, Any] = field(default_factory=dict)  # what the reader of a format decided once for all files
    files: dict[str, int] = field(default_factory=dict)  # position of each file among those of the source
    context: list[ContextChunk] = field(default_factory=list)  # columns without a role, of all rows
    has_steps: bool = False
    lacks: dict[str, str] = field(default_factory=dict)  # column that too few rows have to how many lack it
    caveats: list[str] = field(default_factory=list)  # clauses of the verdict's sentence

    @property
    def meanings(self) -> dict[str, str]:
        """Return what the user said that names in the files mean."""
        return self.chosen.get("meanings", {})

    @property
    def forms(self) -> BlockForms:
        """Return the blocks in the texts of the responses."""
        return self.chosen.get("forms", NO_BLOCKS)

    @property
    def messages(self) -> broken.Messages:
        """Return the texts that are messages of failures."""
        return self.chosen.get("messages", NO_MESSAGES)

    def caution(self, clause: str) -> None:
        """Add a clause to the verdict's sentence, and to the notes."""
        if clause not in self.caveats:
            self.caveats.append(clause)
            self.note(clause)

    def reject(self, file: str, line: int, reason: str) -> None:
        self.malformed.append(Malformed(file, int(line), reason))

    def note(self, text: str, rows: int = 0) -> None:
        self.notes[text] += rows

    def count(self, text: str, rows: Bools) -> None:
        if number := int(rows.sum()):
            self.note(text, number)

    def add(self, other: Found) -> None:
        """Take over what was found in one file."""
        self.malformed += other.malformed
        for text, rows in other.notes.items():
            self.note(text, rows)
        self.chosen |= other.chosen | self.chosen
        self.context += other.context

    def sentences(self) -> tuple[str, ...]:
        return tuple(f"{text}: {rows:,}" if rows else text for text, rows in self.notes.items())


@dataclass(frozen=True)
class Part(Columns):
    """Rows that could be read, [N]; nan or 0 where the file does not say."""

    step: Ints  # -1 where the file does not say
    prompt: Ints  # hash of the prompt, with what tells it from others of the same text
    group: Ints  # hash of what tells responses of one step and prompt apart
    text: Ints  # hash of the response; 0 if there is no text
    whole: Bools  # whether the text ends as one that is finished does
    spent: Ints  # length of the text by channel and block, [N, channels], in tokens of a tokenizer, else in characters
    blocks: Ints  # length of the text in blocks of unknown origin in the meter's unit, [N, blocks]
    measured: Ints  # length of the text in the meter's unit
    characters: Ints
    unspaced: Floats  # whether the text has hardly any spaces between words; nan of one too short to show it
    tokens: Ints
    turns: Ints
    outcome: Floats
    correct: Floats
    truncated: Floats
    advantage: Floats
    age: Floats  # updates since the weights that generated it
    dropped: Bools
    fault: Ints  # WHOLE, FAILED, REPEATED or WITH_ERROR
    mark: Ints  # broken.REMARKED or ELLIPSED where the log may have cut the text
    beside: Ints  # length of the text of objects next to the response, in the meter's unit
    word: Ints  # hash of a finish word that is not known; 0 for none
    scale: Ints  # hash of what rewards of one scale have in common; 0 if that is not known
    file: Ints
    line: Ints

    @property
    def share_unspaced(self) -> float:
        return float(np.nansum(self.unspaced) / max((~np.isnan(self.unspaced)).sum(), 1))


def read_rows(chunk: Chunk, meter: Meter, found: Found) -> Part:
    """Return the rows' numbers, of columns that are named as the fields of `Part`, response and reward.

    `prompt` may be anything that is equal for responses that are compared. Turns are counted in messages if nothing says how
    many there are. Rows without `response` or `tokens`, or whose numbers are none, are rejected by line with the reason, but not
    those that are `dropped`: the framework gave them no verdict. Empty and failed responses are dropped.
    """
    problems = [""] * len(chunk)
    step = whole_numbers(chunk.get("step"), "step", problems, -1)
    dropped = numbers(chunk.get("dropped"))[0] > 0
    outcome, correct, missing = read_outcomes(chunk, dropped, problems)
    said = [messages.said_in(value) for value in chunk.get("response")]
    has_response = np.array([messages_of_row is not None for messages_of_row in said], np.bool_)
    said, pieces, num_inferred = split_all(said, chunk.get("prompt"), found.forms)
    if num_inferred:
        note = "responses without </think> count as thinking, as others close what their prompt opened"
        found.note(note, num_inferred)
    if found.forms:
        is_read = np.array([any(not is_own for is_own, _ in one or ()) for one in said], np.bool_)
        found.count("text under headers of other roles, and in blocks that were read, counts in no length", is_read)
    texts = ["" if one is None else messages.own_text(one) for one in said]
    own_messages = [sum(is_own for is_own, _ in one or ()) for one in said]
    tokens, turns = (whole_numbers(chunk.get(name), f"number of {name}", problems) for name in ("tokens", "turns"))
    turns = np.where(turns > 0, turns, np.maximum(own_messages, 1))
    is_zero = np.array([value is not None for value in chunk.get("tokens")], np.bool_) & (tokens == 0)
    is_empty = is_zero & np.array([not text for text in texts], np.bool_) & ("response" not in chunk.columns)
    for row, value in enumerate(chunk.get("response")):
        is_counted = dropped[row] or is_empty[row] or (tokens[row] and meter.unit == "words")  # else texts are measured
        if not is_counted and (not has_response[row] or (not isinstance(value, str) and messages.is_hidden(value))):
            problems[row] = problems[row] or f"the response {messages.describe_no_text(value)}"
    keep = np.array([not problem for problem in problems], np.bool_)
    for row in np.flatnonzero(~keep).tolist():
        found.reject(chunk.file, chunk.lines[row], problems[row])
    found.count("rows without a reward are kept, but count as responses without a verdict", missing & keep)
    words = count_words(texts)
    measured = np.fromiter(words if meter.unit == "words" else meter.count(texts), np.int64, len(chunk))
    fault = np.where(dropped, WHOLE, find_faults(texts, has_response, tokens, is_empty, found))
    has_error = (
        np.array([is_error(value) for value in chunk.get("error")], np.bool_) if "error" in chunk.columns else False
    )
    of_error = {"failed": FAILED, "written": WHOLE, "ended": WHOLE}.get(found.meanings.get("error", ""), WITH_ERROR)
    fault = np.where((fault == WHOLE) & has_error & ~dropped, of_error, fault)
    is_failed = fault == FAILED
    truncated, advantage, age = (numbers(chunk.get(name))[0] for name in ("truncated", "advantage", "age"))
    file = np.full(len(chunk), found.files.setdefault(chunk.file, len(found.files)))
    return Part(
        step, hashes(chunk.get("prompt")), hashes(chunk.get("group")),
        np.array([number_text(text) if text else 0 for text in texts], np.int64),
        np.array([*map(messages.is_whole, texts)], np.bool_),
        measure_channels(pieces, meter, found), measure_blocks(pieces, meter, found),
        np.where(is_failed, 1, np.maximum(measured, 1)), np.array([*map(len, texts)]),
        np.array([*map(messages.lack_spaces, texts, words)], np.float64), np.where(is_empty, 1, tokens), turns, outcome,
        correct, truncated, advantage, age, dropped | missing | is_failed, fault,
        find_marks(texts, found), measure_texts(chunk.get("beside"), meter),
        hash_words(chunk.get("word"), found), hashes(chunk.get("scale")),
        file, np.asarray(chunk.lines, np.int64),
    ).take(keep)  # fmt: skip


def measure_texts(cells: Values, meter: Meter) -> Ints:
    """Return the length of each text, [N], 0 for None."""
    if not any(cells):
        return np.zeros(len(cells), np.int64)
    return np.fromiter(meter.count([cell or "" for cell in cells]), np.int64, len(cells))


def find_faults(texts: list[str], has_response: Bools, tokens: Ints, is_empty: Bools, found: Found) -> Ints:
    """Return which responses are empty, failed, or one of the texts that many prompts have, [N]."""
    fault = np.where(is_empty, FAILED, WHOLE)
    meaning = found.meanings.get("repeated", "")
    has_messages = bool(found.messages.failures or found.messages.repeated)
    is_short = np.array([len(text) <= broken.MAX_FAILURE for text in texts], np.bool_)
    for row in np.flatnonzero(has_response & is_short).tolist():
        text = texts[row]
        if not text.strip() or (broken.is_empty(text) and not found.messages.can_be_correct):
            fault[row] = WHOLE if tokens[row] > 0 else FAILED
            continue
        key = broken.normalise(text) if has_messages else ""
        is_message = key in found.messages.failures or (broken.is_failure(text) and not found.messages.can_be_correct)
        if is_message or (key in found.messages.repeated and meaning == "failed"):
            fault[row] = FAILED
        elif key in found.messages.repeated and meaning != "written":
            fault[row] = REPEATED
    return fault


def find_marks(texts: list[str], found: Found) -> Ints:
    """Return how each text shows that the log cut it; the first rows of the log tell whether any may."""
    if not found.chosen.get("may_be_cut", True):
        return np.zeros(len(texts), np.int64)
    return np.array([*map(broken.find_cut_mark, texts)], np.int64)


def is_error(value: Any) -> bool:
    """Return whether a cell of a column of errors holds one."""
    return not (value is None or value is False or value == 0 or str(value).strip().lower() in ERRORLESS)


def hash_words(words: Values, found: Found) -> Ints:
    """Return a hash for each finish word that is not known, 0 for None, and remember the words."""
    if not any(words):
        return np.zeros(len(words), np.int64)
    for word in {word for word in words if word is not None}:
        found.chosen[f"word {number_text(word)}"] = word
    return np.array([0 if word is None else number_text(word) for word in words], np.int64)


def measure_channels(pieces: Sequence[Pieces], meter: Meter, found: Found) -> Ints:
    """Return the size of the text of each response by channel, [N, channels + blocks], in tokens if lengths are tokens."""
    count = meter.count if meter.unit == "tokens" else characters
    return add_up(pieces, count([text for row in pieces for _, text in row]), name_channels(found.forms))


def measure_blocks(pieces: Sequence[Pieces], meter: Meter, found: Found) -> Ints:
    """Return the size of each response's text in every block of unknown origin, [N, blocks], in the meter's unit."""
    names = found.forms.unknown
    inside = [[(name, text) for name, text in row if name in names] for row in pieces]
    return add_up(inside, meter.count([text for row in inside for _, text in row]), names)


def name_channels(forms: BlockForms) -> list[str]:
    """Return the channels of a text: those that are generated, blocks of unknown origin, and what was read."""
    return [*channels.CHANNELS[:-1], *forms.unknown, channels.OBSERVATION]


def find_correct_rows(outcome: Floats, verdict: Floats) -> Bools:
    """Return which responses count as correct by the verdict, or by an outcome in the upper half of their range."""
    if not np.isnan(verdict).all():
        return verdict > 0.5
    known = outcome[np.isfinite(outcome)]
    return outcome > (0.5 if np.isin(known, (0.0, 1.0)).all() else halfway(known))


def read_outcomes(chunk: Chunk, dropped: Bools, problems: list[str]) -> tuple[Floats, Floats, Bools]:
    """Return rewards, verdicts and where both are missing. A verdict alone is worth 0 or 1, and a reward in words is one."""
    rewards, verdicts = chunk.get("reward"), chunk.get("correct")
    if "correct" not in chunk.columns and any(isinstance(one, str) and one.strip().lower() in WORDS for one in rewards):
        verdicts = rewards
    (reward, bad), (correct, bad_verdict) = numbers(rewards), numbers(verdicts)
    outcome = np.where(np.isnan(reward) & ~bad, correct, reward)
    missing = np.isnan(outcome) & ~bad & ~bad_verdict & ~dropped
    for row in np.flatnonzero((bad | ~(abs(outcome) <= 1e100) | bad_verdict) & ~dropped & ~missing).tolist():
        verdict = f"the verdict {verdicts[row]!r:.40} is not true, false or a number"
        what = "no number from -1e+100 to 1e+100" if np.isfinite(outcome[row]) else "not a finite number"
        reward_is = f"the reward {rewards[row]!r:.40} is {what}"  # squares of larger ones are infinite
        problems[row] = problems[row] or (verdict if bad_verdict[row] else reward_is)
    return np.where(dropped, np.nan, outcome), np.where(dropped, np.nan, correct), missing


def numbers(values: Values) -> tuple[Floats, Bools]:
    """Return numbers, nan for None, and which values are something else."""
    try:
        return np.asarray(values, np.float64).reshape(len(values)), np.zeros(len(values), np.bool_)
    except (TypeError, ValueError, OverflowError):
        read = [number_of(value) for value in values]
        return np.array([math.nan if n is None else n for n in read]), np.array([n is None for n in read], np.bool_)


def number_of(value: Any) -> float | None:
    """Return the number in a cell: "true" or "pass" is 1 and an empty cell nan; None for anything else."""
    if isinstance(value, str):
        word = value.strip().lower()
        value = None if word in ("", "none", "null") else WORDS.get(word, word)
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole_numbers(values: Values, name: str, problems: list[str], none: int = 0) -> Ints:
    """Return whole numbers from 0 to 2**53, and a number for None; other values are problems."""
    read, bad = numbers(values)
    wrong = bad | (~np.isnan(read) & ((read != np.floor(read)) | (read < 0) | (read > 2**53)))
    for row in np.flatnonzero(wrong).tolist():
        problems[row] = problems[row] or f"the {name} {values[row]!r:.40} is not a whole number from 0 to 2**53"
    return np.where(np.isnan(read) | wrong, none, read).astype(np.int64)


def hashes(values: Values) -> Ints:
    """Return a whole number for each value, [N], the same for equal ones; of equals that stand together the first is read."""
    found, last, number = np.zeros(len(values), np.int64), object(), 0
    for row, value in enumerate(values):
        if type(value) is not type(last) or value != last:
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
            number, last = number_text(text), value
        found[row] = number
    return found


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number or a verdict."""
    return isinstance(value, (bool, int, float)) and math.isfinite(value)


def join(parts: list[Part]) -> Part:
    return Part(**{name: np.concatenate([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def make_log(name: str, part: Part, meter: Meter, found: Found, options: Options) -> Log:
    part = drop_ungraded(part, found)
    part = settle_words(settle_scales(settle_verdicts(settle_steps(part, found, options), found)), found)
    caution_faults(part, found)
    length, unit = choose_lengths(part, meter, found, options)
    counts, step = ~part.dropped, part.step if options.pool else find_steps(part, found)
    known = find_known(part.take(counts), found)
    limit = max(options.max_response_length if unit == "tokens" else 0, int(length.max()))
    prompt = pair_keys(step, part.prompt)
    split = pair_keys(prompt, part.group)
    # a group that no two responses share is an id of responses
    prompt = number_keys(split if np.bincount(split).max() > 1 else prompt)
    verdict = np.where(counts, part.correct if "correct" in known else 0.0, NO_VERDICT)
    by_channel = divide(length, part.spent, found.forms.unknown)
    if by_channel and not options.tokenizer:
        found.note("lengths by channel are in proportion to characters; --tokenizer FOLDER of the model counts tokens")
    responses = build_responses(
        prompt, length, part.outcome, verdict, (part.truncated > 0.5) & ("truncated" in known), limit,
        num_turns=part.turns, channels=by_channel,
    )  # fmt: skip
    segments = replace(build_segments(responses, length), active=responses.active)
    columns = {"duplicate": find_duplicates(prompt, part.text)} if (part.text != 0).any() else {}
    columns |= {"age": part.age} if (part.age >= 0).all() else {}
    if unit != "tokens" and MAX_UNSPACED < part.share_unspaced < 1 - MAX_UNSPACED:
        columns["script"] = np.nan_to_num(part.unspaced)
        found.note(f"texts with and without spaces between words are not compared with each other, as {unit} differ")
    log = Log(
        name, unit, responses, step, segments, advantage=part.advantage if "advantage" in known else None,
        known=known | {"reward"},
        columns={"reward": part.outcome} | columns, malformed=tuple(found.malformed),
        problem=part.prompt, file=part.file, line=part.line,
    )  # fmt: skip
    mixed = is_mixed(prompt, log.correct) & counts & (part.text != 0)
    is_measured = (unit != "tokens" or options.tokenizer) and len(np.unique(prompt[mixed])) >= MIN_PROMPTS
    if is_measured and not differs(part.text, prompt, mixed):
        if "response" not in options.columns:
            raise Unreadable(SAME_TEXT)
        found.note(SAME_TEXT)
    log = log if "truncated" in log.known else add_truncated(log, part, found, options)
    obstacle = find_obstacle(part, log, found)
    questions = tuple(list_questions(part, log, found, options, meter))
    for question in questions:
        found.note(str(question))
    return replace(log, obstacle=obstacle, caveats=tuple(found.caveats), questions=questions)


def list_questions(part: Part, log: Log, found: Found, options: Options, meter: Meter) -> Iterator[Question]:
    """Yield what the files leave open."""
    are_counted = log.unit == "tokens" and bool((part.tokens > 0).any())
    # a text is measured whole and by block in the same unit, unless the files count its tokens
    sizes = part.blocks if log.unit == meter.unit and not are_counted else None
    yield from ask_about_blocks(log.responses.length, part.spent, found.forms, are_counted, sizes)
    names = {int(key.removeprefix("word ")): word for key, word in found.chosen.items() if key.startswith("word ")}
    yield from ask_about_words(part.word, names, log.responses.active)
    if "repeated" not in found.meanings:
        yield from ask_about_repeated(part.fault == REPEATED, sorted(found.messages.repeated))
    yield from ask_about_errors(part.fault == WITH_ERROR, log.correct, log.responses.active)
    yield from ask_about_beside(part.beside, found.chosen.get("beside", ""), options.columns)
    yield from ask_about_ungraded(log, found.chosen.get("reward", ""), found.meanings)
    yield from ask_about_bar(log, found.chosen.get("reward", ""), options.columns)


def caution_faults(part: Part, found: Found) -> None:
    """State how many responses are empty or failed, and how many rows could not be read."""
    if number := int((part.fault == FAILED).sum()):
        found.caution(f"{number:,} empty or failed responses ({number / len(part):.0%}) are excluded")
    if len(found.malformed) >= MIN_LOST * len(part):
        found.caution(f"{len(found.malformed):,} rows could not be read and are excluded")


def find_obstacle(part: Part, log: Log, found: Found) -> str:
    """Return why lengths are not known: the log cut the texts from which they are measured."""
    if (part.tokens > 0).all() and log.unit == "tokens":
        return ""
    counts = ~part.dropped & (part.text != 0) & ~log.responses.truncated
    if not counts.any() or part.share_unspaced > MAX_UNSPACED:
        return ""
    cut, how = broken.find_cut(part.mark[counts], part.characters[counts], part.whole[counts])
    if not how:
        return ""
    text = f"the log cut {cut.mean():.0%} of the texts, {how}, so that lengths are not known: "
    flags = " or ".join(f"--columns tokens={name}" for name in found.chosen.get("counts", ()))
    remedy = (
        f"{flags} takes a column for the number of tokens" if flags else "record whole texts, or a column `num_tokens`"
    )
    text += remedy
    found.note(text)
    return text


def drop_ungraded(part: Part, found: Found) -> Part:
    """Return rows in which those whose reward is no grade, as the user said, are dropped."""
    reward = found.chosen.get("reward", "")
    values = [value for value in np.unique(part.outcome[~np.isnan(part.outcome)]).tolist()] if found.meanings else []
    for value in values:
        if found.meanings.get(name_value(reward, value)) == "failed":
            is_ungraded = part.outcome == value
            found.caution(f"{is_ungraded.sum():,} responses with a `{reward}` of {value:g} are excluded")
            outcome = np.where(is_ungraded, np.nan, part.outcome)
            part = replace(part, dropped=part.dropped | is_ungraded, outcome=outcome)
    return part


def settle_steps(part: Part, found: Found, options: Options) -> Part:
    """Return the rows that have a step, if one has; else all, with the number in their file's path, or as of step 0."""
    has_step = part.step >= 0
    found.has_steps = bool(has_step.any())
    if found.has_steps:
        found.count(WITHOUT_STEP, ~has_step)
        return part.take(has_step)
    numbers_of_files = found.chosen.get("steps", {})
    if all(name in numbers_of_files for name in found.files) and "folder" not in options.groups.ignored:
        step = np.array([numbers_of_files[name] for name in found.files], np.int64)[part.file]
        num_groups = len(np.unique(pair_keys(step, part.prompt)))
        are_folders = len({Path(name).parent for name in found.files}) > 1
        is_one = step.min() == step.max()
        is_usual = len(part) >= MIN_USUAL * num_groups  # else files of runs, with one response to each prompt
        if find_visits(part.prompt)[0].max() == 0 if is_one else are_folders or is_usual:
            if are_folders and not is_usual:
                found.caution(
                    "each folder is a step and has one response to most prompts: --ignore-columns folder compares across "
                    "folders, if their numbers are those of workers"
                )
            found.has_steps = True
            found.note("no column of steps: the number in the path of a file is its step")
            return replace(part, step=step)
    return replace(part, step=np.zeros(len(part), np.int64))


def settle_verdicts(part: Part, found: Found) -> Part:
    """Return rows that all have a verdict or are dropped, where at least half of those that count have one, else none has.

    A metric that the reader took for the verdict is none where it is neither 0 nor 1: it is a share, as rewards are.
    """
    counts = ~part.dropped
    without = counts & np.isnan(part.correct)
    told, is_metric = part.correct[counts & ~without], found.chosen.get("is_metric")
    if 2 * without.sum() > counts.sum() or (is_metric and not np.isin(told, (0.0, 1.0)).all()):
        why = "verdicts are missing in most rows, or neither 0 nor 1: correct is the upper half of the outcomes' range"
        found.count(why, counts & (len(told) > 0))
        return replace(part, correct=np.full(len(part), np.nan))
    found.count("rows without a verdict, which most have, are kept, but not compared", without)
    return replace(part, dropped=part.dropped | without, outcome=np.where(without, np.nan, part.outcome))


def settle_words(part: Part, found: Found) -> Part:
    """Return rows in which the finish word of most responses counts as an end by the policy, if others have known words."""
    is_unknown = part.word != 0
    if not is_unknown.any():
        return part
    words, numbers_of_rows = np.unique(part.word[is_unknown], return_counts=True)
    usual = words[numbers_of_rows.argmax()]
    if numbers_of_rows.max() <= 0.5 * len(part) or numbers_of_rows.max() == len(part):
        return part
    name = found.chosen.get(f"word {usual}", "")
    found.caution(f"the finish word `{name}`, which most responses have, counts as an end by the policy")
    is_usual = part.word == usual
    return replace(part, truncated=np.where(is_usual, 0.0, part.truncated), word=np.where(is_usual, 0, part.word))


def settle_scales(part: Part) -> Part:
    """Return rows with a verdict by the scale of their reward, if rewards have several and no row has a verdict."""
    if not np.isnan(part.correct).all() or len(np.unique(part.scale)) < 2:
        return part
    correct = part.correct.copy()
    for scale in np.unique(part.scale):
        rows = (part.scale == scale) & ~part.dropped
        values = np.unique(part.outcome[rows])
        bar = halfway(part.outcome[rows]) if len(values) != 2 else values.mean()
        correct[rows] = part.outcome[rows] > bar
    return replace(part, correct=correct)


def find_known(part: Part, found: Found) -> frozenset[str]:
    """Return the columns that say enough of rows that count: those of all, and where a limit ended them of nearly all."""
    missing = {name: np.isnan(vars(part)[name]) for name in ("correct", "truncated", "advantage")}
    known = {name for name, rows in missing.items() if rows.sum() <= MAX_UNSAID * len(part) * (name == "truncated")}
    if "truncated" in known:
        found.count("rows that do not say whether a limit ended them count as not truncated", missing["truncated"])
    lacking = {name: rows.sum() for name, rows in missing.items() if name not in known and not rows.all()}
    found.lacks = {name: f"not known in {number:,} of {len(part):,} rows" for name, number in lacking.items()}
    return frozenset(known)


def add_truncated(log: Log, part: Part, found: Found, options: Options) -> Log:
    """Return a log with the responses that a limit ended where lengths tell; by tokens that the files say, whatever its unit."""
    if log.has_turns:
        found.note("which trajectories a limit ended is not known: it counts what they read too, and lengths do not")
        return log
    told, is_exact = log, bool(((part.tokens > 0) | part.dropped).all())
    if is_exact:
        told = replace(log, unit="tokens", responses=replace(log.responses, length=np.maximum(part.tokens, 1)))
    truncated, note = find_truncated(told, options.max_response_length, is_exact or not options.tokenizer, part.whole)
    if not note:
        return log
    found.note(note)
    responses = replace(log.responses, truncated=truncated | (part.truncated > 0.5))
    return replace(log, responses=responses, known=log.known | {"truncated"})


def is_mixed(group: Ints, correct: Bools) -> Bools:
    """Return which rows are of a group with a correct and an incorrect response."""
    first = np.unique(pair_keys(group, correct.astype(np.int64)), return_index=True)[1]
    return (np.bincount(group[first]) > 1)[group]


def differs(key: Ints, group: Ints, rows: Bools) -> bool:
    """Return whether keys differ within most groups of some rows."""
    group, key = group[rows], key[rows]
    first = np.unique(pair_keys(group, key), return_index=True)[1]
    return bool(np.mean(np.unique(group[first], return_counts=True)[1] > 1) > 0.5)


def find_steps(part: Part, found: Found) -> Ints:
    """Return steps; where no row has one, files with the same prompts, but for parts of a set, or else visits to a prompt."""
    groups = len(np.unique(pair_keys(part.file, part.prompt)))
    is_shared = groups > len(np.unique(part.prompt))
    anew = (np.diff(part.step) < 0) & (part.step[1:] == part.step.min()) & (np.diff(part.file) == 0)
    if found.has_steps and anew.sum() >= MIN_PROMPTS:
        found.note("steps begin anew in a file, as those of episodes do; name rollout batches: --columns step=NAME")
    if found.has_steps or (is_shared and all("-of-" in Path(name).name for name in found.files)):
        return part.step
    visit, usual = (part.file, len(part) / groups) if is_shared else find_visits(part.prompt)
    if usual < MIN_USUAL:  # a run for each seed, with one response to each prompt
        if is_shared:
            found.note("files have prompts in common, with one response each: compared as samples of one policy")
        return part.step
    if is_by_response(part.prompt, *read_plain(part), visit):
        return part.step
    why = "files have prompts in common: each file" if is_shared else "prompts come back: each visit to one"
    found.note(f"no column of steps, and {why} is a step, in their order")
    return visit


def find_visits(prompt: Ints) -> tuple[Ints, float]:
    """Return how many runs of its prompt came before each row's, and the median rows of a run of prompts with several, else 0."""
    start = np.flatnonzero(np.diff(prompt, prepend=~prompt[:1]))
    rows = np.diff(start, append=len(prompt))
    _, place, number = np.unique(prompt[start], return_inverse=True, return_counts=True)
    visit = np.empty(len(start), np.int64)
    visit[np.argsort(place, kind="stable")] = np.arange(len(start)) - np.repeat(np.cumsum(number) - number, number)
    several = rows[number[place] > 1]
    return np.repeat(visit, rows), float(np.median(several)) if len(several) else 0.0


def read_plain(part: Part) -> tuple[Floats, Floats]:
    """Return whether each row's outcome is above half of the range, and its log length in the unit that most rows have."""
    outcome = np.where(np.isnan(part.correct), part.outcome, part.correct)
    known = outcome[~np.isnan(outcome)]
    length = np.maximum(part.tokens if part.tokens.all() else part.measured, 1)
    return (outcome > halfway(known)).astype(np.float64), np.log(length)


def choose_lengths(part: Part, meter: Meter, found: Found, options: Options) -> tuple[Ints, Unit]:
    """Return tokens where every row has them and nothing else was asked for, else what the meter measured."""
    has = (part.tokens > 0) | part.dropped
    if has.all() and options.unit in (None, "tokens") and not options.tokenizer:
        return np.maximum(part.tokens, 1), "tokens"
    if options.unit == "tokens" and meter.unit != "tokens":
        raise ValueError("--unit tokens: the files do not hold tokens of every response; add --tokenizer FOLDER")
    if part.tokens.any() and not has.all():
        found.note("rows without a number of tokens, so that all are measured by their text", int((~has).sum()))
    if meter.unit == "tokens":
        found.note("lengths are tokens of the text; EOS and special tokens that the files lost are not counted")
    if options.unit is None and meter.unit == "words" and part.share_unspaced > MAX_UNSPACED:
        share = f"{part.share_unspaced:.0%} of texts have hardly any spaces between words"
        found.note(f"{share}, so that lengths are characters; --tokenizer MODEL counts tokens")
        return np.maximum(part.characters, 1), "characters"
    return part.measured, meter.unit


def find_duplicates(prompt: Ints, text: Ints) -> Floats:
    """Return 1 for responses that repeat an earlier one to their prompt, else 0; a hash of 0 is no text and repeats nothing."""
    repeats = text != 0
    repeats[np.unique(pair_keys(prompt, text), return_index=True)[1]] = False
    return repeats.astype(np.float64)


def pair_keys(one: Ints, other: Ints) -> Ints:
    """Return numbers, dense from 0, that are equal where both numbers are."""
    first, second = (np.unique(numbers, return_inverse=True)[1] for numbers in (one, other))
    return np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)[1]
