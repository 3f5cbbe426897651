"""Two logs side by side: sums that can be done by hand, pairing, what cannot be compared, and how often intervals hold."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from lines import write_lines
from loops import first_quickly

from fairlen import cli
from fairlen.audit.comparison import Ended, compare_logs, count_by_stratum, draw_equal
from fairlen.audit.log import Log
from fairlen.batch import build_responses, build_segments

KNOWN = frozenset(("correct", "truncated"))


def make_log(problem, length, correct, truncated=False, known=KNOWN, unit="tokens"):
    """One step; `outcome` is the verdict."""
    problem, length = np.asarray(problem), np.asarray(length)
    _, prompt = np.unique(problem, return_inverse=True)
    outcome = np.broadcast_to(np.asarray(correct, np.float64), len(problem))
    cut = np.broadcast_to(np.asarray(truncated, np.bool_), len(problem))
    responses = build_responses(prompt, length, outcome, outcome, cut, int(length.max()))
    batch = np.zeros(len(problem), np.int64)
    return Log("test", unit, responses, batch, build_segments(responses, length), known=known, problem=problem)


def contrasts(first, second):
    return {found.measure: found for found in compare_logs(first, second).contrasts}


def test_two_prompts_by_hand():
    """Prompt 7: A correct 2, incorrect 4; B correct 4, incorrect 2. Prompt 9: A 6 and 12; B correct 3, 3, incorrect 6.

    Prompts 1 and 2 are in one log only. Prompt 7 weighs 2 2 / 4 = 1, prompt 9 2 3 / 5 = 6/5.
    """
    first = make_log([7, 7, 9, 9, 1], [2, 4, 6, 12, 900], [1, 0, 1, 0, 1])
    second = make_log([9, 7, 2, 9, 7, 9], [3, 4, 500, 3, 2, 6], [1, 1, 0, 1, 0, 0])
    found = compare_logs(first, second)
    assert (found.num_common, found.num_first, found.num_second) == (2, 1, 1)
    by = {each.measure: each for each in found.contrasts}
    assert by["length"].first.value == pytest.approx((3 + 6 / 5 * 9) / (11 / 5))
    assert by["length"].second.value == pytest.approx((3 + 6 / 5 * 4) / (11 / 5))
    assert by["length"].difference.value == pytest.approx(7.8 / 13.8 - 1)
    assert by["accuracy"].difference.value == pytest.approx((6 / 5) * (2 / 3 - 1 / 2) / (11 / 5))
    # pairs: prompt 7 weighs 1/2 in both, so 1/4; prompt 9 weighs 1/2 in A and 2/3 in B, so 2/7. Gaps of A: log 2 and log 2, of B:
    # -log 2 and log 2, so log 2 (2/7 - 1/4) / (2/7 + 1/4) = log 2 / 15
    assert by["gap"].first.value == pytest.approx(1.0)
    assert by["gap"].second.value == pytest.approx(2 ** (1 / 15) - 1)
    assert by["gap"].difference.value == pytest.approx(2 ** (-14 / 15) - 1)
    assert by["order"].difference.value == pytest.approx(0.5 / 15 - 0.5)
    assert all(math.isnan(each.difference.low) and not each.is_significant for each in found.contrasts)  # 2 prompts
    assert by["gap"].row()[1:] == ("+100.0%", "+4.7%", "-47.6%", "too few prompts: 2")


def test_what_is_the_same_on_both_sides_does_not_widen_the_interval():
    """Prompts differ tenfold in length, B adds a tenth to each: a tenth to within what the pairing leaves."""
    rng = np.random.default_rng(0)
    problem, length = np.repeat(np.arange(40), 4), np.repeat(rng.integers(100, 1000, 40), 4)
    jitter = rng.integers(-5, 6, len(length))
    found = contrasts(make_log(problem, length, 1), make_log(problem, length + length // 10 + jitter, 1))["length"]
    assert found.difference.value == pytest.approx(0.1, abs=0.01)
    assert found.difference.high - found.difference.low < 0.02 < found.first.high / found.first.value - 1
    assert found.is_significant


def test_accuracy_at_equal_tokens_and_tokens_at_equal_accuracy():
    """To each of 12 prompts A: 2 tokens, correct, and 6, incorrect; B: 4 and 10, both correct. Mean tokens are 4 and 7.

    4 tokens are left to B by a limit of 4, within which half is correct, as in A: no difference. Half of the responses are
    correct within 2 tokens of A (2 a response) and 4 of B. A trains on all of its tokens, B, all correct, on none.
    """
    problem = np.repeat(np.arange(12), 2)
    found = compare_logs(make_log(problem, [2, 6] * 12, [1, 0] * 12), make_log(problem, [4, 10] * 12, [1, 1] * 12))
    by = {each.measure: each for each in found.contrasts}
    assert [by["at_tokens"].first.value, by["at_tokens"].second.value] == [pytest.approx(0.5)] * 2
    assert [by["at_accuracy"].first.value, by["at_accuracy"].second.value] == [pytest.approx(2), pytest.approx(4)]
    assert by["at_accuracy"].difference.value == pytest.approx(1.0) and by["untrained"].difference.value == 1.0
    assert "equal tokens are 4 a response, equal accuracy is 50.0%" in found.notes[0]


def test_a_log_against_itself():
    rng = np.random.default_rng(1)
    log = make_log(np.repeat(np.arange(30), 6), rng.integers(1, 99, 180), rng.integers(0, 2, 180))
    found = compare_logs(log, log)
    assert found.sentence == "no difference between A and B stands out from chance"
    assert all(each.difference.value == 0.0 for each in found.contrasts) and len(found.notes) == 1
    accuracy = next(each for each in found.contrasts if each.measure == "accuracy")
    assert accuracy.difference.low < 0.0 < accuracy.difference.high


def test_without_a_common_prompt_only_effects_within_prompts_are_compared():
    rng = np.random.default_rng(2)
    correct = np.tile([1, 0], 90)
    length = np.exp(rng.normal(5.0, 0.2, 180))
    first = make_log(np.repeat(np.arange(30), 6), length.astype(int), correct)
    second = make_log(np.repeat(np.arange(30), 6) + 30, (length * np.where(correct, 1.0, 2.0)).astype(int), correct)
    found = compare_logs(first, second)
    by = {each.measure: each for each in found.contrasts}
    assert found.num_common == 0 and found.num_first == found.num_second == 30
    assert any("no prompt is in both" in note for note in found.notes)
    assert not by["length"].difference.exists and by["length"].row()[3:] == ("unknown", "")
    assert not by["accuracy"].difference.exists
    gap = by[
        "gap"
    ].difference  # the same draws, incorrect ones doubled; two samples of prompts, so that the error has both
    assert gap.value == pytest.approx(1.0, abs=0.02) and gap.low < 1.0 < gap.high and by["gap"].is_significant
    nameless = replace(second, problem=np.zeros(0, np.int64))
    assert compare_logs(replace(first, problem=nameless.responses.prompt), nameless).num_common == 0


def test_effects_leave_out_truncated_responses_and_say_where_that_is_unknown():
    problem, length = np.repeat(np.arange(20), 3), np.tile([10, 20, 99], 20)
    first = make_log(problem, length, np.tile([1, 0, 0], 20), np.tile([0, 0, 1], 20))
    second = replace(
        first, known=KNOWN - {"truncated"}, responses=replace(first.responses, truncated=np.zeros(60, np.bool_))
    )
    found = contrasts(first, second)
    assert found["gap"].first.value == pytest.approx(1.0) and found["gap"].second.value > 2.0
    assert found["truncated"].first.value == pytest.approx(1 / 3) and not found["truncated"].difference.exists
    assert any("truncation is known in one log only" in note for note in compare_logs(first, second).notes)


def test_outcomes_without_verdicts_have_one_bar_for_both():
    """0 or .4 in A, 0 or 1 in B: with a bar of its own half of A would be correct, with the common one of .5 nothing."""
    problem, high = np.repeat(np.arange(12), 2), np.tile([0.0, 1.0], 12)
    first, second = (make_log(problem, np.full(24, 9), high * top, known=frozenset()) for top in (0.4, 1.0))
    found = contrasts(first, second)["accuracy"]
    assert (found.first.value, found.second.value) == (0.0, 0.5)


def test_units_that_differ_are_refused():
    log = make_log([0, 1], [3, 4], [1, 0])
    with pytest.raises(ValueError, match=r"one log are in tokens, of the other in words: --unit words counts both"):
        compare_logs(log, replace(log, unit="words"))


def write_rollouts(path, scale):
    """Twelve prompts with two correct and two incorrect responses of their own words, those `scale` times as long."""
    rows = [
        {"prompt": f"question {n}", "completion": word * int(10 * n * by), "reward": reward}
        for n in range(1, 13) for word, by, reward in 2 * [("v ", 1.0, 1.0)] + 2 * [("w ", scale, 0.0)]
    ]  # fmt: skip
    return str(write_lines(path, *rows))


def test_the_command_pairs_prompts_by_their_text(tmp_path, capsys):
    """Means of 10 and 20 against 10 and 10: a third shorter; incorrect ones half as long, by what they were longer."""
    (tmp_path / "b").mkdir()
    one = write_rollouts(tmp_path / "a.jsonl", 2.0)
    two = write_rollouts(tmp_path / "b" / "b.jsonl", 1.0)
    assert cli.main(["audit", one, "--against", two, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [log["folder"] for log in data["logs"]] == [str(tmp_path), str(tmp_path / "b")]
    found = {each["measure"]: each for each in data["against"]["contrasts"]}
    assert data["against"]["num_common"] == 12 and data["against"]["num_first"] == data["against"]["num_second"] == 0
    assert found["length"]["difference"]["value"] == pytest.approx(-1 / 3)
    assert found["gap"]["difference"]["value"] == pytest.approx(-1 / 2) and found["gap"]["is_significant"]
    assert data["against"]["sentence"].startswith("B minus A: mean length -33.3%")
    assert cli.main(["audit", one, "--against", two]) == 0
    printed = capsys.readouterr().out
    assert "12 prompts in both, 0 in A alone, 0 in B" in printed and "-33.3%" in printed
    assert cli.main(["audit", one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["against"] is None


def test_one_log_is_compared_with_one(tmp_path, capsys):
    for name in ("a", "b", "b/c"):
        (tmp_path / name).mkdir()
        write_rollouts(tmp_path / name / "x.jsonl", 1.0)
    code = cli.main(["audit", str(tmp_path / "a"), "--against", str(tmp_path / "b")])
    assert code == 2 and "one log with one other, not 1 with 2" in capsys.readouterr().err
    assert cli.main(["audit", str(tmp_path / "a"), "--against", str(tmp_path / "missing")]) == 1
    out = capsys.readouterr()
    assert "there is no such file" in out.err and "1 in 1 step" not in out.out and "48 responses" in out.out


@pytest.mark.slow
@pytest.mark.parametrize("most", [8, 20], ids=["equal", "unequal"])
@pytest.mark.parametrize("num", first_quickly([100, 500], others="nightly"))
def test_intervals_cover_the_truth(most, num):
    """Pairs of logs of 60 prompts: lengths half as long again in B, incorrect ones 10% longer in A and 30% in B.

    Prompts decide length and accuracy in both; 95% of 500 is 93 to 97 in 19 of 20 cases, of 100 91 to 99.
    """
    rng, hits, off = np.random.default_rng(most), [], 0.025 if num == 500 else 0.05
    for _ in range(num):
        hard, logs = rng.normal(0.0, 1.0, 60), []
        for scale, gap in ((1.0, 1.1), (1.5, 1.3)):
            problem = np.repeat(np.arange(60), rng.integers(2, most, 60, endpoint=True) if most > 8 else 8)
            correct = rng.random(len(problem)) < 1.0 / (1.0 + np.exp(hard[problem]))
            centre = np.exp(8.0 + 0.4 * hard[problem]) * scale
            length = centre * np.where(correct, 1.0, gap) * np.exp(rng.normal(0.0, 0.5, len(problem)))
            logs.append(make_log(problem, length.astype(np.int64), correct))
        found = contrasts(*logs)
        truths = {"accuracy": 0.0, "gap": 1.3 / 1.1 - 1}
        hits.append(
            [found[name].difference.low <= truth <= found[name].difference.high for name, truth in truths.items()]
        )
    assert all(0.95 - off <= share <= 0.95 + off for share in np.mean(hits, 0)), np.mean(hits, 0)


def test_distances_from_the_median_are_compared_on_equally_many_responses():
    """Of 5 and 3 responses to a prompt 3 and 3 are compared; 2 say nothing; of prompts in one log only, the usual number."""
    rows = Ended(
        stratum=np.repeat([0, 1, 2, 3], [5, 3, 2, 4]), problem=np.repeat([0, 1, 2, 0], [5, 3, 2, 4]),
        correct=np.zeros(14), log_length=np.arange(14.0),
    )  # fmt: skip
    problem, count = count_by_stratum(rows)
    assert problem.tolist() == [0, 1, 0] and count.tolist() == [5, 3, 4]  # the first prompt is in two steps
    drawn = draw_equal(rows, np.array([4, 3, 3])[rows.problem])
    assert np.unique(drawn.stratum, return_counts=True)[1].tolist() == [
        4,
        3,
        4,
    ]  # the prompt of two responses is left out
    assert set(drawn.log_length) <= set(rows.log_length)


@pytest.mark.parametrize("is_paired", [True, False], ids=["same prompts", "other prompts"])
def test_another_number_of_responses_is_no_difference(is_paired):
    """120 prompts with 4 responses in A and 16 in B, incorrect ones four times as spread out in both: 5%, and two errors of 100.

    With distances from the median of all responses 87 of 100 pairs of logs differed, and 96 of those without a common prompt.
    """
    rng, false, first = np.random.default_rng(4), 0, []
    for _ in range(100):
        logs = []
        for size in (4, 16):
            problem = np.repeat(np.arange(120), size)
            correct = rng.random(len(problem)) < 0.5
            noise = rng.normal(0.0, 0.3, len(problem)) * np.where(correct, 1.0, 4.0)
            name = problem if is_paired else problem + 120 * len(logs)
            logs.append(make_log(name, np.exp(6.0 + noise).astype(np.int64), correct))
        found = compare_logs(*logs)
        bend = next(each for each in found.contrasts if each.measure == "bend")
        first.append(bend.first.value)
        assert any("4 responses in A and 16 in B" in note for note in found.notes)
        false += bend.is_significant
    assert false <= 9 and np.mean(first) > 0.1  # there is an effect in both
