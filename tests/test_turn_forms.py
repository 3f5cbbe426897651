"""What weighings do to the decision for another turn, and to the length of turns, by exact sums over small processes.

A trajectory has K turns; after each the policy goes on with probability c. Where K says nothing about the verdict, a fair rule
does not push "go on" through incorrect trajectories: the push is E[ sum over them of weight * A * (times it went on - c K) ],
of K decisions of which the last one is to stop. It is the process of tests/test_closed_forms.py with turns in the place of
tokens, so that its closed forms hold, with the sign of going on.
"""

import math
from itertools import chain, product

import numpy as np
import pytest
from loops import over
from test_closed_forms import balanced_form, sequence_mean_form, token_mean_form

from fairlen.batch import Segments, build_responses, build_segments
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.aggregation import (
    Aggregation,
    Balanced,
    ConstantBudget,
    SequenceMean,
    TokenSum,
    TurnCount,
    TurnMean,
)
from fairlen.rollouts import Response, Rollouts


def tables(turns: list[list[int]], group: list[int], is_cut: bool) -> Segments:
    """Trajectories by the tokens of their turns, whole or cut into turns."""
    total = [sum(own) for own in turns]
    rows = build_responses(
        np.array(group), total, np.zeros(len(turns)), np.zeros(len(turns)), [False] * len(turns), 10_000,
        num_turns=[len(own) for own in turns],
    )  # fmt: skip
    if not is_cut:
        return build_segments(rows, total)
    flat = [(row, number, tokens) for row, own in enumerate(turns) for number, tokens in enumerate(own)]
    of, number, tokens = (np.array(column) for column in zip(*flat, strict=True))
    return build_segments(rows, tokens, response=of, turn=number, num_turns=1)


def weights(rule: Aggregation, turns: list[list[int]], right: list[bool], is_cut: bool) -> list[list[float]]:
    """weight * A of a token of each turn, for one group that is the whole update."""
    segments = tables(turns, [0] * len(turns), is_cut)
    whole = tables(turns, [0] * len(turns), False)
    advantage = GroupNormalized()(whole, np.array(right, float))[segments.response]
    signed = rule(segments, advantage) * advantage
    if is_cut:
        return [signed[segments.response == row].tolist() for row in range(len(turns))]
    return [[value] * len(own) for value, own in zip(signed.tolist(), turns, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "is_cut", "closed"),
    [
        (SequenceMean(), False, sequence_mean_form),  # per trajectory: 1 / K
        (TurnMean(), True, sequence_mean_form),
        (TurnCount(), False, sequence_mean_form),
        (SequenceMean(), True, token_mean_form),  # per turn: 1 / (all turns of the group)
        (Balanced("group"), False, balanced_form),
        (Balanced("group", "turns"), True, balanced_form),
        (TokenSum(), False, lambda size, stop: 0.0),
        (TokenSum(), True, lambda size, stop: 0.0),
        (ConstantBudget(), True, lambda size, stop: 0.0),
    ],
    ids=lambda value: str(value) if not callable(value) or isinstance(value, type) else "",
)
def test_push_on_another_turn_by_full_enumeration(rule, is_cut, closed):
    """Groups of 2, s = 1 - c = 0.9, turns of one token: K to 11, beyond which 2 * 0.1^11 = 2e-11 is lost."""
    stop, size, longest = 0.9, 2, 11
    total = 0.0
    for counts in product(range(1, longest + 1), repeat=size):
        chance = math.prod(stop * (1 - stop) ** (k - 1) for k in counts) / 2**size
        for right in product([False, True], repeat=size):
            signed = weights(rule, [[1] * k for k in counts], list(right), is_cut)
            for k, own, is_right in zip(counts, signed, right, strict=True):
                went_on = np.arange(k) < k - 1
                total += 0.0 if is_right else chance * float(np.array(own) @ (went_on - (1 - stop)))
    assert total == pytest.approx(-closed(size, stop), abs=1e-9)


def push_on_long_turns(rule: Aggregation, is_cut: bool, share: float = 0.5, long: int = 5) -> float:
    """Expected push on "write a long turn" in groups of a correct trajectory of 1 turn and an incorrect one of 3.

    Turns are long (5 tokens) with probability v, else 1 token, whatever the verdict: cua-lite#13, whose failed trajectories take
    more turns. Derivative of a turn's log-prob by the logit of long: (is long) - v.
    """
    total = 0.0
    for drawn in product([0, 1], repeat=4):
        chance = math.prod(share if one else 1 - share for one in drawn)
        tokens = [long if one else 1 for one in drawn]
        signed = weights(rule, [tokens[:1], tokens[1:]], [True, False], is_cut)
        total += chance * sum(w * (one - share) for w, one in zip(chain(*signed), drawn, strict=True))
    return total


def test_a_mean_over_tokens_of_a_trajectory_shortens_turns_and_a_count_of_turns_does_not():
    """Correct: v (1 - v) (1/5 - 1) = -0.2. Incorrect, with the other sign: 3 E[(x - 1/2) / T], T = 3 + 4 (long ones of 3),
    which is (3/4) (E[1/T, first long] - E[1/T, first short]) = (3/4) ((1/7 + 2/11 + 1/15) / 4 - (1/3 + 2/7 + 1/11) / 4).
    Both over 2 rows.
    """
    late = 0.75 * ((1 / 7 + 2 / 11 + 1 / 15) / 4 - (1 / 3 + 2 / 7 + 1 / 11) / 4)
    assert push_on_long_turns(SequenceMean(), False) == pytest.approx((-0.2 - late) / 2, abs=1e-12)
    assert push_on_long_turns(SequenceMean(), False) < -0.06
    for rule, is_cut in ((TurnCount(), False), (TurnMean(), True), (TokenSum(), False), (ConstantBudget(), True)):
        assert push_on_long_turns(rule, is_cut) == pytest.approx(0.0, abs=1e-15)


def test_one_row_a_turn_lets_long_failures_dominate_and_a_mean_over_turns_does_not():
    """rllm#512. Weight * |A| * tokens of incorrect over correct trajectories, 2 and 10 turns of 4 tokens: 10 / 2, then 1."""
    turns, right = [[4, 4], [4] * 10], [True, False]

    def ratio(rule: Aggregation, is_cut: bool) -> float:
        signed = weights(rule, turns, right, is_cut)
        mass = [
            sum(abs(w) * t for w, t in zip(own, tokens, strict=True)) for own, tokens in zip(signed, turns, strict=True)
        ]
        return mass[1] / mass[0]

    assert ratio(SequenceMean(), True) == pytest.approx(5.0)
    for rule, is_cut in (
        (TurnMean(), True), (SequenceMean(), False), (TurnCount(), False), (Balanced(), False), (Balanced(), True),
        (Balanced("group", "turns"), True),
    ):  # fmt: skip
        assert ratio(rule, is_cut) == pytest.approx(1.0)


PAID = 0.3
"""For each further turn, taken off the verdict's worth: the return does not depend on the number of turns."""


def two_of(counts: tuple[int, ...], right: tuple[bool, ...]) -> tuple[Response, ...]:
    """Trajectories of turns of one token; outcome is the return, PAID (K - 1) + (right - PAID (K - 1))."""
    return tuple(
        Response(
            0, tuple(range(1 + 2 * k)), 1, (-1.0,) * k, "stop", seed=row, outcome=float(is_right),
            status="correct" if is_right else "incorrect", turns=tuple((1 + 2 * i, 2 + 2 * i) for i in range(k)),
            turn_rewards=(0.0, *(PAID,) * (k - 1)),
        )
        for row, (k, is_right) in enumerate(zip(counts, right, strict=True))
    )  # fmt: skip


def push_of_plan(method: Method, counts: tuple[int, ...], right: tuple[bool, ...], go_on: float) -> float:
    """Sum of weight * A * ((went on) - c) over decisions, of which the third turn of three has none."""
    responses = two_of(counts, right)
    rollouts = Rollouts(responses, method.sampling.cut(responses), 50)
    total = 0.0
    for update in updates(method.score(rollouts)):
        plan = method.weigh(update)
        for row, signed in zip(plan.rows, plan.weight * plan.advantage, strict=True):
            segment = rollouts.segments[row]
            if segment.turn < 2:
                total += signed * ((segment.turn + 1 < counts[segment.response]) - go_on)
    return total


def naive_push(counts: tuple[int, ...], right: tuple[bool, ...], go_on: float) -> float:
    """Rewards of a turn less the mean of that turn, from it on, and the final reward less the mean of the others': verl#7244."""
    final = [float(is_right) - PAID * (k - 1) for k, is_right in zip(counts, right, strict=True)]
    total = 0.0
    for row, k in enumerate(counts):
        # what turns paid is the same for all who took them: less its mean it is 0
        advantage = final[row] - final[1 - row]
        total += sum(advantage * ((turn + 1 < k) - go_on) for turn in range(min(k, 2))) / 2
    return total


@over("name", ["rloo+turns+turn_baseline", "dr_grpo+turns+turn_baseline", "grpo+turns+turn_baseline+no_std"])
def test_turns_compared_by_what_came_after_have_no_hidden_bonus_for_another_turn(name):
    """c = 0.4, at most 3 turns; the return does not depend on K. The naive baseline pushes by
    -PAID dE[K]/dz = -0.3 (1 + 2c) c (1 - c).

    A weight that depends on the number of turns (the sequence mean over turns, third name) leaves no push either where the
    verdicts of both are equally likely.
    """
    go_on, method = 0.4, compose(name, ["sampling.n=2"])
    law = {1: 0.6, 2: 0.24, 3: 0.16}
    ours = naive = 0.0
    for counts in product(law, repeat=2):
        for right in product([False, True], repeat=2):
            chance = math.prod(law[k] for k in counts) / 4
            ours += chance * push_of_plan(method, counts, right, go_on)
            naive += chance * naive_push(counts, right, go_on)
    assert ours == pytest.approx(0.0, abs=1e-12)
    assert naive == pytest.approx(-PAID * (1 + 2 * go_on) * go_on * (1 - go_on), abs=1e-12)
    assert push_of_plan(method, (3, 2), (True, False), go_on) != 0.0
