"""Combinations of choices that are refused, and those that are allowed with a warning."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from fairlen.methods.stages.advantage import (
    BatchNormalized,
    ConditionalLength,
    GroupCentered,
    LeaveOneOut,
    MeanNormalized,
)
from fairlen.methods.stages.aggregation import InverseLength, LengthPower, SequenceMean, TokenSum, TurnCount, TurnMean
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.filters import Everything, LengthWindow, MixedOutcomes, MixedRewards, SomeIncorrect
from fairlen.methods.stages.reward import (
    CentredLength,
    LengthPenalty,
    RelativeLength,
    SoftOverlong,
    SolvedLength,
    TopLambda,
    TruncationPenalty,
)
from fairlen.methods.stages.surrogate import GammaKernel, PolicyGradient, PowerClip, SequenceRatioClip, TokenClip
from fairlen.methods.stages.terms import SamplerMismatch
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.independent import Independent

Method = Any
"""A Method, whose module imports this one."""
Pairs = tuple[tuple[tuple[type, ...], tuple[type, ...], str], ...]
"""Rows of stages, any of which does not go with any of some others, and why."""

ALL_CORRECT = "that filter drops prompts that are all correct, which TopLambda selects first: use filter SomeCorrect"
TWO_PENALTIES = (
    "both penalise length: with outcomes 0 and 1 a long correct response can be worth less than a short incorrect one"
)
SUM_RATIO = (
    "the ratio is that of the whole sequence, whose gradient is a sum over its tokens; divided by the length, a token of a long "
    "response weighs less, which its source does not do: --set aggregation=TokenSum"
)
TWICE = "both penalise length within a prompt, together more than the source of either: choose one"
MOST_LOST = "that filter drops prompts that are all correct, in which the penalty is largest: --set filter=Everything keeps them"
NO_RATE = "rewards below 0 make a prompt's mean no pass rate: near 0 advantages blow up, below it they are 0; --set reward=none"
LOST = "LengthWindow keeps mixed prompts only: all-correct ones are lost to TopLambda"
ONE_OWNS_ALL = "token ratios with a token sum let one long response own the update (TRL warns of luspo so)"
TWO_SCALES = "advantages have one scale over the batch, weights differ by length: no source uses it"
NO_RATIO = "without a ratio only the sampler's mismatch is corrected, not several updates"

WITHIN_PROMPT = (TopLambda, LengthPenalty, RelativeLength, SolvedLength, CentredLength, ConditionalLength)
REFUSED: Pairs = (
    ((TopLambda,), (MixedOutcomes, SomeIncorrect), ALL_CORRECT),
    *(((one,), WITHIN_PROMPT[:place], TWICE) for place, one in enumerate(WITHIN_PROMPT)),
)
WARNED: Pairs = (
    ((*WITHIN_PROMPT[:-1], TruncationPenalty), (SoftOverlong,), TWO_PENALTIES),
    ((TruncationPenalty,), (LengthPenalty, TopLambda, SolvedLength), TWO_PENALTIES),
    ((ConditionalLength,), (MixedOutcomes, MixedRewards, SomeIncorrect, LengthWindow), MOST_LOST),
    ((SolvedLength,), (MixedOutcomes, SomeIncorrect, LengthWindow), MOST_LOST),
    ((MeanNormalized,), (SoftOverlong,), NO_RATE),
    ((TopLambda,), (LengthWindow,), LOST),
    ((FairBand, SequenceRatioClip, GammaKernel), (SequenceMean,), SUM_RATIO),
    ((TokenClip,), (TokenSum,), ONE_OWNS_ALL),
    ((BatchNormalized,), (InverseLength, LengthPower), TWO_SCALES),
    ((PolicyGradient,), (SamplerMismatch,), NO_RATIO),
)


def find_pairs(method: Method, table: Pairs) -> list[str]:
    kinds = {type(stage) for _, stage in method.stages()}
    rows = [(one, other, reason) for some, others, reason in table for one in some for other in others]
    return [f"{one.__name__} with {other.__name__}: {reason}" for one, other, reason in rows if {one, other} <= kinds]


def compares_nothing(method: Method) -> bool:
    """Return whether a method compares responses to one prompt, and samples only one.

    A stage of the user's own may compare in another way, so it passes.
    """
    advantage = method.advantage
    is_known = type(advantage).__module__ == GroupCentered.__module__
    compares_in_group = is_known and getattr(advantage, "baseline", "group") != "none"
    return compares_in_group and method.sampling.is_whole and method.sampling.num_tracks < 2


def refuse_bad_pairs(method: Method) -> None:
    """Raises ValueError where two choices contradict each other."""
    found = find_pairs(method, REFUSED)
    if compares_nothing(method):
        found.append(
            f"{type(method.advantage).__name__} with sampling.n={method.sampling.num_tracks}: a single response to a prompt has "
            "no other to be compared with, so every advantage is 0; sample more (--set sampling.n=16), or compare over the whole "
            "batch (--set advantage=BatchNormalized --set advantage.baseline=none)"
        )
    by_turns = isinstance(method.aggregation, TurnMean) or getattr(method.aggregation, "by", "") == "turns"
    if by_turns and getattr(method.sampling, "unit", "") != "turn":
        found.append(
            f"{type(method.aggregation).__name__} of turns, and sequences are not turns: --set sampling.unit=turn, or the "
            "modifiers turn_mean and balanced_turns, which set both"
        )
    outcomes = getattr(method.advantage, "weights", {})
    is_whole = method.sampling.is_whole and getattr(method.sampling, "compare", "") != "turns"
    if outcomes and (method.reward or not is_whole):
        found.append(
            f"OutcomeNormalized of {', '.join(outcomes)}: outcomes of whole responses are compared as they are; leave out "
            "eqlen, turn_baseline and what shapes rewards, or give no outcomes"
        )
    if getattr(method.filter, "of_responses", False) and not method.sampling.is_whole:
        found.append(
            f"{type(method.filter).__name__} with {type(method.sampling).__name__}: a pair would lose the response that it is "
            "compared with; leave out gfpo or eqlen"
        )
    is_cut = not isinstance(method.sampling, Independent) or method.sampling.unit == "turn"
    if is_cut and (path := next((path for path in method.channels if not path.startswith("reward")), "")):
        found.append(
            f"{path}.of={method.channels[path]} where responses are cut into sequences: tokens by channel are those of whole "
            f"responses; --set {path}.of=response"
        )
    if found:
        raise ValueError(found[0])


def refuse_turns(method: Method, place: str) -> None:
    """Raise ValueError for a choice about turns where a response is one sequence."""
    choices = [
        name
        for name, stage in method.stages()
        if isinstance(stage, TurnCount) or {getattr(stage, "unit", ""), getattr(stage, "by", "")} & {"turn", "turns"}
    ]
    if choices:
        raise ValueError(
            f"{choices[0]} of turns: in {place} a response is one sequence, whatever was read in between; leave it out, or train "
            "with `fairlen train`, which plays a task in turns"
        )


def refuse_turn_rewards(method: Method, place: str) -> None:
    """Raise ValueError for a method that needs rewards of turns where none are known."""
    if getattr(method.sampling, "compare", "") == "turns":
        raise ValueError(
            f"sampling.compare=turns: {place} says what a trajectory is worth, and not what each turn earned; leave it out "
            "(turn_baseline), or train with `fairlen train`, which plays a task in turns"
        )


def refuse_missing(method: Method, known: Collection[str]) -> None:
    """Raise ValueError for a column that a stage reads and that is not known, naming the stage."""
    there = ", ".join(dict.fromkeys(known)) or "no columns"
    for path, stage in method.stages():
        for name in set(getattr(stage, "reads", ())) - {*known}:
            who = f"{path.partition('.')[0]} {type(stage).__name__} reads {name!r}"
            raise ValueError(f"{who}, and there are {there}: give data with a column or a reward function of that name")


def warn_of_pairs(method: Method) -> list[str]:
    notes = find_pairs(method, WARNED)
    ratio, weight = method.surrogate, method.aggregation
    if isinstance(ratio, PowerClip) and isinstance(weight, LengthPower) and ratio.power != weight.power:
        notes.append(
            f"surrogate.power={ratio.power} with aggregation.power={weight.power}: P-GSPO has one power for both; "
            f"--set aggregation.power={ratio.power}"
        )
    if isinstance(method.sampling, EqLen):
        notes += warn_of_streams(method, method.sampling)
    return notes


def warn_of_streams(method: Method, sampling: EqLen) -> Iterator[str]:
    if getattr(method.aggregation, "scope", "") == "group":
        yield (
            f"{type(method.aggregation).__name__} of the group with EqLen: both tracks of a pair have one length, so that it is "
            "the sequence mean; --set aggregation.scope=update tells long pairs from short ones"
        )
    if sampling.survivor_reward == "max":
        yield (
            "EqLen with survivor_reward=max, the paper's rule: the best of several ends is compared with one, which presses "
            "against stopping (docs/methods/eqlen.md); sampling.survivor_reward=halving does not, unstandardized (dr_grpo)"
        )
    if sampling.round_weight == "halving" and sampling.survivor_reward in ("halving", "lineage"):
        for choice, reason in find_bias(method, sampling):
            because = f"the gradient is no longer that of the expected reward, because {reason}"
            yield f"{choice} with the halving weights of EqLen: {because}"


def find_bias(method: Method, sampling: EqLen) -> Iterator[tuple[str, str]]:
    """The choices that break the proposition of docs/methods/eqlen.md, and how."""
    name = {path: type(stage).__name__ for path, stage in method.stages()}
    if sampling.max_rounds:
        reason = "what survives the last round is not trained; --set sampling.max_rounds=0"
        yield f"max_rounds={sampling.max_rounds}", reason
    if not isinstance(method.advantage, LeaveOneOut | GroupCentered):
        yield name["advantage"], "a difference is divided by its spread; --set advantage=LeaveOneOut"
    if method.mask_truncated:
        yield "mask_truncated", "truncated responses are left out and not worth 0; --set mask_truncated=false"
    if not isinstance(method.filter, Everything):
        yield name["filter"], "which prompts count depends on how their responses end; --set filter=Everything"
    if getattr(method.aggregation, "count", "") != "planned":
        remedy = "--set aggregation=TokenSum --set aggregation.count=planned"
        yield name["aggregation"], f"a token's weight depends on lengths or on what was skipped; {remedy}"
    for stage in method.reward:
        if isinstance(stage, WITHIN_PROMPT):
            reason = "what a response is worth depends on the others of its prompt; --set reward=none"
            yield type(stage).__name__, reason
