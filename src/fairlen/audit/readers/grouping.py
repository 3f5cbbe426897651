"""What responses must agree in to be samples of one policy, beyond their prompt and step: tested on the log, or asked.

The same decision holds for every command that reads logs. Statistics are in `audit.statistics.confounding`; this module says
which candidates are tested, and what follows from a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fairlen.audit.log import Log, plain_samples
from fairlen.audit.readers.context import Candidate, Choices
from fairlen.audit.statistics.confounding import (
    MAX_P,
    MAX_SPACING,
    Confounding,
    GroupedRows,
    copies_outcome,
    determines_outcome,
    find_confounding,
    find_spacing,
    find_visits,
    is_at_limit,
    is_balanced,
    is_sorted_by_response,
    keeps_pairs,
    measure_sizes,
    select_rows,
    split_rows,
    varies_within,
)
from fairlen.batch import Floats, Ints, number_keys
from fairlen.console import suggest
from fairlen.files.formats import Unreadable

MAX_ROUNDS = 6
MAX_FALSE = 0.02
"""Chance that any irrelevant candidate of a log with an effect passes the tests of association."""
BLOCKS = 16, 8, 4, 2
"""Numbers of blocks that the rows are cut into if the user compares within the order of the file; the first that leaves pairs."""
WORDS = {"order": "visit to the prompt", "file": "file", "folder": "folder"}
REASONS = {
    "column": (
        "it was fixed before sampling (a checkpoint, a setting)",
        "it follows from the response (a label, a count)",
    ),
    "order": ("the policy changed there (a checkpoint, a setting)", "responses were put there by what they are"),
}
"""Why length and accuracy may change with a candidate: what sampled the responses, or what they are."""
NO_NUMBERS = np.zeros(0)


@dataclass(frozen=True)
class Grouping:
    """What the responses of a group agree in, and what could not be decided."""

    code: Ints  # number of what each response [R] shares with those it is compared with
    clause: str = ""
    """How groups were formed, for the end of a sentence; empty if prompts and steps are all they agree in."""
    question: str = ""
    """What must be answered before there can be a verdict; empty if nothing is open."""
    notes: tuple[str, ...] = ()


@dataclass
class Search:
    """Groups as they are formed: what responses agree in so far."""

    rows: GroupedRows  # responses that tests use [N]
    chosen: Ints  # their numbers among all responses
    code: Ints  # of all responses [R]
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, candidate: Candidate, word: str = "") -> None:
        """Compare only within a candidate."""
        self.rows = split_rows(self.rows, candidate.code[self.chosen])
        self.code = number_keys(self.code * (int(candidate.code.max(initial=0)) + 1) + candidate.code)
        self.names.append(word or WORDS.get(candidate.name, f"`{candidate.name}`"))

    def copy(self) -> Search:
        return replace(self, names=[*self.names], notes=[*self.notes])

    def test(self, candidate: Candidate, max_p: float) -> Confounding | None:
        number = candidate.number[self.chosen]
        code = np.unique(candidate.code[self.chosen], return_inverse=True)[1]
        return find_confounding(self.rows, code, number, max_p, candidate.is_place)


def decide_grouping(log: Log, candidates: Sequence[Candidate], choices: Choices) -> Grouping:
    """Decide which candidates form groups.

    Args:
        log: responses in the order of the files, in groups of prompts and steps only.
        candidates: what may tell policies apart, with a code for each response [R].
        choices: the user's answers.
    """
    plain = np.flatnonzero(plain_samples(log))
    length = np.log(log.responses.length[plain].astype(np.float64))
    correct = log.correct[plain].astype(np.float64)
    chosen, rows = select_rows(log.strata[plain], log.clusters[plain], correct, length)
    search = Search(rows, plain[chosen], np.zeros(len(log), np.int64))
    if "order" in choices.group_by:
        add_order(search, log)
    answered = {*choices.group_by, *choices.ignored}
    free = list[Candidate]()
    for candidate in candidates:
        if candidate.name in choices.group_by:
            search.add(candidate)
        elif not (candidate.name in answered or candidate.is_consequence or candidate.is_continuous):
            free.append(candidate)
    if len(rows.stratum):
        for candidate in free:
            add_known(search, candidate)
        if "order" not in answered:
            free += add_visits(search, log)
        question = find_groups(search, free)
    else:
        question = ""
    clause = f"compared only within the same {join_words(search.names)}" if search.names else ""
    return Grouping(search.code, clause, question, tuple(search.notes))


def ask_turns(log: Log, name: str) -> str:
    """Return the question whether rows that share an id are turns of one response, if the verdict depends on that."""
    plain = np.flatnonzero(plain_samples(log))
    total = np.log(log.responses.length[plain].astype(np.float64))
    for_each_turn = total - np.log(log.responses.num_turns[plain])
    correct = log.correct[plain].astype(np.float64)
    added, averaged = (
        measure_sizes(select_rows(log.strata[plain], log.clusters[plain], correct, length)[1])
        for length in (total, for_each_turn)
    )
    if added.side == averaged.side or not added.differs(averaged):
        return ""
    return (
        f"rows that share `{name}` and a reward are turns of one trajectory, and the verdict depends on what is compared: "
        f"--group-by {name} adds up the lengths of its rows, --ignore-columns {name} compares each row"
    )


def is_by_response(prompt: Ints, outcome: Floats, length: Floats, place: Ints) -> bool:
    """Return whether responses are, or may be, in a place by what they are, as with a file for each outcome."""
    chosen, rows = select_rows(prompt, prompt, outcome, length)
    if not len(chosen):
        return False
    code = np.unique(place[chosen], return_inverse=True)[1]
    number = np.full(len(code), np.nan)
    if is_at_limit(rows, code) or determines_outcome(rows, code) or copies_outcome(rows, code):
        return True
    test = find_confounding(rows, code, number, is_place=True)
    return test is not None and test.origin != "design"


def check_names(choices: Choices, names: Sequence[str]) -> None:
    """Raise Unreadable if the user's answers name something that no row has, or contradict each other."""
    known = [*names, *WORDS]
    for flag, chosen in (("--group-by", choices.group_by), ("--ignore-columns", choices.ignored)):
        for name in chosen:
            if name not in known:
                raise Unreadable(f"{flag} {name}: no column with this name could form groups: {suggest(name, known)}")
    for name in choices.group_by:
        if name in choices.ignored:
            raise Unreadable(f"--group-by {name} and --ignore-columns {name}: remove one of them")


def add_known(search: Search, candidate: Candidate) -> None:
    """Compare within a candidate whose name says that it was fixed before sampling, if groups then have pairs."""
    code = candidate.code[search.chosen]
    if candidate.is_design and varies_within(search.rows.stratum, code) and keeps_pairs(search.rows, code):
        search.add(candidate)


def add_visits(search: Search, log: Log) -> list[Candidate]:
    """Compare within visits to a prompt if rows come in visits of equal sizes; else return the order as a candidate to test."""
    visit = find_visits(search.rows.stratum, search.chosen)
    if visit is None:
        is_apart = find_spacing(search.rows.stratum, search.chosen) > MAX_SPACING
        is_test = is_apart and not is_sorted_by_response(search.rows)
        return [Candidate("order", np.arange(len(log)), np.full(len(log), np.nan), is_place=True)] if is_test else []
    candidate = Candidate("order", find_all_visits(search, log), np.full(len(log), np.nan), is_place=True)
    code = candidate.code[search.chosen]
    if not keeps_pairs(search.rows, code):
        return []
    if not is_balanced(search.rows.stratum, code):
        return [] if is_sorted_by_response(search.rows) else [candidate]
    search.add(candidate)
    search.notes.append("prompts come back later in the file: each visit to a prompt is compared separately")
    return []


def find_all_visits(search: Search, log: Log) -> Ints:
    """Return the visit of each response [R], in the groups that were formed so far."""
    stratum = number_keys(log.strata * (int(search.code.max(initial=0)) + 1) + search.code)
    visit = find_visits(stratum, np.arange(len(log)), is_regular=False)
    return np.zeros(len(log), np.int64) if visit is None else visit


def add_order(search: Search, log: Log) -> None:
    """Compare within visits to a prompt, or within stretches of the file, as the user asked."""
    if find_visits(search.rows.stratum, search.chosen) is not None:
        search.add(Candidate("order", find_all_visits(search, log), NO_NUMBERS))
        return
    search.add(Candidate("order", cut_order(search, len(log)), NO_NUMBERS), "stretch of the file")


def cut_order(search: Search, size: int) -> Ints:
    """Return the stretch of the file that each response is in: as many as leave pairs to compare."""
    place = np.arange(size)
    for number in BLOCKS:
        block = place * number // size
        if keeps_pairs(search.rows, block[search.chosen]):
            return block
    return np.zeros(size, np.int64)


def find_groups(search: Search, free: Sequence[Candidate], depth: int = 0) -> str:
    """Compare within what confounds and was fixed before sampling; return a question if that is unclear and matters."""
    max_p = min(MAX_P, MAX_FALSE / max(len(free), 1))
    for _ in range(MAX_ROUNDS):
        confounders = list[tuple[Candidate, Confounding]]()
        for candidate in free:
            test = search.test(candidate, max_p)
            if test is not None and test.origin != "consequence":
                confounders.append((candidate, test))
        confounders.sort(key=lambda pair: -pair[1].strength)
        planned = [candidate for candidate, test in confounders if test.origin == "design" and test.has_pairs]
        if planned:
            search.add(planned[0])
            free = [candidate for candidate in free if candidate is not planned[0]]
            continue
        unclear = [pair for pair in confounders if pair[1].changes_verdict]
        if unclear:
            return ask_origin(search, unclear, free, depth)
        for candidate, _ in confounders:
            search.notes.append(
                f"{name_candidate(candidate)} differs with length and outcome; the verdict within it is the same"
            )
        break
    return ""


def ask_origin(
    search: Search, unclear: Sequence[tuple[Candidate, Confounding]], free: Sequence[Candidate], depth: int
) -> str:
    """Return the question whether candidates were fixed before sampling, with flags that lead to a verdict."""
    first, test = unclear[0]
    names = ",".join(candidate.name for candidate, _ in unclear)
    ignore = f"--ignore-columns {names}"
    text = f"length and accuracy both change with {name_candidate(first)} within prompts, and the verdict depends on the reason: "
    group = f"--group-by {first.name}"
    can_group = test.has_pairs or first.name == "order"
    if can_group and depth == 0:
        trial = search.copy()
        others = [candidate for candidate in free if candidate is not first]
        trial.add(replace(first, code=cut_order(search, len(first.code))) if not test.has_pairs else first)
        if rest := find_groups(trial, others, depth + 1):
            group += f" {rest}"
    if depth:
        return ignore
    policy, response = REASONS["order" if first.is_place else "column"]
    if can_group:
        return f"{text}{group} if {policy}, {ignore} if {response}"
    return (
        f"{text}if {policy}, nothing can be compared, because it differs between nearly all responses to a prompt; {ignore} "
        f"compares them if {response}"
    )


def name_candidate(candidate: Candidate) -> str:
    named = {"order": "the order of the rows", "file": "the file", "folder": "the folder"}
    return named.get(candidate.name, f"`{candidate.name}`")


def join_words(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
