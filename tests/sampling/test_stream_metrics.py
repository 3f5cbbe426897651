"""Counts of streams and pairs, by hand.

stream  tracks' lengths (x: cut by the budget of 9)   ends                       later ends
0       2  5  7  7                                     tie          rounds 0 1 2    3, 2, -
1       3  9  9x                                       one_truncated   rounds 0 1      2, 1
2       4  9x 9x                                       both_truncated  round  0        2
3       2  6                                           max_rounds   round  0        1
"""

from dataclasses import replace

import numpy as np
import pytest
from fixtures import STREAM_CORRECT, STREAMS, respond

from fairlen.loop.tally import scored_metrics
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import LeaveOneOut
from fairlen.rollouts import Rollouts
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.stream_metrics import ENDINGS, compare_pairs, eos_advantage, find_streams, stream_metrics


@pytest.fixture
def rollouts() -> Rollouts:
    responses = tuple(
        respond(stream, track, length, right)
        for stream, (lengths, verdicts) in enumerate(zip(STREAMS, STREAM_CORRECT, strict=True))
        for track, (length, right) in enumerate(zip(lengths, verdicts, strict=True))
    )
    return Rollouts(responses, EqLen(max_rounds=1).cut(responses), 9)


def test_endings_and_tracks_with_rows_in_any_order(rollouts):
    streams = np.repeat(np.arange(4), [4, 3, 3, 2])
    for order in (np.arange(12), np.random.default_rng(0).permutation(12)):
        found = find_streams(rollouts.response_table.take(order))
        assert found.num_tracks.tolist() == [4, 3, 3, 2]
        assert [ENDINGS[code] for code in found.ending] == ["tie", "one_truncated", "both_truncated", "max_rounds"]
        assert found.of_response.tolist() == streams[order].tolist()


def test_counts_and_win_rates_by_hand(rollouts):
    """Pairs: stream 0: lengths 2, 3, 2; stream 1: 3, 6; stream 2: 4; stream 3: 2. Seven pairs, 22 tokens a side.

    Values under max, finisher against survivor (later ends):
        stream 0: 0 < 1 (3)   1 = max(0, 1) (2): skipped   0 < 1, the tie, which has no survivor
        stream 1: 1 > 0 (2)   0 = 0 (1): skipped
        stream 2: 0 = 0 (2): skipped      stream 3: 0 < 1 (1)
    Survivors win 2 of 6, finishers 1 of 6.
    """
    scored = Method(sampling=EqLen()).score(rollouts)
    found = stream_metrics(scored.responses, scored.segments, scored.value, scored.trains)
    for ending in ENDINGS:
        assert found[f"streams/{ending}"] == 0.25
    assert found["streams/rounds"] == 7 / 4
    assert (found["pairs/formed"], found["pairs/trained"], found["pairs/length_max"]) == (7, 4, 6)
    assert found["pairs/skipped"] == pytest.approx(3 / 7)
    assert found["pairs/length"] == pytest.approx(22 / 7)
    assert found["pairs/survivor_wins"] == pytest.approx(2 / 6)
    assert found["pairs/finisher_wins"] == pytest.approx(1 / 6)
    _, gap, later = compare_pairs(scored.segments, scored.value, find_streams(scored.responses))
    assert sorted(zip(later.tolist(), gap.tolist(), strict=True)) == [(1, 0), (1, 1), (2, -1), (2, 0), (2, 0), (3, 1)]


def test_a_pair_without_a_verdict_is_neither_won_nor_lost(rollouts):
    """The last two ends of stream 0 have no verdict: its first pair keeps the third end's, its second one has no value.

    Of five survivors that are known two win and one loses.
    """
    unknown = [replace(r, active=False, outcome=0.0, status="timeout") for r in rollouts.responses[2:4]]
    responses = (*rollouts.responses[:2], *unknown, *rollouts.responses[4:])
    scored = Method(sampling=EqLen()).score(replace(rollouts, responses=responses))
    found = stream_metrics(scored.responses, scored.segments, scored.value, scored.trains)
    assert (found["pairs/survivor_wins"], found["pairs/finisher_wins"]) == (pytest.approx(2 / 5), pytest.approx(1 / 5))
    assert np.isfinite(scored_metrics(scored, Method(sampling=EqLen()))["pairs/optimism"])


def test_the_pressure_on_stopping_is_the_sum_over_segments_that_stopped(rollouts):
    """Leave-one-out, max: finishers -1 (stream 0), +1 (stream 1), -1 (stream 3); the tie -1 + 1; survivors do not count."""
    scored = Method(sampling=EqLen(), advantage=LeaveOneOut()).score(rollouts)
    assert eos_advantage(scored.responses, scored.segments, scored.advantage) == -1.0


def test_nothing_formed_is_no_error(rollouts):
    """Both tracks cut off at once: a stream without a pair."""
    responses = tuple(replace(r, stream=0, prompt=0) for r in rollouts.responses[8:10])
    responses = tuple(replace(r, track=t, round=0, inherited=0) for t, r in enumerate(responses))
    rollouts = Rollouts(responses, EqLen(max_rounds=1).cut(responses), 9)
    scored = Method(sampling=EqLen()).score(rollouts)
    found = stream_metrics(scored.responses, scored.segments, scored.value, scored.trains)
    assert found["streams/both_truncated"] == 1 and found["streams/rounds"] == 0 and np.isnan(found["pairs/skipped"])
