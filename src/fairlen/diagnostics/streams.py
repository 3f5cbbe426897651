"""What EqLen's streams did to lengths and values, with intervals over prompts; the learning tax of shared prefixes.

Sources: 2604.17328, equations 3 to 6 and proposition 2; docs/methods/eqlen.md for `halving` and the optimism of `max`. Counts of
one rollout batch are in sampling/stream_metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlen.batch import Floats, Ints, build_segments, centred_squares
from fairlen.diagnostics.log import Log, advantages, rewards
from fairlen.diagnostics.uncertainty import Estimate, bootstrap, mean_over, ratio
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.stream_metrics import count_rounds, ends_at_eos, find_streams, order_streams


@dataclass(frozen=True)
class StreamReport:
    """Means over all streams of a log."""

    rounds: Estimate
    """Pairs of a stream; streams without a pair count 0."""
    optimism: Estimate
    """What `max` would value survivors above `halving`, in units of the reward."""
    eos_advantage: Estimate
    """Net advantage on EOS, a response."""


@dataclass(frozen=True)
class LearningTax:
    """Of prefixes that several answers of a stream share, if whole answers were trained with group-normalised advantages."""

    variance: Estimate
    """Of the sum of advantages that a shared token gets; its mean square where the sum is 0 on average."""
    cancelled: Estimate
    """1 - sum of |sum of advantages| / sum of |advantages| over shared tokens: what is computed and then cancels."""


def stream_report(log: Log) -> StreamReport | None:
    """Return rounds, the optimism of max and the net advantage on EOS; None where no streams were recorded."""
    if "streams" not in log.known:
        return None
    responses, segments = log.responses, log.segments
    streams = find_streams(responses)
    prompt = np.zeros(len(streams.num_tracks), np.int64)
    prompt[streams.of_response] = responses.prompt
    best, fair = (
        replace(EqLen(), survivor_reward=rule).value(responses, segments, rewards(log)) for rule in ("max", "halving")
    )
    known = segments.survivor & np.isfinite(best - fair)
    return StreamReport(
        rounds=mean_over(prompt, count_rounds(segments, streams)),
        optimism=mean_over(responses.prompt[segments.response[known]], (best - fair)[known]),
        eos_advantage=mean_eos_advantage(log),
    )


def mean_eos_advantage(log: Log) -> Estimate:
    """Return the net advantage on EOS over the number of active responses, interval over prompts; below 0 penalises stopping."""
    segments, responses = log.segments, log.responses
    gained = np.where(ends_at_eos(responses, segments), advantages(log), 0.0)
    rows, total = responses.active, np.bincount(segments.response, gained, len(responses))
    return mean_over(responses.prompt[rows], total[rows])


def learning_tax(log: Log) -> LearningTax | None:
    """Return the tax of pieces that survived an end, which all that ended later share; None where no streams were recorded.

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
    shared = (number - 1 - rank >= 2) & (length > previous)
    piece = (length - previous)[shared].astype(np.float64)
    total, size = (column[shared] for column in after)
    columns = [piece, piece * total, piece * total**2, piece * np.abs(total), piece * size]

    def measure(sums: Floats) -> Floats:
        tokens, linear, square, net, gross = np.moveaxis(sums, -1, 0)
        return np.stack([ratio(centred_squares(tokens, linear, square), tokens), 1.0 - ratio(net, gross)], -1)

    found = bootstrap(responses.prompt[order][shared], columns, measure)
    return LearningTax(found.at(0), found.at(1))


def whole_advantages(log: Log) -> Floats:
    """Return advantages of whole answers, normalised over the active ones of their prompt, [R]; 0 where inactive."""
    responses, active = log.responses, log.responses.active
    whole = build_segments(responses, responses.length)
    found = np.zeros(len(responses))
    found[active] = GroupNormalized()(whole.take(active).with_dense_groups(), rewards(log)[active])
    return found


def suffix_sums(values: Floats, start: Ints, number: Ints) -> Floats:
    """Return for each row the sum of the rows after it in its stream; streams are contiguous."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return total[start + number] - total[np.arange(len(values)) + 1]
