"""Turns where a framework has a trajectory as one row: the maximal runs of tokens that its mask says the policy wrote.

What lies between them was read. Where a turn is a sequence, a row has as many of them as turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairlen.batch import Ints, Responses, Segments, build_segments
from fairlen.methods.method import Method
from fairlen.rollouts import Response, Segment, whole_segments

Spans = tuple[tuple[int, int], ...]


def find_turns(mask: ArrayLike) -> Spans:
    """Return where a row's mask [L] is not 0: from one position to before another, run by run."""
    edges = np.flatnonzero(np.diff(np.asarray(mask) != 0, prepend=False, append=False)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))


def count_tokens(mask: ArrayLike) -> tuple[int, ...]:
    """Return the tokens of each turn of a row, given its mask [L]; one turn of none where the policy wrote nothing."""
    return tuple(stop - start for start, stop in find_turns(mask)) or (0,)


def was_truncated(
    token_ids: Sequence[int], mask: ArrayLike, eos_ids: Collection[int], max_response_length: int
) -> bool:
    """Return whether a limit ended a row [L]: the last token that the policy wrote is no EOS, or what it read left no room.

    A limit that an EOS came before, on the number of turns or for an observation that did not fit, leaves no trace in tokens.
    """
    own = np.flatnonzero(np.asarray(mask))
    last = own[-1] if len(own) else -1
    is_full = len(own) > 0 and last < len(token_ids) - 1 and len(token_ids) >= max_response_length
    return is_full or token_ids[last] not in eos_ids


def read_trajectory(
    prompt_ids: Sequence[int], token_ids: Sequence[int], mask: ArrayLike, logprobs: Sequence[float]
) -> dict[str, Any]:
    """Return `token_ids`, `num_prompt`, `logprobs` and `turns` of a Response, given a row: prompt, and what follows it [L].

    What was read last is left out. A response has a token, also one in which the policy wrote none.
    """
    start, spans = len(prompt_ids), find_turns(mask) or ((0, 1),)
    turns = () if spans == ((0, spans[-1][1]),) else tuple((start + first, start + stop) for first, stop in spans)
    return {
        "token_ids": (*prompt_ids, *token_ids[: spans[-1][1]]),
        "num_prompt": start,
        "logprobs": tuple(chain.from_iterable(logprobs[first:stop] for first, stop in spans)),
        "turns": turns,
    }


def has_turns(method: Method) -> bool:
    """Return whether each turn is a sequence (unit=turn)."""
    return getattr(method.sampling, "unit", "") == "turn"


def cut_responses(method: Method, responses: tuple[Response, ...]) -> tuple[Segment, ...]:
    """Return the segments of whole responses: each response, or each of its turns."""
    return method.sampling.cut(responses) if has_turns(method) else whole_segments(responses)


def cut_table(method: Method, responses: Responses, turns: Sequence[Sequence[int]]) -> Segments:
    """Return the same as a table, given the tokens of the turns of each response."""
    if not has_turns(method):
        return build_segments(responses, [sum(tokens) for tokens in turns])
    row, turn = number_turns(turns)
    return build_segments(responses, list(chain(*turns)), response=row, turn=turn, num_turns=1)


def number_turns(turns: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return the row of each turn of some rows, and which of its row it is."""
    pairs = [(row, turn) for row, tokens in enumerate(turns) for turn in range(len(tokens))]
    row, turn = np.array(pairs, np.int64).reshape(-1, 2).T
    return row, turn


def fold_turns(columns: Mapping[str, np.ndarray], rows: Ints, segments: Segments, size: int) -> dict[str, np.ndarray]:
    """Return columns of segments [B], which lie in `rows` [B], as columns of `size` rows, 0 where nothing is.

    They are [size] where no row has several segments. Else they are [size, most turns], and `length` is one more of them.
    """
    width = int(segments.turn.max(initial=0)) + 1
    given = dict(columns) | ({"length": segments.length} if width > 1 else {})
    found = {name: np.zeros((size, width), column.dtype) for name, column in given.items()}
    for name, column in given.items():
        found[name][rows, segments.turn] = column
    return found if width > 1 else {name: column[:, 0] for name, column in found.items()}
