"""What EqLen's streams did to lengths and values, with intervals; the net advantage on EOS; the learning tax of shared prefixes.

Sources: 2604.17328, equations 3 to 6 and proposition 2; docs/methods/eqlen.md for `halving` and the optimism of `max`. Counts of
one rollout batch are in sampling/stream_metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlen.batch import Floats, Ints, build_segments, centred_squares
from fairlen.diagnostics.log import Log, advantages, rewards
from fairlen.diagnostics.uncertainty import NOTHING, Estimate, bootstrap, mean_over, rate, ratio, share_of
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.stream_metrics import (
    ENDINGS,
    LATER,
    compare_pairs,
    count_rounds,
    ends_at_eos,
    find_finishers,
    find_streams,
    order_streams,
)


@dataclass(frozen=True)
class StreamReport:
    """Shares of streams have Wilson's intervals; shares of pairs, and means, intervals over prompts."""

    num_streams: int
    num_pairs: int
    rounds: Estimate
    """Pairs of a stream, mean; streams without a pair count 0."""
    endings: dict[str, Estimate]
    """Shares of streams, by the names of streams.ENDINGS."""
    survivor_wins: dict[str, Estimate]
    """Share of pairs whose survivor is worth more, by the number of ends that came later: "all", "1", "2", "3", "4_or_more"."""
    finisher_wins: dict[str, Estimate]
    """The same for finishers."""
    survivor_wins_halving: dict[str, Estimate]
    """Survivor wins if values were those of `halving`, which are unbiased, on the same streams."""
    optimism: Estimate
    """What `max` would value survivors above `halving`, mean, in units of the reward."""
    eos_advantage: Estimate
    """Net advantage on EOS, a response."""


@dataclass(frozen=True)
class LearningTax:
    """Of prefixes that several answers of a stream share, if whole answers were trained with group-normalised advantages."""

    num_prefixes: int
    shared_tokens: float
    """Share of the answers' tokens, each answer counted whole, that lie in a prefix that another answer has too."""
    variance: Estimate
    """Of the sum of advantages that a shared token gets; its mean square where the sum is 0 on average."""
    cancelled: Estimate
    """1 - sum of |sum of advantages| / sum of |advantages| over shared tokens: what is computed and then cancels."""


def stream_report(log: Log) -> StreamReport | None:
    """Rounds, endings, win rates and the optimism of max; None where no streams were recorded."""
    if "streams" not in log.known:
        return None
    responses, segments = log.responses, log.segments
    streams = find_streams(responses)
    number = len(streams.num_tracks)
    prompt = np.zeros(number, np.int64)
    prompt[streams.of_response] = responses.prompt
    pairs = find_finishers(segments)
    best, fair = (
        replace(EqLen(), survivor_reward=rule).value(responses, segments, rewards(log)) for rule in ("max", "halving")
    )
    value = best if log.value is None else log.value
    own, unbiased = compare_pairs(segments, value, streams), compare_pairs(segments, fair, streams)
    known = np.flatnonzero(segments.survivor & np.isfinite(best - fair))
    return StreamReport(
        num_streams=number,
        num_pairs=len(pairs),
        rounds=mean_over(prompt, count_rounds(segments, streams)),
        endings={name: share_of(streams.ending == code) for code, name in enumerate(ENDINGS)},
        survivor_wins=wins(log, *own),
        finisher_wins=wins(log, *own, side=-1),
        survivor_wins_halving=wins(log, *unbiased),
        optimism=mean_over(responses.prompt[segments.response[known]], (best - fair)[known]),
        eos_advantage=mean_eos_advantage(log),
    )


def wins(log: Log, survivor: Ints, gap: Floats, later: Ints, side: int = 1) -> dict[str, Estimate]:
    """Shares of pairs that a side wins, of all and by the number of later ends."""
    prompt, won = log.responses.prompt[log.segments.response[survivor]], side * gap > 0
    found = rate(won, prompt, later - 1, len(LATER))
    return {"all": mean_over(prompt, won)} | {name: found.at(place) for place, name in enumerate(LATER)}


def mean_eos_advantage(log: Log) -> Estimate:
    """Return the net advantage on EOS over the number of active responses, interval over prompts; below 0 penalises stopping."""
    segments, responses = log.segments, log.responses
    gained = np.where(ends_at_eos(responses, segments), advantages(log), 0.0)
    rows, total = responses.active, np.bincount(segments.response, gained, len(responses))
    return mean_over(responses.prompt[rows], total[rows])


def learning_tax(log: Log) -> LearningTax | None:
    """Of the piece that survived each end, which all answers that ended later share; None where no streams were recorded.

    Whole answers get advantages normalised over the prompt's answers, as without EqLen; a shared token gets their sum.
    """
    if "streams" not in log.known:
        return None
    responses = log.responses
    order, first = order_streams(responses)
    advantage = whole_advantages(log)[order]
    place = np.arange(len(order))
    start = np.maximum.accumulate(np.where(first, place, 0))
    number = np.bincount(start, minlength=len(order))[start]
    length, rank = responses.length[order], place - start
    previous = np.where(first, 0, np.roll(length, 1))
    after = [suffix_sums(column, start, number) for column in (advantage, np.abs(advantage))]
    later = number - 1 - rank
    shared = (later >= 2) & (length > previous)
    piece = (length - previous)[shared].astype(np.float64)
    total, size = (column[shared] for column in after)
    columns = [piece, piece * total, piece * total**2, piece * np.abs(total), piece * size]
    if not shared.any():
        return LearningTax(0, 0.0, NOTHING, NOTHING)

    def measure(sums: Floats) -> Floats:
        tokens, linear, square, net, gross = np.moveaxis(sums, -1, 0)
        return np.stack([ratio(centred_squares(tokens, linear, square), tokens), 1.0 - ratio(net, gross)], -1)

    found = bootstrap(responses.prompt[order][shared], columns, measure)
    tokens = float((piece * later[shared]).sum() / responses.length.sum())
    return LearningTax(int(shared.sum()), tokens, found.at(0), found.at(1))


def whole_advantages(log: Log) -> Floats:
    """Of whole answers, normalised over the active ones of their prompt, [R]; 0 where inactive."""
    responses, active = log.responses, log.responses.active
    whole = build_segments(responses, responses.length)
    found = np.zeros(len(responses))
    found[active] = GroupNormalized()(whole.take(active).with_dense_groups(), rewards(log)[active])
    return found


def suffix_sums(values: Floats, start: Ints, number: Ints) -> Floats:
    """For each row the sum of the rows after it in its stream; streams are contiguous."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[start + number] - total[np.arange(len(values)) + 1]
