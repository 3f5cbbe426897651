"""One function a paper: which choices it makes. docs/papers.md has versions, departures and the source of each number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairlen.methods.method import Method
from fairlen.methods.stages import surrogate
from fairlen.methods.stages.advantage import BatchNormalized, GroupCentered, GroupNormalized, LeaveOneOut
from fairlen.methods.stages.aggregation import ConstantBudget, LengthPower, TokenMean, TokenSum
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.filters import MixedOutcomes, MixedRewards
from fairlen.methods.stages.reward import SoftOverlong, TruncationPenalty
from fairlen.sampling.eqlen import EqLen


def grpo() -> Method:
    """GRPO (arXiv:2402.03300): normalised in the group, token clip, every sequence the same weight."""
    return Method()


def reinforce() -> Method:
    """REINFORCE with the group's mean as baseline: no ratio, no clip, token sum."""
    return Method(advantage=GroupCentered(), surrogate=surrogate.PolicyGradient(), aggregation=TokenSum())


def rloo() -> Method:
    """RLOO (arXiv:2402.14740) with the full ratio of the sequence and a fixed clip: the baseline of 2509.09177."""
    return Method(advantage=LeaveOneOut(), surrogate=surrogate.SequenceRatioClip(), aggregation=TokenSum())


def dr_grpo() -> Method:
    """Dr. GRPO (arXiv:2503.20783): no std, and the budget instead of the length as denominator."""
    return Method(advantage=GroupCentered(), aggregation=ConstantBudget())


def dapo() -> Method:
    """DAPO (arXiv:2503.14476) as written: token mean of the group, clip-higher, mixed prompts only, soft overlong punishment."""
    return Method(
        filter=MixedOutcomes(),
        reward=(SoftOverlong(),),
        surrogate=surrogate.TokenClip(clip_high=0.28),
        aggregation=TokenMean("group"),
    )


def dapo_verl() -> Method:
    """DAPO (arXiv:2503.14476) as its code has it: the same with the token mean of the whole update."""
    return replace(dapo(), aggregation=TokenMean("update"))


def gspo() -> Method:
    """GSPO (arXiv:2507.18071): geometric mean ratio of the sequence, clipped tightly."""
    return Method(surrogate=surrogate.SequenceClip())


def gspo_token() -> Method:
    """GSPO-token (arXiv:2507.18071): the same value and gradient as GSPO while all tokens of a sequence share their advantage."""
    return Method(surrogate=surrogate.SequenceTokenClip())


def luspo() -> Method:
    """LUSPO (arXiv:2602.05261): GSPO with each sequence weighted by its length."""
    return Method(surrogate=surrogate.SequenceClip(clip_low=2e-3, clip_high=2.5e-3), aggregation=TokenSum())


def p_gspo() -> Method:
    """P-GSPO: the log ratio divided by a power of the length, between the full ratio and GSPO's."""
    return Method(surrogate=surrogate.PowerClip(power=0.6), aggregation=LengthPower(power=0.6))


def fspo() -> Method:
    """FSPO (arXiv:2509.09177) as we were given it: full ratio of the sequence in a band of k T + w sqrt(T) on both sides."""
    return Method(surrogate=FairBand(drift="symmetric"), aggregation=TokenSum())


def fspo_v3() -> Method:
    """FSPO (arXiv:2509.09177) without the drift: |S| at most w sqrt(T)."""
    return Method(surrogate=FairBand(drift="none"), aggregation=TokenSum())


def fspo_centred() -> Method:
    """FSPO with the band moved to where log ratios of old samples drift: the edges that accept every length equally."""
    return Method(surrogate=FairBand(drift="centred"), aggregation=TokenSum())


def ctpo() -> Method:
    """CTPO (arXiv:2605.07331): the full ratio of each token's prefix, in a band that grows with the root of its position."""
    return Method(
        advantage=GroupNormalized(ddof=1, eps=1e-6), surrogate=surrogate.PrefixBand(), aggregation=TokenMean("update")
    )


def dler() -> Method:
    """DLER (arXiv:2510.15110): truncated answers earn 0, advantages normalised over the batch, clip-higher, mixed rewards."""
    return Method(
        filter=MixedRewards(),
        reward=(TruncationPenalty(),),
        advantage=BatchNormalized(),
        surrogate=surrogate.TokenClip(clip_high=0.28, dual_clip=10.0),
        aggregation=TokenMean("update"),
    )


def da_dler() -> Method:
    """Difficulty-aware DLER (arXiv:2510.15110): half the target for prompts that the model mostly solves."""
    return replace(dler(), reward=(TruncationPenalty(easy_target=0.5),))


def cispo() -> Method:
    """CISPO (arXiv:2506.13585): weighs by a clipped ratio without a gradient through it, so that no token is silenced."""
    return Method(surrogate=surrogate.DetachedClip(), aggregation=TokenMean("update"))


def sapo() -> Method:
    """SAPO (arXiv:2511.20347): a smooth gate instead of a clip, tighter for negative advantages."""
    return Method(surrogate=surrogate.SoftGate())


def gmpo() -> Method:
    """GMPO (arXiv:2507.20673): the geometric mean of token ratios, each clipped before the mean."""
    return Method(surrogate=surrogate.GeometricClip())


def vespo() -> Method:
    """VESPO (arXiv:2602.10693): weighs by a smooth kernel of the full sequence ratio."""
    return Method(advantage=GroupCentered(), surrogate=surrogate.GammaKernel(), aggregation=TokenSum())


def eqlen_unbiased() -> Method:
    """EqLen with the expected gradient of the expected reward: equal-length pairs without the bias of arXiv:2604.17328."""
    return Method(
        sampling=EqLen(survivor_reward="halving", round_weight="halving"),
        advantage=LeaveOneOut(),
        surrogate=surrogate.SequenceRatioClip(),
        aggregation=TokenSum("planned"),
    )


BASES: dict[str, Callable[[], Method]] = {
    preset.__name__: preset
    for preset in (
        grpo, reinforce, rloo, dr_grpo, dapo, dapo_verl, gspo, gspo_token, luspo, p_gspo, fspo, fspo_v3, fspo_centred,
        ctpo, dler, da_dler, cispo, sapo, gmpo, vespo, eqlen_unbiased,
    )
}  # fmt: skip
"""Every base by its name."""
