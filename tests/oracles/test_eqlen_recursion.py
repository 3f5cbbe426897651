"""The expected gradient of EqLen by recursion over prefixes, without listing streams: a second derivation, for a longer horizon.

A round is a pair of continuations of one prefix u that goes until one of them ends. What its survivor p is worth depends on what
comes later, which given p is independent of the round; so only its expectation V(p) enters. With w the worth of an answer:

    V(u) = sum over rounds from u of chance * { (w_a + w_b) / 2     both ended, or truncated (worth 0)
                                              { (w_a + V(p)) / 2    a ended, p goes on

and a round from u weighs the mass that arrives at u: 1 at the root, and chance * decay from every round before, decay 1/2 for
halving weights and 1 without. The rule max has max(w_a, .) instead, which for w of 0 and 1 is w_a + (1 - w_a) V(p).
4^h pairs of prefixes instead of 8^h streams.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from toy import (
    Toy,
    all_streams,
    answer_chance,
    cosine,
    exact_gradient,
    exact_value,
    random_policy,
    random_reward,
    relative_error,
    unbiased,
)

Tokens = tuple[int, ...]


def one_round(toy: Toy, policy: np.ndarray, a: Tokens, b: Tokens, chance: float = 1.0) -> Iterator[tuple]:
    """(chance, a, b) of every way in which two continuations reach the first end or the budget."""
    nodes = toy.node(a), toy.node(b)
    for left, right in product(range(toy.size), repeat=2):
        p, grown = chance * policy[nodes[0], left] * policy[nodes[1], right], ((*a, left), (*b, right))
        if toy.is_end(left) or toy.is_end(right) or len(a) + 1 == toy.horizon:
            yield p, *grown
        else:
            yield from one_round(toy, policy, *grown, p)


@dataclass
class Recursion:
    """One policy and reward; `rule` and `decay` as in the module's docstring."""

    toy: Toy
    policy: np.ndarray
    reward: np.ndarray
    rule: str = "halving"
    decay: float = 0.5
    known: dict[Tokens, float] = field(default_factory=dict)

    def combine(self, finisher: float, later: float) -> float:
        return (finisher + later) / 2 if self.rule == "halving" else finisher + (1 - finisher) * later

    def worth(self, tokens: Tokens) -> float:
        """Of an answer that ended or was cut off, or what later ends are expected to be worth."""
        if self.toy.is_end(tokens[-1]) or len(tokens) == self.toy.horizon:
            return self.toy.worth(tokens, self.reward)
        return self.value(tokens)

    def value(self, prefix: Tokens) -> float:
        """V, once for each prefix."""
        if prefix not in self.known:
            rounds = one_round(self.toy, self.policy, prefix, prefix)
            pairs = ((p, *((a, b) if self.toy.is_end(a[-1]) else (b, a))) for p, a, b in rounds)
            self.known[prefix] = sum(p * self.combine(self.worth(a), self.worth(b)) for p, a, b in pairs)
        return self.known[prefix]

    def gradient(self) -> np.ndarray:
        """Half of sum mass * chance * (worth of one - worth of the other) * (score of one - score of the other)."""
        push, mass = np.zeros_like(self.policy), defaultdict(float, {(): 1.0})
        for prefix in (p for depth in range(self.toy.horizon) for p in product(range(self.toy.letters), repeat=depth)):
            for chance, a, b in one_round(self.toy, self.policy, prefix, prefix):
                gain = mass[prefix] * chance * (self.worth(a) - self.worth(b)) / 2
                for tokens, sign in ((a, 1.0), (b, -1.0)):
                    for step in self.toy.path(tokens)[len(prefix) :]:
                        push[step] += sign * gain
                ended = [self.toy.is_end(a[-1]), self.toy.is_end(b[-1])]
                if ended[0] != ended[1] and len(a) < self.toy.horizon:
                    mass[a if ended[1] else b] += mass[prefix] * chance * self.decay
        return self.toy.gradient(self.policy, push)


def make(horizon: int, seed: int, binary: bool, **settings) -> Recursion:
    toy = Toy(horizon)
    return Recursion(toy, random_policy(toy, seed), random_reward(toy, seed, binary), **settings)


@pytest.mark.parametrize("horizon", [2, 3, 4])
@pytest.mark.parametrize(("decay", "weight"), [(0.5, "halving"), (1.0, "none")])
@pytest.mark.parametrize("rule", ["halving", "max"])
def test_the_recursion_is_the_sum_over_all_streams(horizon, rule, decay, weight):
    """Exact where the rule is not: an oracle of max and of unweighted rounds too."""
    case = make(horizon, 5, binary=True, rule=rule, decay=decay)
    listed = all_streams(case.toy).expected(unbiased(rule, weight), case.policy, case.reward)
    assert relative_error(listed, case.gradient()) < 1e-10


@pytest.mark.parametrize("binary", [False, True])
def test_at_horizon_7_it_is_the_policy_gradient(binary):
    """127 prefixes; there would be 2.4 million streams: L(7) = 1 + 8 L(6)."""
    case = make(7, 6, binary)
    assert relative_error(case.gradient(), exact_gradient(case.toy, case.policy, case.reward)) < 1e-10


def test_at_horizon_7_max_is_not():
    """The paper's value and no weights: a longer horizon has more later finishers to take the best of, and a larger error."""
    errors = []
    for horizon in (3, 5, 7):
        case = make(horizon, 6, binary=True, rule="max", decay=1.0)
        ours, exact = case.gradient(), exact_gradient(case.toy, case.policy, case.reward)
        errors.append((relative_error(ours, exact), cosine(ours, exact)))
    print("\nmax, no weights, horizons 3, 5, 7: relative error, cosine", errors)
    assert 0.02 < errors[0][0] < errors[1][0] < errors[2][0] and errors[0][1] > errors[1][1] > errors[2][1]


def test_halving_values_are_those_of_the_policy():
    """V(u) is the expected worth of answers that begin with u: half of the next finisher and half of the survivor is the mean
    over the two tracks, which are equally likely to be either."""
    case = make(5, 7, binary=False)
    for prefix in product(range(2), repeat=3):
        answers = list(case.toy.answers(prefix))
        expected = sum(
            answer_chance(case.toy, case.policy, tokens, 3) * case.toy.worth(tokens, case.reward) for tokens in answers
        )
        assert case.value(prefix) == pytest.approx(expected, abs=1e-14)
    assert case.value(()) == pytest.approx(exact_value(case.toy, case.policy, case.reward), abs=1e-14)


def test_halving_weights_visit_prefixes_as_the_policy_does():
    """2^-round, summed over all tokens that are drawn at a node in any stream, is 2 * the chance that an answer passes there;
    unweighted it is more wherever a fork can have happened."""
    toy, policy = Toy(4), random_policy(Toy(4), 8)
    streams = all_streams(toy)
    at, step = streams.drawn
    depth = np.array([d for d in range(toy.horizon) for _ in range(2**d)])[step // toy.size]
    ends = np.full((len(streams), toy.horizon + 2), toy.horizon + 1)
    for response in streams.responses:
        ends[response.prompt, response.track] = response.length
    rounds = (ends[at] <= depth[:, None]).sum(1)
    chance = streams.chance(policy)[at]
    weighted = np.bincount(step // toy.size, weights=chance * 0.5**rounds)
    plain = np.bincount(step // toy.size, weights=chance)
    visits = np.zeros(toy.num_nodes)
    for tokens in toy.answers():
        for node, _ in toy.path(tokens):
            visits[node] += answer_chance(toy, policy, tokens)
    assert weighted == pytest.approx(2 * visits, abs=1e-14)
    assert plain[0] == pytest.approx(2.0, abs=1e-14) and (plain[1:] > 2 * visits[1:] + 1e-3).all()
