"""Surrogates: the contract at ratio 1, gradients, what `clipped` and `inside` mean, and the relations between them."""

import math
from dataclasses import replace

import pytest
import torch
from fixtures import pieces
from loops import over

from fairlen.methods.stages.fair_band import FairBand, band_sums
from fairlen.methods.stages.surrogate import (
    DetachedClip,
    GammaKernel,
    GeometricClip,
    PolicyGradient,
    PowerClip,
    PrefixBand,
    SequenceClip,
    SequenceRatioClip,
    SequenceTokenClip,
    SoftGate,
    TokenClip,
)

LENGTHS = [1, 2, 3, 5, 8]
ADVANTAGES = [0.5, -1.5, 2.0, -0.25, 1.0]
DRIFTED = band_sums(num_sequences=10.0, num_tokens=35.0, log_ratio=-0.7, squared_log_ratio=0.05)

BOUNDED = [
    TokenClip(), TokenClip(clip_high=0.28), TokenClip(dual_clip=3.0), TokenClip(delta=4.0),
    TokenClip(dual_clip=5.0, delta=3.0), TokenClip(clip_high=math.inf), SequenceTokenClip(), SequenceClip(),
    SequenceClip(clip_low=0.2, clip_high=0.3, dual_clip=2.0), SequenceRatioClip(), SequenceRatioClip(dual_clip=3.0),
    PowerClip(), PowerClip(power=0.5, clip_low=0.1, clip_high=0.2), FairBand(),
    FairBand(drift="none", dual_width=0.1), FairBand(drift="symmetric").update(DRIFTED),
    FairBand(drift="centred", lower_share=0.5).update(DRIFTED), FairBand(z=2.0).update(DRIFTED), GeometricClip(),
    GeometricClip(width_low=0.1, width_high=0.3), PrefixBand(), PrefixBand(power=0.0, dual_width=math.inf),
]  # fmt: skip
SMOOTH = [PolicyGradient(), DetachedClip(), DetachedClip(clip_low=0.2, clip_high=0.3), SoftGate(), GammaKernel()]
DETACHED = (PolicyGradient, SequenceTokenClip, PrefixBand, DetachedClip, GammaKernel)
"""Their gradient is not the derivative of their value: they stop it on purpose."""


def draw(scale: float, seed: int = 0) -> torch.Tensor:
    return scale * torch.randn(sum(LENGTHS), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def token_gradient(surrogate, logprobs, micro):
    """Derivative of the summed loss by each token's log-prob, and what the surrogate said."""
    out = surrogate(logprobs, micro)
    return torch.autograd.grad(out.loss.sum(), logprobs)[0], out


@over("surrogate", BOUNDED + SMOOTH)
@over("dtype", [torch.float64, torch.float32])
def test_at_ratio_1_each_tokens_gradient_is_minus_its_advantage(surrogate, dtype):
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, torch.zeros(sum(LENGTHS), dtype=dtype), on_policy=True)
    grad, out = token_gradient(surrogate, logprobs, micro)
    expected = [-a for a, length in zip(ADVANTAGES, LENGTHS, strict=True) for _ in range(length)]
    assert grad.tolist() == pytest.approx(expected, rel=1e-14 if dtype == torch.float64 else 2e-7)
    assert not out.clipped.any() and out.ratio.tolist() == [1.0] * len(grad)
    assert out.loss.dtype == dtype and not out.ratio.requires_grad


@over("surrogate", [s for s in BOUNDED + SMOOTH if not isinstance(s, DETACHED)])
@pytest.mark.parametrize("scale", [1e-5, 0.02, 0.3])
def test_gradcheck(surrogate, scale):
    """Finite differences of 1e-7 steps; no draw is 1e-6 near an edge, or the numeric side would see the kink."""
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(scale, seed=4))
    weight = torch.linspace(0.5, 1.5, len(logprobs), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: (weight * surrogate(x, micro).loss).sum(), logprobs, eps=1e-7, atol=1e-6)


@over("scale", [0.01, 0.5])
def test_gradients_have_their_closed_form(scale):
    log_ratio = draw(scale)
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, log_ratio)
    advantage, ratio = micro.per_token(micro.advantage), log_ratio.exp()
    total = micro.sum_per_sequence(log_ratio)
    positive = micro.advantage >= 0
    power, decay = torch.where(positive, 2.0, 3.0), torch.where(positive, 3.0, 2.0)
    kernel = total.exp() ** power * (decay * (1 - total.exp())).exp()  # W^c1 exp(c2 (1 - W))
    full, mean = total.exp() * micro.advantage, (total / micro.length).exp() * micro.advantage
    expected = {
        SequenceClip(1.0, math.inf): -micro.per_token(mean),  # LUSPO without its clip
        SequenceRatioClip(1.0, math.inf): -micro.per_token(full),
        FairBand(width=1e3): -micro.per_token(full),
        PolicyGradient(): -advantage,
        DetachedClip(): -ratio.clamp(0, 5) * advantage,
        DetachedClip(clip_low=0.2, clip_high=0.3): -ratio.clamp(0.8, 1.3) * advantage,
        GammaKernel(): -micro.per_token(kernel) * advantage,
    }
    for surrogate, closed in expected.items():
        grad, _ = token_gradient(surrogate, logprobs, micro)
        torch.testing.assert_close(grad, closed, rtol=1e-12, atol=1e-14)


@over("surrogate", BOUNDED)
@pytest.mark.parametrize("scale", [1e-4, 3e-3, 0.05, 0.3, 1.5, 12.0])
def test_clipped_is_exactly_where_the_gradient_is_zero_though_there_is_an_advantage(surrogate, scale):
    """Scale 12 meets log ratios beyond 20, which are held before `exp`; the fourth advantage is 0."""
    advantages = [0.5, -1.5, 2.0, 0.0, -1.0]
    for seed in range(20):
        logprobs, micro = pieces(LENGTHS, advantages, draw(scale, seed))
        grad, out = token_gradient(surrogate, logprobs, micro)
        silent = (grad == 0) & (micro.per_token(micro.advantage) != 0)
        assert torch.equal(out.clipped, silent)


def test_every_bound_is_met_by_the_draws():
    """Or the test above would prove nothing."""
    for surrogate in BOUNDED:
        shares = []
        for scale in (1e-4, 3e-3, 0.05, 0.3, 1.5, 12.0):
            logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(scale))
            shares.append(surrogate(logprobs, micro).clipped.double().mean().item())
        assert max(shares) > 0.1 and min(shares) < 0.9, surrogate


@pytest.mark.parametrize("surrogate", [PolicyGradient(), DetachedClip(), SoftGate(), GammaKernel()], ids=str)
def test_smooth_surrogates_silence_no_token(surrogate):
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(0.3))
    grad, out = token_gradient(surrogate, logprobs, micro)
    assert (grad != 0).all() and not out.clipped.any()


@over("surrogate", BOUNDED + SMOOTH)
@pytest.mark.parametrize("scale", [3e-3, 0.3])
def test_inside_does_not_depend_on_the_sign_of_the_advantage(surrogate, scale):
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(scale))
    other = replace(micro, advantage=-micro.advantage)
    assert torch.equal(surrogate(logprobs, micro).inside, surrogate(logprobs, other).inside)


def test_inside_is_two_sided_by_hand():
    log_ratio = torch.tensor([0.9, 1.1, 0.79, 1.21], dtype=torch.float64).log()
    logprobs, micro = pieces([1, 1, 1, 1], [1.0, 1.0, 1.0, -1.0], log_ratio)
    for surrogate in (TokenClip(), SequenceClip(0.2, 0.2), SequenceRatioClip(), SequenceTokenClip(0.2, 0.2)):
        out = surrogate(logprobs, micro)
        assert out.inside.tolist() == [True, True, False, False]
        assert not out.clipped.any()  # each is on the side that its advantage does not bound
    assert DetachedClip(0.2, 0.2)(logprobs, micro).inside.tolist() == [True, True, False, False]
    # ln 0.79, ln 1.21 = -0.236, 0.191
    assert GeometricClip(0.2, 0.15)(logprobs, micro).inside.tolist() == [True, True, False, False]


def test_values_by_hand():
    """One sequence of 2 tokens with ratios 1.5 and 0.5: mean log ratio ln(0.75)/2, S = ln 0.75."""
    ratios = torch.tensor([1.5, 0.5], dtype=torch.float64)
    for sign in (1.0, -1.0):
        logprobs, micro = pieces([2], [2.0 * sign], ratios.log())
        stages = (TokenClip(), SequenceRatioClip(), PowerClip(0.9, 0.9, power=0.5))
        loss = {type(stage): stage(logprobs, micro).loss.tolist() for stage in stages}
        # A = 2: min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5; A = -2: min(-3, -2.4) = -3 and min(-1, -1.6) = -1.6
        assert loss[TokenClip] == pytest.approx([-2.4, -1.0] if sign > 0 else [3.0, 1.6])
        # W = 0.75: A = 2: min(1.5, 1.6) = 1.5; A = -2: -max(0.75, 0.8) 2 = -1.6; divided over 2 tokens
        assert loss[SequenceRatioClip] == pytest.approx([-0.75, -0.75] if sign > 0 else [0.8, 0.8])
        # exp(S / sqrt 2) times T^(1/2 - 1) = 1/sqrt 2
        assert loss[PowerClip] == pytest.approx([-sign * 2 * 0.75 ** (1 / math.sqrt(2)) / math.sqrt(2)] * 2)


def test_dual_clip_and_delta_by_hand():
    log_ratio = torch.tensor([2.0, 3.5, 10.0], dtype=torch.float64).log()
    for advantage, surrogate, expected in (
        (-1.0, TokenClip(), [2.0, 3.5, 10.0]),
        (-1.0, TokenClip(dual_clip=3.0), [2.0, 3.0, 3.0]),
        (-1.0, TokenClip(delta=4.0), [2.0, 3.5, 4.0]),
        (1.0, TokenClip(dual_clip=3.0, delta=4.0), [-1.2, -1.2, -1.2]),
    ):
        logprobs, micro = pieces([1, 1, 1], [advantage] * 3, log_ratio)
        assert surrogate(logprobs, micro).loss.tolist() == pytest.approx(expected)


def test_power_1_is_gspo_and_power_0_the_full_ratio():
    logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(0.1))
    for power, other in ((1.0, SequenceClip(0.2, 0.2)), (0.0, SequenceRatioClip())):
        one = PowerClip(0.2, 0.2, power)(logprobs, micro)
        torch.testing.assert_close(one.loss, other(logprobs, micro).loss, rtol=1e-13, atol=0)


def test_p_gspo_at_one_half_clips_the_set_of_the_band_without_drift():
    """S / sqrt T in -+w for both; the weights differ: exp(S / sqrt T) against exp(S)."""
    width = 0.1
    power = PowerClip(power=0.5, clip_low=1 - math.exp(-width), clip_high=math.exp(width) - 1)
    band = FairBand(width=width, drift="none")
    seen = 0
    for seed in range(30):
        logprobs, micro = pieces(LENGTHS, ADVANTAGES, draw(0.1, seed))
        one, other = power(logprobs, micro), band(logprobs, micro)
        assert torch.equal(one.clipped, other.clipped) and torch.equal(one.inside, other.inside)
        seen += int(one.clipped.sum())
        assert not torch.allclose(one.loss, other.loss)
    assert seen > 50


def test_gmpo_clips_before_the_mean_and_on_one_side_only():
    """Log ratios 0.6 and -0.6, width 0.4: A > 0 sees (0.4 - 0.6)/2 = -0.1, A < 0 sees (0.6 - 0.4)/2 = 0.1."""
    for advantage, mean, clipped in ((1.0, -0.1, [True, False]), (-1.0, 0.1, [False, True])):
        logprobs, micro = pieces([2], [advantage], torch.tensor([0.6, -0.6], dtype=torch.float64))
        grad, out = token_gradient(GeometricClip(), logprobs, micro)
        assert out.loss.tolist() == pytest.approx([-advantage * math.exp(mean)] * 2)
        assert out.clipped.tolist() == clipped
        # the sum over both tokens of -A exp(mean) has derivative -A exp(mean) by the open one: T * 1/T
        assert grad.tolist() == pytest.approx([0 if held else -advantage * math.exp(mean) for held in clipped])


def test_prefix_band_by_hand():
    """Log ratios .04, .05, -.2, .3: sums .04, .09, -.11, .19 at t = 1..4, bounds .05 and -.025 times 1, 1.414, 1.732, 2."""
    sums = [0.04, 0.09, -0.11, 0.19]
    for advantage, clipped in ((2.0, [False, True, False, True]), (-2.0, [False, True, True, True])):
        log_ratio = torch.tensor([0.04, 0.05, -0.2, 0.3], dtype=torch.float64)
        logprobs, micro = pieces([4], [advantage], log_ratio)
        grad, out = token_gradient(PrefixBand(), logprobs, micro)
        assert out.clipped.tolist() == clipped and out.inside.tolist() == [True, False, False, False]
        assert out.ratio.tolist() == pytest.approx([math.exp(s) for s in sums])
        # the gradient is that of the token alone: -A times the ratio of its prefix
        assert grad.tolist() == pytest.approx(
            [0.0 if held else -advantage * math.exp(s) for held, s in zip(clipped, sums, strict=True)]
        )
        edges = [0.04, 0.05 * math.sqrt(2), -0.025 * math.sqrt(3) if advantage < 0 else -0.11, 0.1]
        assert out.loss.tolist() == pytest.approx([-advantage * math.exp(edge) for edge in edges])


def test_a_prefix_band_without_dual_width_lets_negative_advantages_pass():
    logprobs, micro = pieces([2], [-1.0], torch.tensor([0.04, 0.05], dtype=torch.float64))
    assert not PrefixBand(dual_width=math.inf)(logprobs, micro).clipped.any()


def test_a_prefix_of_one_token_is_bounded_as_a_token():
    """At power 0 and one token a sequence: the band in log space of a token clip with a dual clip."""
    logprobs, micro = pieces([1] * 19, [1.0, -1.0] * 9 + [1.0], draw(0.1))
    band = PrefixBand(width_low=0.05, width_high=0.1, dual_width=0.15, power=0.0)
    clip = TokenClip(clip_low=1 - math.exp(-0.05), clip_high=math.exp(0.1) - 1, dual_clip=math.exp(0.15))
    (one, a), (other, b) = (token_gradient(s, logprobs, micro) for s in (band, clip))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    torch.testing.assert_close(a.loss, b.loss, rtol=1e-12, atol=0)


def test_sapo_gate_by_hand():
    """rho = 2: 4 sigmoid(1) for A > 0, (4 / 1.05) sigmoid(1.05) for A < 0."""
    logprobs, micro = pieces([1, 1], [1.0, -1.0], torch.tensor([2.0, 2.0], dtype=torch.float64).log())
    expected = [-4 / (1 + math.exp(-1)), 4 / 1.05 / (1 + math.exp(-1.05))]
    assert SoftGate()(logprobs, micro).loss.tolist() == pytest.approx(expected)


def test_vespo_kernel_is_largest_where_its_powers_say():
    """W^c1 exp(c2 (1 - W)) has its maximum at W = c1 / c2: 2/3 for A > 0, 3/2 below."""
    for advantage, peak in ((1.0, 2 / 3), (-1.0, 3 / 2)):
        grads = []
        for w in (peak * 0.95, peak, peak * 1.05):
            logprobs, micro = pieces([1], [advantage], torch.tensor([w], dtype=torch.float64).log())
            grads.append(abs(token_gradient(GammaKernel(), logprobs, micro)[0].item()))
        assert grads[1] > max(grads[0], grads[2])


@over("surrogate", BOUNDED + SMOOTH)
@over("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [25.0, 300.0])
def test_ratios_above_e_20_are_finite_and_push_nothing(surrogate, dtype, size):
    """The sources push by A e^S without such a bound: e^300 is inf in float32. docs/papers.md says that we depart."""
    logprobs, micro = pieces([1, 4], [-1.0, -1.0], torch.tensor([size] + [size] * 4, dtype=dtype))
    grad, out = token_gradient(surrogate, logprobs, micro)
    assert torch.isfinite(out.loss).all() and torch.isfinite(grad).all()
    if surrogate in BOUNDED:
        assert grad.tolist() == [0.0] * 5 and out.clipped.all()


def test_a_length_of_thousands_is_exact_to_rounding():
    """The factor T^(a - 1) is computed in the dtype of the log-probs, not in float32."""
    length = 4321
    logprobs, micro = pieces([length], [1.0], torch.zeros(length, dtype=torch.float64))
    assert PowerClip(power=0.6)(logprobs, micro).loss[0].item() == pytest.approx(-(length**-0.4), rel=1e-14)


@over(
    "make, message",
    [
        (lambda: TokenClip(clip_low=1.2), r"TokenClip: clip_low=1.2: give a fraction from 0 to 1"),
        (lambda: TokenClip(clip_high=-0.1), r"TokenClip: clip_high=-0.1: give 0 or more"),
        (lambda: TokenClip(dual_clip=1.0), r"TokenClip: dual_clip=1.0: .*give more than 1 \+ clip_high = 1.2"),
        (lambda: SequenceClip(dual_clip=float("nan")), r"SequenceClip: dual_clip=nan"),
        (lambda: PowerClip(power=2), r"PowerClip: power=2: give a fraction"),
        (lambda: GeometricClip(width_low=0), r"GeometricClip: width_low=0: give a finite number above 0"),
        (lambda: SoftGate(tau_negative=-1), r"SoftGate: tau_negative=-1: give a finite number above 0"),
    ],
)
def test_errors_name_stage_field_value_and_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()
