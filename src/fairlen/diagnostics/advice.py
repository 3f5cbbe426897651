"""What to change, given a finding and the method in use: only what is proved, or shown by a counterexample, in docs/claims.md.

Tests hold the table against the ledger, and no two pieces of advice on one method set a choice to different things.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlen.diagnostics.method import InUse
from fairlen.diagnostics.uncertainty import Estimate
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.surrogate import PowerClip, SequenceClip, SequenceRatioClip, SequenceTokenClip
from fairlen.sampling.eqlen import EqLen

SEQUENCE_CLIPS = (SequenceRatioClip, SequenceClip, SequenceTokenClip, PowerClip)
BALANCED = {
    "TRL": "`FairGRPOTrainer` with `+balanced`",
    "verl": "`fairlen verl --method grpo+balanced`",
    "fairlen": "`+balanced`",
}
CONSTANT = {"TRL": '`loss_type="dr_grpo"`', "verl": "`loss_agg_mode=seq-mean-token-sum`"}
CONSTANT |= {"SkyRL": "`loss_reduction=seq_mean_token_sum_norm`"}


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
    rule = RULES.get(measure)
    return rule(estimate.value, method) if rule and method and estimate.exists else None


def advise_on_length(effect: float, method: InUse) -> Advice | None:
    """Return advice where incorrect responses are longer (above 0) or shorter than correct ones to the same prompt."""
    if method.method and isinstance(method.method.sampling, EqLen):
        return None  # both responses of a pair have one length, whatever the lengths of whole responses
    side = "incorrect" if effect > 0 else "correct"
    if method.aggregation in ("token_mean", "token_mean_update"):
        text = (
            f"a token mean weighs each side of a prompt by its mean length, so that {side} responses, the longer ones, count "
            f"more; {BALANCED.get(method.program, 'Balanced Aggregation')} gives both sides one weight. Groups below 16 keep a "
            "part of a sequence mean's push on length, and the coupling by itself is no bias"
        )
        evidence = ("balanced-01", "balanced-02", "balanced-07", "balanced-08")
        return Advice(text, evidence, ("aggregation=Balanced", "aggregation.scope=group"))
    if method.aggregation == "sequence_mean":
        is_sequence = method.method is not None and isinstance(method.method.surrogate, SEQUENCE_CLIPS)
        kind = "TokenSum" if is_sequence else "ConstantBudget"
        remedy = CONSTANT.get(method.program, f"`--set aggregation={kind}`")
        text = (
            f"a sequence mean weighs a token of a long response, {side} ones here, less, and has a push on incorrect responses "
            f"to go on where length says nothing about correctness; {remedy} has neither"
        )
        return Advice(text, ("eqlen-02", "eqlen-21", "balanced-03"), (f"aggregation={kind}",))
    return FITTING.get(method.aggregation)


NEUTRAL = Advice(
    "nothing to change in the aggregation: every token has one weight whatever the length of its response, and nothing pushes "
    "on length",
    ("eqlen-02", "eqlen-21"),
)
FITTING = {
    "token_sum": NEUTRAL,
    "constant_budget": NEUTRAL,
    "balanced": Advice(
        "nothing to change in the aggregation: both sides of a prompt have one weight. Groups below 16 keep a part of a "
        "sequence mean's push on length",
        ("balanced-02", "balanced-07"),
    ),
    "balanced_update": Advice(
        "nothing to change in the aggregation: correct and incorrect responses have one weight over the update",
        ("balanced-06",),
    ),
}
"""By aggregation in use, where it leaves nothing to change."""


def advise_on_bound(effect: float, method: InUse) -> Advice | None:
    """Return advice where the bound on ratios of whole sequences accepts lengths unequally."""
    used = method.method and method.method.surrogate
    where = "; where the log ratios of tokens are independent, a band around their drift that grows with the root of length "
    where += "accepts all lengths alike: "
    if isinstance(used, FairBand):
        reasons = {
            "symmetric": ("a symmetric band accepts long sequences more often", "fspo-11"),
            "none": ("a band without the drift accepts long sequences less often", "fspo-28"),
        }
        if used.drift not in reasons:
            return None
        reason, claim = reasons[used.drift]
        text = f"{reason}{where}`--set surrogate.drift=centred`"
        return Advice(text, (claim, "fspo-09"), ("surrogate.drift=centred",))
    if not isinstance(used, SEQUENCE_CLIPS):
        return None
    is_sum = isinstance(used, SequenceRatioClip)
    reason = (
        "a fixed clip on the ratio of a sequence accepts long sequences less often"
        if is_sum
        else ("the clip of this method does not grow with length")
    )
    sets = ("surrogate=FairBand", "surrogate.drift=centred")
    sets += ("aggregation=TokenSum",) if method.aggregation == "sequence_mean" else ()
    text = f"{reason}{where}{' '.join(f'`--set {one}`' for one in sets)}"
    return Advice(text, ("fspo-01", "fspo-09") if is_sum else ("fspo-09",), sets)


def advise_on_survivors(effect: float, method: InUse) -> Advice | None:
    """Return advice where `max` values survivors too high."""
    return (
        find_halving(method, "the best of several later ends is compared with one", "eqlen-33") if effect > 0 else None
    )


def advise_on_stopping(effect: float, method: InUse) -> Advice | None:
    """Return advice where stopping is penalised."""
    reason = "valuing a survivor by the best of its later ends presses against stopping where length says nothing"
    return find_halving(method, reason, "eqlen-37") if effect < 0 else None


def find_halving(method: InUse, reason: str, claim: str) -> Advice | None:
    """Return the unbiased value of survivors as advice, where the paper's is in use."""
    sampling = method.method and method.method.sampling
    if not isinstance(sampling, EqLen) or sampling.survivor_reward != "max":
        return None
    setting = "sampling.survivor_reward=halving"
    return Advice(f"{reason}; `--set {setting}` has no such pressure", ("eqlen-07", claim), (setting,))


RULES: dict[str, Callable[[float, InUse], Advice | None]] = {
    "within.length": advise_on_length,
    "acceptance.lre": advise_on_bound,
    "streams.optimism": advise_on_survivors,
    "streams.eos_advantage": advise_on_stopping,
}
"""By measure. Of what has no proof, such as the best length, truncation or dropped responses, there is no advice."""
