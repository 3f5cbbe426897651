"""The log of rows, in groups of responses of one policy: turns of a trajectory are merged, and groups are split by `grouping`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairlen.audit.log import Log
from fairlen.audit.readers.context import Candidate, Choices, align_context, list_places
from fairlen.audit.readers.grouping import ask_turns, check_names, decide_grouping
from fairlen.audit.readers.rows import Found, Options, Part, make_log, pair_keys
from fairlen.audit.readers.spent import Meter
from fairlen.audit.readers.trajectories import find_trajectories
from fairlen.batch import Ints, build_segments, number_keys


def make_grouped_log(name: str, part: Part, meter: Meter, found: Found, options: Options) -> Log:
    """Return the log of rows, whose groups hold responses of one policy to one prompt in one step.

    Raises:
        Unreadable: if the user's answers name no column, or a reader of lengths cannot decide.
    """
    check_names(options.groups, [name for chunk in found.context for name in chunk.columns])
    candidates = align_context(found.context, part.file, part.line, found.files)
    merged, trajectory = merge_turns(part, candidates, found, options.groups)
    log = make_log(name, merged, meter, found, options)
    if len(log) != len(part):  # merged, or rows without a step
        candidates = align_context(found.context, log.file, log.line, found.files)
    candidates = [*candidates, *list_places(log.file, list(found.files))]
    answered = tuple(name for name in options.groups.group_by if name != trajectory)
    grouping = decide_grouping(log, candidates, replace(options.groups, group_by=answered))
    question = grouping.question
    if trajectory and trajectory not in options.groups.group_by:
        question = ask_turns(log, trajectory) or question
    for note in grouping.notes:
        found.note(note)
    return replace(split_groups(log, grouping.code), grouping=grouping.clause, question=question)


def split_groups(log: Log, code: Ints) -> Log:
    """Return a log in whose groups all responses have one code [R]."""
    if not code.any():
        return log
    responses = replace(log.responses, prompt=number_keys(pair_keys(log.responses.prompt, code)))
    segments = replace(build_segments(responses, responses.length), active=responses.active)
    return replace(log, responses=responses, segments=segments)


def merge_turns(part: Part, candidates: Sequence[Candidate], found: Found, groups: Choices) -> tuple[Part, str]:
    """Return rows with those of one trajectory merged, if rows are turns that share an id and a reward, and the id's name."""
    free = [candidate for candidate in candidates if candidate.name not in groups.ignored]
    if not free:
        return part, ""
    stratum = pair_keys(pair_keys(part.step, part.prompt), part.group)
    trajectory = find_trajectories(stratum, part.outcome, free)
    if trajectory is None:
        return part, ""
    found.note(f"rows with one `{trajectory.name}` are the turns of one response: their lengths are added up")
    return add_turns(part, trajectory.code), trajectory.name


def add_turns(part: Part, code: Ints) -> Part:
    """Return one row for each trajectory, [T]: lengths are sums, and the end is that of its last row."""
    code = number_keys(code)
    number = int(code.max()) + 1
    _, first = np.unique(code, return_index=True)
    last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
    sums = {
        name: add_by(code, vars(part)[name], number)
        for name in ("spent", "measured", "characters", "tokens", "turns", "beside")
    }
    has_tokens = np.bincount(code, part.tokens > 0, number) == np.bincount(code, minlength=number)
    text = add_by(code, part.text * (1 + np.arange(len(code)) - first[code]), number)  # wraps round, as hashes may
    ends = part.take(last)
    return replace(
        part.take(first), **(sums | {"tokens": np.where(has_tokens, sums["tokens"], 0)}), text=text, whole=ends.whole,
        truncated=ends.truncated, correct=ends.correct, dropped=np.bincount(code, part.dropped, number) > 0,
    )  # fmt: skip


def add_by(code: Ints, values: Ints, number: int) -> Ints:
    """Return the sums of values [N, ...] over equal codes [N]."""
    sums = np.zeros((number, *values.shape[1:]), np.int64)
    np.add.at(sums, code, values)
    return sums
