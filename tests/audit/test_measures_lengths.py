"""Length by outcome and what depends on it, by hand and by simulation; streams by hand."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures import STREAM_CORRECT, STREAMS, make_batch, ragged_batch, respond

from fairlen.audit.log import Log
from fairlen.audit.statistics.intervals import rate
from fairlen.audit.statistics.lengths import lengths
from fairlen.audit.statistics.streams import stream_report
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import LeaveOneOut
from fairlen.rollouts import Rollouts
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.stream_metrics import eos_advantage, stream_metrics

KNOWN = frozenset({"correct", "truncated"})


def log_of(batch, rollout_batch=None, **columns) -> Log:
    number = np.zeros(len(batch.responses), np.int64) if rollout_batch is None else np.asarray(rollout_batch)
    return Log("ours", "tokens", batch.responses, number, batch.segments, known=KNOWN, columns=columns)


def test_lengths_by_hand():
    found = lengths(log_of(ragged_batch(), [0] * 7 + [5] * 3))
    assert found.batch.tolist() == [0, 5]
    assert (found.mean.value, found.correct.value, found.incorrect.value) == pytest.approx((3.5, 16 / 6, 19 / 4))
    assert found.difference.value == pytest.approx(19 / 4 - 16 / 6)
    assert found.accuracy.value == pytest.approx(0.6)


def test_the_trend_is_a_least_squares_slope():
    rng = np.random.default_rng(0)
    batch = np.repeat([0, 1, 4], 40)
    length = 100 + 20 * batch + rng.integers(-5, 6, 120)
    found = lengths(log_of(make_batch(np.arange(120) // 4, length, [1] * 120, max_response_length=1000), batch)).trend
    assert found.value == pytest.approx(np.polyfit(batch, length, 1)[0]) and found.low < 20 < found.high
    assert found.high - found.low < 2
    assert np.isnan(lengths(log_of(ragged_batch())).trend.value)


def test_mean_lengths_of_two_prompts_by_students_t():
    """Correct 10 and 30, incorrect 20 and 60: residuals of 10 and 20 on each side, t of one degree of freedom 12.7062."""
    found = lengths(log_of(make_batch([0, 0, 1, 1], [10, 20, 30, 60], [1, 0, 1, 0])))
    tops = [found.correct.high, found.incorrect.high, found.difference.high, found.mean.high]
    assert tops == pytest.approx(
        [20 + 12.7062 * 10, 40 + 12.7062 * 20, 20 + 12.7062 * (20 - 10), 30 + 12.7062 * 15], abs=1e-2
    )


def test_only_active_answers_from_their_prompt_count():
    batch = make_batch([0, 0, 0, 1, 1], [1, 3, 5, 8, 2], [1, 1, 0, 0, 1], inactive=[3])
    late = replace(batch, responses=replace(batch.responses, round=np.array([0, 0, 1, 0, 0])))
    assert lengths(log_of(late)).mean.value == pytest.approx(2)


def test_what_is_not_known_is_not_claimed():
    nobody = log_of(make_batch([0, 0], [1, 2], [0, 0], inactive=[0, 1]))
    assert not lengths(nobody).mean.exists


def test_rates_by_bin():
    """90 answers in three bins of 30: 20, 10, 0 right, and all of the last bin truncated, no other.

    They are to 9 prompts. Right ones vary no more between prompts than between answers, so that 0 of 30 ends at z^2 / (30 + z^2);
    truncated ones do not vary at all, and 9 of 9 prompts begin at 9 / (9 + z^2), z = 1.96.
    """
    bins, prompt, z2 = np.repeat([0, 1, 2], 30), np.arange(90) % 9, 1.959964**2
    right = rate(np.concatenate([np.arange(30) < n for n in (20, 10, 0)]), prompt, bins, 3)
    truncated = rate(bins == 2, prompt, bins, 3)
    assert right.value == pytest.approx([2 / 3, 1 / 3, 0]) and truncated.value.tolist() == [0, 0, 1]
    assert right.high[2] == pytest.approx(z2 / (30 + z2), abs=1e-4)
    assert truncated.low[2] == pytest.approx(9 / (9 + z2), abs=1e-4)


@pytest.fixture
def streams() -> Log:
    responses = tuple(
        respond(stream, track, length, right)
        for stream, (lengths, verdicts) in enumerate(zip(STREAMS, STREAM_CORRECT, strict=True))
        for track, (length, right) in enumerate(zip(lengths, verdicts, strict=True))
    )
    rollouts = Rollouts(responses, EqLen(max_rounds=1).cut(responses), 9)
    scored = Method(sampling=EqLen(), advantage=LeaveOneOut()).score(rollouts)
    return Log(
        "ours", "tokens", rollouts.response_table, np.zeros(len(responses), np.int64), rollouts.segment_table,
        scored.advantage, scored.value, known=KNOWN | {"streams", "advantage"},
    )  # fmt: skip


def test_streams_agree_with_the_metrics_of_training(streams):
    found = stream_report(streams)
    told = stream_metrics(streams.responses, streams.segments, streams.value, np.ones(len(streams.segments), np.bool_))
    assert found.rounds.value == pytest.approx(told["streams/rounds"]) == 7 / 4


def test_optimism_by_hand(streams):
    """Survivors under max 1, 1, 0, 0, 0, 1, under halving 3/4, 1/2, 0, 0, 0, 1: the former's excess is 3/4 over six pairs."""
    found = stream_report(streams)
    assert found.optimism.value == pytest.approx(0.75 / 6)


def test_stopping_is_the_pressure_over_answers(streams):
    pressure = eos_advantage(streams.responses, streams.segments, streams.advantage)
    assert stream_report(streams).eos_advantage.value == pytest.approx(pressure / len(streams)) and pressure != 0


def test_logs_without_streams_have_no_report(streams):
    assert stream_report(replace(streams, known=KNOWN)) is None


def test_what_never_happened_is_not_certain():
    """None of 8 prompts' 40 answers is right: 0 of 8 end at 1 - 0.025^(1/8) = 0.3694, and all of 8 begin at 0.6306."""
    prompt = np.repeat(np.arange(8), 5)
    never, always = (lengths(log_of(make_batch(prompt, np.full(40, 3), np.full(40, x)))).accuracy for x in (0, 1))
    assert (never.low, never.high) == (0.0, pytest.approx(0.3694, abs=5e-4))
    assert (always.low, always.high) == (pytest.approx(0.6306, abs=5e-4), 1.0)
