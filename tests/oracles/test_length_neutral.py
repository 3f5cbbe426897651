"""Where length says nothing: answers end with hazard h at every step, and are right with probability v whatever their length.

One letter and two ends, a correct one with probability h v, an incorrect one with h (1 - v); at the max response length the
hazard is 1, so that nothing is truncated and every verdict is an independent coin. The derivative by the one stop logit that all
steps share is, for a row of n tokens, A (1[its last token is an end] - n h). Both rows of a pair have n tokens and A_a = -A_b, so
that n h drops out: the pressure on stopping is the advantage of finishers of pairs that one track ended; a tie presses nothing.

The true gradient is 0: stopping now or later is worth v. Of n later finishers max takes the best, right with probability
1 - (1 - v)^n; so the survivor is preferred with (1 - v) (1 - (1 - v)^n), the finisher with v (1 - v)^n, and the finisher's
expected advantage is v - 1 + (1 - v)^n: 0 for n = 1, negative for all others. As two tracks go on from every survivor, n is 2 or
more; with a limit of 1 round it is 1.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
from loops import over
from toy import Listing, Toy, all_streams, unbiased

from fairlen.methods.method import Scored

HAZARD, RIGHT = 0.3, 0.4
TOY = Toy(horizon=5, letters=1, ends=2)
REWARD = np.tile([1.0, 0.0], (TOY.num_nodes, 1))


def neutral_policy(toy: Toy, hazard: float, right: float) -> np.ndarray:
    policy = np.tile([1 - hazard, hazard * right, hazard * (1 - right)], (toy.num_nodes, 1))
    policy[-1] = 0.0, right, 1 - right
    return policy


POLICY = neutral_policy(TOY, HAZARD, RIGHT)


@functools.cache
def scores(rule: str, weight: str = "none", max_rounds: int = 0) -> tuple[Listing, Scored]:
    streams, method = all_streams(TOY, max_rounds), unbiased(rule, weight)
    method = replace(method, sampling=replace(method.sampling, max_rounds=max_rounds))
    return streams, method.score_tables(streams.graded(REWARD), streams.pieces(method)[0])


def stops_alone(scored: Scored) -> np.ndarray:
    """Finishers of pairs that only one track ended: the row before a survivor's, [B]."""
    return np.append(scored.segments.survivor[1:], False)


def pressure(rule: str, weight: str, max_rounds: int = 0) -> float:
    """Expected sum over a stream of mass * advantage at the tokens where one track ended."""
    streams, scored = scores(rule, weight, max_rounds)
    rows = stops_alone(scored)
    chance = streams.chance(POLICY)[streams.table.prompt[scored.segments.response]]
    return float((chance * scored.segments.mass * scored.advantage)[rows].sum())


@pytest.mark.slow
@over("rule, weight", [("halving", "none"), ("halving", "halving"), ("lineage", "halving"), ("mean", "none")])
def test_no_pressure_on_stopping(rule, weight):
    """Each of these values of a survivor is an average of coins, with expectation v like the finisher's."""
    assert abs(pressure(rule, weight)) < 1e-12


@pytest.mark.slow
@over("weight", ["none", "halving"])
def test_max_presses_against_stopping(weight):
    assert pressure("max", weight) < -0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "weight"), [("max", "none"), ("max", "halving"), ("halving", "halving"), ("mean", "none")]
)
def test_the_pressure_is_the_derivative_by_the_stop_logit(rule, weight):
    """By every token of every row: the sum over the steps before the budget of the derivative by the logits of both ends. A plan
    has half of the pressure, for its two tracks. Without n h dropping out this would be another number."""
    gradient = all_streams(TOY).expected(unbiased(rule, weight), POLICY, REWARD)
    assert 2 * gradient[:-1, 1:].sum() == pytest.approx(pressure(rule, weight), abs=1e-13)


def test_who_wins_by_the_number_of_later_finishers():
    """The closed forms, for every n that horizon 5 has: a pair of round j in a stream of K tracks has n = K - j - 1."""
    streams, scored = scores("max")
    rows = np.flatnonzero(stops_alone(scored))
    prompt = streams.table.prompt[scored.segments.response[rows]]
    chance = streams.chance(POLICY)[prompt]
    later = np.bincount(streams.table.prompt)[prompt] - scored.segments.round[rows] - 1
    lost, won = scored.advantage[rows] < 0, scored.advantage[rows] > 0
    total = chance @ scored.advantage[rows]
    expected, v = 0.0, RIGHT
    assert set(later[chance > 0]) == {2, 3, 4, 5}
    for n in range(2, 6):
        mine = chance * (later == n)
        assert mine @ lost / mine.sum() == pytest.approx((1 - v) * (1 - (1 - v) ** n), abs=1e-13)
        assert mine @ won / mine.sum() == pytest.approx(v * (1 - v) ** n, abs=1e-13)
        expected += mine.sum() * (v - 1 + (1 - v) ** n)
    assert total == pytest.approx(expected, abs=1e-13) == pytest.approx(pressure("max", "none"), abs=1e-13)


def test_at_most_one_pair_of_a_stream_prefers_the_finisher():
    """Under max, by the last right finisher: before it survivors are right, after it nobody is. Other rules have more."""
    wins = {}
    for rule in ("max", "halving"):
        streams, scored = scores(rule)
        won = stops_alone(scored) & (scored.advantage > 0)
        wins[rule] = np.bincount(streams.table.prompt[scored.segments.response], weights=won).max()
    assert wins["max"] == 1 < wins["halving"]


def test_the_best_of_all_later_ones_is_wrong_only_where_all_are():
    """The paper's "never penalised" holds for a survivor with some right extension. With (1 - v)^n there is none, and where the
    finisher was right the survivor is then penalised."""
    streams, scored = scores("max")
    finisher = np.flatnonzero(stops_alone(scored))
    prompt = streams.table.prompt[scored.segments.response[finisher]]
    chance, right = streams.chance(POLICY)[prompt], scored.value[finisher] == 1.0
    later = np.bincount(streams.table.prompt)[prompt] - scored.segments.round[finisher] - 1
    penalised = scored.advantage[finisher + 1] < 0
    for n in range(2, 6):
        mine = chance * right * (later == n)
        assert mine @ penalised / mine.sum() == pytest.approx((1 - RIGHT) ** n, abs=1e-13)


def long_run(horizon: int, hazard: float, right: float, stop_at_budget: bool) -> tuple[float, float]:
    """Pressure of max and rounds of a stream, by recursion over the steps that are left; what is cut off is worth 0.

    At a step with k left: both go on with (1-h)^2; one ends with 2h(1-h), and then the survivor is worth M(k-1), the chance of a
    right end among all later ones; both end with h^2.
    """
    best, press, rounds = (0.0,) * 3
    for left in range(1, horizon + 1):
        h = 1.0 if stop_at_budget and left == 1 else hazard
        on, one, tie = (1 - h) ** 2, 2 * h * (1 - h), h * h
        press = on * press + one * (right - best + press)
        rounds = on * rounds + one * (1 + rounds) + tie
        best = on * best + one * (right + (1 - right) * best) + tie * (1 - (1 - right) ** 2)
    return press, rounds


@pytest.mark.slow
def test_the_recursion_over_steps_is_the_listing():
    assert long_run(5, HAZARD, RIGHT, True)[0] == pytest.approx(pressure("max", "none"), abs=1e-13)


def test_pressure_of_long_streams():
    """h = 0.1, v = 0.5, 40 steps: 6.8 rounds, and -1.24 after the half of two planned tracks, as was once simulated."""
    press, rounds = long_run(40, 0.1, 0.5, stop_at_budget=True)
    print(f"\npressure {press / 2:.4f}, rounds {rounds:.3f}")
    assert (press / 2, rounds) == pytest.approx((-1.24, 6.8), abs=0.05)


def test_with_one_round_max_has_one_to_choose_from():
    """The paper's single pair: its survivor is completed once, n = 1, and neither is favoured."""
    assert abs(pressure("max", "none", max_rounds=1)) < 1e-12
    assert pressure("max", "none", max_rounds=2) < -0.01
