"""How streams end, answers that do not count, and streams that are none: one small stream each, with every number worked out."""

from dataclasses import replace

import numpy as np
import pytest
from loops import over
from toy import Toy, Track, responses_of, unbiased

from fairlen.methods.compose import compose
from fairlen.methods.method import Method, Scored, updates
from fairlen.rollouts import Response, Rollouts

TOY = Toy(4)
nan = float("nan")
# three finishers: at 1, at 2, and a tie at 4
TIE = (Track((2,)), Track((0, 2)), Track((0, 1, 0, 2), 1, 1), Track((0, 1, 1, 2), 2, 2))
SAME = (Track((2,)), Track((0, 1, 2)), Track((0, 1, 2), 1, 1))
CAP1 = (Track((2,)), Track((0, 0, 0, 0)), Track((0, 1, 1, 2), 1, 1))
CAP2 = (Track((2,)), Track((0, 0, 0, 0)), Track((0, 1, 1, 1), 1, 1))
ALONE = (Track((2,)), Track((0, 1, 0, 2)))
"""After a single round: the survivor is completed."""


def rows(stream: tuple[Track, ...], outcome: list[float], unknown: tuple[int, ...] = ()) -> tuple[Response, ...]:
    return tuple(
        replace(r, outcome=o, active=r.track not in unknown, status="error" if r.track in unknown else "unverified")
        for r, o in zip(responses_of(TOY, stream), outcome, strict=True)
    )


def score(method: Method, responses: tuple[Response, ...]) -> tuple[list, Scored]:
    """(track, first, past the last) of each segment, and its scores."""
    segments = method.sampling.cut(responses)
    spans = [(responses[s.response].track, s.start - 1, s.stop - 1) for s in segments]
    return spans, method.score(Rollouts(responses, segments, TOY.horizon))


def test_a_tie_has_two_direct_values_and_ends_the_stream():
    """Tracks 0 | 1 | 2 and 3 end with 1, 0 | 1, 0: later ends of b_1 are 0, 1, 0 and of b_2 are 1, 0.
    halving: b_2 (1 + 0)/2, b_1 (0 + 1/2)/2; mean: b_2 1/2, b_1 1/3; lineage: b_1 became track 1, b_2 became track 2."""
    values = {"max": (1, 1), "mean": (1 / 3, 1 / 2), "halving": (1 / 4, 1 / 2), "lineage": (0, 1)}
    for rule, (b_1, b_2) in values.items():
        spans, scored = score(unbiased(rule), rows(TIE, [1, 0, 1, 0]))
        assert spans == [(0, 0, 1), (1, 0, 1), (1, 1, 2), (2, 1, 2), (2, 2, 4), (3, 2, 4)]
        assert scored.value == pytest.approx([1, b_1, 0, b_2, 1, 0])
        assert scored.advantage == pytest.approx([1 - b_1, b_1 - 1, -b_2, b_2, 1, -1])
        assert scored.segments.mass.tolist() == [1, 1, 1 / 2, 1 / 2, 1 / 4, 1 / 4]
        assert scored.segments.survivor.tolist() == [False, True, False, True, False, False]


def test_a_tie_of_the_same_tokens_is_no_pair_but_counts_as_two_ends():
    """Both verdicts of one text are the same. b_1: max(1, 1), and halving (1 + 1)/2."""
    spans, scored = score(unbiased(), rows(SAME, [0, 1, 1]))
    assert spans == [(0, 0, 1), (1, 0, 1)]
    assert scored.advantage.tolist() == [-1, 1]


def test_a_finisher_at_the_budget_is_compared_with_the_one_that_was_cut_off():
    """CAP1: r = 1 against 0 of the cut-off b_2. b_1: max 1, halving (1 + 0)/2."""
    for rule, b_1 in (("max", 1.0), ("halving", 0.5)):
        spans, scored = score(unbiased(rule), rows(CAP1, [0, 0, 1]))
        assert spans == [(0, 0, 1), (1, 0, 1), (2, 1, 4), (1, 1, 4)]
        assert scored.value.tolist() == [0, b_1, 1, 0]
        assert scored.advantage.tolist() == [-b_1, b_1, 1, -1]


def test_two_that_were_cut_off_are_no_pair_and_worth_nothing_to_what_came_before():
    """CAP2: b_1 is worth 0; it loses to a right a_1, and against an incorrect one the pair is skipped."""
    spans, scored = score(unbiased(), rows(CAP2, [1, 0, 0]))
    assert spans == [(0, 0, 1), (1, 0, 1)]
    assert scored.advantage.tolist() == [1, -1]
    _, scored = score(unbiased(), rows(CAP2, [0, 0, 0]))
    assert not scored.trains.any() and list(updates(scored)) == []


def test_after_the_last_round_the_survivor_is_completed_for_its_reward_only():
    """One later end: all rules agree. Its tokens after the pair do not train."""
    for rule in ("max", "mean", "halving", "lineage"):
        method = unbiased(rule)
        method = replace(method, sampling=replace(method.sampling, max_rounds=1))
        spans, scored = score(method, rows(ALONE, [0, 1]))
        assert spans == [(0, 0, 1), (1, 0, 1)]
        assert scored.advantage.tolist() == [-1, 1]


@over(
    "unknown, values",
    [
        # b_1 from tracks 1, 2, 3 and b_2 from 2, 3, of outcomes 0, 1, 1: those that are known, halved as if the others were not
        ((0,), [nan, 1 / 2, 0, 1, 1, 1]),
        ((1,), [0, 1, nan, 1, 1, 1]),
        ((2,), [0, 1 / 2, 0, 1, nan, 1]),
        ((2, 3), [0, 0, 0, nan, nan, nan]),
        ((1, 2, 3), [0, nan, nan, nan, nan, nan]),
    ],
)
def test_an_answer_without_a_verdict_is_known_from_the_others_or_not_at_all(unknown, values):
    """A pair with one unknown value is skipped; its other piece has nothing to compare with."""
    _, scored = score(unbiased(), rows(TIE, [0, 0, 1, 1], unknown))
    assert scored.value == pytest.approx(values, nan_ok=True)
    pairs = np.array(values).reshape(3, 2)
    known = ~np.isnan(pairs).any(1) & (pairs[:, 0] != pairs[:, 1])
    assert scored.trains.reshape(3, 2).tolist() == [[bool(k)] * 2 for k in known]
    assert np.isfinite(scored.advantage).all()
    assert scored.advantage.reshape(3, 2)[known] == pytest.approx((pairs - pairs[:, ::-1])[known])


@over(
    "rule, values",
    [("max", [0, 1, nan, 1, 1, 0]), ("mean", [0, 1 / 2, nan, 1 / 2, 1, 0]), ("lineage", [0, nan, nan, 1, 1, 0])],
)
def test_the_same_for_the_other_rules(rule, values):
    """Track 1 has no verdict, tracks 2 and 3 tie with 1 and 0; lineage has nothing for b_1, which track 1 wrote."""
    _, scored = score(unbiased(rule), rows(TIE, [0, 0, 1, 0], (1,)))
    assert scored.value == pytest.approx(values, nan_ok=True)


def test_where_no_verdict_is_known_the_prompt_does_not_train():
    _, scored = score(unbiased(), rows(TIE, [0, 0, 0, 0], (0, 1, 2, 3)))
    assert not scored.selected.any() and list(updates(scored)) == []


def test_overlong_filtering_leaves_cut_off_answers_out():
    """CAP1 with r = 1: b_2 is unknown and pair 2 skipped; b_1 is worth the one later end that is left, 1, not 1/2. CAP2: b_1 is
    unknown, where it was 0 before."""
    method = compose("eqlen_unbiased+overlong_filter", ["sampling.streams=1"])
    _, scored = score(method, rows(CAP1, [0, 0, 1]))
    assert scored.value == pytest.approx([0, 1, 1, nan], nan_ok=True)
    assert scored.advantage.tolist() == [-1, 1, 0, 0]
    _, scored = score(method, rows(CAP2, [1, 0, 0]))
    assert scored.value == pytest.approx([1, nan], nan_ok=True)
    assert not scored.trains.any()
