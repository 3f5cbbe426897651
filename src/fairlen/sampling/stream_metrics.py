"""Rounds, endings, pairs and wins of EqLen's streams; counts of one rollout batch, without uncertainty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlen.batch import Bools, Floats, Ints, Responses, Segments, mean_or_nan

ENDINGS = ("tie", "one_truncated", "both_truncated", "max_rounds")
LATER = ("1", "2", "3", "4_or_more")
"""Names of the numbers of ends after a pair's, of which the last stands for all larger ones."""


@dataclass(frozen=True)
class Streams:
    num_tracks: Ints
    """At least 2."""
    ending: Ints
    of_response: Ints


def order_streams(responses: Responses) -> tuple[Ints, Bools]:
    """Rows by stream and, within one, in order of ending; and where each stream begins, both [R]."""
    order = np.lexsort((responses.truncated, responses.length, responses.stream, responses.prompt))
    prompt, stream = responses.prompt[order], responses.stream[order]
    changes = (np.diff(prompt, prepend=-1) != 0) | (np.diff(stream, prepend=-1) != 0)
    return order, changes


def find_streams(responses: Responses) -> Streams:
    """Streams by (prompt, stream), and how each ended: which of its last two tracks were truncated."""
    order, first = order_streams(responses)
    starts = np.flatnonzero(first)
    num_tracks = np.diff(starts, append=len(order))
    of_response = np.empty(len(order), np.int64)
    of_response[order] = np.repeat(np.arange(len(starts)), num_tracks)
    last = starts + num_tracks - 1
    length, truncated = responses.length[order], responses.truncated[order]
    both_end = length[last] == length[last - 1]
    ending = np.where(both_end, truncated[last].astype(np.int64) + truncated[last - 1], ENDINGS.index("max_rounds"))
    return Streams(num_tracks, ending, of_response)


def stream_metrics(responses: Responses, segments: Segments, value: Floats, trains: Bools) -> dict[str, float]:
    streams = find_streams(responses)
    found = {f"streams/{name}": float((streams.ending == code).mean()) for code, name in enumerate(ENDINGS)}
    pairs = find_finishers(segments)  # any row of the pair tells its length, round and fate
    length, kept = segments.length[pairs], trains[pairs]
    found |= {
        "streams/rounds": len(pairs) / max(len(streams.num_tracks), 1),
        "pairs/formed": float(len(pairs)),
        "pairs/trained": float(kept.sum()),
        "pairs/skipped": mean_or_nan(~kept),
        "pairs/length": mean_or_nan(length),
        "pairs/length_max": float(length.max(initial=0)),
    }
    _, gap, _ = compare_pairs(segments, value, streams)
    return found | {"pairs/survivor_wins": mean_or_nan(gap > 0), "pairs/finisher_wins": mean_or_nan(gap < 0)}


def find_finishers(segments: Segments) -> Ints:
    """Row of each pair's segment that is no survivor, [G]."""
    rows = np.flatnonzero(~segments.survivor)
    finishers = np.zeros(segments.num_groups, np.int64)
    finishers[segments.group[rows]] = rows
    return finishers


def count_rounds(segments: Segments, streams: Streams) -> Ints:
    """Pairs of each stream, one a round, [S]; a last round whose tracks were both truncated forms none."""
    owners = streams.of_response[segments.response[find_finishers(segments)]]
    return np.bincount(owners, minlength=len(streams.num_tracks))


def compare_pairs(segments: Segments, value: Floats, streams: Streams) -> tuple[Ints, Floats, Ints]:
    """Of pairs with both values: survivors' rows, their values minus their finishers', and numbers of later ends."""
    survivor = np.flatnonzero(segments.survivor)
    gap = value[survivor] - value[find_finishers(segments)[segments.group[survivor]]]
    tracks = streams.num_tracks[streams.of_response[segments.response[survivor]]]
    later = np.clip(tracks - 1 - segments.round[survivor], 1, len(LATER))
    known = np.isfinite(gap)
    return survivor[known], gap[known], later[known]


def ends_at_eos(responses: Responses, segments: Segments) -> Bools:
    """Mask of segments that end with the EOS of their response, [B]; a turn that another one followed does not."""
    return ~segments.survivor & ~responses.truncated[segments.response] & has_last_turn(responses, segments)


def has_last_turn(responses: Responses, segments: Segments) -> Bools:
    return segments.turn + segments.num_turns == responses.num_turns[segments.response]


def count_continued(responses: Responses, segments: Segments) -> Ints:
    """Turns of each segment that another turn followed, [B]."""
    return segments.num_turns - has_last_turn(responses, segments)


def eos_advantage(responses: Responses, segments: Segments, advantage: Floats) -> float:
    """Net advantage on EOS, the sum over segments that end with it: below 0 the method penalises stopping."""
    return float(advantage[ends_at_eos(responses, segments)].sum())
