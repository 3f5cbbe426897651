"""One function a paper: which choices it makes, from which version and equations, and where we depart from it.

Provenance of numbers: [paper] in the source's text, [code] in its or its authors' code, [ours] not published anywhere we know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import BatchNormalized, GroupCentered, LeaveOneOut
from fairlen.methods.stages.aggregation import ConstantBudget, LengthPower, TokenMean, TokenSum
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.filters import MixedOutcomes, MixedRewards
from fairlen.methods.stages.reward import SoftOverlong, TruncationPenalty
from fairlen.methods.stages.surrogate import (
    DetachedClip,
    GammaKernel,
    GeometricClip,
    PolicyGradient,
    PowerClip,
    SequenceClip,
    SequenceRatioClip,
    SequenceTokenClip,
    SoftGate,
    TokenClip,
)
from fairlen.sampling.eqlen import EqLen


def grpo() -> Method:
    """GRPO: normalised in the group, token clip, every sequence the same weight.

    arXiv:2402.03300v3, equations 3 and 4. Clip 0.2 [code, PPO's]; std of the population and no eps [paper, as written].
    Departures: no reference KL (coefficient 0 in current practice; `+kl` adds it). Not TRL's default, which is a token mean.
    """
    return Method()


def reinforce() -> Method:
    """REINFORCE with the group's mean as baseline: no ratio, no clip, token sum.

    Williams 1992. The baseline contains the response itself, which scales the gradient by (G-1)/G; `rloo` does not.
    """
    return Method(advantage=GroupCentered(), surrogate=PolicyGradient(), aggregation=TokenSum())


def rloo() -> Method:
    """RLOO with the full ratio of the sequence and a fixed clip: the baseline of 2509.09177.

    arXiv:2402.14740, equation 8; ratio and clip 0.2 [code, TRL's RLOOTrainer]. Departure: no KL in the reward (TRL 0.05).
    """
    return Method(advantage=LeaveOneOut(), surrogate=SequenceRatioClip(), aggregation=TokenSum())


def dr_grpo() -> Method:
    """Dr. GRPO: no std, and the budget instead of the length as denominator.

    arXiv:2503.20783v1, section 3.2. The constant is the run's generation budget [code, authors' oat].
    """
    return Method(advantage=GroupCentered(), aggregation=ConstantBudget())


def dapo() -> Method:
    """DAPO as written: token mean of the group, clip-higher, mixed prompts only, soft overlong punishment.

    arXiv:2503.14476, equations 8 to 13. Clip 0.2 and 0.28, margin 4096 of 20480 tokens [paper]. `+overlong_filter` adds the
    filter of its section 3.4. The paper's code normalises over the update instead: `dapo_verl`.
    """
    return Method(
        filter=MixedOutcomes(),
        reward=(SoftOverlong(),),
        surrogate=TokenClip(clip_high=0.28),
        aggregation=TokenMean("group"),
    )


def dapo_verl() -> Method:
    """DAPO as its code has it: the same with the token mean of the whole update.

    verl's and TRL's normaliser [code]. Differs from `dapo` whenever groups differ in length.
    """
    return replace(dapo(), aggregation=TokenMean("update"))


def gspo() -> Method:
    """GSPO: geometric mean ratio of the sequence, clipped tightly.

    arXiv:2507.18071, equations 5 and 7; clip 3e-4 and 4e-4 [paper, section 5.1].
    """
    return Method(surrogate=SequenceClip())


def gspo_token() -> Method:
    """GSPO-token: the same value and gradient as GSPO while all tokens of a sequence share their advantage.

    arXiv:2507.18071, equations 13 and 14.
    """
    return Method(surrogate=SequenceTokenClip())


def luspo() -> Method:
    """LUSPO: GSPO with each sequence weighted by its length.

    arXiv:2602.05261; clip 2e-3 and 2.5e-3 [paper]. Departure: its reward (accuracy, format, length) is left to the task and
    `+overlong`.
    """
    return Method(surrogate=SequenceClip(clip_low=2e-3, clip_high=2.5e-3), aggregation=TokenSum())


def p_gspo() -> Method:
    """P-GSPO: the log ratio divided by a power of the length, between the full ratio and GSPO's.

    OpenReview OeYb0K8gEu (withdrawn); power 0.6 [paper, masked-diffusion models], clips those of GSPO [ours].
    """
    return Method(surrogate=PowerClip(power=0.6), aggregation=LengthPower(power=0.6))


def fspo() -> Method:
    """FSPO as we were given it: full ratio of the sequence in a band of k T + w sqrt(T) on both sides.

    2509.09177v1, equations 1 to 5. Advantage as in GRPO [ours: the paper defines none]; width 0.03 [ours, a third party's code];
    rate 0.1 [ours]. `--set surrogate.z=2` takes the width from the running scale, as equation 3 has it.
    """
    return Method(surrogate=FairBand(drift="symmetric"), aggregation=TokenSum())


def fspo_v3() -> Method:
    """FSPO without the drift: |S| at most w sqrt(T).

    2509.09177v3, abstract. Its separate upper and lower widths are not known to us: `surrogate.lower_share`.
    """
    return Method(surrogate=FairBand(drift="none"), aggregation=TokenSum())


def fspo_centred() -> Method:
    """FSPO with the band moved to where log ratios of old samples drift: the edges that accept every length equally.

    Ours, from the normal model of 2509.09177v1 with the sign of the drift worked out.
    """
    return Method(surrogate=FairBand(drift="centred"), aggregation=TokenSum())


def dler() -> Method:
    """DLER: truncated answers are worth nothing; advantages normalised over the batch; clip-higher; prompts of mixed rewards.

    arXiv:2510.15110; clip 0.2 and 0.28, dual clip 10 [paper]. Its target of 4000 tokens is the run's budget. Token mean of the
    update, and prompts filtered by the reward after truncation [code, the authors']. Departure: no KL loss (5e-4 there).
    """
    return Method(
        filter=MixedRewards(),
        reward=(TruncationPenalty(),),
        advantage=BatchNormalized(),
        surrogate=TokenClip(clip_high=0.28, dual_clip=10.0),
        aggregation=TokenMean("update"),
    )


def da_dler() -> Method:
    """Difficulty-aware DLER: half the target for prompts that the model mostly solves.

    arXiv:2510.15110: 2000 tokens instead of 4000 where more than half of the group is right [paper].
    """
    return replace(dler(), reward=(TruncationPenalty(easy_target=0.5),))


def cispo() -> Method:
    """CISPO: weighs by a clipped ratio without a gradient through it, so that no token is silenced.

    arXiv:2506.13585, equations 4 and 5; token mean of the batch. Upper clip not published; largest weight 5 [ScaleRL].
    """
    return Method(surrogate=DetachedClip(), aggregation=TokenMean("update"))


def sapo() -> Method:
    """SAPO: a smooth gate instead of a clip, tighter for negative advantages.

    arXiv:2511.20347, equations 5 and 6; tau 1.0 and 1.05 [paper].
    """
    return Method(surrogate=SoftGate())


def gmpo() -> Method:
    """GMPO: the geometric mean of token ratios, each clipped before the mean.

    arXiv:2507.20673, equation 4; 0.4 on both sides of the log ratio [paper].
    """
    return Method(surrogate=GeometricClip())


def vespo() -> Method:
    """VESPO: weighs by a smooth kernel of the full sequence ratio.

    arXiv:2602.10693; (2, 3) and (3, 2) [paper], advantages centred only [paper]. Token sum per sequence [paper]; TRL's is over
    tokens.
    """
    return Method(advantage=GroupCentered(), surrogate=GammaKernel(), aggregation=TokenSum())


def eqlen_unbiased() -> Method:
    """EqLen whose expected gradient is that of the expected reward: equal-length pairs without the paper's bias.

    Ours, on the streams of 2604.17328: halving value, halving weight of rounds, leave-one-out advantage, token sum, divided by
    the tracks planned and not by those kept. Exact on-policy, truncated answers worth nothing; ratio and clip as in `rloo`.
    """
    return Method(
        sampling=EqLen(survivor_reward="halving", round_weight="halving"),
        advantage=LeaveOneOut(),
        surrogate=SequenceRatioClip(),
        aggregation=TokenSum("planned"),
    )


BASES: dict[str, Callable[[], Method]] = {
    preset.__name__: preset
    for preset in (
        grpo, reinforce, rloo, dr_grpo, dapo, dapo_verl, gspo, gspo_token, luspo, p_gspo, fspo, fspo_v3, fspo_centred,
        dler, da_dler, cispo, sapo, gmpo, vespo, eqlen_unbiased,
    )
}  # fmt: skip
"""Every base by its name."""
