"""Columns that are chosen by what they hold if their names say nothing: only if exactly one choice is plausible.

A prompt is a text, or else an id, that comes back. A response is a text that differs between correct and incorrect responses to a
prompt. A verdict has two values. Two columns that could have a role make no choice: the user is asked (`proposals`).
"""

from __future__ import annotations

import re
from statistics import median
from typing import Any

import numpy as np

from fairlen.audit.readers.columns import column_at, find_correct, list_paths, read_texts
from fairlen.audit.readers.messages import split_chat
from fairlen.audit.readers.proposals import COUNTS, MAX_DISTINCT, is_enough
from fairlen.audit.readers.rows import Values, differs, hashes, is_mixed, is_number, numbers
from fairlen.audit.readers.token_counts import flatten
from fairlen.audit.readers.unfold import is_chat
from fairlen.audit.readers.verdicts import NAMES_OTHER, list_values, names_verdict, split_name
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.batch import Bools, Ints, number_keys
from fairlen.files.formats import Chunk

MIN_WORDS = 4  # words of a usual text from which on a column holds texts, and not names or ids
MAX_UNFOLDED = 4096  # rows of unfolded lists by which columns are chosen
MUCH_SHORTER = 0.25  # of the longest text, up to which another text is no rival for a response
NEGATIVE = re.compile(
    r"(^|_)(errors?|fail\w*|fault\w*|crash\w*|wrong|incorrect|in?valid|bad|loss|lost|trunc\w*|clip\w*|cut|hit_\w+|limit\w*|abort\w*|"
    r"timeout|refus\w*|repeat\w*|toxic|overlong|done|stop\w*|finish\w*|end|is_?eval|val|valid|test|train|greedy)(_|$)",
    re.I,
)
"""Names of columns of two values that are no verdict, or whose higher value is not correct."""


def assign_columns(head: Chunk, known: dict[str, str]) -> dict[str, str]:
    """Return the roles of columns by what they hold, those in `known` among them; empty if they are not clear."""
    pieces = name_objects(head)
    head = unfold_lists(head)
    columns = {name: column_at(head, name) for name in list_paths(head)}
    free = {name: cells for name, cells in columns.items() if name not in known.values()}
    graded = {role: known[role] for role in ("reward", "correct") if role in known}
    outcomes = [*graded.values()][:1] or list_verdicts(free)
    chosen = list[dict[str, str]]()
    for outcome in outcomes:
        are_pieces = pieces and not outcome.startswith(f"{pieces}.")  # of one response, which has the verdict
        usable = {name: cells for name, cells in free.items() if not (are_pieces and name.startswith(f"{pieces}."))}
        if roles := assign_texts(head, usable, known, outcome):
            chosen.append(roles | (graded or {"correct": outcome}))
    return known | chosen[0] if len(chosen) == 1 else {}


def assign_texts(head: Chunk, free: dict[str, Values], known: dict[str, str], outcome: str) -> dict[str, str]:
    """Return the columns of prompt and response for one column of verdicts; empty if there are several, or none."""
    cells = column_at(head, outcome)
    correct = find_correct(Chunk(head.file, head.lines, {"reward": cells}), {"reward": "reward"})
    others = {name: values for name, values in free.items() if name != outcome}
    chats = [name for name, values in others.items() if any(split_chat(cell)[0] for cell in values[:MIN_PROMPTS])]
    response = {role: known[role] for role in ("response", "tokens") if role in known}
    if "prompt" in known:
        prompts = [known["prompt"]]
    else:
        prompts = list_prompts(others)
    prompts = [name for name in prompts if is_enough(*find_mixed(column_at(head, name), correct))]
    if not prompts:
        asked = [name for name in chats if is_enough(*find_mixed([split_chat(c)[0] for c in others[name]], correct))]
        return {"response": asked[0]} if len(asked) == 1 and not response else {}
    if len(prompts) > 1:
        return {}
    (prompt,) = prompts
    if response:
        return {"prompt": prompt} | response
    group, mixed = find_mixed(column_at(head, prompt), correct)
    remaining = {name: values for name, values in others.items() if name != prompt}
    responses = list_responses(remaining, group, mixed)
    if not responses:
        counts = list_counts(remaining)
        return {"prompt": prompt, "tokens": counts[0]} if len(counts) == 1 else {}
    return {"prompt": prompt, "response": responses[0]} if len(responses) == 1 else {}


def list_counts(columns: dict[str, Values]) -> list[str]:
    """Return the columns that hold lists of numbers, or else whole numbers whose name says that they are lengths."""
    lists = list[str]()
    numbered = list[str]()
    for name, cells in columns.items():
        values = [item for cell in cells[:MIN_PROMPTS] for item in flatten(cell)]
        are_numbers = bool(values) and all(is_number(value) for value in values)
        if are_numbers and all(isinstance(cell, list) for cell in cells):
            lists.append(name)
        elif are_numbers and COUNTS.search(name) and all(value >= 1 and value == int(value) for value in values):
            numbered.append(name)
    return lists or numbered


def unfold_lists(head: Chunk) -> Chunk:
    """Return the first rows with a row for each element, if lists of texts or messages have as many elements as other lists."""
    head = unfold_objects(head)
    lists = {name: cells for name, cells in head.columns.items() if all(is_plain_list(cell) for cell in cells)}
    sizes = {name: tuple(map(len, cells)) for name, cells in lists.items()}
    for size in dict.fromkeys(sizes.values()):
        alike = [name for name in sizes if sizes[name] == size]
        items = [cell[0] for name in alike for cell in lists[name][:1] if cell]
        if len(alike) < 2 or not any(isinstance(item, (str, list, dict)) for item in items) or sum(size) <= len(head):
            continue
        places = [(row, place) for row, number in enumerate(size) for place in range(number)][:MAX_UNFOLDED]
        columns = {
            name: [cells[row][place] if name in alike else cells[row] for row, place in places]
            for name, cells in head.columns.items()
        }
        return Chunk(head.file, range(1, len(places) + 1), columns)
    return head


def is_plain_list(cell: Any) -> bool:
    """Return whether a cell is a list, but no messages of one conversation."""
    return isinstance(cell, list) and bool(cell) and not is_chat(cell)


def name_objects(head: Chunk) -> str:
    """Return the only column of lists of objects; empty if there is none, or several."""
    listed = [name for name, cells in head.columns.items() if any(is_objects(cell) for cell in cells)]
    return listed[0] if len(listed) == 1 else ""


def unfold_objects(head: Chunk) -> Chunk:
    """Return the first rows with a row for each object of the only column of lists of objects."""
    name = name_objects(head)
    if not name:
        return head
    sizes = [len(cell) if is_objects(cell) else 1 for cell in head.columns[name]]
    places = [(row, place) for row, size in enumerate(sizes) for place in range(size)]
    columns = {
        other: [cells[row][place] if is_objects(cells[row]) and other == name else cells[row] for row, place in places]
        for other, cells in head.columns.items()
    }
    return Chunk(head.file, range(1, len(places) + 1), columns)


def is_objects(cell: Any) -> bool:
    """Return whether a cell is a list of objects that are no messages."""
    return isinstance(cell, list) and bool(cell) and all(isinstance(item, dict) for item in cell) and not is_chat(cell)


def find_mixed(prompts: Values, correct: Bools) -> tuple[Ints, Bools]:
    """Return the number of each row's prompt, and which rows are of prompts with a correct and an incorrect response."""
    group = number_keys(hashes(prompts))
    return group, is_mixed(group, correct)


def list_verdicts(columns: dict[str, Values]) -> list[str]:
    """Return the columns of two values that may say who is correct: those that are named so, or hold true, false, 0 and 1."""
    names = list[str]()
    for name, cells in columns.items():
        values = list_values(cells)
        known = np.isfinite(numbers(cells)[0]) if len(values) == 2 else np.zeros(1, np.bool_)
        if known.mean() > 0.9 and not is_other(name):
            names.append(name)
    plain = [name for name in names if set(list_values(columns[name])) in ({0.0, 1.0}, {-1.0, 1.0})]
    named = [name for name in names if names_verdict(name)]
    return named if len(named) == 1 else plain or names


def is_other(name: str) -> bool:
    """Return whether the name of a column says that its higher value does not mean correct."""
    words = split_name(name.rpartition(".")[2])
    return bool(NEGATIVE.search(words) or NAMES_OTHER.search(words))


def list_prompts(columns: dict[str, Values]) -> list[str]:
    """Return the columns of texts whose values come back, or else those of ids and names."""
    repeated = list[str]()
    for name, cells in columns.items():
        distinct = len(np.unique(hashes(cells)))
        if not any(map(is_no_prompt, cells)) and 2 <= distinct <= MAX_DISTINCT * len(cells):
            repeated.append(name)
    texts = [name for name in repeated if count_usual_words(columns[name]) >= MIN_WORDS]
    return texts or repeated


def is_no_prompt(cell: Any) -> bool:
    """Return whether a cell is missing, or a fraction, which tells no problems apart."""
    return cell is None or (isinstance(cell, float) and not cell.is_integer())


def count_usual_words(cells: Values) -> float:
    """Return the median number of words in cells that are texts, or messages; 0 for other cells."""
    return median(len(show_text(cell).split()) for cell in cells) if cells else 0.0


def show_text(cell: Any) -> str:
    """Return the text of a cell, of messages their contents."""
    if isinstance(cell, str):
        return cell
    if is_chat(cell):
        return " ".join(str(message.get("content", "")) for message in cell)
    return ""


def list_responses(columns: dict[str, Values], group: Ints, mixed: Bools) -> list[str]:
    """Return the columns of long texts that differ between correct and incorrect responses to a prompt."""
    texts = {name: told for name, cells in columns.items() if (told := read_texts(name, cells))}
    sizes = {
        name: median(map(len, told))
        for name, told in texts.items()
        if median(len(text.split()) for text in told) >= 2 and differs(hashes(columns[name]), group, mixed)
    }
    longest = max(sizes.values(), default=0.0)
    return [name for name, size in sizes.items() if size > MUCH_SHORTER * longest]
