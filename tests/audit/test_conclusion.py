"""The verdict: what it takes to say effect, none or unknown, its sentence, and sentences that once misled a reader."""

import math
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import write_lines

from fairlen.audit.audit import Audit, audit
from fairlen.audit.conclusion import Margins, combine, conclude, find_detectable, find_levels, p_values_of, within_log
from fairlen.audit.log import Log
from fairlen.audit.readers import read
from fairlen.audit.statistics.within import Effect, Within, compare_within
from fairlen.batch import build_responses, build_segments
from fairlen.distributions import student
from fairlen.files.formats import Unreadable

NO = Effect(0.0, 0.01, 99.0, 100)
"""Its 90% interval ends at 0.0166."""


def within(**effects: Effect) -> Within:
    effects = {"gap": NO, "order": NO, "bend": NO, "curve": NO} | effects
    return Within(**effects, aligned=effects["bend"], best_length=250.0)


def log_of(num_prompts: int, longer: float, *, size: int = 8, seed: int = 0, cut: float = math.inf) -> Log:
    """Half of the responses are incorrect and `longer` times as long; those that reach `cut` are truncated and incorrect."""
    rng = np.random.default_rng(seed)
    correct = rng.random(num_prompts * size) < 0.5
    length = np.exp(rng.normal(5, 0.5, len(correct))) * np.where(correct, 1.0, longer)
    truncated = length >= cut
    correct &= ~truncated
    prompt, length = np.repeat(np.arange(num_prompts), size), np.minimum(length, cut).astype(np.int64)
    responses = build_responses(prompt, length, correct, correct, truncated, 10_000)
    known = frozenset({"correct", "truncated"})
    return Log(
        "any", "tokens", responses, np.zeros(len(prompt), np.int64), build_segments(responses, length), known=known
    )


def test_none_needs_every_interval_within_the_margins():
    assert conclude(within()).status == "none"
    # 90% interval 0.04 +- 0.0166: beyond 0.05
    small = conclude(within(order=Effect(0.04, 0.01, 99.0, 100)))
    assert small.status == "effect"
    assert small.sentence.endswith("; it may be smaller than what matters, 10% of length or 5 points")
    assert conclude(within(order=Effect(0.0, 0.04, 99.0, 100))).status == "unknown"
    assert conclude(within(order=Effect(0.0, 0.04, 99.0, 100)), Margins(share=0.07)).status == "none"


def test_an_effect_that_is_certain_and_too_small_to_matter_is_none():
    tiny = Effect(0.02, 0.002, 99.0, 100)
    found = conclude(within(gap=tiny))
    assert tiny.p_value < 1e-6 and found.status == "none" and found.significant == ()
    assert conclude(within(gap=tiny), Margins(length=0.01)).status == "effect"


def test_it_names_the_largest_effect_relative_to_what_matters():
    found = conclude(within(gap=Effect(0.3, 0.02, 99.0, 100), order=Effect(0.2, 0.02, 99.0, 100)))
    # 0.3 / log 1.1 = 3.1 margins, 0.2 / 0.05 = 4
    assert found.effect == "gap" and found.estimate.value == pytest.approx(math.expm1(0.3))  # as the sentence has it
    assert "35% [30%, 40%] longer" in found.sentence and "70% [66%, 74%] of pairs" in found.sentence
    bent = conclude(within(bend=Effect(-0.2, 0.02, 99.0, 100)))
    assert bent.effect == "bend"
    assert bent.sentence.startswith("responses of medium length are less often correct than the shortest and longest")
    assert bent.sentence.endswith(
        "in 70% [66%, 74%] of pairs the incorrect one is closer to the prompt's median length"
    )
    peak = conclude(within(curve=Effect(0.1, 0.02, 99.0, 100)))
    assert peak.sentence.startswith("accuracy is highest near a length of 250, and 10 [6, 14] points lower")


def test_shorter_ones_have_no_sign():
    found = conclude(within(gap=Effect(-0.3, 0.02, 99.0, 100), order=Effect(-0.2, 0.02, 99.0, 100)))
    assert "26% [23%, 29%] shorter" in found.sentence and "the shorter ones in 70%" in found.sentence
    assert "-" not in found.sentence and found.estimate.value < 0


def test_one_error_rate_over_all_findings_of_the_log():
    """0.02 is one of two tests of a finding (0.04 by Simes), one of three of the log: not alone, and with two sure ones it is."""
    two_percent = Effect(2.3646 * 0.05, 0.05, 99.0, 100)
    assert two_percent.p_value == pytest.approx(0.02, abs=1e-3)
    found = within(order=two_percent)
    own = tuple(p_values_of(found).values())
    assert conclude(found, p_values=(*own, 0.9)).status == "unknown"
    assert conclude(found, p_values=(*own, 1e-9, 1e-9)).status == "unknown"  # 0.04 against 0.05 * 3 / 4
    assert conclude(found, p_values=(*own, *[1e-9] * 4)).status == "effect"  # 0.05 * 5 / 6 = 0.0417


def test_p_values_of_one_finding():
    assert combine(0.02, 0.9) == 0.04 and combine(0.03, 0.04) == 0.04 and combine(math.nan, 0.3) == 0.3


def test_few_prompts_are_unknown_whatever_they_say():
    found = conclude(within_log(log_of(9, longer=5.0)))
    assert found.status == "unknown" and found.num_prompts == 9
    assert "9 prompts have a correct and an incorrect response" in found.sentence
    assert conclude(within_log(log_of(1, 1.0))).sentence.startswith("1 prompt has")


def test_unknown_says_how_many_prompts_would_do():
    few, many = conclude(within_log(log_of(60, 1.0))), conclude(within_log(log_of(500, 1.0)))
    assert few.status == "unknown" and many.status == "none"
    assert 150 < few.prompts_needed < 500  # where 500 turned out to be enough
    assert re.search(
        r"about \d+ prompts with correct and incorrect responses are needed, and 60 are there", few.sentence
    )
    giant = Effect(0.02, 0.01, 0.06, 31)  # weighs 2,000 and 30 others 2 each: (2,060 / 2,000)^2 - 1 degrees of freedom
    found = conclude(within(gap=giant, order=giant, bend=giant, curve=giant))
    assert found.prompts_needed == 0 and found.sentence.startswith("nearly all of what 31 prompts say is one prompt's")


def test_truncated_responses_are_left_out_unless_asked_for():
    log = log_of(200, 1.0, cut=250.0)
    assert log.responses.truncated.mean() > 0.1
    assert conclude(within_log(log)).status == "none"
    assert conclude(within_log(log, with_truncated=True)).status == "effect"


def test_a_problem_in_many_steps_is_one_prompt():
    log = log_of(60, 1.5)
    repeated = Log(**(vars(log) | {"problem": log.responses.prompt % 12}))
    assert within_log(log).gap.num_prompts == 60 and within_log(repeated).gap.num_prompts == 12
    assert within_log(log).gap.value == pytest.approx(within_log(repeated).gap.value)
    assert within_log(repeated).gap.freedom < 12


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


def test_an_effect_needs_the_bar_of_the_verdict():
    """Of two findings the first one stands at 5% / 2; one effect of a finding by itself at half of that."""
    assert find_levels(2) == {"gap": 0.0125, "order": 0.025, "bend": 0.0125, "curve": 0.0125}
    assert find_levels(0)["order"] == find_levels(1)["order"] == 0.05
    # exactly at its level, a gap makes the finding significant: Simes 2 p = 0.025, and 0.025 is the bar of two findings
    error = 1.0 / student(1 - 0.0125 / 2, 99.0)
    for size, status in ((1.001, "effect"), (0.999, "unknown")):
        alone = Effect(size, error, 99.0, 100)
        nothing = Effect(0.0, 1.0, 99.0, 100)
        assert conclude(Within(alone, nothing, nothing, nothing, nothing, 100.0)).status == status


def test_the_effect_named_is_found_in_four_of_five_logs():
    """40 prompts of 8 responses: 80% of 200 pairs of logs, less three standard errors of 2.8%. With a bar of 5% it was 67%."""
    rng, found = np.random.default_rng(5), 0

    def draw_within(shift: float) -> Within:
        prompt = np.repeat(np.arange(40), 8)
        outcome = (rng.random(320) < 0.5).astype(np.float64)
        return compare_within(prompt, prompt, outcome, np.exp(rng.normal(5.0 + shift * (1 - outcome), 0.5)))

    for _ in range(200):
        size, _ = find_detectable(draw_within(0.0), find_levels(2))
        found += bool({"gap", "order"} & set(conclude(draw_within(size)).significant))
    assert 0.716 <= found / 200 <= 0.90
