"""Sentences that misled a reader: each with the smallest rollouts that led to it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import write_lines

from fairlen.audit.audit import Audit, audit
from fairlen.audit.readers import read
from fairlen.audit.statistics.within import compare_within
from fairlen.files.formats import Unreadable


def audit_rows(path: Path, rows: list[dict]) -> Audit:
    """The audit of rows of JSON."""
    audits, reading = audit([str(write_lines(path, *rows))])
    assert len(audits) == 1 and not reading.unreadable, reading
    return audits[0]


def drawn(num_prompts: int, accuracy: float, shift: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompts of 16 responses, outcomes and lengths; incorrect ones are longer by `shift` in logs."""
    rng = np.random.default_rng(3)
    prompt = np.repeat(np.arange(num_prompts), 16)
    outcome = (rng.random(len(prompt)) < accuracy).astype(np.float64)
    return prompt, outcome, np.exp(rng.normal(5.0 + shift * (1 - outcome), 0.4))


def test_no_peak_is_fitted_across_the_gap_that_empty_responses_leave():
    prompt, outcome, length = drawn(60, 0.5, 0.0)
    assert compare_within(prompt, prompt, outcome, length).curve.exists
    empty = np.arange(len(length)) % 8 == 0
    length, outcome = np.where(empty, 1.0, length), np.where(empty, 0.0, outcome)
    assert not compare_within(prompt, prompt, outcome, length).curve.exists


@pytest.mark.parametrize("accuracy", [0.15, 0.85])
def test_a_shift_of_lengths_is_reported_once_and_not_as_a_medium_length_whose_sign_follows_accuracy(tmp_path, accuracy):
    prompt, outcome, length = drawn(200, accuracy, 0.8)
    within = compare_within(prompt, prompt, outcome, length)
    assert within.bend.p_value < 1e-4 and within.bend.value * (accuracy - 0.5) > 0  # what is measured about the median
    assert abs(within.aligned.value) < 0.03
    rows = [
        {"prompt": f"q{p}", "num_tokens": int(size), "correct": bool(right)}
        for p, right, size in zip(prompt, outcome, length, strict=True)
    ]
    assert [one.measure for one in audit_rows(tmp_path / "a.jsonl", rows).findings] == ["within.length"]


def test_the_verdict_begins_with_the_bar_that_was_cut_in_a_reward_and_says_that_it_is_the_length(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 500, 160).tolist()
    rows = [{"prompt": f"q{n // 8}", "num_tokens": size, "reward": -size / 100} for n, size in enumerate(sizes)]
    sentence = audit_rows(tmp_path / "a.jsonl", rows).conclusion.sentence
    assert (
        sentence.startswith("correct here is a reward above -2")
        and "--columns correct=COLUMN>NUMBER: another" in sentence
    )
    assert "that reward is a function of length: " in sentence


def test_a_run_without_records_is_told_from_rollouts(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(Unreadable, match=r"without a recorded rollout batch.*fairlen train --resume --out"):
        read([str(tmp_path)])


def test_the_finish_reason_of_sglang_is_found(tmp_path):
    ends = ({"type": "length", "length": 64}, {"type": "stop", "matched": 2})
    rows = [
        {"prompt": f"q{n // 4}", "text": f"answer {n}", "score": float(n % 2),
         "meta_info": {"finish_reason": ends[n % 4 > 0], "completion_tokens": 40 + n}}
        for n in range(80)
    ]  # fmt: skip
    log = audit_rows(tmp_path / "a.jsonl", rows).log
    assert "truncated" in log.known and int(log.responses.truncated.sum()) == 20 and log.unit == "tokens"


def test_words_about_numbers_of_tokens_are_true(tmp_path):
    rows = [{"prompt": f"q{n // 4}", "num_tokens": 5 + n, "reward": float(n % 2)} for n in range(40)]
    rows[3]["num_tokens"], rows[5]["num_tokens"] = 0, -77 / 10**18
    log = audit_rows(tmp_path / "a.jsonl", rows).log
    assert [one.reason for one in log.malformed] == [
        "the number of tokens -7.7e-17 is not a whole number from 0 to 2**53"
    ]
    assert len(log) == 39 and log.responses.length.min() == 1 and log.unit == "tokens"


def test_a_table_with_columns_and_no_rows_is_called_empty(tmp_path):
    pq.write_table(
        pa.table({"prompt": pa.array([], pa.string()), "reward": pa.array([], pa.float64())}), tmp_path / "a.parquet"
    )
    reading = read([str(tmp_path / "a.parquet")])
    assert "there are no rows in it" in reading.unreadable[0]
