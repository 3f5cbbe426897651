"""Effects of EqLen's streams on values, with intervals over prompts. Source: docs/methods/eqlen.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlen.audit.log import Log, advantages, rewards
from fairlen.audit.statistics.intervals import Estimate, mean_over
from fairlen.audit.statistics.within import Effect, jackknife
from fairlen.batch import Floats, Ints, sum_by
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.stream_metrics import count_rounds, ends_at_eos, find_streams


@dataclass(frozen=True)
class StreamReport:
    rounds: Estimate  # pairs of a stream; streams without a pair count 0
    optimism: Effect  # what `max` would value survivors above `halving`, in units of the reward
    eos_advantage: Effect  # net advantage on EOS, an active response: below 0 penalises stopping


def stream_report(log: Log) -> StreamReport | None:
    """Return rounds, the optimism of max and the net advantage on EOS; None where no streams were recorded."""
    if "streams" not in log.known:
        return None
    responses, segments = log.responses, log.segments
    streams = find_streams(responses)
    cluster = np.zeros(len(streams.num_tracks), np.int64)
    cluster[streams.of_response] = log.clusters
    best, fair = (
        replace(EqLen(), survivor_reward=rule).value(responses, segments, rewards(log)) for rule in ("max", "halving")
    )
    known = segments.survivor & np.isfinite(best - fair)
    return StreamReport(
        rounds=mean_over(cluster, count_rounds(segments, streams)),
        optimism=mean_effect(log.clusters[segments.response[known]], (best - fair)[known]),
        eos_advantage=mean_advantage(log, ends_at_eos(responses, segments)),
    )


def mean_effect(cluster: Ints, values: Floats | Ints) -> Effect:
    """Return the mean of values [N], with its error over clusters [N]."""
    present, place = np.unique(cluster, return_inverse=True)
    return jackknife(*(sum_by(place, of, len(present)) for of in (values, np.ones(len(place)))))


def mean_advantage(log: Log, times: np.ndarray) -> Effect:
    """Return the sum over segments of `times` [B] the advantage, over the number of active responses; interval over prompts."""
    segments, responses = log.segments, log.responses
    rows, total = responses.active, np.bincount(segments.response, times * advantages(log), len(responses))
    return mean_effect(log.clusters[rows], total[rows])
