"""Claims of 2509.09177 v1 by exact arithmetic: theorem 2.2's premises, the signs of equations 3 to 5, and when the drift
matters."""

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from fixtures import make_batch, pieces, plan_of
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.stages.fair_band import FairBand, band_sums

PHI_1 = math.erf(1 / math.sqrt(2))
"""P(|z| <= 1) of a normal law: 0.6827."""


def inside_share(length: int, up: Fraction, chance: Fraction, width_in_sigma: float) -> float:
    """P(|S - mu L| <= z sigma sqrt(L)) for S a sum of L independent log ratios, `up` with `chance` and -up else, by its law."""
    mean = float(up * (2 * chance - 1))
    sigma = math.sqrt(float(up) ** 2 - mean**2)
    edge = width_in_sigma * sigma * math.sqrt(length) + 1e-12
    total = 0.0
    for k in range(length + 1):
        if abs(float(up) * (2 * k - length) - mean * length) <= edge:
            log = math.lgamma(length + 1) - math.lgamma(k + 1) - math.lgamma(length - k + 1)
            total += math.exp(log + k * math.log(chance) + (length - k) * math.log(1 - chance))
    return total


def test_independent_tokens_have_a_normal_log_ratio():
    """The band mu L +- sigma sqrt(L) accepts 0.683 in the limit. By the exact law the distance shrinks like 1/sqrt(L): below
    1.2 / sqrt(L) at every length, and below 0.02 from 4096 tokens on."""
    gaps = {n: abs(inside_share(n, Fraction(1, 50), Fraction(9, 20), 1.0) - PHI_1) for n in (16, 64, 256, 1024, 4096)}
    assert abs(PHI_1 - 0.683) < 5e-4
    assert all(gap < 1.2 / math.sqrt(n) for n, gap in gaps.items()) and gaps[4096] < 0.02


def test_the_premises_that_theorem_2_2_leaves_out_are_needed():
    """1. The policies differ at the first token alone: var S / L = v / L, which has the limit 0, not sigma^2 > 0, and mu is no
    multiple of L. 2. The first token chooses one of two regimes whose tokens drift by +1/100 and -1/100: S = +-L/100, var S =
    L^2 / 10^4, which grows with L^2; (S - mu) / sqrt(L) = +-sqrt(L)/100 has two values and no limit, and a band of any width w
    sqrt(L) accepts all up to L = (100 w)^2 and nothing beyond: 9 at w = 3/100."""
    v = Fraction(1, 4)
    assert [v / n for n in (1, 100, 10_000)] == [Fraction(1, 4), Fraction(1, 400), Fraction(1, 40_000)]
    drift, width = Fraction(1, 100), Fraction(3, 100)
    for length in (4, 9, 10, 400):
        values = [sign * drift * length for sign in (1, -1)]
        assert sum(s**2 for s in values) / 2 == Fraction(length**2, 10**4)
        accepted = sum(s**2 <= width**2 * length for s in values)
        assert accepted == (2 if length <= 9 else 0)


def test_the_sign_of_the_drift():
    """Equation 4 averages log(new / old) over old samples: its expectation is -KL(old, new). Old 1/2, 1/2 and new 1/4, 3/4: (ln
    1/2 + ln 3/2)/2 = ln(3/4)/2 = -0.144. Equation 5 turns the sign, so that mu is +0.144; the text takes the negative KL, which
    is -0.144. The code keeps the first."""
    old, new = (Fraction(1, 2),) * 2, (Fraction(1, 4), Fraction(3, 4))
    mean = sum(float(o) * math.log(n / o) for o, n in zip(old, new, strict=True))
    assert mean == pytest.approx(math.log(3 / 4) / 2) == pytest.approx(-0.144, abs=5e-4)
    band = FairBand(rate=1.0).update(
        band_sums(num_sequences=1, num_tokens=1000, log_ratio=1000 * mean, squared_log_ratio=1)
    )
    assert band.current_drift == pytest.approx(0.144, abs=5e-4)


def test_with_the_sign_of_the_text_long_answers_have_no_band():
    """b = -k L + c sqrt(L) with k = 1/1000, c = 3/100 is positive up to L = (c / k)^2 = 900 and negative beyond: clip(S, -b, b)
    has its edges the wrong way round. With +k it is a band at every length."""
    k, c = Fraction(1, 1000), Fraction(3, 100)
    assert (c / k) ** 2 == 900
    edge = {n: -k * n + c * math.isqrt(n) for n in (400, 900, 2500)}
    assert edge[400] > 0 == edge[900] > edge[2500]
    assert all(k * n + c * math.isqrt(n) > 0 for n in edge)


def test_when_the_drift_matters():
    """A band c sqrt(L) without drift, S ~ N(-k L, sigma^2 L) and c = sigma: the law's centre has moved by k sqrt(L) / sigma
    standard deviations. At L = (c / k)^2 / 100 that is 0.1, and 0.680 are accepted instead of 0.683; at L = (c / k)^2 it is 1,
    and Phi(2) - Phi(0) = 0.477 are; at 4 (c / k)^2 Phi(3) - Phi(1) = 0.157. With k = 1/1000 and c = 3/100: 9, 900 and 3600
    tokens."""
    k, c = 0.001, 0.03
    shares = {}
    for length in (9, 900, 3600):
        low, high = FairBand(width=c, drift="none").band(torch.tensor([float(length)], dtype=torch.float64), 0.0)
        law = NormalDist(-k * length, c * math.sqrt(length))
        shares[length] = law.cdf(high.item()) - law.cdf(low.item())
    assert list(shares.values()) == pytest.approx([0.680, 0.477, 0.157], abs=5e-4)
    assert abs(PHI_1 - 0.683) < 5e-4


def test_minibatches_on_policy_pull_the_running_drift_to_0():
    """Four updates for each rollout batch: the first has S = 0 exactly. Equation 5 over 0, k, k, k for ever comes to a mean of
    3/4 k over its cycle; leaving the zeros out, as the code does, to k. Any rate; here 1/10, after 200 rollout batches."""
    k, rate = 0.002, 0.1
    plain, values = 0.0, []
    ours = FairBand(rate=rate)
    for batch in range(200):
        for update in range(4):
            drift = k if update else 0.0
            plain = (1 - rate) * plain + rate * drift
            if batch == 199:
                values.append(plain)
            if update:
                ours = ours.update(band_sums(1, 1000, -1000 * drift, 1.0))
            else:
                ours = ours.update(band_sums(0, 0, 0.0, 0.0))
    assert np.mean(values) / k == pytest.approx(3 / 4, abs=1e-6)
    assert ours.current_drift / k == pytest.approx(1, abs=1e-6)


def test_fspo_and_gspo_differ_by_the_length_where_nothing_is_clipped():
    """Section 4.3 says that only the clip differs. On-policy, advantages 1: FSPO pushes every token of both answers with 1/2,
    GSPO with 1/(2 T): 1/4 and 1/20 for 2 and 10 tokens."""
    pushes = {}
    for name in ("fspo", "gspo"):
        method = compose(name)
        batch = make_batch([0, 0, 1, 1], [2, 2, 10, 10], [1, 0, 1, 0], max_response_length=10)
        plan = plan_of(method, batch)
        logprobs, micro = pieces(plan.length.tolist(), plan.advantage.tolist(), torch.zeros(24, dtype=torch.float64))
        loss = method.surrogate(logprobs, micro).loss
        (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
        pushes[name] = [float(-gradient[at] * plan.weight[row]) * 2 for at, row in ((0, 0), (4, 2))]
    assert pushes["fspo"] == pytest.approx([1 / 2, 1 / 2])
    assert pushes["gspo"] == pytest.approx([1 / 4, 1 / 20])


@over("drift", ["none", "symmetric", "centred"])
def test_the_scale_of_the_band_is_one_number(drift):
    """z = 2 and sigma = 0.015, z = 3 and sigma = 0.01, c = 0.03: one band, as 2 * 0.015 = 3 * 0.01 = 0.03. sigma is known from
    updates whose S + k T spreads by sigma per root of a token; k = 1/1000."""
    k, length = 0.001, torch.tensor([1.0, 50.0, 215.0, 768.0], dtype=torch.float64)

    def edges(z, sigma):
        band = FairBand(z=z, drift=drift, rate=1.0)
        known = band.update(band_sums(4, 400, -k * 400, 4 * sigma**2 + 400 * k**2)) if z else band
        return torch.stack(known.band(length, 0.0 if drift == "none" else k))

    assert FairBand().width == 0.03
    assert edges(2, 0.015).tolist() == [pytest.approx(row.tolist()) for row in edges(0, 0.0)]
    assert edges(3, 0.01).tolist() == [pytest.approx(row.tolist()) for row in edges(2, 0.015)]
