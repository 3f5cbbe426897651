"""What the aggregation rules do to the stop token, by exact sums over the law of lengths.

Answers stop with probability s at every token, independently of being right with probability 1/2. The derivative of a
sequence's log-prob by the stop logit is (1 - s) - s (T - 1) = 1 - s T, whose expectation is 0: a fair rule does not
push the stop logit through incorrect responses. The push is E[ sum over incorrect responses of weight * A * (1 - s T) ] for one
group.

With 0/1 rewards and k right of G, incorrect responses have A = -sqrt(k / (G - k)), m = G - k of them. By exchangeability

    SequenceMean   -E_k[ sqrt(k m) / G ] (E[1/T] - s),  E[1/T] = -s ln s / (1 - s)
    TokenMean      -E_k[ sqrt(k m) ] (E[1/N_G] - s / G),  N_n the sum of n lengths
    Balanced       -E_k[ sqrt(k m) / G (m E[1/N_m] - s) ]
"""

import math
from itertools import product

import numpy as np
import pytest

from fairlen.batch import Segments
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.aggregation import Balanced, ConstantBudget, SequenceMean, TokenMean, TokenSum


def table(lengths: np.ndarray) -> Segments:
    """Groups of one size as rows, from lengths [groups, G]."""
    groups, size = lengths.shape
    rows = groups * size
    zeros = np.zeros(rows, np.int64)
    return Segments(
        response=np.arange(rows), length=lengths.ravel().astype(np.int64), group=np.repeat(np.arange(groups), size),
        active=np.ones(rows, np.bool_), mass=np.ones(rows), survivor=np.zeros(rows, np.bool_), round=zeros,
        max_response_length=10_000,
    )  # fmt: skip


def push(rule, lengths: np.ndarray, right: np.ndarray, stop: float) -> np.ndarray:
    """The push of each group's incorrect responses as if it were the whole update, [groups], by the code's own plan."""
    segments = table(lengths)
    advantage = GroupNormalized()(segments, right.ravel().astype(float))
    weight = rule(segments, advantage) * len(lengths)
    pushes = weight * advantage * (1.0 - stop * segments.length) * ~right.ravel()
    return pushes.reshape(lengths.shape).sum(1)


def binomial(size: int) -> np.ndarray:
    return np.array([math.comb(size, k) for k in range(size + 1)]) / 2.0**size


def inverse_sum(count: int, stop: float) -> float:
    """E[1 / N] of the sum of `count` lengths, by its law C(n - 1, count - 1) s^count (1 - s)^(n - count)."""
    total, n = 0.0, count
    log_p = count * math.log(stop)
    while n < 40 * count / stop + 2000:
        total += math.exp(log_p) / n
        log_p += math.log(n / (n + 1 - count)) + math.log1p(-stop)
        n += 1
    return total


def sequence_mean_form(size: int, stop: float) -> float:
    mass = sum(p * math.sqrt(k * (size - k)) / size for k, p in enumerate(binomial(size)))
    return -mass * (-stop * math.log(stop) / (1 - stop) - stop)


def token_mean_form(size: int, stop: float) -> float:
    mass = sum(p * math.sqrt(k * (size - k)) for k, p in enumerate(binomial(size)))
    return -mass * (inverse_sum(size, stop) - stop / size)


def balanced_form(size: int, stop: float) -> float:
    terms = [
        math.sqrt(k * (size - k)) / size * ((size - k) * inverse_sum(size - k, stop) - stop) for k in range(1, size)
    ]
    return -float(binomial(size)[1:size] @ np.array(terms))


@pytest.mark.parametrize(
    ("rule", "closed"),
    [
        (SequenceMean(), sequence_mean_form),
        (TokenMean("group"), token_mean_form),
        (Balanced("group"), balanced_form),
        (TokenSum(), lambda size, stop: 0.0),
        (ConstantBudget(), lambda size, stop: 0.0),
    ],
    ids=lambda value: str(value) if not callable(value) or isinstance(value, type) else "",
)
def test_push_on_the_stop_logit_by_full_enumeration(rule, closed):
    """G = 3, s = 0.7: all 2^3 verdicts and all lengths to 24, beyond which 3 * 0.3^24 = 8e-13 is lost."""
    stop, size, longest = 0.7, 3, 24
    lengths = np.array(list(product(range(1, longest + 1), repeat=size)))
    chance = np.prod(stop * (1 - stop) ** (lengths - 1), axis=1)
    total = 0.0
    for verdicts in product([False, True], repeat=size):
        right = np.broadcast_to(np.array(verdicts), lengths.shape)
        total += chance @ push(rule, lengths, right, stop) / 2**size
    assert total == pytest.approx(closed(size, stop), abs=1e-10)


def test_sequence_mean_pushes_wrong_answers_to_be_longer():
    """-0.4639 * 0.1558 at s = 0.1, G = 8: a row's push depends on k and its own length alone."""
    stop, size, longest = 0.1, 8, 400
    lengths = np.repeat(np.arange(1, longest + 1)[:, None], size, axis=1)
    chance = stop * (1 - stop) ** (lengths[:, 0] - 1)
    total = zero = 0.0
    for k, p in enumerate(binomial(size)):
        right = np.broadcast_to(np.arange(size) < k, lengths.shape)
        total += p * chance @ push(SequenceMean(), lengths, right, stop)
        zero += p * chance @ push(ConstantBudget(), lengths, right, stop)
    assert total == pytest.approx(sequence_mean_form(size, stop), abs=1e-12)
    # E sqrt(k (8 - k)) / 8 = (2 (8 sqrt 7 + 28 sqrt 12 + 56 sqrt 15) + 70 * 4) / 256 / 8; E[1/T] = 0.1 ln 10 / 0.9
    mass = (2 * (8 * 7**0.5 + 28 * 12**0.5 + 56 * 15**0.5) + 280) / 2048
    assert (mass, 0.1 * math.log(10) / 0.9 - 0.1) == pytest.approx((0.4639, 0.1558), abs=5e-5)
    assert total == pytest.approx(-mass * (0.1 * math.log(10) / 0.9 - 0.1), abs=1e-12)
    assert zero == pytest.approx(0.0, abs=1e-15)


def test_the_law_of_sums():
    """E[1/N] is the integral over x in 0..1 of E[x^N] / x, with E[x^T] = s x / (1 - (1 - s) x)."""
    for stop in (0.1, 0.5, 0.7):
        log = math.log(1 / stop)
        assert inverse_sum(1, stop) == pytest.approx(stop * log / (1 - stop), rel=1e-12)
        # of s^2 x / (1 - (1-s) x)^2: (s/(1-s))^2 (1/s - 1 - ln(1/s))
        assert inverse_sum(2, stop) == pytest.approx((stop / (1 - stop)) ** 2 * (1 / stop - 1 - log), rel=1e-12)
