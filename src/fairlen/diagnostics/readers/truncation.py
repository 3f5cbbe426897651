"""Which responses a limit ended, where the files do not say."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Bools, Ints, count_by
from fairlen.diagnostics.log import Log

NEAR_LIMIT = 0.98
"""Share of the limit from which on a text that was tokenised again counts as truncated: its special tokens are lost."""
MIN_PILE, MIN_LIMIT = 5, 20
"""Responses, or prompts, that a pile of lengths takes, and the smallest length of one."""
MAX_CORRECT = 0.05
"""Share of a pile: responses that just happen to have a length in common are correct as often as others."""


def find_truncated(log: Log, limit: int, exact: bool) -> tuple[Bools, str]:
    """Return the responses that reach a limit in tokens, else those in a pile of lengths; and how, empty where unknown."""
    if limit and log.unit == "tokens":
        least = limit if exact else NEAR_LIMIT * limit
        note = f"truncated: responses of at least {least:g} tokens" + ("" if exact else ", an estimate")
        return log.responses.length >= least, note
    pile, who = find_pile(log), f"responses that share the largest length, {log.responses.length.max():,} {log.unit},"
    if not pile.any():
        pile, who = find_piles(log, log.problem), "the longest responses of every prompt, for many share that length"
    note = f"taken as truncated: {who} and are incorrect (--max-response-length overrides this)"
    return pile, f"{note}: {pile.sum():,}" if pile.any() else ""


def find_pile(log: Log) -> Bools:
    """Return the responses of the largest length where many more have it than any length nearby."""
    lengths, number = np.unique(log.responses.length[log.responses.active], return_counts=True)
    near = number[:-1][lengths[:-1] >= 0.95 * lengths[-1]].max(initial=0)
    enough = number[-1] >= max(MIN_PILE, 0.01 * number.sum(), 3 * near) and len(lengths) > MIN_PILE
    pile = log.responses.active & (log.responses.length == lengths[-1])
    return pile & (enough and lengths[-1] >= MIN_LIMIT and log.correct[pile].mean() <= MAX_CORRECT)


def find_piles(log: Log, prompt: Ints) -> Bools:
    """Return the longest responses of every prompt, where many share that length and few share the smallest one.

    A limit on prompt and response together leaves these: each prompt has one of its own, and where it ended a single response,
    only that this is the longest is known. To leave out by length alone makes no effect of length where there is none.
    """
    _, group = np.unique(prompt, return_inverse=True)
    length, size = log.responses.length, int(group.max(initial=-1)) + 1
    largest, smallest = np.zeros(size, np.int64), np.full(size, length.max(initial=0))
    active = log.responses.active
    np.maximum.at(largest, group[active], length[active])
    np.minimum.at(smallest, group[active], length[active])
    incorrect = active & ~log.correct
    pile, floor = (active & (length == end[group]) for end in (largest, smallest))
    tied, tied_floor = (
        count_by(group[rows & incorrect], size) > 1 for rows in (pile, floor & (smallest < largest)[group])
    )
    tied &= (largest >= MIN_LIMIT) & (smallest < largest)
    every, pile = pile & (smallest < largest)[group], pile & tied[group]
    comparable = count_by(group[incorrect], size) > 1
    many = tied.sum() >= max(MIN_PILE, 0.1 * comparable.sum(), 5 * tied_floor.sum())
    # where incorrect responses have one length by nature, none of them ends before it
    return every & (
        many and log.correct[pile].mean() <= MAX_CORRECT and pile.sum() < 0.9 * incorrect[tied[group]].sum()
    )
