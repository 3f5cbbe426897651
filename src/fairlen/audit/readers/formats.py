"""Formats of rollout files, helpers of their readers, and the format of any table whose columns are known by name and content."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairlen.audit.readers.assignment import assign_columns, unfold_lists
from fairlen.audit.readers.blocks import BlockForms
from fairlen.audit.readers.calls import write_call
from fairlen.audit.readers.columns import ROLES, choose_by_content, column_at, is_numeric, list_inside
from fairlen.audit.readers.finish import meaning_of, read_finish, word_of
from fairlen.audit.readers.messages import open_output, split_chat, text_of
from fairlen.audit.readers.proposals import propose_columns
from fairlen.audit.readers.rows import Found, Options, Part, is_number
from fairlen.audit.readers.token_counts import COUNTS
from fairlen.audit.readers.unfold import unfold_row
from fairlen.audit.readers.verdicts import names_verdict
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.files.formats import Chunk, Row, Unreadable, make_chunk

GRADED = re.compile(r"^(metric|score|reward|result|verdict|grade|eval|evaluation)s?\.", re.I)
"""Names of objects that hold what a response is worth."""


@dataclass(frozen=True)
class Format:
    name: str
    title: str
    max_response_length: str  # what its users call the limit
    fits: Callable[[set[str]], bool]  # whether a file with columns of these names is of it
    read: Callable[[Chunk, Found], Chunk]  # gives a chunk with columns as rows.read_rows names them
    remedy: dict[str, str] = field(default_factory=dict)  # what its files lack
    finish: Callable[[Part, Found], Part] = lambda rows, found: rows
    notes: tuple[str, ...] = ()  # how its columns were chosen
    caveats: tuple[str, ...] = ()  # clauses of the verdict's sentence about how they were chosen
    forms: BlockForms = field(default_factory=BlockForms)  # blocks in the texts of its responses
    reward: str = ""  # name of the column of rewards, for flags; empty if its files have no such column
    counts: tuple[str, ...] = ()  # columns that may be numbers of tokens, for flags
    beside: str = ""  # name of the column of text next to the response, for flags
    columns: frozenset[str] = frozenset()  # those of a file of which files with others are another source
    settle: Callable[[Format, Chunk, Options], Format] = lambda format, head, options: format
    """Gives the format as it is for files with these first rows, whose columns it looks into; raises Unreadable to ask."""

    @property
    def roles(self) -> dict[str, str]:
        """Return the column in each role, of a format whose columns are chosen."""
        return getattr(self.read, "keywords", {}).get("chosen", {})


def has_all(*names: str) -> Callable[[set[str]], bool]:
    """Return whether all columns of one of some sets are there, each a text of names."""
    sets = [set(one.split()) for one in names]
    return lambda columns: any(columns >= one for one in sets)


def expand(chunk: Chunk, found: Found, read: Callable[[Row, str, int, Found], Iterator[Row]]) -> Chunk:
    outer = zip(chunk.lines, chunk.rows(), strict=True)
    pairs = [(line, row) for line, whole in outer for row in read(whole, chunk.file, line, found)]
    return make_chunk(Path(chunk.file), [line for line, _ in pairs], [row for _, row in pairs], None)


def read_by_name(chunk: Chunk, found: Found, chosen: dict[str, str], count: str = "number") -> Chunk:
    roles = {role: column_at(chunk, name, role) for role, name in chosen.items()}
    if "prompt" not in roles:
        chats = [split_chat(one) for one in roles.get("response", [None] * len(chunk))]
        roles["prompt"] = [chat[0] or (chunk.file, line) for chat, line in zip(chats, chunk.lines, strict=True)]
        roles["response"] = [chat[1] for chat in chats]
        if not any(prompt for prompt, _ in chats):
            found.note("no prompt column: every row is a group of its own")
    if thoughts := roles.pop("reasoning", None):
        pairs = zip(thoughts, roles.get("response", thoughts), strict=True)
        roles["response"] = [{"reasoning": text_of(r), "content": text_of(c)} if r else c for r, c in pairs]
    if calls := roles.pop("calls", None):
        pairs = zip(roles["response"], calls, strict=True)
        roles["response"] = [
            {"role": "assistant", "content": text, "tool_calls": call} if isinstance(text, str) and call else text
            for text, call in pairs
        ]
    if "beside" in roles:
        roles["beside"] = [write_call(cell) for cell in roles["beside"]]
    opened = [open_output(value) for value in roles.get("response", ())]
    if any(opened):
        roles.setdefault("tokens", [one and one.tokens for one in opened])
        roles.setdefault("finish", [one and one.finish for one in opened])
    chunk = Chunk(chunk.file, chunk.lines, roles)
    if any(isinstance(one, list) for role in ("reward", "correct") for one in roles.get(role, ())):
        chunk = expand(chunk, found, unfold_row)
    if any(isinstance(one, dict) for one in chunk.get("reward")):
        chunk.columns["reward"] = [add_named(one, found) for one in chunk.get("reward")]
    if "finish" in roles:
        ends = [read_finish(value, found, chosen.get("finish", "finish_reason")) for value in chunk.get("finish")]
        chunk.columns["truncated"] = [truncated for truncated, _ in ends]
        chunk.columns["dropped"] = [is_failed for _, is_failed in ends]
        if None in chunk.columns["truncated"]:
            words = [word_of(value) for value in chunk.get("finish")]
            chunk.columns["word"] = [word if meaning_of(word, found) == "unknown" else None for word in words]
        if failed := sum(chunk.columns["dropped"]):
            found.note("aborted, filtered and failed responses count as responses without a verdict", failed)
    if "tokens" in roles:
        cells = chunk.get("tokens")
        if chosen.get("tokens", "").endswith("mask"):
            chunk.columns.setdefault("turns", [count_turns(cell) for cell in cells])
        chunk.columns["tokens"] = [COUNTS[count](cell) for cell in cells]
    return chunk


def add_named(value: Any, found: Found) -> Any:
    if not isinstance(value, dict) or not all(one is None or is_number(one) for one in value.values()):
        return value
    names = found.chosen.setdefault("named", " + ".join(f"`{name}`" for name in list(value)[:8]))
    found.note(f"reward: {names}, unweighted")
    known = [one for one in value.values() if one is not None]
    return sum(known) if known else None


def count_turns(mask: Any) -> int | None:
    """Return the stretches of tokens that the policy wrote, by a mask of them; None of no list."""
    return sum(after > before for before, after in pairwise([0, *mask])) if isinstance(mask, list) else None


TELLING = ("prompt", "response", "reward", "correct", "step")
"""Roles whose columns tell logs apart; others may be missing in the first rows of a file."""


def by_name(
    roles: dict[str, str],
    notes: tuple[str, ...] = (),
    caveats: tuple[str, ...] = (),
    count: str = "number",
    assigned: dict[str, str] | None = None,
) -> Format:
    """Return the format of tables with columns in these roles; it fits where they are enough for a log.

    `assigned` has the roles of columns that were chosen by what they hold, and not by their names.
    """
    shown = ", ".join(f"{role} = `{name}`" for role, name in roles.items())
    return Format(
        "generic",
        "columns by name",
        "your limit of generation",
        lambda roles: not roles.isdisjoint(("response", "tokens")) and not roles.isdisjoint(("reward", "correct")),
        partial(read_by_name, chosen=roles, count=count),
        {"truncated": 'no finish reason: add a column `finish_reason` ("stop" or "length") or `truncated`'},
        notes=(f"columns: {shown}", *notes),
        caveats=caveats,
        reward=roles.get("reward", ""),
        beside=roles.get("beside", ""),
        columns=frozenset(f"{role}={roles[role]}" for role in TELLING if role in roles),
        settle=partial(settle_columns, assigned=assigned or {}),
    )


def settle_columns(format: Format, head: Chunk, options: Options, assigned: dict[str, str]) -> Format:
    """Return the format of files whose columns are chosen by what they hold. Raises Unreadable where something is missing."""
    choice = choose_by_content(head, options, assigned)
    if not choice.has_prompt and (assigned := assign_columns(head, choice.roles)):
        choice = choose_by_content(head, options, assigned)
    if assigned:
        shown = ",".join(f"{role}={name}" for role, name in choice.roles.items() if role in assigned)
        verdict = assigned.get("correct", "")
        if verdict and not names_verdict(verdict):
            clause = f"the higher value of `{verdict}` counts as correct, as it has two values (--columns correct=NAME: another)"
            choice = replace(choice, caveats=(*choice.caveats, clause))
        choice = replace(choice, notes=(f"columns by content: {shown}; --columns changes it", *choice.notes))
    if not choice.has_prompt and (flags := propose_columns(unfold_lists(head), choice.roles)):
        raise Unreadable(f"no column of prompts is known by its name: name it: {' or '.join(flags)}")
    chosen = by_name(choice.roles, choice.notes, choice.caveats, choice.count)
    if chosen.fits(set(choice.roles)):
        return replace(chosen, counts=choice.counts)
    raise Unreadable(describe_missing(choice.roles, head, options.columns))


def describe_missing(roles: dict[str, str], head: Chunk, given: dict[str, str]) -> str:
    """Return the sentence that no column is the response or its reward, with flags that lead to a verdict, if there are any."""
    names = ", ".join(sorted(head.columns)[:12])
    text = f"no column of responses and rewards among {names}"
    rows = unfold_lists(head)
    if flags := propose_columns(rows, roles) or propose_columns(rows, given):
        return f"{text}: name them: {' or '.join(flags)}"
    inside = [name for name in list_inside(head, True) if not name.startswith("header.")]
    graded = [name for name in inside if name.rpartition(".")[2] in (*ROLES["reward"], *ROLES["correct"])]
    graded += [name for name in inside if GRADED.match(name) and is_numeric(column_at(head, name))]
    texts = [name for usual in ROLES["response"] for name in inside if name.rpartition(".")[2] == usual]
    response, reward = roles.get("response", next(iter(texts), "")), roles.get("reward", next(iter(graded), ""))
    if response and reward and len(rows) < 2 * MIN_PROMPTS:  # too few rows to try it
        return f"{text}: name them: --columns response={response},reward={reward}"
    return f"{text}, and no other columns lead to a verdict: each row needs a prompt, a response and its reward"
