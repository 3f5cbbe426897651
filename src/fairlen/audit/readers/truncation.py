"""Which responses a limit ended, where the files do not say."""

from __future__ import annotations

import numpy as np

from fairlen.audit.log import Log
from fairlen.batch import Bools, Ints, count_by

NEAR_LIMIT = 0.98  # share of the limit from which a text that was tokenised again is truncated: it lost special tokens
MIN_PILE, MIN_LIMIT = 5, 20
"""Responses, prompts or other lengths that a pile of lengths takes, and the smallest length of one."""
SPREAD, NEAR, DENSER = 0.01, 0.8, 3
"""Share of its length by which another tokenizer spreads a pile to both sides, and down to which lengths are near it; and how
many times as many responses it has as any stretch of its width there."""


def find_truncated(log: Log, limit: int, exact: bool, is_whole: Bools) -> tuple[Bools, str]:
    """Return responses that reach a limit in tokens, else those in a pile of lengths; and how, empty where unknown."""
    least = (limit if exact else NEAR_LIMIT * limit) if log.unit == "tokens" else 0
    truncated = log.responses.length >= least if least else np.zeros(len(log), np.bool_)
    note = f"truncated: responses of at least {least:g} tokens" + ("" if exact else ", an estimate") if least else ""
    if truncated.any():
        return truncated, note
    pile = find_pile(log, is_whole)
    if pile.any():
        who = f"responses of {log.responses.length[pile].min():,} {log.unit} and more, for many have about that length"
    else:
        pile = find_piles(log, log.problem, is_whole)
        who = "the longest responses of every prompt, for many share that length"
    if not pile.any():
        longest = int(log.responses.length.max(initial=0))
        doubt = f"; none has more than {longest:,}: is the limit lower?" if least > 4 * longest else ""
        return truncated, note + doubt
    why = "no response reaches --max-response-length" if least else "--max-response-length overrides this"
    return pile, f"taken as truncated: {who} ({why}): {pile.sum():,}"


def find_pile(log: Log, is_whole: Bools) -> Bools:
    """Return the responses of about the largest length where many more have it than any length nearby."""
    length, active = log.responses.length, log.responses.active
    largest = int(length[active].max(initial=0))
    for half in sorted({1, max(1, round(SPREAD * largest))}) if largest >= MIN_LIMIT else ():
        pile = active & (length >= find_end(np.sort(length[active]), half))
        if pile.any() and may_be_limit(log, pile, is_whole):
            return pile
    return np.zeros(len(log), np.bool_)


def find_end(length: Ints, half: int) -> float:
    """Return where a pile of sorted lengths begins that reaches up to `half` to both sides of a limit; infinity without one."""
    lengths, number = np.unique(length, return_counts=True)

    def between(low: Ints, high: Ints) -> Ints:
        """Return how many are from `low` up to and without `high`."""
        return np.searchsorted(length, high) - np.searchsorted(length, low)

    around = np.where(lengths >= 0.95 * lengths[-1], between(lengths - half, lengths + half + 1), 0)
    centre, inside = lengths[around.argmax()], abs(lengths - lengths[around.argmax()]) <= half
    if 2 * number[inside].max() >= around.max():
        centre = lengths[inside][number[inside].argmax()]
    width, start, stop = 2 * half + 1, int(NEAR * centre) - 5, int(centre) - 3 * half
    # of the windows that begin from start up to stop, the fullest begins with a response, or is the last
    starts = np.append(lengths[(lengths >= start) & (lengths < stop)], stop - 1)
    nearby = between(starts, starts + width).max() if start < stop else 0
    holding = np.minimum(stop, length + 1) - np.maximum(start, length - width + 1)  # how many hold each response
    usual = np.maximum(holding, 0).sum() / max(stop - start, 1)
    # below the centre a pile reaches where another tokenizer spread it
    low = centre - half if between(centre - half, centre) >= DENSER * max(usual * half / width, 1) else centre
    size, above = len(length) - np.searchsorted(length, low), between(centre + half + 1, lengths[-1] + 1)
    return low if size >= max(MIN_PILE, 0.01 * len(length), DENSER * nearby, 10 * above) else np.inf


def may_be_limit(log: Log, pile: Bools, is_whole: Bools) -> bool:
    """Return whether a limit may have made a pile of lengths: not where its responses are the better ones, or end as the others
    do that are finished; nor where the others have few lengths, as answers of a fixed form do."""
    rest = log.responses.active & ~pile
    low, high = np.quantile(log.responses.length[rest], [0.05, 0.95]) if rest.any() else (0.0, 0.0)
    if len(np.unique(log.responses.length[rest])) < max(MIN_PILE, 0.3 * min(rest.sum(), high - low)):
        return False
    hits, whole = ([float(of[rows].mean()) for rows in (pile, rest)] for of in (log.correct, is_whole))
    pooled = log.correct[pile | rest].mean()
    error = np.sqrt(pooled * (1 - pooled) * (1 / pile.sum() + 1 / rest.sum()))
    return bool(hits[0] <= hits[1] + 2 * error and not (whole[1] >= 0.5 and whole[0] >= 0.8 * whole[1]))


def find_piles(log: Log, prompt: Ints, is_whole: Bools) -> Bools:
    """Return the longest responses of every prompt, where many share that length and few the smallest of incorrect ones.

    A limit on prompt and response together leaves these: each prompt has one of its own, and where it ended a single response,
    only that this is the longest is known. To leave out by length alone makes no effect of length where there is none.
    """
    _, group = np.unique(prompt, return_inverse=True)
    length, size = log.responses.length, int(group.max(initial=-1)) + 1
    active = log.responses.active
    incorrect, largest = active & ~log.correct, np.zeros(size, np.int64)
    smallest, least = (np.full(size, length.max(initial=0)) for _ in range(2))
    np.maximum.at(largest, group[active], length[active])
    for end, rows in ((smallest, active), (least, incorrect)):
        np.minimum.at(end, group[rows], length[rows])
    pile, floor = (active & (length == end[group]) for end in (largest, least))
    varies = smallest < largest
    tied, level = (count_by(group[rows & incorrect], size) > 1 for rows in (pile, floor & (least < largest)[group]))
    tied &= (largest >= MIN_LIMIT) & varies
    every, pile = pile & varies[group], pile & tied[group]
    comparable = count_by(group[incorrect], size) > 1
    many = tied.sum() >= max(MIN_PILE, 0.1 * comparable.sum(), 5 * level.sum())
    # where incorrect responses have one length by nature, none of them ends before it
    varied = pile.sum() < 0.9 * incorrect[tied[group]].sum()
    return every & (many and varied and may_be_limit(log, pile, is_whole))
