"""The rule that gives a measured claim its status, on figures made by hand."""

from dataclasses import replace

import pytest
from loops import over

from research.ledger.claims import Claim, Ledger, Paper, judge_paper
from research.ledger.rule import (
    EXCLUDED,
    SIGN,
    Corrected,
    Finding,
    Limit,
    Measure,
    Premise,
    adjust,
    detectable,
    discovery_rates,
    judge,
    p_value,
)  # fmt: skip
from research.study.estimands import make_estimand
from research.study.intervals import Result, summarize

UP = Measure("x", "positive", 1.0, "half of the paper's 2 points")
DOWN = replace(UP, predicted="negative")
NONE = replace(UP, predicted="none")


def result(value: float, low: float, high: float, p: float = 0.01, seeds: int = 8) -> Result:
    return Result(value, low, high, p, seeds, "points", "a difference", tuple((seed, value) for seed in range(seeds)))


@over(
    "value, low, high, status, reason",
    [
        (2.0, 0.1, 3.9, "reproduced", ""),
        (1.0, 0.1, 1.9, "reproduced", ""),  # at least the smallest effect: 1.0 is enough
        (0.9, 0.1, 1.7, SIGN, "the sign is as predicted, the estimate below the smallest effect of interest, 1"),
        (2.0, -0.1, 4.1, "undecided", "8 seeds would have seen"),
        (2.0, 0.0, 4.0, "undecided", "8 seeds would have seen"),  # an interval that touches 0 does not exclude it
        (0.1, -0.4, 0.6, EXCLUDED, "an effect of 1 as predicted is excluded"),
        # reaches 1.0, is not beyond it
        (-2.0, -3.0, -1.0, EXCLUDED, "an effect of 1 as predicted is excluded: the interval has the opposite sign"),
        (-2.0, -2.9, -1.1, "contradicted", "the whole interval is beyond 1 on the other side"),
    ],
)
def test_a_predicted_sign_by_hand_and_mirrored(value, low, high, status, reason):
    for measure, found in ((UP, result(value, low, high)), (DOWN, result(-value, -high, -low))):
        finding = judge(measure, (), {"x": found})
        assert finding.status == status and finding.reason.startswith(reason) and bool(finding.reason) == bool(reason)


@over(
    "value, low, high, status",
    [
        (0.3, -0.3, 0.9, "reproduced"),  # within 1 of 0
        (0.3, 0.1, 0.5, "reproduced"),  # not 0, and too small to matter
        (0.5, -0.1, 1.1, "undecided"),
        (-0.5, -1.1, 0.1, "undecided"),
        (1.5, 1.1, 1.9, "contradicted"),
        (-1.5, -1.9, -1.1, "contradicted"),
    ],
)
def test_no_predicted_effect_by_hand(value, low, high, status):
    assert judge(NONE, (), {"x": result(value, low, high)}).status == status


def test_a_premise_is_judged_by_its_interval_before_the_figure():
    """Wholly above 5 it holds, wholly below it does not, and across 5 nothing is decided."""
    premise, figures = Premise("rounds", least=5.0), {"x": result(2.0, 1.0, 3.0)}
    assert judge(UP, (premise,), figures).status == "open"
    censored = {"x": summarize({1: 0.0, 2: 0.0, 3: 0.0}), "rounds": result(4.0, 3.1, 4.9)}
    assert judge(UP, (premise,), censored).status == "not testable here"
    assert judge(UP, (premise,), figures | {"rounds": result(6.0, 5.0, 7.0)}).status == "reproduced"
    finding = judge(UP, (premise,), figures | {"rounds": result(4.0, 3.1, 4.9)})
    assert finding.status == "not testable here"
    assert finding.reason == "the premise does not hold: `rounds` is 4 [3.1, 4.9], needed is at least 5"
    finding = judge(UP, (premise,), figures | {"rounds": result(5.2, 4.4, 6.0)})
    assert finding.status == "undecided"
    assert finding.reason == "whether the premise holds is not decided: `rounds` is 5.2 [4.4, 6], needed is at least 5"
    assert str(Premise("rounds", 5.0, 7.0)) == "at least 5 and at most 7"
    assert Premise("rounds", most=4.8).holds(result(4.9, 4.85, 6.0)) is False
    assert Premise("rounds", most=4.8).holds(Result(4.0)) is True  # without an interval by its value


def test_a_claim_is_open_until_every_planned_seed_was_run():
    figures = {"x": replace(result(2.0, 1.0, 3.0, seeds=7), runs=7), "y": replace(result(9.0, 8.0, 10.0), runs=8)}
    assert judge(UP, (), figures, planned={"x": 7}).status == "reproduced"
    assert judge(UP, (), figures, planned={"x": 8}).reason == "`x`: 7 of 8 seeds were run"
    found = judge(UP, (Premise("y", least=1.0),), figures, planned={"x": 7, "y": 20})
    assert found.reason == "`y`: 8 of 20 seeds were run"


def test_a_method_against_itself_is_silent_where_the_interval_holds_0():
    silent = replace(UP, predicted="silent")
    assert judge(silent, (), {"x": result(1.0, -5.0, 7.0)}).status == "reproduced"
    assert judge(silent, (), {"x": result(0.2, 0.1, 0.3)}) == Finding("contradicted", "the interval excludes 0")


@over(
    "control, status, reason",
    [
        ((2.0, 1.0, 3.0), "reproduced", ""),
        ((2.0, -1.0, 5.0), "undecided", "a control failed, and no verdict stands: controls-00 is undecided"),
        (None, "open", "a control has no verdict yet: controls-00"),
    ],
)
def test_no_claim_has_a_verdict_before_the_controls(control, status, reason):
    own = Paper("controls", "Controls", "ours", (replace(claims(False)[0], id="controls-00"),), {})
    (claim,) = claims(False)
    paper = Paper("eqlen", "EqLen", "here", (replace(claim, measure=replace(UP, estimand="b")),), {})
    figures = {"b": result(2.0, 1.0, 3.0)} | ({"a": result(*control)} if control else {})
    assert Ledger((own, paper), {}, figures).findings["eqlen-00"] == Finding(status, reason)


@over("by_seed", [{}, {1: 2.0, 2: 3.0}, {1: 2.0, 2: 2.0, 3: 2.0}])
def test_without_three_seeds_that_differ_a_claim_is_open(by_seed):
    figure = summarize(by_seed)
    assert judge(UP, (), {"x": figure} if figure else {}).status == "open"
    assert judge(UP, (), {"x": summarize({1: 2.0, 2: 2.0, 3: 2.1})}).status == "reproduced"


def test_what_four_of_five_studies_would_have_reproduced():
    """With 8 seeds t(.975) = 2.365 and t(.8) = 0.896, so that a half width of 2.365 is a standard error of 1. For an
    estimate of at least 1 or 2 the effect is what excludes 0; 4 + .896 is more."""
    found = result(0.0, -2.365, 2.365)
    for smallest, seen in ((1.0, 2.365 + 0.896), (2.0, 2.365 + 0.896), (4.0, 4.896)):
        assert detectable(replace(UP, smallest=smallest), found) == pytest.approx(seen, abs=0.002)
    assert detectable(NONE, found) == pytest.approx(2.365 + 1.415, abs=0.002)  # t(.9)
    five = result(5.0, 5.0 - 2.776, 5.0 + 2.776, seeds=5)
    assert detectable(UP, five) == pytest.approx(2.776 + 0.941, abs=0.002)


def test_holm_by_hand():
    """Of three: .01 times 3, .02 times 2, and .03 times 1, which may not fall below .04."""
    assert adjust({"c": 0.03, "a": 0.01, "b": 0.02}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    assert adjust({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_discovery_rates_by_hand():
    """Of three: .01 times 3 / 1, .04 times 3 / 2 = .06, which is above .05 times 3 / 3 of the next and takes its place."""
    assert discovery_rates({"c": 0.05, "a": 0.01, "b": 0.04}) == pytest.approx({"a": 0.03, "b": 0.05, "c": 0.05})


def test_a_sign_stands_where_several_claims_and_its_cause_and_its_design_allow_it():
    found, arm = {"x": result(2.0, 1.0, 3.0), "y": result(4.0, 3.0, 5.0)}, Premise("y", least=3.5)
    assert (
        judge(UP, (), found, Corrected(rate=0.04, every=0.2, num=9)).reason
        == "after that over all 9 directional claims p = 0.2"
    )
    assert judge(UP, (), found, Corrected(rate=0.06, num=9)).status == "undecided"
    down = {"x": result(2.0, 1.5, 2.5)}
    assert [judge(DOWN, (), down, Corrected(rate=rate)).status for rate in (0.04, 0.06)] == [
        "contradicted",
        "undecided",
    ]
    assert judge(UP, (), found, arms=(replace(arm, least=2.5),)).status == "reproduced"
    assert judge(UP, (), found, arms=(arm,)).status == "undecided"  # its interval reaches below 3.5
    assert judge(UP, (), found, limit=Limit(SIGN, "an edge")) == Finding(SIGN, "an edge")
    assert (
        judge(UP, (), {"x": result(0.1, -0.4, 0.6)}, limit=Limit(SIGN, "an edge")).status == EXCLUDED
    )  # a limit adds nothing


def test_p_values_count_on_the_predicted_side_only():
    assert p_value(UP, result(2.0, 1.0, 3.0, 0.01)) == 0.01
    assert p_value(DOWN, result(2.0, 1.0, 3.0, 0.01)) == 1.0
    assert p_value(UP, None) == 1.0


@over("value, half", [(0.0, 0.999), (0.3, 0.699), (-0.3, 0.699)])
def test_the_p_value_of_no_effect_is_that_of_its_interval(value, half):
    """An interval that just fits within the smallest effect has p just below .05, one that just does not just above."""
    assert 0.045 < p_value(NONE, result(value, value - half, value + half)) < 0.05
    assert 0.05 < p_value(NONE, result(value, value - half - 0.002, value + half + 0.002)) < 0.055


def claims(*primary: bool) -> tuple[Claim, ...]:
    names = "abc"[: len(primary)]
    return tuple(
        Claim(f"eqlen-0{i}", "here", "so", "ran", measure=replace(UP, estimand=names[i]), primary=flag)
        for i, flag in enumerate(primary)
    )


def test_primary_claims_of_a_paper_are_corrected_together():
    """p = .02, .03 and one without a figure: .02 times 3 is .06. Without the correction both are reproduced."""
    figures = {"a": result(2.0, 0.5, 3.5, 0.02), "b": result(2.0, 0.3, 3.7, 0.03)}

    def statuses(*primary: bool) -> list[str]:
        found = judge_paper(Paper("eqlen", "EqLen", "here", claims(*primary), {}), figures)
        return [finding.status for finding in found.values()]

    assert statuses(True, True, True) == ["undecided", "undecided", "open"]
    assert statuses(False, False, False) == ["reproduced", "reproduced", "open"]
    assert statuses(True, False, False) == ["reproduced", "reproduced", "open"]  # alone: .02 times 1
    assert statuses(True, False, True) == ["reproduced", "reproduced", "open"]  # .02 times 2
    found = judge_paper(Paper("eqlen", "EqLen", "here", claims(True, True), {}), figures)
    assert [f.status for f in found.values()] == ["reproduced", "reproduced"]  # .04, and .03 raised to .04
    assert found["eqlen-01"].reason == "after Holm's correction over the paper's primary claims p = 0.04"


def test_a_primary_claim_that_waits_for_seeds_counts_as_one_that_was_not_run():
    """p = .04 and .001: with both it is .04 times 1; as long as the second waits and counts as 1, it is .04 times 2."""
    figures = {"a": result(2.0, 0.1, 3.9, 0.04), "b": result(2.0, 1.0, 3.0, 0.001)}
    paper = Paper("eqlen", "EqLen", "here", claims(True, True), {})
    assert judge_paper(paper, figures)["eqlen-00"].status == "reproduced"
    waiting = judge_paper(paper, figures, {"b": 8})
    assert [finding.status for finding in waiting.values()] == ["undecided", "open"]


def test_the_seeds_that_a_verdict_hangs_on():
    """The smallest effect is 1. Of .95, 1.1, 1 and 1.2 any three have a mean above it; of .95, 1.2, 1 and .95 those without the
    second have .967."""
    assert hangs({1: 0.95, 2: 1.1, 3: 1.0, 4: 1.2}) == ()
    assert hangs({1: 0.95, 2: 1.2, 3: 1.0, 4: 0.95}) == (2,)
    assert hangs({1: 3.0, 2: 3.2, 3: 3.1, 4: -0.2}) is None  # undecided


def hangs(values: dict[int, float]) -> tuple[int, ...] | None:
    """Return the seeds without which a claim of these numbers would have another status; None where it is not decided."""
    entry = dict(world="short", quantity="accuracy", variants=["a"], combine="value", unit="points", what="accuracy")
    paper = Paper("eqlen", "EqLen", "here", claims(False), {"a": make_estimand("a", entry)})
    return Ledger((paper,), {}, {"a": summarize(values)}).fragile.get("eqlen-00")
