"""Advice on a finding for the method in use: only what follows from something proved, which stands with it, with a link."""

from __future__ import annotations

from dataclasses import dataclass

from fairlen.audit.method_in_use import InUse
from fairlen.audit.statistics.intervals import Estimate
from fairlen.channels import OBSERVATION, name_channel
from fairlen.methods.stages.fair_band import FairBand
from fairlen.sampling.eqlen import EqLen

BALANCED = {"fairlen": "`+balanced`", "TRL": '`FairGRPOTrainer(method="grpo+balanced")`'}
BALANCED["verl"] = "`fairlen verl --method grpo+balanced`"
UNIFORM = {"TRL": '`loss_type="dr_grpo"`', "verl": "`loss_agg_mode=seq-mean-token-sum`"}
UNIFORM["SkyRL"] = "`loss_reduction=seq_mean_token_sum_norm`"  # by program, what gives every token one weight


@dataclass(frozen=True)
class Evidence:
    text: str
    link: str  # URL of a paper, or page of fairlen's documentation with its heading

    def __str__(self) -> str:
        return f"{self.text} ({self.link})"


@dataclass(frozen=True)
class Advice:
    text: str
    evidence: tuple[Evidence, ...]  # empty where it follows from no method
    sets: tuple[str, ...] = ()
    """The change as `--set` of a method of fairlen's has it; empty where nothing is to be changed."""


BALANCED_PAPER, FSPO_PAGE = "https://arxiv.org/abs/2605.04077", "docs/methods/fspo.md"
EQLEN_PAGE = "docs/methods/eqlen.md#what-the-paper-claims-and-what-we-found"
CLOSED_FORMS = "docs/papers.md#what-holds-for-all-of-them"
TOKEN_MEAN = Evidence("by a token mean each side of a prompt counts by its mean length; equation 12", BALANCED_PAPER)
ONE_FACTOR = Evidence("Balanced Aggregation gives both sides one factor; equations 16, 21 and 26", BALANCED_PAPER)
ONE_FACTOR_UPDATE = Evidence("of the update, where advantages sum to 0, too; appendix B", BALANCED_PAPER)
PUSH_LEFT = Evidence("groups of 8 keep 22% of a sequence mean's push on length, of 16 9%, by enumeration", CLOSED_FORMS)
NO_BIAS = Evidence("the exact policy gradient couples sign and length too, by enumeration", CLOSED_FORMS)
LONG_TOKENS = Evidence("a sequence mean weighs the tokens of long responses less; section 3.4", BALANCED_PAPER)
NO_PUSH = Evidence("a sum or a constant pushes on stopping by 0, a sequence mean does not: enumerated", CLOSED_FORMS)
ROOT = Evidence(
    "where tokens are independent, a band of root length around the drift accepts all lengths alike", FSPO_PAGE
)
TWO_SIDES = Evidence(
    "a band of drift plus root of length on both sides accepts more long sequences; equations 1, 3", FSPO_PAGE
)
NO_DRIFT = Evidence(
    "without the drift a band accepts 68% of short and 16% of long sequences, in closed form", FSPO_PAGE
)
FIXED_CLIP = Evidence("a fixed clip accepts over 90% of 10 tokens and under 40% of 1000; sections 1 and 2", FSPO_PAGE)
WHO_WINS = Evidence("by later ends a survivor wins with (1-v)(1-(1-v)^n), a finisher with v(1-v)^n", EQLEN_PAGE)
MAX_IS_BIASED = Evidence("`max` is biased, `halving` is not, by exact expectations", EQLEN_PAGE)

ONE_CHANNEL = Evidence(
    "correct responses to a prompt are told apart by the tokens of that channel alone; GRPO-lambda's reward formula",
    "https://arxiv.org/abs/2505.18086",
)

NOTHING = "nothing to change in the aggregation: "
NEUTRAL = Advice(
    f"{NOTHING}a token has one weight whatever the length, without a push on length; that each side of a prompt weighs by its "
    "mean length is by itself no bias",
    (NO_PUSH, NO_BIAS),
)
FITTING = dict.fromkeys(("token_sum", "constant_budget"), NEUTRAL) | {
    "balanced": Advice(
        f"{NOTHING}both sides of a prompt have one weight; groups of 8 keep 22% of a sequence mean's push on length, of 16 9%",
        (ONE_FACTOR, PUSH_LEFT),
    ),
    "balanced_update": Advice(f"{NOTHING}both sides of the update have one weight", (ONE_FACTOR_UPDATE,)),
}
"""By aggregation in use, where there is nothing to change."""


BOUNDS: dict[str, tuple[str, tuple[Evidence, ...]]] = {
    "symmetric": ("a band on both sides of 0 accepts long sequences more often, and ", (TWO_SIDES,)),
    "none": ("a band without drift accepts long sequences less often, and ", (NO_DRIFT,)),
    "SequenceRatioClip": ("a fixed clip on the ratio of a sequence accepts long ones less often, and ", (FIXED_CLIP,)),
    "SequenceClip": ("", ()), "SequenceTokenClip": ("", ()), "PowerClip": ("", ()),
}  # fmt: skip
"""By drift of the band or class of the clip in use: what it accepts."""
HALVING = Advice(
    "the best of a survivor's later ends is compared with the one of a finisher, which presses against stopping where length "
    "says nothing; `--set sampling.survivor_reward=halving` does not where pairs are not standardized, as by `dr_grpo`",
    (WHO_WINS, MAX_IS_BIASED),
    ("sampling.survivor_reward=halving",),
)


def advise(measure: str, estimate: Estimate, method: InUse | None) -> Advice | None:
    """Return what follows from a finding for the method in use; None where nothing does that is proved."""
    if method is None or not estimate.exists:
        return None
    if measure == "within.length":
        return advise_on_length("incorrect" if estimate.value > 0 else "correct", method)
    if measure == "acceptance.lre":
        return advise_on_bound(method)
    if measure.startswith("channels."):
        channel = measure.removeprefix("channels.")
        return advise_on_channel(channel) if estimate.value > 0 and channel != OBSERVATION else None
    sampling = method.method and method.method.sampling
    is_max = isinstance(sampling, EqLen) and sampling.survivor_reward == "max"
    is_pressed = {"streams.optimism": estimate.value > 0, "streams.eos_advantage": estimate.value < 0}
    return HALVING if is_max and is_pressed.get(measure) else None


def advise_on_length(longer: str, method: InUse) -> Advice | None:
    """Return advice where one side, "correct" or "incorrect", has the longer responses to the same prompt."""
    if method.method and isinstance(method.method.sampling, EqLen):
        return None  # both pieces of a pair have one length, whatever those of whole responses
    if method.aggregation in ("token_mean", "token_mean_update"):
        text = (
            f"by a token mean {longer} responses count more here, as they are longer; if length is not to decide how much "
            f"each side of a prompt counts, {BALANCED.get(method.program, 'Balanced Aggregation')} gives both sides one "
            "weight. That is proved; a better model is not, as counting by length is no bias by itself. Its cost: each side "
            "is divided by its own number of tokens, which keeps, in groups of 8, 22% of a sequence mean's push on incorrect "
            "responses to be longer"
        )
        evidence = (TOKEN_MEAN, ONE_FACTOR, PUSH_LEFT, NO_BIAS)
        return Advice(text, evidence, ("aggregation=Balanced", "aggregation.scope=group"))
    if method.aggregation == "sequence_mean":
        is_sequence = method.method is not None and type(method.method.surrogate).__name__ in BOUNDS
        change = f"aggregation={'TokenSum' if is_sequence else 'ConstantBudget'}"
        text = (
            f"a sequence mean weighs a token of a long response less, here of {longer} ones, and pushes incorrect ones to go "
            f"on where length says nothing about correctness; {UNIFORM.get(method.program, f'`--set {change}`')} does neither; "
            "that each side of a prompt then weighs by its mean length is by itself no bias"
        )
        return Advice(text, (NO_PUSH, LONG_TOKENS, NO_BIAS), (change,))
    return FITTING.get(method.aggregation)


def advise_on_channel(channel: str) -> Advice:
    text = (
        f"to spend less on {name_channel(channel)}: `fairlen train --method grpo+toplambda --set reward.0.of={channel}` gives "
        f"a correct response a smaller reward the longer its {name_channel(channel)}, in the prompts solved most often; "
        "`grpo+lp` with the same setting in all prompts. Other channels cost nothing. The curve of accuracy within a budget "
        "says what fewer tokens would cost before any training"
    )
    return Advice(text, (ONE_CHANNEL,))


def advise_on_bound(method: InUse) -> Advice | None:
    bound = method.method and method.method.surrogate
    used = bound.drift if isinstance(bound, FairBand) else type(bound).__name__
    if used not in BOUNDS:
        return None
    reason, evidence = BOUNDS[used]
    sets: tuple[str, ...] = ("surrogate.drift=centred",)
    if not isinstance(bound, FairBand):
        is_mean = method.aggregation in ("sequence_mean", "mean_over_turns")
        sets = ("surrogate=FairBand", *sets, *["aggregation=TokenSum"] * is_mean)
    text = (
        f"where the log ratios of tokens are independent (`recipes/replay_bands.py` measures it), {reason}a band around their "
        f"drift that grows with the root of length accepts all lengths alike: `{' '.join(f'--set {change}' for change in sets)}`"
    )
    return Advice(text, (*evidence, ROOT), sets)
