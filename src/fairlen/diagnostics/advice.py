"""What to change, given a finding and the method in use: only what docs/claims.md has as proved, or refuted by a counterexample.

Tests hold it against the ledger, and no two pieces of advice on one method set a choice to different things. What has no proof,
such as the best length, truncation or dropped responses, has no advice.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlen.diagnostics.method import InUse
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip, SequenceTokenClip
from fairlen.sampling.eqlen import EqLen

SEQUENCE_CLIPS = (SequenceRatioClip, SequenceClip, SequenceTokenClip, PowerClip)
BALANCED = {
    "fairlen": "`+balanced`",
    "TRL": '`FairGRPOTrainer(method="grpo+balanced")`',
    "verl": "`fairlen verl --method grpo+balanced`",
}
UNIFORM = {
    "TRL": '`loss_type="dr_grpo"`',
    "verl": "`loss_agg_mode=seq-mean-token-sum`",
    "SkyRL": "`loss_reduction=seq_mean_token_sum_norm`",
}
"""By program, what gives every token one weight."""


@dataclass(frozen=True)
class Advice:
    """What to change, or that nothing is to be changed."""

    text: str
    evidence: tuple[str, ...]
    """Claims of docs/claims.md, each proved or refuted there by tests."""
    sets: tuple[str, ...] = ()
    """The change as `--set` of a method of fairlen's has it; empty where nothing is to be changed."""


def advise(measure: str, estimate: Estimate, method: InUse | None) -> Advice | None:
    """Return what follows from a finding for the method in use; None where nothing does that is proved."""
    if method is None or not estimate.exists or measure not in RULES:
        return None
    return RULES[measure](estimate.value, method)


def advise_on_length(effect: float, method: InUse) -> Advice | None:
    """Return advice where incorrect responses are longer (above 0) or shorter than correct ones to the same prompt."""
    if method.method and isinstance(method.method.sampling, EqLen):
        return None  # both pieces of a pair have one length, whatever those of whole responses
    side = "incorrect" if effect > 0 else "correct"
    if method.aggregation in ("token_mean", "token_mean_update"):
        text = (
            f"a token mean weighs each side of a prompt by its mean length, so that {side} responses count more here; "
            f"{BALANCED.get(method.program, 'Balanced Aggregation')} gives both sides one weight, best in groups of 16 and more: "
            "in groups of 8 it has 22% of a sequence mean's push on length, a token mean of the prompt 8%. The coupling by itself "
            "is no bias"
        )
        evidence = ("balanced-01", "balanced-02", "balanced-07", "balanced-08")
        return Advice(text, evidence, ("aggregation=Balanced", "aggregation.scope=group"))
    if method.aggregation == "sequence_mean":
        is_sequence = method.method is not None and isinstance(method.method.surrogate, SEQUENCE_CLIPS)
        change = f"aggregation={'TokenSum' if is_sequence else 'ConstantBudget'}"
        text = (
            f"a sequence mean weighs a token of a long response less, here of {side} ones, and pushes incorrect responses to go "
            f"on where length says nothing about correctness; {UNIFORM.get(method.program, f'`--set {change}`')} does neither"
        )
        return Advice(text, ("eqlen-02", "eqlen-21", "balanced-03"), (change,))
    return FITTING.get(method.aggregation)


NEUTRAL = Advice(
    "nothing to change in the aggregation: a token has one weight whatever the length of its response, without a push on length",
    ("eqlen-02", "eqlen-21"),
)
FITTING = {
    "token_sum": NEUTRAL,
    "constant_budget": NEUTRAL,
    "balanced": Advice(
        "nothing to change in the aggregation: both sides of a prompt have one weight; groups of 8 keep 22% of a sequence mean's "
        "push on length, groups of 16 keep 9%",
        ("balanced-02", "balanced-07"),
    ),
    "balanced_update": Advice(
        "nothing to change in the aggregation: both sides have one weight over the update", ("balanced-06",)
    ),
}
"""By aggregation in use, where there is nothing to change."""


def advise_on_bound(effect: float, method: InUse) -> Advice | None:
    """Return advice where a bound on ratios of whole sequences accepts lengths unequally."""
    bound = method.method and method.method.surrogate
    sets: tuple[str, ...] = ("surrogate.drift=centred",)
    if isinstance(bound, FairBand) and bound.drift != "centred":
        is_wide = bound.drift == "symmetric"
        reason, claim = ("a band on both sides of 0", "fspo-11") if is_wide else ("a band without drift", "fspo-28")
        reason += f" accepts long sequences {'more' if is_wide else 'less'} often, and "
    elif isinstance(bound, SEQUENCE_CLIPS):
        is_sum = isinstance(bound, SequenceRatioClip)
        reason = "a fixed clip on the ratio of a sequence accepts long ones less often, and " if is_sum else ""
        claim = "fspo-01" if is_sum else ""
        sets = ("surrogate=FairBand", *sets, *(["aggregation=TokenSum"] * (method.aggregation == "sequence_mean")))
    else:
        return None
    text = (
        f"where the log ratios of tokens are independent, which `recipes/replay_bands.py` measures, {reason}a band around their "
        f"drift that grows with the root of length accepts all lengths alike: `{' '.join(f'--set {change}' for change in sets)}`"
    )
    return Advice(text, tuple(filter(None, (claim, "fspo-09"))), sets)


def advise_on_survivors(effect: float, method: InUse) -> Advice | None:
    """Return advice where survivors of EqLen are valued too high, or stopping is penalised (an effect below 0)."""
    sampling = method.method and method.method.sampling
    if not isinstance(sampling, EqLen) or sampling.survivor_reward != "max":
        return None
    change = "sampling.survivor_reward=halving"
    text = (
        "the best of a survivor's later ends is compared with the one of a finisher, which presses against stopping where length "
        f"says nothing; `--set {change}` does not"
    )
    return Advice(text, ("eqlen-07", "eqlen-33", "eqlen-37"), (change,))


RULES = {
    "within.length": advise_on_length,
    "acceptance.lre": advise_on_bound,
    "streams.optimism": lambda effect, method: advise_on_survivors(effect, method) if effect > 0 else None,
    "streams.eos_advantage": lambda effect, method: advise_on_survivors(effect, method) if effect < 0 else None,
}
"""By measure."""
