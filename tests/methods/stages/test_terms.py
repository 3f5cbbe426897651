"""KL estimates, the entropy bonus and the correction for an engine's mismatch, by hand and by finite differences."""

import math
from dataclasses import replace

import pytest
import torch
from fixtures import pieces
from loops import over

from fairlen.methods.stages.micro import Outputs
from fairlen.methods.stages.terms import EntropyBonus, NoCorrection, ReferenceKL, SamplerMismatch, SamplerRejection


def with_ref(ratio_to_ref):
    """Log-probs whose ratio to the reference is given, in one sequence."""
    log_ratio = torch.tensor(ratio_to_ref, dtype=torch.float64).log()
    logprobs, micro = pieces([len(ratio_to_ref)], [1.0], torch.zeros(len(ratio_to_ref), dtype=torch.float64))
    return logprobs, replace(micro, ref_logprobs=logprobs.detach() - log_ratio)


def test_kl_estimates_by_hand():
    logprobs, micro = with_ref([2.0, 0.5])
    out, ln2 = Outputs(logprobs, torch.zeros(2)), math.log(2)
    for estimator, expected in (
        ("k1", [ln2, -ln2]),
        ("k2", [ln2**2 / 2, ln2**2 / 2]),
        ("k3", [1 / 2 - 1 + ln2, 2 - 1 - ln2]),  # e^-l - 1 + l
    ):
        assert ReferenceKL(0.1, estimator)(out, micro).tolist() == pytest.approx([0.1 * value for value in expected])


def test_a_small_kl_is_not_lost_in_float32():
    """e^-l - 1 + l is l^2/2 - l^3/6 for small l, never below 0; in float32 e^-l - 1 is off by 6e-8 where it is 1e-4."""
    logprobs, micro = with_ref([1.0 + size for size in (1e-4, 3e-4, 1e-3, -1e-4, -1e-3)])
    exact = ReferenceKL(1.0)(Outputs(logprobs, torch.zeros(5)), micro)
    narrow = replace(micro, ref_logprobs=(micro.ref_logprobs - logprobs).detach().float())
    found = ReferenceKL(1.0)(Outputs(torch.zeros(5), torch.zeros(5)), narrow)
    assert (found >= 0).all() and found.tolist() == pytest.approx(exact.tolist(), rel=0.02)


@over("estimator", ["k1", "k2", "k3"])
def test_gradcheck_of_kl(estimator):
    logprobs, micro = with_ref([2.0, 0.5, 1.3])
    term = ReferenceKL(0.1, estimator)
    assert torch.autograd.gradcheck(lambda x: term(Outputs(x, x.detach()), micro), logprobs)


def test_gradcheck_of_the_entropy_bonus():
    entropy = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)
    _, micro = pieces([2], [1.0], torch.zeros(2, dtype=torch.float64))
    assert EntropyBonus(0.1)(Outputs(entropy.detach(), entropy), micro).tolist() == pytest.approx([-0.05, -0.1])
    assert torch.autograd.gradcheck(lambda x: EntropyBonus(0.1)(Outputs(x.detach(), x), micro), entropy)


def test_kl_without_a_reference_says_what_is_missing():
    logprobs, micro = pieces([2], [1.0], torch.zeros(2, dtype=torch.float64))
    with pytest.raises(TypeError, match="ref_logprobs=None"):
        ReferenceKL()(Outputs(logprobs, logprobs), micro)


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        (NoCorrection(), [1, 1, 1, 1, 1]),
        (SamplerMismatch(), [0.5, 2.0, 1.5, 1.0, 1.5]),  # 3 is held at 2
        (SamplerMismatch(above_cap="mask"), [0.5, 0.0, 1.5, 1.0, 1.5]),
        # products 0.5 * 3 = 1.5 and 1.5 * 1 * 1.5 = 2.25
        (SamplerMismatch(level="sequence"), [1.5, 1.5, 2.0, 2.0, 2.0]),
        (SamplerMismatch(level="sequence", above_cap="mask", cap=2.5), [1.5, 1.5, 2.25, 2.25, 2.25]),
        (SamplerMismatch(level="sequence", above_cap="mask"), [1.5, 1.5, 0.0, 0.0, 0.0]),
    ],
    ids=str,
)
def test_correction_by_hand(correction, expected):
    _, micro = pieces([2, 3], [1.0, 1.0], torch.zeros(5, dtype=torch.float64))
    ratio = torch.tensor([0.5, 3.0, 1.5, 1.0, 1.5], dtype=torch.float64)
    micro = replace(micro, rollout_logprobs=micro.old_logprobs - ratio.log())
    factor = correction(micro)
    assert factor.tolist() == pytest.approx(expected) and not factor.requires_grad


def test_errors_name_stage_field_value_and_fix():
    with pytest.raises(ValueError, match=r"ReferenceKL: estimator='k4': give one of k1, k2, k3"):
        ReferenceKL(estimator="k4")
    with pytest.raises(ValueError, match=r"SamplerMismatch: cap=0: give a number above 0, or inf"):
        SamplerMismatch(cap=0)
    with pytest.raises(ValueError, match=r"EntropyBonus: coefficient=-1: give a finite number, 0 or more"):
        EntropyBonus(coefficient=-1)
    with pytest.raises(ValueError, match=r"ReferenceKL: coefficient=inf: give a finite number, 0 or more"):
        ReferenceKL(coefficient=float("inf"))
    for kind, names in ((SamplerRejection, ("low", "high")), (SamplerMismatch, ("floor", "cap"))):
        with pytest.raises(ValueError, match=r"=3 above \w+=2: give them in rising order"):
            kind(**dict(zip(names, (3.0, 2.0), strict=True)))


def test_k3_is_finite_however_far_the_reference_is():
    """Held at 20 nats: e^20 - 21, without a gradient beyond; e^89 is no float32. The metric is held in the exponent alone."""
    logprobs = torch.tensor([-20.0, -89.0, -1000.0], requires_grad=True)
    _, micro = pieces([3], [1.0], torch.zeros(3, dtype=torch.float64))
    micro = replace(micro, ref_logprobs=torch.zeros(3), old_logprobs=torch.zeros(3))
    found = ReferenceKL(1.0)(Outputs(logprobs, torch.zeros(3)), micro)
    assert found.tolist() == pytest.approx([math.exp(20) - 21] * 3, rel=1e-6)
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([1 - math.exp(20), 0.0, 0.0], rel=1e-6)


@pytest.mark.parametrize("level", ["token", "any", "mean"])
def test_a_log_prob_of_the_sampler_that_is_no_number_is_not_masked_away(level):
    class Tokens:
        old_logprobs, length = torch.full((3,), -1.0), torch.tensor([3.0])
        rollout_logprobs = torch.tensor([-1.0, math.nan, -1.0])
        sum_per_sequence = staticmethod(lambda values: values.sum()[None])
        per_token = staticmethod(lambda values: values.expand(3))

    assert SamplerRejection(level=level)(Tokens).isnan().any()
    assert SamplerMismatch(above_cap="mask")(Tokens).isnan().any()
