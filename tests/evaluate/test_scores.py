"""Scores of samples written by hand; estimators and intervals: closed forms, enumeration, coverage."""

from dataclasses import replace
from fractions import Fraction
from math import comb

import numpy as np
import pytest
from loops import over

from fairlen.evaluate import estimators
from fairlen.evaluate.estimators import (
    best_at,
    difference_by_problem,
    majority,
    mean_by_problem,
    mean_of_problems,
    mean_of_sets,
    pass_at,
    resampled_means,
)
from fairlen.evaluate.samples import Sample
from fairlen.evaluate.scores import overall, score
from fairlen.evaluate.start import HEADINGS, budget_cells, cells_of


def sample(problem: str, status: str, length: int = 10, extracted: str | None = None, finish: str = "stop") -> Sample:
    return Sample(
        problem, f"{problem}?", "1", 0, "text of it", status=status, extracted=extracted, length=length, finish=finish
    )  # type: ignore[arg-type]


def values(found: dict) -> dict:
    return {name: one["value"] for name, one in found.items() if isinstance(one, dict) and "value" in one}


A = [sample("a", "correct", 10, "1"), sample("a", "correct", 20, "1.0"), sample("a", "incorrect", 30, "2"),
     sample("a", "no_answer", 60, None, "length")]  # fmt: skip
B = [sample("b", "incorrect", 40, "3"), sample("b", "incorrect", 40, "3"), sample("b", "correct", 30, "1"),
     sample("b", "incorrect", 10, "4")]  # fmt: skip
TABLE = A + B


def test_every_number_by_hand():
    """a has 2 of 4 right, b has 1 of 4.

    avg@4 (1/2 + 1/4) / 2 = 3/8.  pass@2: a 1 - C(2,2)/C(4,2) = 5/6, b 1 - C(3,2)/C(4,2) = 1/2.  best@2: 3/4 and 7/16.
    maj@4: a: the two correct ones (1 and 1.0 are one answer) against one 2: 1; b: 3 twice: 0.
    """
    found, each = score(TABLE, "inactive")
    assert (found["problems"], found["samples"], found["scored"]) == (2, 8, 2)
    expected = {
        "avg@4": 3 / 8, "maj@4": 1 / 2, "truncated": 1 / 8, "pass@1": 3 / 8, "pass@2": (5 / 6 + 1 / 2) / 2, "pass@4": 1.0,
        "best@1": 3 / 8, "best@2": (3 / 4 + 7 / 16) / 2, "best@4": (15 / 16 + 1 - (3 / 4) ** 4) / 2,
    }  # fmt: skip
    assert values(found) == pytest.approx(expected)
    assert each["avg@4"].tolist() == [0.5, 0.25]
    assert values(found["length"]) == pytest.approx(
        {"all": 240 / 8, "correct": 60 / 3, "incorrect": 180 / 5, "incorrect_minus_correct": 16}
    )


def test_what_has_no_verdict_is_left_out_or_wrong():
    """b loses two incorrect ones to the deadline: 1 of 2 correct if they are left out, avg@4 is 1/2; as incorrect ones 3/8 again.

    Left out, b has too few samples for pass@4, which is over a alone. Bounds: all incorrect and all correct, 3/8 and 5/8.
    """
    rows = [*A, sample("b", "timeout", 40), sample("b", "error", 40), *B[2:]]
    found, _ = score(rows, "inactive")
    assert found["avg@4"]["value"] == pytest.approx(1 / 2)
    assert (found["pass@2"]["problems"], found["pass@4"]["problems"]) == (2, 1)
    assert found["pass@4"] == {"value": 1.0, "low": None, "high": None, "problems": 1}
    missing = found["without_verdict"]
    assert (missing["share"]["value"], missing["kinds"]) == (1 / 4, {"timeout": 1, "error": 1})
    assert (missing["if_incorrect"], missing["if_correct"], missing["counted"]) == (3 / 8, 5 / 8, "inactive")
    assert found["length"]["all"]["value"] == pytest.approx(160 / 6)  # those two belong to neither side
    as_incorrect, _ = score(rows, "incorrect")
    assert as_incorrect["avg@4"]["value"] == pytest.approx(3 / 8) and as_incorrect["pass@4"]["problems"] == 2


def test_numbers_of_some_problems_are_not_shown_beside_those_of_all():
    """b lacks two verdicts: pass@4 is of a alone, 100%, where avg@4 is of both; maj@4 is of both: a 1, b a tie of 1 and 4."""
    rows = [*A, sample("b", "timeout", 40), sample("b", "error", 40), *B[2:]]
    for how, expected in (("inactive", ["-", "-", "75.0%"]), ("incorrect", ["100.0%", "81.1%", "75.0%"])):
        shown = dict(zip(HEADINGS, cells_of("x", score(rows, how)[0]), strict=True))
        assert [shown[name] for name in ("pass@n", "best@n", "maj@n")] == expected  # (15/16 + 1 - (3/4)^4) / 2 = 81.1%


def test_within_a_budget_no_more_are_correct_than_ended():
    """Of two correct ones of 10 tokens one was cut there: 1 of 2 ended, and that one is correct; once asked both are."""
    rows = [replace(sample("a", "correct", finish=end), forced=("correct",)) for end in ("stop", "length")]
    (row,) = score(rows, "inactive", (10,))[0]["budgets"]
    assert [row[name]["value"] for name in ("ended", "correct", "forced", "gain")] == [1 / 2, 1 / 2, 1.0, 1 / 2]


def test_a_set_without_verdicts_has_no_budgets():
    rows = [replace(sample(name, "timeout"), forced=("timeout",)) for name in "ab"]
    found, _ = score(rows, "inactive", (10,))
    assert found["budgets"] == budget_cells("x", found) == [] and found["scored"] == 0


def test_a_problem_without_any_verdict_is_counted_but_not_scored():
    found, _ = score([*TABLE, sample("c", "timeout")], "inactive")
    assert (found["problems"], found["scored"], found["avg@4"]["problems"]) == (3, 2, 2)
    assert found["avg@4"]["value"] == pytest.approx(3 / 8)


def test_majorities_need_answers_and_ties_count_by_their_share():
    assert "maj@2" not in score([sample("a", "correct"), sample("a", "incorrect")], "inactive")[0]
    tied = [sample("a", "correct", extracted="1"), sample("a", "incorrect", extracted="2"), sample("b", "no_answer")]
    assert score(tied, "inactive")[0]["maj@2"]["value"] == pytest.approx(1 / 4)  # 1/2 of a, nothing of b
    program = sample("c", "correct")
    assert (
        "maj@2" not in score([*tied, program, program], "inactive")[0]
    )  # a program has no vote, and was counted as outvoted
    outvoted = [sample("a", s, extracted=e) for s, e in (("correct", "7"), ("incorrect", "1/2"), ("incorrect", "0.50"))]
    assert score(outvoted, "inactive")[0]["maj@3"]["value"] == 0.0  # 1/2 and 0.50 are one wrong answer


def test_sets_weigh_the_same_and_their_errors_are_independent():
    """One set of 4 problems at 1/2 and one of 400 at 0: 1/4, not 2/404. Half of each distance to an end, combined as a root."""
    few, many = np.array([1.0, 1.0, 0.0, 0.0]), np.zeros(400)
    found, alone, zero = mean_of_sets([few, many]), mean_of_problems(few), mean_of_problems(many)
    assert found.value == 0.25 and zero.low == 0.0
    far = np.hypot(alone.high - 0.5, zero.high) / 2
    assert (found.low, found.high) == (pytest.approx(alone.low / 2), pytest.approx(0.25 + far))
    values = np.random.default_rng(0).random(200)
    same, one = mean_of_sets([values, values]), mean_of_problems(values)
    assert (same.high - same.low) / (one.high - one.low) == pytest.approx(np.sqrt(0.5))
    common = overall([{"avg@4": few, "maj@4": few}, {"avg@4": many}])
    assert list(common) == ["avg@4"] and common["avg@4"]["value"] == 0.25


def test_estimators_take_a_number_of_samples_for_each_problem():
    right, size = np.array([1, 1, 2]), np.array([2, 4, 3])
    assert pass_at(right, size, 2) == pytest.approx([1.0, 1 / 2, 1.0])  # C(1,2) = 0; C(3,2) / C(4,2) = 1/2; C(1,2) = 0
    assert best_at(right, size, 2) == pytest.approx([3 / 4, 7 / 16, 8 / 9])
    with pytest.raises(ValueError, match="k=3 of 2"):
        pass_at(right, size, 3)


@pytest.mark.slow
@over("c, n, k", [(1, 8, 8), (3, 8, 4)])
def test_best_at_k_is_what_verl_draws(c, n, k):
    """verl's bootstrap with 40 000 draws: four standard errors of at most 1/2 / 200."""
    metrics = pytest.importorskip("verl.trainer.ppo.metric_utils")
    data = [1.0] * c + [0.0] * (n - c)
    ((mean, _),) = metrics.bootstrap_metric(data, k, [np.max], n_bootstrap=40_000, seed=1)
    assert best_at(np.array([c]), n, k)[0] == pytest.approx(mean, abs=4 * 0.5 / 200)


@over("n", [7, 64, 256])
def test_pass_at_k_to_twelve_digits(n):
    right = np.arange(n + 1)
    for k in (1, 2, n // 2, n - 1, n):
        exact = [float(1 - Fraction(comb(n - c, k), comb(n, k))) for c in right]
        assert np.abs(pass_at(right, n, k) - exact).max() <= 1e-12


def test_majorities_by_hand():
    """The correct answer has number 1: two of two votes tie with it or not, and nobody's vote is no answer."""
    labels = np.array(
        [[0, 0, 1, 2, 1], [0, 1, 1, 1, -1], [2, -1, -1, -1, -1], [1, -1, -1, -1, -1], [-1] * 5, [0, 1, 2, 3, 4]]
    )
    assert [majority(row, row == 1) for row in labels] == [1 / 2, 1, 0, 1, 0, 1 / 5]


def test_a_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(1)
    ability = rng.beta(0.5, 0.5, 200)[:, None]
    before, after = ((rng.random((200, 8)) < np.clip(ability + shift, 0, 1)).astype(float) for shift in (0.0, 0.05))
    found = difference_by_problem(after, before)
    assert found.value == pytest.approx(after.mean() - before.mean()) and found.low > 0
    apart = mean_by_problem(after)
    assert found.high - found.low < 0.6 * (apart.high - apart.low)
    assert difference_by_problem(before, before).low == difference_by_problem(before, before).high == 0
    with pytest.raises(ValueError, match="200 and 199"):
        difference_by_problem(after, before[1:])


def test_parts_do_not_change_what_is_drawn(monkeypatch):
    each = np.arange(30.0)
    whole = resampled_means(each)
    assert (whole == each[np.random.default_rng(0).integers(0, 30, (estimators.NUM_RESAMPLES, 30))].mean(1)).all()
    monkeypatch.setattr(estimators, "MAX_PICKS", 1000)
    assert (resampled_means(each) == whole).all()


@over("num, far", [(8, 0.3694), (128, 0.02841)])
def test_if_no_problem_is_solved_the_interval_is_clopper_and_pearsons(num, far):
    """1 - 0.025^(1/8) = 0.3694 and 1 - 0.025^(1/128) = 0.02841; more samples of each problem change nothing."""
    for samples in (1, 16):
        none, all_ = (mean_by_problem(np.full((num, samples), share)) for share in (0.0, 1.0))
        assert (none.value, none.low, none.high) == (0.0, 0.0, pytest.approx(far, rel=2e-3))
        assert (all_.value, all_.low, all_.high) == (1.0, pytest.approx(1 - far, abs=2e-3 * far), 1.0)


def test_problems_that_are_never_or_always_solved_have_clopper_and_pearsons_interval():
    """7 of 10: the 2.5% quantile of Beta(7, 4) is 0.3475, and the 97.5% quantile of Beta(8, 3) is 0.9333."""
    found = mean_of_problems(np.repeat([1.0, 0.0], [7, 3]))
    assert found == pytest.approx((0.7, 0.3475, 0.9333), abs=0.006)


def test_problems_that_are_alike_could_have_a_sibling_that_is_not():
    """Four problems with 1 of 2 right. One more of 0 or 1 weighs up to 1 - 0.025^(1/4) = 0.602: 1/2 +- 0.301."""
    found = mean_by_problem(np.array([[1.0, 0.0]] * 4))
    assert found == pytest.approx((0.5, 0.199, 0.801), abs=5e-4)


def test_the_interval_of_a_mean_of_other_numbers_is_refused():
    with pytest.raises(ValueError, match=r"numbers from -2 to 0.5: shares of problems lie between 0 and 1"):
        mean_of_problems(np.array([-2.0, 0.5]))


@over("mean, spread", [(0.03, 2.0), (0.03, 0.3), (0.9, 0.5)])
def test_intervals_hold_the_truth_at_low_and_high_accuracies(mean, spread):
    """30 problems with 32 samples: at least 92% of 200 evaluations, less three standard errors, 3 sqrt(.95 .05 / 200) = 4.6%.

    Resampled problems held it in 76% to 89%: few problems are solved at all, and often none of them is in the sample.
    """
    rng, held = np.random.default_rng(8), 0
    for _ in range(200):
        chance = rng.beta(mean * spread, (1 - mean) * spread, 30)
        found = mean_of_problems(rng.binomial(32, chance) / 32)
        held += found.low <= mean <= found.high
    assert held / 200 >= 0.92 - 0.046


def test_the_interval_of_pass_at_8_holds_the_truth_near_1():
    """100 problems that are alike at 90%: pass@8 is 1 - 10^-8 and every problem shows 1, but the upper end reaches the truth."""
    rng, truth = np.random.default_rng(9), 1 - 0.1**8
    for _ in range(20):
        found = mean_of_problems(pass_at(rng.binomial(32, 0.9, 100), 32, 8))
        assert found.low <= truth <= found.high and found.low > 0.9


def test_a_set_without_a_right_answer_is_not_known_exactly():
    """0 of 8 and 0 of 128: sqrt(0.369^2 + 0.0284^2) / 2. 30 problems at 2% and 500 at 50%: 26%, in 95%; as if exact, in 78%."""
    found = mean_of_sets([np.zeros(8), np.zeros(128)])
    assert found == pytest.approx((0.0, 0.0, np.hypot(0.3694, 0.0284) / 2), abs=5e-4)
    rng, covered = np.random.default_rng(5), 0
    for _ in range(100):
        found = mean_of_sets([(rng.random(size) < chance).astype(float) for size, chance in ((30, 0.02), (500, 0.5))])
        covered += found.low <= 0.26 <= found.high
    assert covered >= 90


def test_the_interval_holds_the_truth_if_few_problems_can_be_solved():
    """30 problems, of which each is solved always or never: of those at 1% 74% show no right answer, 0.99^30."""
    rng, truth, covered = np.random.default_rng(4), 0.01, 0
    for _ in range(400):
        found = mean_by_problem(np.repeat((rng.random((30, 1)) < truth).astype(float), 4, 1))
        covered += found.low <= truth <= found.high
    assert covered / 400 >= 0.95  # all those without a correct response, 74%, missed without it


@pytest.mark.slow
@over("name", {"even": (1, 1), "easy or hard": (0.3, 0.3), "mostly hard": (0.5, 2)}.items())
def test_intervals_of_100_problems_are_within_two_points_of_their_name(name):
    """How often the interval holds the true mean, with four samples a problem."""
    (_, (a, b)), rng, covered = name, np.random.default_rng(0), 0
    for _ in range(1000):
        found = mean_by_problem((rng.random((100, 4)) < rng.beta(a, b, 100)[:, None]).astype(float))
        covered += found.low <= a / (a + b) <= found.high
    assert covered / 1000 == pytest.approx(0.95, abs=0.025)


def test_the_interval_resamples_problems_not_samples():
    # 20 problems, each always right or always wrong: 50 more samples of a problem say nothing new
    values = np.repeat(np.arange(20) % 2, 50).reshape(20, 50).astype(float)
    found = mean_by_problem(values)
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(20), rel=0.1)  # not / sqrt(1000)
