"""Rows that are turns of one trajectory, by an id that they share: one response each, with one reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlen.audit.readers.context import TRAJECTORY, Candidate
from fairlen.audit.statistics.within import MIN_PROMPTS
from fairlen.batch import Floats, Ints, number_keys

MIN_TURNS = 1.5
"""Rows with one id on average from which on they are turns."""
MIN_SAME = 0.99
"""Share of ids whose rows have one prompt, one outcome and follow one another."""


def find_trajectories(stratum: Ints, outcome: Floats, candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the candidate whose values are trajectories, None if rows are responses.

    Args:
        stratum: number of the prompt in a step of each row [N], in the order of the files.
        outcome: reward of each row [N], nan if there is none.
        candidates: columns with a code for each row [N].
    """
    named = [candidate for candidate in candidates if TRAJECTORY.search(candidate.name) and has_turns(candidate.code)]
    for candidate in named:
        if share_same(candidate.code, outcome) >= MIN_SAME and varies(outcome):
            return candidate
    for candidate in candidates:
        if has_turns(candidate.code) and is_trajectory(stratum, outcome, candidate.code):
            return candidate
    for candidate in candidates:
        run = find_counted_runs(candidate.number)
        if has_turns(run) and share_same(run, outcome) >= MIN_SAME and varies(outcome):
            return Candidate(candidate.name, run, candidate.number)
    return None


def find_counted_runs(number: Floats) -> Ints:
    """Return the run of each row in which a column counts up from its smallest value; each row by itself if it does not."""
    alone = np.arange(len(number))
    if not len(number) or not np.isfinite(number).all():
        return alone
    is_start = np.diff(number, prepend=-np.inf) != 1
    is_from_first = number[is_start] == number.min()
    return np.cumsum(is_start) - 1 if is_from_first.mean() >= MIN_SAME else alone


def varies(outcome: Floats) -> bool:
    return len(np.unique(outcome[np.isfinite(outcome)])) > 1


def has_turns(code: Ints) -> bool:
    return len(code) >= MIN_TURNS * (int(code.max(initial=0)) + 1)


def share_same(code: Ints, values: np.ndarray) -> float:
    """Return the share of ids with several rows whose rows have one value; nan counts as a value."""
    ids = number_keys(code)
    value = np.unique(values, return_inverse=True)[1]
    pairs = np.unique(ids * (int(value.max(initial=0)) + 1) + value) // (int(value.max(initial=0)) + 1)
    is_several = np.bincount(ids) > 1
    return float((np.bincount(pairs) == 1)[is_several].mean()) if is_several.any() else 0.0


def is_trajectory(stratum: Ints, outcome: Floats, code: Ints) -> bool:
    """Return whether rows with one id follow one another and share prompt and outcome, though the prompt's outcomes differ."""
    starts = int((np.diff(code) != 0).sum()) + 1
    num_ids = int(code.max()) + 1
    if starts * MIN_SAME > num_ids or share_same(code, stratum) < 1.0 or share_same(code, outcome) < MIN_SAME:
        return False
    is_several = np.bincount(code)[code] > 1
    outcomes, value = np.unique(outcome[is_several], return_inverse=True)
    groups = np.unique(number_keys(stratum[is_several]) * len(outcomes) + value) // len(outcomes)
    return int((np.bincount(groups) > 1).sum()) >= MIN_PROMPTS
