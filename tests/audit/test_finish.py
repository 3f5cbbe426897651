"""What ended a response: the words of engines, servers and frameworks, in every shape that they are written in."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import read_one, write_lines

from fairlen.audit.audit import audit_source, find_missing
from fairlen.audit.readers import Source

TRUNCATED = {
    "finish_reason": (
        "length", "LENGTH", " Length ", "max_tokens", "MAX_TOKENS", "max_output_tokens", "max_new_tokens", "max_length",
        "model_length", "limit", "incomplete", "truncated", "token_limit", "FinishReason.LENGTH", "FinishReasonLength",
        "FINISH_LENGTH", "FinishReason.MAX_TOKENS", "FINISH_REASON_MAX_TOKENS", "<FinishReason.LENGTH: 'length'>",
        "FINISHED_LENGTH_CAPPED", "StopReason.max_tokens", "model_context_window_exceeded", "maxTokens", "timed_out",
        {"type": "length", "length": 150}, {"reason": "max_output_tokens"}, {"finish_reason": {"type": "length"}},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, '{"type": "length", "length": 150}',
        "{'type': 'length', 'matched': None}", ["tool_calls", "length"], {"name": "LENGTH", "value": 1},
    ),
    "truncated": (True, 1, 1.0, "true", "True", "yes", "1"),
    "is_truncated": (True, "TRUE"), "hit_limit": (True, 1), "hit_max_length": (True,), "overlong": (True,),
    "is_finished": (False, 0, "false"), "stop_type": ("limit",), "done_reason": ("length",),
}  # fmt: skip
ENDED = {
    "finish_reason": (
        "stop", "STOP", "eos", "eos_token", "stop_sequence", "end_turn", "tool_use", "tool_calls", "stop_str", "stop_token",
        "completed", "FinishReason.STOP", "FINISH_MATCHED_TOKEN", "FINISHED_STOPPED", "endTurn", "COMPLETE", "function_call",
        {"type": "stop", "matched": 2}, {"status": "completed", "incomplete_details": None}, ["length", "stop"],
    ),
    "truncated": (False, 0, 0.0, "false", "no", "0"), "hit_limit": (False,), "is_finished": (True, "true", 1),
    "stop_type": ("eos", "word"), "status": ("completed",),
}  # fmt: skip
FAILED = (
    "abort", "content_filter", "SAFETY", "error", "cancelled", {"type": "abort", "message": "x"}, "FINISH_ABORT",
    {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}},
)  # fmt: skip
UNKNOWN = {"finish_reason": ("banana", "R2", 0, 1, 2, True, {"type": "novel"}, "max effort"), "status": ("so_so", 200)}
UNSAID = (None, "", "null", "unknown", "FINISH_REASON_UNSPECIFIED", {}, {"type": None})


def rollouts(path: Path, column: str, last: Any, others: Any) -> Source:
    """Three rows of four have one finish reason, the fourth another one; no length is the largest of many."""
    return rollouts_of(path, column, [last if n % 4 == 3 else others for n in range(24)])


def rollouts_of(path: Path, column: str, cells: list) -> Source:
    """Every other response is correct."""
    rows = [
        {"prompt": f"q{n // 4}", "response": "a " * (5 + n), "reward": float(n % 2), column: cell}
        for n, cell in enumerate(cells)
    ]
    return read_one(write_lines(path, *rows))


STOPPED = {"is_finished": True, "finish_reason": "stop", "stop_type": "eos", "done_reason": "stop"}
CUT = {"is_finished": False, "finish_reason": "length", "stop_type": "limit", "status": "incomplete"}


def test_every_word_for_an_end_by_the_policy_or_the_limit_is_understood(tmp_path):
    cases = [(column, value, STOPPED.get(column, False)) for column, values in TRUNCATED.items() for value in values]
    cases += [(column, CUT.get(column, True), value) for column, values in ENDED.items() for value in values]
    for column, cut, stopped in cases:
        log = rollouts(tmp_path / "a.jsonl", column, cut, stopped).log
        assert "truncated" in log.known, (column, cut, stopped)
        assert log.responses.truncated.tolist() == [n % 4 == 3 for n in range(24)], (column, cut, stopped)


def test_what_broke_off_otherwise_has_no_verdict(tmp_path):
    """6 of 24 were aborted, filtered or failed: neither correct nor incorrect, nor truncated by a limit of length."""
    for value in FAILED:
        source = rollouts(tmp_path / "a.jsonl", "finish_reason", value, "stop")
        assert (~source.log.responses.active).sum() == 6, value
        assert "truncated" in source.log.known and not source.log.responses.truncated.any(), value
        assert any(note.endswith("without a verdict: 6") for note in source.notes), value


def test_an_unknown_word_means_unknown_and_is_named(tmp_path):
    """Also where all other rows say `stop`: whether the six were truncated, nobody knows."""
    for column, values in UNKNOWN.items():
        for value in values:
            source = rollouts(tmp_path / "a.jsonl", column, value, "stop")
            assert "truncated" not in source.log.known, (column, value)
            word = str(value["type"] if isinstance(value, dict) else value).lower().replace(" ", "_")
            assert any(word in note and "unknown" in note and note.endswith(": 6") for note in source.notes)


def test_no_word_means_unknown(tmp_path):
    for value in UNSAID:
        assert "truncated" not in rollouts(tmp_path / "a.jsonl", "finish_reason", value, "stop").log.known, value


@pytest.mark.parametrize("unsaid", [1, 2, 3])
def test_a_row_without_a_word_counts_as_not_truncated_where_nine_in_ten_have_one(tmp_path, unsaid):
    """Of 24 rows the first 1, 2 or 3 (4, 8, 13%) have none, and each fourth one says `length`: those that say it are truncated,
    but of 13% it is not known of any. An advantage that is missing as often is said in as many rows."""
    ends = [None if n < unsaid else "length" if n % 4 == 3 else "stop" for n in range(24)]
    source = rollouts_of(tmp_path / "a.jsonl", "finish_reason", ends)
    missing = [text for text in find_missing(audit_source(source)) if "truncation: not known in 3 of 24 rows" in text]
    is_known, note = unsaid < 3, f"rows that do not say whether a limit ended them count as not truncated: {unsaid}"
    assert ("truncated" in source.log.known) == is_known == (note in source.notes) == (not missing)
    assert source.log.responses.truncated.tolist() == [is_known and n % 4 == 3 for n in range(24)]
    one = audit_source(rollouts_of(tmp_path / "a.jsonl", "advantage", [None] * unsaid + [0.5] * (24 - unsaid)))
    assert any(text.startswith(f"advantages: not known in {unsaid} of 24 rows") for text in find_missing(one))


def test_a_status_that_is_the_verdict_ends_no_response_and_one_of_all_is_no_verdict(tmp_path):
    """The 12 of 24 with a reward of 0 `failed`, and count; that every `success` is true says nothing of 12 rewards of 1."""
    log = rollouts_of(tmp_path / "a.jsonl", "status", ["failed", "passed"] * 12).log
    assert log.responses.active.all() and "truncated" not in log.known
    log = rollouts_of(tmp_path / "a.jsonl", "success", [True] * 24).log
    assert log.correct.tolist() == [False, True] * 12


SKYRL = {"input_prompt": "q", "output_response": "a b", "score": 1.0}
SLIME = {"prompt": "q", "response": "a b", "reward": 1.0, "response_length": 2, "loss_mask": None}
INSPECT = {"id": 1, "epoch": 1, "input": "q", "scores": {"match": {"value": "C"}}}


@pytest.mark.parametrize(
    "row",
    [
        lambda end: SKYRL | {"stop_reason": end},
        lambda end: SLIME | {"status": end},
        lambda end: INSPECT | {"output": {"completion": "a b", "choices": [{"stop_reason": end}]}},
    ],
    ids=["skyrl", "slime", "inspect"],
)
def test_frameworks_share_the_words(tmp_path, row):
    """length, stop and a failure are told apart; where a third have a word that nobody knows truncation is unknown."""
    for words, known, truncated in (
        (("FINISH_LENGTH", "stop", "content_filter"), True, [True, False, False]),
        (("max_output_tokens", "complete", "abort"), True, [True, False, False]),
        (("length", "stop", "banana"), False, [False, False, False]),
    ):
        log = read_one(write_lines(tmp_path / "a.jsonl", *map(row, words))).log
        assert ("truncated" in log.known) == known, words
        assert log.responses.truncated.tolist() == truncated, words
        assert np.flatnonzero(~log.responses.active).tolist() == ([2] if known else []), words
