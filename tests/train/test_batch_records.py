"""What a run says of responses and trajectories and keeps of them: metrics, records that are read back, checkpoints."""

import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_turns_exact import rollouts_of

from fairlen.audit.readers.fairlen_records import read_records
from fairlen.batch import NO_VERDICT, build_responses, build_segments
from fairlen.loop.tally import scored_metrics
from fairlen.methods.compose import compose
from fairlen.tasks.task import Problem
from fairlen.train.records import BatchRecord, read_rollouts

PROBLEMS = tuple(Problem(str(i), "?", (1,), "") for i in range(3))


def test_the_metrics_of_trajectories_by_hand():
    """Two of one prompt: 3 turns of 9 tokens, correct, A = 1; 1 turn of 4, truncated, A = -1."""
    method = compose("grpo", ["sampling.n=2"])
    rows = build_responses(np.zeros(2, np.int64), [9, 4], [1, 0], [1, 0], [False, True], 20, num_turns=[3, 1])
    found = scored_metrics(method.score_tables(rows, build_segments(rows, [9, 4])), method)
    assert {name: found[name] for name in found if name.startswith("turns/")} == {
        "turns/mean": 2.0, "turns/max": 3.0, "turns/correct": 3.0, "turns/incorrect": 1.0,
    }  # fmt: skip
    assert found["length/turn"] == 13 / 4
    assert found["advantage/another_turn"] == 2.0 and found["advantage/eos"] == 1.0


def test_the_net_advantages_do_not_depend_on_how_trajectories_are_cut():
    """A turn that another one followed ends with EOS too, but it did not stop."""
    found = []
    for name in ("grpo", "grpo+turns"):
        method = compose(name, ["sampling.n=4"])
        metrics = scored_metrics(method.score(rollouts_of(method)), method)
        found.append([metrics["advantage/another_turn"], metrics["advantage/eos"]])
    assert found[0] == pytest.approx(found[1], abs=1e-12) and found[0][0] != 0.0


def test_no_turn_is_a_metric_where_all_responses_are_one():
    method = compose("grpo", ["sampling.n=2"])
    rows = build_responses(np.zeros(2, np.int64), [9, 4], [1, 0], [1, 0], [False, False], 20)
    found = scored_metrics(method.score_tables(rows, build_segments(rows, [9, 4])), method)
    assert not {name for name in found if "turn" in name}


def test_records_are_read_back_with_their_turns(tmp_path):
    method = compose("rloo+turns+turn_baseline", ["sampling.n=4"])
    rollouts = rollouts_of(method)
    BatchRecord(0, rollouts, PROBLEMS, method.score(rollouts), str).write(tmp_path)
    records, left_out = read_records(sorted(tmp_path.iterdir()))
    assert records is not None and left_out == ()
    for column in ("length", "num_turns"):
        assert getattr(records.responses, column).tolist() == getattr(rollouts.response_table, column).tolist()
    for column in ("length", "turn", "num_turns", "earned"):
        assert getattr(records.segments, column).tolist() == getattr(rollouts.segment_table, column).tolist()
    assert records.segments.earned.any()


def test_tables_have_the_rollouts_as_they_were(tmp_path):
    """Through files, to the bit: turns, named outcomes, channels, supports, and ids that no two rows share."""
    method = compose("grpo", ["sampling.n=4"])
    rollouts = rollouts_of(method)
    given = {"outcomes": {"verifier": 1.0, "brevity": 1 / 3}, "extracted": "7", "verify_seconds": 0.1, "active": False}
    first, second, *others = rollouts.responses
    first = replace(first, **given, channels={"thought": first.length - 1, "answer": 1})
    second = replace(second, supports=(b"\1\0\0\0\2\0\0\0", *(b"" for _ in second.logprobs[1:])))
    rollouts = replace(rollouts, responses=(first, second, *others))
    record = BatchRecord(3, rollouts, PROBLEMS, method.score(rollouts), str)
    record.write(tmp_path)
    tables = {name: pq.read_table(tmp_path / f"{name}-000003.parquet") for name in ("responses", "segments")}
    assert tables == record.tables()
    found = read_rollouts(tables, rollouts.max_response_length)
    assert found == rollouts and found.responses[0].verify_seconds == 0.1
    assert tables["responses"]["id"].to_pylist()[:5] == ["3-0-0", "3-0-1", "3-0-2", "3-0-3", "3-1-0"]
    assert len(set(tables["segments"]["id"].to_pylist())) == len(rollouts.segments)


def test_channels_sum_to_the_length():
    (response, *_) = rollouts_of(compose("grpo", ["sampling.n=4"])).responses
    with pytest.raises(ValueError, match="each belongs to one channel"):
        replace(response, channels={"answer": response.length + 1})


def measure(
    method: str, outcome: list[float], active: list[bool], truncated: list[bool] | None = None
) -> dict[str, float]:
    """Four answers to a first prompt, of 2, 4, 6 and 8 tokens, and two to a second one, of 1 and 3."""
    composed = compose(method, ["sampling.n=4"])
    length, verdict = [2, 4, 6, 8, 1, 3], np.where(active, outcome, NO_VERDICT)
    responses = build_responses([0] * 4 + [1] * 2, length, outcome, verdict, truncated or [False] * 6, 10)
    segments = build_segments(responses, length)
    return scored_metrics(composed.score_tables(responses, segments), composed)


def test_an_answer_without_verdict_is_neither_right_nor_wrong():
    """1, 0, none, 1 and 1, none: 3 of 4 graded are right, with population std sqrt(3/16); one prompt of two is all correct."""
    found = measure("grpo", [1, 0, 0, 1, 1, 0], [True, True, False, True, True, False])
    assert [found[name] for name in ("accuracy/mean", "outcome/mean", "reward/mean")] == pytest.approx([3 / 4] * 3)
    assert found["reward/std"] == pytest.approx((3 / 16) ** 0.5)
    assert (found["length/correct"], found["length/incorrect"]) == (pytest.approx((2 + 8 + 1) / 3), 4.0)
    assert (found["length/mean"], found["responses/active"]) == (pytest.approx(24 / 6), pytest.approx(4 / 6))
    assert (found["prompts/all_correct"], found["prompts/all_incorrect"]) == (0.5, 0.0)


def test_nothing_judged_is_no_accuracy_of_zero():
    found = measure("grpo", [0] * 6, [False] * 6)
    assert all(math.isnan(found[name]) for name in ("accuracy/mean", "reward/mean", "reward/std", "length/incorrect"))
    assert found["length/mean"] == 4.0


def test_truncated_answers_that_a_filter_leaves_out_were_judged():
    """The last of the first prompt was cut off, and is wrong: 3 of 6 are right with the filter as without."""
    outcome, cut = [1, 1, 0, 0, 1, 0], [False, False, False, True, False, False]
    plain, filtered = (measure(name, outcome, [True] * 6, cut) for name in ("grpo", "grpo+overlong_filter"))
    assert plain["accuracy/mean"] == filtered["accuracy/mean"] == 0.5
    assert (plain["responses/active"], filtered["responses/active"]) == (1.0, pytest.approx(5 / 6))
    graded = [True] * 3 + [False] + [True] * 2
    plain, filtered = (measure(name, [1, 1, 0, np.nan, 1, 0], graded, cut) for name in ("grpo", "grpo+overlong_filter"))
    assert plain["outcome/mean"] == filtered["outcome/mean"] == filtered["accuracy/mean"] == 3 / 5, "no verdict on it"
