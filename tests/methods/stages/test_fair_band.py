"""The bands of three drifts, the share that they accept by length, and the state that they learn from whole updates."""

import math
import random
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch
from fixtures import DRIFTED, gradient, make_micro, pieces, plan_of, random_batch, random_parts, speak, weight_matrix
from loops import over

from fairlen.methods.compose import compose
from fairlen.methods.stages.fair_band import FairBand, band_sums
from fairlen.methods.stages.micro import Outputs

PHI = NormalDist().cdf


def learned(drift, k=0.002, **fields):
    """A band whose running drift is k: one update at rate 1 forgets everything before."""
    sums = band_sums(num_sequences=1, num_tokens=1000, log_ratio=-1000 * k, squared_log_ratio=0.5)
    return FairBand(drift=drift, rate=1.0, **fields).update(sums)


def test_edges_by_hand():
    # T = 100: w sqrt T = 0.03 * 10 = 3/10, k T = 0.002 * 100 = 2/10; T = 2500: 15/10 and 50/10
    length = torch.tensor([100.0, 2500.0], dtype=torch.float64)
    for drift, expected in (
        ("none", [(-0.3, 0.3), (-1.5, 1.5)]),
        ("symmetric", [(-0.5, 0.5), (-6.5, 6.5)]),
        ("centred", [(-0.5, 0.1), (-6.5, -3.5)]),
    ):
        band = learned(drift)
        low, high = band.band(length, band.current_drift)
        assert low.tolist() == pytest.approx([low for low, _ in expected])
        assert high.tolist() == pytest.approx([high for _, high in expected])
    band = learned("centred", lower_share=0.5)
    assert band.band(length, band.current_drift)[0].tolist() == pytest.approx([-0.35, -5.75])  # -0.15 - 0.2, -0.75 - 5


def accepted(band, length, drift, sigma):
    """Share of S ~ N(-drift T, sigma^2 T) within the edges of the code."""
    low, high = (edge.item() for edge in band.band(torch.tensor([length], dtype=torch.float64), band.current_drift))
    law = NormalDist(-drift * length, sigma * math.sqrt(length))
    return law.cdf(high) - law.cdf(low)


@over("length", [1.0, 16.0, 400.0, 10_000.0])
def test_accepted_share_by_length_in_closed_form(length):
    """z = c / sigma: centred is flat, none falls with L, symmetric rises from 2 Phi(z) - 1 to Phi(z)."""
    k, sigma, c = 0.0008, 0.04, 0.03
    z, shift = c / sigma, k * math.sqrt(length) / sigma
    assert accepted(learned("centred", k), length, k, sigma) == pytest.approx(2 * PHI(z) - 1)
    assert accepted(learned("none", k), length, k, sigma) == pytest.approx(PHI(z + shift) - PHI(-z + shift))
    assert accepted(learned("symmetric", k), length, k, sigma) == pytest.approx(PHI(z) + PHI(z + 2 * shift) - 1)


def test_accepted_share_of_drawn_sequences():
    """The same through the surrogate: 20,000 sequences of 25 tokens, each l ~ N(-k, sigma^2)."""
    k, sigma, length, count = 0.008, 0.04, 25, 20_000
    draw = torch.Generator().manual_seed(0)
    log_ratio = -k + sigma * torch.randn(length * count, dtype=torch.float64, generator=draw)
    logprobs, micro = pieces([length] * count, [1.0] * count, log_ratio)
    z, shift = 0.03 / sigma, k * math.sqrt(length) / sigma
    for drift, expected in (
        ("centred", 2 * PHI(z) - 1),
        ("none", PHI(z + shift) - PHI(-z + shift)),
        ("symmetric", PHI(z) + PHI(z + 2 * shift) - 1),
    ):
        share = learned(drift, k)(logprobs, micro).inside.double().mean().item()
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count)


@over("drift", ["none", "symmetric", "centred"])
def test_the_gradient_is_zero_exactly_outside_the_sides_that_count(drift):
    """Zero iff (A > 0 and S > b+) or (A < 0 and S < b-) or (A < 0 and S > b_d); else A e^S on each token."""
    band = learned(drift, dual_width=0.2)
    length = 16
    low, high = (
        edge.item() for edge in band.band(torch.tensor([float(length)], dtype=torch.float64), band.current_drift)
    )
    dual = 0.2 * math.sqrt(length)
    for total in (-1.0, low - 1e-6, low + 1e-6, 0.0, high - 1e-6, high + 1e-6, dual - 1e-6, dual + 1e-6, 2.0):
        for advantage in (1.5, -1.5):
            log_ratio = torch.full((length,), total / length, dtype=torch.float64)
            logprobs, micro = pieces([length], [advantage], log_ratio)
            out = band(logprobs, micro)
            grad = torch.autograd.grad(out.loss.sum(), logprobs)[0]
            zero = total > high if advantage > 0 else total < low or total > dual
            assert grad.tolist() == pytest.approx([0.0 if zero else -advantage * math.exp(total)] * length, rel=1e-9)
            assert out.clipped.tolist() == [zero] * length and out.inside.tolist() == [low <= total <= high] * length


def test_the_first_update_has_no_drift():
    band = FairBand()
    assert band.current_drift == 0.0 and band.current_width == 0.03


def test_running_drift_by_hand_with_correction_for_its_start():
    """rate 1/10; updates with drifts 0.02 and 0.05: averages 0.002 and 0.0068, known shares 0.1 and 0.19."""
    one = FairBand().update(band_sums(5, 100, -2.0, 0.1))
    assert (one.drift_average, one.current_drift) == pytest.approx((0.002, 0.02))
    two = one.update(band_sums(5, 40, -2.0, 0.1))
    assert (two.drift_average, two.current_drift) == pytest.approx((0.0068, 0.0068 / 0.19))
    assert two.num_updates == 2


def test_drift_is_never_below_zero():
    band = FairBand().update(band_sums(5, 100, +2.0, 0.1))
    assert band.current_drift == 0.0
    low, high = band.band(torch.tensor([4.0]), band.current_drift)
    assert (low.item(), high.item()) == pytest.approx((-0.06, 0.06))


def test_z_takes_the_width_from_the_running_scale():
    """Two sequences of 4 tokens with S = -1 and 0.2: k = 0.8/8; S + 4k = -0.6 and 0.6; sigma^2 = 0.36/4 = 0.09."""
    sums = band_sums(num_sequences=2, num_tokens=8, log_ratio=-0.8, squared_log_ratio=1 / 4 + 0.04 / 4)
    band = FairBand(z=2.0)
    assert band.current_width == 0.03
    assert band.update(sums).current_width == pytest.approx(0.6)
    assert band.update(sums).current_drift == pytest.approx(0.1)
    assert FairBand(z=0.0).update(sums).current_width == 0.03


def draw_update(draw):
    """Sums of a random update: one sequence, a few identical ones, or a few that differ, with log ratios of any size."""
    size, length, per_token = (
        draw.randint(2, 8),
        draw.randint(1, 5000),
        draw.choice((-1, 1)) * 10 ** draw.uniform(-9, 1),
    )
    rows = [(length, per_token)] * draw.choice((1, size))
    if draw.random() < 1 / 3:
        rows = [(draw.randint(1, 5000), per_token * draw.uniform(0.5, 2)) for _ in range(size)]
    totals = [n * x for n, x in rows]
    squares = sum(total * total / n for total, (n, _) in zip(totals, rows, strict=True))
    return band_sums(len(rows), sum(n for n, _ in rows), sum(totals), squares)


@pytest.mark.slow
def test_no_update_of_100_000_ends_in_an_exception_or_in_no_number():
    """S of one sequence is -k T with its own k: sum S^2/T - (sum S)^2 / sum T is 0, which rounding may put below 0."""
    draw, worst = random.Random(0), []
    bands = [FairBand(drift=drift, z=z) for drift in ("none", "symmetric", "centred") for z in (0.0, 2.0)]
    for number in range(100_000):
        place = number % len(bands)
        bands[place] = band = bands[place].update(draw_update(draw))
        try:
            numbers = (band.current_width, band.current_drift, band.variance_average)
        except (ValueError, ArithmeticError) as error:
            numbers = (math.nan, str(error), math.nan)
            bands[place] = FairBand(drift=band.drift, z=band.z)
        if not all(isinstance(value, float) and math.isfinite(value) and value >= 0 for value in numbers):
            worst.append((number, numbers))
    assert worst == []


def test_sequences_that_are_the_same_have_no_spread():
    """Eight sequences of 7 tokens with S = -0.7: k = 1/10 and S + k T = 0, so that the width stays at its start."""
    for size, length, per_token in ((8, 7, -0.1), (1, 3, -0.1), (1, 977, -1e-3), (5, 13, -3e-7)):
        total = per_token * length
        sums = band_sums(size, size * length, size * total, size * total**2 / length)
        band = FairBand(z=2.0).update(sums)
        assert band.variance_average == 0.0 and band.current_width == 0.03


def test_the_width_is_taken_from_the_scale_only_where_z_asks_for_it():
    """A checkpoint may hold a variance of -1e-20, which earlier versions wrote."""
    found = []
    for z in (0.0, 2.0):
        try:
            found.append(FairBand(z=z, variance_average=-1e-20, num_updates=1).current_width)
        except ValueError as error:
            found.append(str(error))
    assert found == [0.03, 0.03]


def test_a_rate_near_0_still_corrects_for_the_start_at_0():
    """rate 1e-17: 1 - (1 - rate)^1 is 0 in floating point, its true value the rate; the drift is the update's own."""
    band = FairBand(rate=1e-17).update(band_sums(2, 10, -0.2, 0.01))
    try:
        drift = band.current_drift
    except ZeroDivisionError:
        drift = math.nan
    assert drift == pytest.approx(0.02)


def update_sums(batch, method, parts):
    plan = plan_of(method, batch)
    total: dict[str, float] = {}
    for part in parts:
        micro, features, tokens = make_micro(batch, plan, part)
        found = method.observe(speak(weight_matrix("policy"), features, tokens), micro)
        total = {name: total.get(name, 0.0) + value for name, value in found.items()}
    return method.update(total)


@over("seed", range(3))
def test_the_state_moves_once_an_update_whatever_the_micro_batches(seed):
    batch, method = random_batch(seed), compose("fspo").update(DRIFTED)
    size = len(plan_of(method, batch))
    whole = update_sums(batch, method, [range(size)])
    split = update_sums(batch, method, random_parts(size, seed))
    assert split.state == pytest.approx(whole.state, rel=1e-12)
    assert whole.surrogate.num_updates == 2 and whole.surrogate.drift_average != method.surrogate.drift_average


def test_the_sums_of_an_update_by_hand():
    logprobs, micro = pieces([1, 2], [1.0, -1.0], torch.tensor([0.5, -0.25, 0.75], dtype=torch.float64))
    sums = FairBand().observe(Outputs(logprobs, logprobs.detach()), micro)
    # S = 1/2 and 1/2: sum 1; S^2 / T = 1/4 + 1/8
    assert sums == pytest.approx({"num_sequences": 2, "num_tokens": 3, "log_ratio": 1, "squared_log_ratio": 3 / 8})


@over("log_ratio", [1e9, -1e9, 25.0, -20.0])
def test_a_sequence_moves_the_state_by_no_more_than_the_bound(log_ratio):
    """Its S is held at 20 nats; by hand, of T = 3 of N = 7 tokens in B = 3 sequences, against S = 0 in its place."""
    rest = torch.tensor([-0.1, 0.02, 0.05, -0.2], dtype=torch.float64)  # of two sequences of 2 tokens

    def moved(first: float):
        token = torch.tensor([first, 0.0, 0.0], dtype=torch.float64)
        logprobs, micro = pieces([3, 2, 2], [1.0, -1.0, 1.0], torch.cat([token, rest]))
        band = FairBand(rate=0.1)
        return band.update(band.observe(Outputs(logprobs, logprobs.detach()), micro))

    outlier, without = moved(log_ratio), moved(0.0)
    held = max(-20.0, min(20.0, log_ratio))
    drift, drift_without = -(held - 0.23) / 7, 0.23 / 7
    assert outlier.drift_average == pytest.approx(0.1 * drift)
    assert abs(outlier.drift_average - without.drift_average) <= 0.1 * 20 / 7 * (1 + 1e-12)
    bound = 0.1 * (400 / 3 + 40 * max(drift, drift_without)) / 3
    assert abs(outlier.variance_average - without.variance_average) <= bound


@over("noise", [0.0, 1e-7, 1e-6])
def test_an_update_with_the_weights_that_sampled_is_on_policy_to_rounding(noise):
    """Old log-probs of another split into forward passes: S = sum of 100 roundings, 1e-4 nats at the most."""
    jitter = noise * torch.ones(100, dtype=torch.float64)
    method = compose("fspo").update(DRIFTED)
    seen = pieces([100], [1.0], jitter)
    assert method.update(method.observe(Outputs(seen[0], seen[0].detach()), seen[1])) == method
    off = pieces([100], [1.0], 1e-3 * torch.ones(100, dtype=torch.float64))  # S / sqrt T = 1e-2
    assert method.update(method.observe(Outputs(off[0], off[0].detach()), off[1])).surrogate.num_updates == 2


def test_on_policy_updates_do_not_move_it_and_are_not_shifted_by_it():
    band = learned("centred", k=0.02)
    on_policy = pieces([100], [1.0], torch.zeros(100, dtype=torch.float64), on_policy=True)
    off_policy = pieces([100], [1.0], torch.zeros(100, dtype=torch.float64))
    method = replace(compose("fspo_centred"), surrogate=band)
    assert method.update(method.observe(Outputs(on_policy[0], on_policy[0].detach()), on_policy[1])) == method
    # -k T + w sqrt T = -2 + 0.3: ratio 1 is outside the band that old samples drift to, so the shift is theirs alone
    assert band(*off_policy).clipped.all() and not band(*on_policy).clipped.any()


def test_an_update_uses_what_was_known_before_it():
    """The loss of update n is a function of the state after n - 1: updating afterwards cannot change it."""
    batch, before = random_batch(0), compose("fspo").update(DRIFTED)
    first = gradient(before, batch)
    after = update_sums(batch, before, [range(len(plan_of(before, batch)))])
    assert torch.equal(gradient(before, batch), first)
    assert after != before and after.surrogate.drift_average != before.surrogate.drift_average


def test_the_fixed_clip_of_rloo_accepts_long_sequences_less():
    """What the band repairs: S in [ln 0.8, ln 1.2] at every length; under N(0, sigma^2 L) the share falls."""
    low, high, sigma = math.log(0.8), math.log(1.2), 0.03
    shares = [PHI(high / (sigma * math.sqrt(n))) - PHI(low / (sigma * math.sqrt(n))) for n in (10, 100, 1000)]
    assert shares[0] > 0.9 > shares[1] > 0.4 > shares[2]
    flat = [accepted(FairBand(drift="none"), n, 0.0, sigma) for n in (10.0, 100.0, 1000.0)]
    assert flat == pytest.approx([2 * PHI(1.0) - 1] * 3)
