"""The table of pairs of choices: which combinations are refused, and which are allowed but worth a warning, with the reason.

Everything not listed is allowed without a word. compose.py adds what it replaces while it combines names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Method = Any
"""A Method, whose module imports this one."""


@dataclass(frozen=True)
class Pair:
    """Two stages by class name that do not go together."""

    first: str
    second: str
    verdict: Literal["raises", "warns"]
    reason: str


SUM_RATIO = (
    "the ratio is that of the whole sequence, whose gradient is a sum over its tokens; divided by the length, a token of a long "
    "response weighs less, which its source does not do: --set aggregation=TokenSum"
)
REWARDED_CORRECT = "drops prompts whose answers are all correct, which TopLambda selects first: use filter SomeCorrect"
SAME_AIM = "both make long correct responses worth less, together less than an incorrect one: choose one"
TWO_PENALTIES = (
    "both penalise length: with outcomes 0 and 1 a long correct response can be worth less than a short incorrect one"
)

PAIRS: tuple[Pair, ...] = (
    Pair("TopLambda", "MixedOutcomes", "raises", "MixedOutcomes " + REWARDED_CORRECT),
    Pair("TopLambda", "SomeIncorrect", "raises", "SomeIncorrect " + REWARDED_CORRECT),
    Pair(
        "TopLambda",
        "LengthPenalty",
        "raises",
        "both penalise the length of correct responses in the same way: choose one",
    ),
    Pair("RelativeLength", "LengthPenalty", "raises", SAME_AIM),
    Pair("RelativeLength", "TopLambda", "raises", SAME_AIM),
    Pair("LengthPenalty", "SoftOverlong", "warns", TWO_PENALTIES),
    Pair("TopLambda", "SoftOverlong", "warns", TWO_PENALTIES),
    Pair("RelativeLength", "SoftOverlong", "warns", TWO_PENALTIES),
    Pair("TruncationPenalty", "SoftOverlong", "warns", TWO_PENALTIES),
    Pair("TruncationPenalty", "LengthPenalty", "warns", TWO_PENALTIES),
    Pair("TruncationPenalty", "TopLambda", "warns", TWO_PENALTIES),
    Pair(
        "TopLambda",
        "LengthWindow",
        "warns",
        "LengthWindow keeps mixed prompts only: all-correct ones are lost to TopLambda",
    ),
    Pair("FairBand", "SequenceMean", "warns", SUM_RATIO),
    Pair("SequenceRatioClip", "SequenceMean", "warns", SUM_RATIO),
    Pair("GammaKernel", "SequenceMean", "warns", SUM_RATIO),
    Pair(
        "TokenClip",
        "TokenSum",
        "warns",
        "token ratios with a token sum let one long answer own the update (TRL warns of luspo so)",
    ),
    Pair(
        "BatchNormalized",
        "LengthPower",
        "warns",
        "advantages have one scale over the batch, weights differ by length: no source uses it",
    ),
    Pair(
        "PolicyGradient",
        "SamplerMismatch",
        "warns",
        "without a ratio only the sampler's mismatch is corrected, not several updates",
    ),
)


def matching_pairs(method: Method, verdict: str) -> list[Pair]:
    """The rows of the table that a method meets."""
    names = {type(stage).__name__ for _, stage in method.stages()}
    return [pair for pair in PAIRS if pair.verdict == verdict and {pair.first, pair.second} <= names]


def refuse_bad_pairs(method: Method) -> None:
    """Raises ValueError where two choices contradict each other."""
    for pair in matching_pairs(method, "raises"):
        raise ValueError(f"{pair.first} with {pair.second}: {pair.reason}")
    if type(method.advantage).__name__ == "LeaveOneOut" and method.sampling.num_tracks < 2:
        raise ValueError(
            f"LeaveOneOut with sampling.n={method.sampling.num_tracks}: leaving one out needs at least 2 responses for each "
            "prompt; sample more (--set sampling.n=16)"
        )


def warn_of_pairs(method: Method) -> list[str]:
    """What to tell the user of a method that is allowed."""
    notes = [f"{pair.first} with {pair.second}: {pair.reason}" for pair in matching_pairs(method, "warns")]
    if method.sampling.num_tracks < 2:
        notes.append(
            "sampling.n=1: one response has nothing to be compared with, every advantage is 0; --set sampling.n=16"
        )
    clip, weights = (getattr(stage, "power", None) for stage in (method.surrogate, method.aggregation))
    if clip is not None and weights is not None and clip != weights:
        notes.append(
            f"surrogate.power={clip} with aggregation.power={weights}: P-GSPO has one power for both; "
            f"--set aggregation.power={clip}"
        )
    if type(method.sampling).__name__ == "EqLen":
        notes += warn_of_streams(method, method.sampling)
    return notes


def warn_of_streams(method: Method, sampling: Any) -> Iterator[str]:
    """What to tell the user of a method that compares equal-length pairs."""
    if getattr(method.aggregation, "scope", "") == "group":
        yield (
            f"{type(method.aggregation).__name__} of the group with EqLen: both tracks of a pair have one length, so that it is "
            "the sequence mean; --set aggregation.scope=update tells long pairs from short ones"
        )
    if sampling.survivor_reward == "max":
        yield (
            "EqLen with survivor_reward=max, the paper's rule: the best of several ends is compared with one, which presses "
            "against stopping (docs/methods/eqlen.md); --set sampling.survivor_reward=halving does not"
        )
    if sampling.round_weight == "halving" and sampling.survivor_reward in ("halving", "lineage"):
        for choice, reason in find_bias(method, sampling):
            yield (
                f"{choice} with the halving weights of EqLen: the gradient is no longer that of the expected reward, because "
                f"{reason}"
            )


def find_bias(method: Method, sampling: Any) -> Iterator[tuple[str, str]]:
    """The choices that break the proposition of docs/methods/eqlen.md, and how."""
    if sampling.max_rounds:
        yield (
            f"max_rounds={sampling.max_rounds}",
            "what survives the last round is not trained; --set sampling.max_rounds=0",
        )
    if method.mask_truncated:
        yield (
            "mask_truncated",
            "truncated responses are left out instead of counting as worth 0; --set mask_truncated=false",
        )
    if type(method.filter).__name__ != "Everything":
        yield (
            type(method.filter).__name__,
            "which prompts count depends on how their responses turned out; --set filter=Everything",
        )
    if type(method.advantage).__name__ not in ("LeaveOneOut", "GroupCentered"):
        yield type(method.advantage).__name__, "a difference is divided by its spread; --set advantage=LeaveOneOut"
    if getattr(method.aggregation, "count", "") != "planned":
        yield (
            type(method.aggregation).__name__,
            "a token's weight depends on lengths or on what was skipped; --set aggregation=TokenSum --set "
            "aggregation.count=planned",
        )
    for stage in method.reward:
        if type(stage).__name__ in ("LengthPenalty", "TopLambda", "RelativeLength"):
            yield (
                type(stage).__name__,
                "what a response is worth depends on the others of its prompt; --set reward=none",
            )
