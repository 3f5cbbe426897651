"""What to change, given a finding and the method in use: only what docs/claims.md has as proved or refuted, as tests check."""

from __future__ import annotations

from dataclasses import dataclass

from fairlen.audit.method_in_use import InUse
from fairlen.audit.statistics.intervals import Estimate
from fairlen.methods.stages.fair_band import FairBand
from fairlen.sampling.eqlen import EqLen

BALANCED = {"fairlen": "`+balanced`", "TRL": '`FairGRPOTrainer(method="grpo+balanced")`'}
BALANCED["verl"] = "`fairlen verl --method grpo+balanced`"
UNIFORM = {"TRL": '`loss_type="dr_grpo"`', "verl": "`loss_agg_mode=seq-mean-token-sum`"}
UNIFORM["SkyRL"] = "`loss_reduction=seq_mean_token_sum_norm`"
"""By program, what gives every token one weight."""


@dataclass(frozen=True)
class Advice:
    """What to change, or that nothing is to be changed."""

    text: str
    evidence: tuple[str, ...]
    """Claims of docs/claims.md, each proved or refuted there by tests; empty where it follows from no method."""
    sets: tuple[str, ...] = ()
    """The change as `--set` of a method of fairlen's has it; empty where nothing is to be changed."""


NOTHING = "nothing to change in the aggregation: "
NEUTRAL = Advice(
    f"{NOTHING}a token has one weight whatever the length, without a push on length; that each side of a prompt weighs by its "
    "mean length is by itself no bias",
    ("eqlen-02", "eqlen-21", "balanced-08"),
)
FITTING = dict.fromkeys(("token_sum", "constant_budget"), NEUTRAL) | {
    "balanced": Advice(
        f"{NOTHING}both sides of a prompt have one weight; groups of 8 keep 22% of a sequence mean's push on length, of 16 9%",
        ("balanced-02", "balanced-07"),
    ),
    "balanced_update": Advice(f"{NOTHING}both sides of the update have one weight", ("balanced-06",)),
}
"""By aggregation in use, where there is nothing to change."""


BOUNDS = {
    "symmetric": ("a band on both sides of 0 accepts long sequences more often, and ", "fspo-11"),
    "none": ("a band without drift accepts long sequences less often, and ", "fspo-28"),
    "SequenceRatioClip": ("a fixed clip on the ratio of a sequence accepts long ones less often, and ", "fspo-01"),
    "SequenceClip": ("",), "SequenceTokenClip": ("",), "PowerClip": ("",),
}  # fmt: skip
"""By drift of the band or class of the clip in use: what it accepts."""
HALVING = Advice(
    "the best of a survivor's later ends is compared with the one of a finisher, which presses against stopping where length "
    "says nothing; `--set sampling.survivor_reward=halving` does not",
    ("eqlen-07", "eqlen-33", "eqlen-37"),
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
            f"{BALANCED.get(method.program, 'Balanced Aggregation')}, if length is not to decide how much each side of a prompt "
            f"counts: it gives both one weight, where by a token mean {longer} responses count more here, being longer. That is "
            "proved; a better model is not, as the coupling is no bias by itself. A side effect, in groups of 8: 22% of a "
            "sequence mean's push of incorrect responses to be longer"
        )
        evidence = ("balanced-01", "balanced-02", "balanced-07", "balanced-08")
        return Advice(text, evidence, ("aggregation=Balanced", "aggregation.scope=group"))
    if method.aggregation == "sequence_mean":
        is_sequence = method.method is not None and type(method.method.surrogate).__name__ in BOUNDS
        change = f"aggregation={'TokenSum' if is_sequence else 'ConstantBudget'}"
        text = (
            f"a sequence mean weighs a token of a long response less, here of {longer} ones, and pushes incorrect ones to go "
            f"on where length says nothing about correctness; {UNIFORM.get(method.program, f'`--set {change}`')} does neither; "
            "that each side of a prompt then weighs by its mean length is by itself no bias"
        )
        return Advice(text, ("eqlen-02", "eqlen-21", "balanced-03", "balanced-08"), (change,))
    return FITTING.get(method.aggregation)


def advise_on_bound(method: InUse) -> Advice | None:
    """Return advice where a bound on ratios of whole sequences accepts lengths unequally."""
    bound = method.method and method.method.surrogate
    used = bound.drift if isinstance(bound, FairBand) else type(bound).__name__
    if used not in BOUNDS:
        return None
    reason, *claims = BOUNDS[used]
    sets: tuple[str, ...] = ("surrogate.drift=centred",)
    if not isinstance(bound, FairBand):
        is_mean = method.aggregation in ("sequence_mean", "mean_over_turns")
        sets = ("surrogate=FairBand", *sets, *["aggregation=TokenSum"] * is_mean)
    text = (
        f"where the log ratios of tokens are independent (`recipes/replay_bands.py` measures it), {reason}a band around their "
        f"drift that grows with the root of length accepts all lengths alike: `{' '.join(f'--set {change}' for change in sets)}`"
    )
    return Advice(text, (*claims, "fspo-09"), sets)
