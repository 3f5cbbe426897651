"""What a name after `+` changes: one choice of a base each, said so by `@sets`.

Two modifiers of one choice contradict each other; rewards and terms chain, in the order of REWARD_ORDER whatever the order of
names. A modifier that needs a second choice to make sense changes it too, and compose.py prints that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized
from fairlen.methods.stages.aggregation import Balanced, TokenMean
from fairlen.methods.stages.filters import LengthWindow, MixedOutcomes, MixedRewards, SomeCorrect, SomeIncorrect
from fairlen.methods.stages.reward import (
    LengthPenalty,
    RelativeLength,
    Reward,
    SoftOverlong,
    TopLambda,
    TruncationPenalty,
)
from fairlen.methods.stages.terms import EntropyBonus, ReferenceKL, SamplerMismatch, Term
from fairlen.sampling.eqlen import EqLen

REWARD_ORDER = (TruncationPenalty, RelativeLength, TopLambda, LengthPenalty, SoftOverlong)
"""Factors come before penalties: dividing a negative reward by a length would raise it."""


@dataclass(frozen=True)
class Modifier:
    """A named change of one choice."""

    name: str
    choice: str
    """What it sets; two modifiers of one choice cannot be combined."""
    summary: str
    apply: Callable[[Method], Method]

    @property
    def stage(self) -> str:
        """The field of Method that it changes."""
        return self.choice.partition(".")[0].partition(":")[0]


MODIFIERS: dict[str, Modifier] = {}
"""Every modifier by its name, in the order in which they are applied."""


def sets(choice: str) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Registers a function under its name as a modifier of `choice`."""

    def register(apply: Callable[[Method], Method]) -> Callable[[Method], Method]:
        summary = (apply.__doc__ or "").strip().splitlines()[0]
        MODIFIERS[apply.__name__] = Modifier(apply.__name__, choice, summary, apply)
        return apply

    return register


@sets("sampling")
def eqlen(method: Method) -> Method:
    """Compares equal-length pairs built during generation, in 8 streams of two tracks (EqLen, 2604.17328).

    A pair is its own group. A token mean of the group becomes one of the update, as in the paper's combination with DAPO:
    within a pair it would be the sequence mean.
    """
    if isinstance(method.sampling, EqLen):
        raise ValueError("eqlen with a base that has EqLen already: leave eqlen out, or name another base")
    in_group = isinstance(method.aggregation, TokenMean) and method.aggregation.scope == "group"
    return replace(method, sampling=EqLen(), aggregation=TokenMean("update") if in_group else method.aggregation)


@sets("filter")
def dynamic(method: Method) -> Method:
    """Only prompts with correct and incorrect responses train (DAPO's dynamic sampling, arXiv:2503.14476)."""
    return replace(method, filter=MixedOutcomes())


@sets("filter")
def lspo(method: Method) -> Method:
    """Only mixed prompts with short, or long but not longest, answers train (LSPO, arXiv:2510.01459)."""
    return replace(method, filter=LengthWindow())


@sets("mask_truncated")
def overlong_filter(method: Method) -> Method:
    """Truncated responses do not count at all (DAPO's overlong filtering, arXiv:2503.14476)."""
    return replace(method, mask_truncated=True)


@sets("reward:toplambda")
def toplambda(method: Method) -> Method:
    """Penalises the length of correct responses in the best-solved 20% of prompts (GRPO-lambda, 2505.18086).

    Keeps prompts with some right answer: dropping all-correct ones would drop exactly those that it selects. A window of lengths
    that was asked for stays, with a warning.
    """
    asked = isinstance(method.filter, LengthWindow)
    return add_reward(method if asked else replace(method, filter=SomeCorrect()), TopLambda())


@sets("reward:lp")
def lp(method: Method) -> Method:
    """Penalises the length of correct responses in every prompt (the baseline LP of 2505.18086; arXiv:2502.04463)."""
    return add_reward(method, LengthPenalty())


@sets("reward:gr3")
def gr3(method: Method) -> Method:
    """Divides rewards by one plus a third of the relative length (GR3, arXiv:2603.10535).

    Drops all-correct prompts, as the paper does online, unless the base already drops more.
    """
    if isinstance(method.filter, MixedRewards):  # of all-correct prompts, whose rewards now differ by length
        method = replace(method, filter=MixedOutcomes())
    elif not isinstance(method.filter, (MixedOutcomes, LengthWindow)):
        method = replace(method, filter=SomeIncorrect())
    return add_reward(method, RelativeLength())


@sets("reward:overlong")
def overlong(method: Method) -> Method:
    """Subtracts up to 1 over the last fifth of the max response length (DAPO's soft overlong punishment, arXiv:2503.14476)."""
    return add_reward(method, SoftOverlong())


@sets("advantage")
def no_std(method: Method) -> Method:
    """Leaves the standard deviation out (Dr. GRPO, arXiv:2503.20783)."""
    return replace(method, advantage=GroupCentered())


@sets("advantage")
def std_trl(method: Method) -> Method:
    """TRL's standard deviation: Bessel's correction, 1e-4 added."""
    return replace(method, advantage=GroupNormalized(ddof=1, eps=1e-4))


@sets("advantage")
def std_verl(method: Method) -> Method:
    """verl's standard deviation: Bessel's correction, 1e-6 added."""
    return replace(method, advantage=GroupNormalized(ddof=1, eps=1e-6))


@sets("advantage")
def std_ba(method: Method) -> Method:
    """The standard deviation of 2605.04077, equation 2: eps inside the root (1e-6; its value is not given)."""
    return replace(method, advantage=GroupNormalized(eps=1e-6, eps_in="variance"))


@sets("surrogate.clip")
def clip_higher(method: Method) -> Method:
    """Clips tokens at 0.2 below and 0.28 above (DAPO, arXiv:2503.14476)."""
    return set_clip(method, "clip_higher", clip_low=0.2, clip_high=0.28)


@sets("surrogate.dual_clip")
def dual_clip(method: Method) -> Method:
    """Bounds the loss of negative advantages at ratio 3 (arXiv:1912.09729; verl's default)."""
    return set_clip(method, "dual_clip", dual_clip=3.0)


@sets("surrogate.delta")
def two_sided(method: Method) -> Method:
    """Bounds the token ratio at 4 for both signs (INTELLECT-2; TRL's `delta`)."""
    return set_clip(method, "two_sided", delta=4.0)


@sets("aggregation")
def balanced(method: Method) -> Method:
    """Averages tokens within correct and incorrect responses of a group separately (2605.04077)."""
    return replace(method, aggregation=Balanced("group"))


@sets("aggregation")
def balanced_update(method: Method) -> Method:
    """The same over the whole update, in the general form that keeps the two sides in balance."""
    return replace(method, aggregation=Balanced("update"))


@sets("terms:kl")
def kl(method: Method) -> Method:
    """Adds 0.001 times the k3 estimate of KL to the starting model (arXiv:2402.03300, equation 4)."""
    return add_term(method, ReferenceKL())


@sets("terms:entropy")
def entropy(method: Method) -> Method:
    """Adds 0.001 times the entropy as a bonus."""
    return add_term(method, EntropyBonus())


@sets("correction")
def mismatch(method: Method) -> Method:
    """Corrects an engine whose log-probs differ from the trainer's, per token, capped at 2."""
    return replace(method, correction=SamplerMismatch())


def add_reward(method: Method, stage: Reward) -> Method:
    """The method with one more reward stage, or its own one of that kind replaced, in REWARD_ORDER."""
    others = tuple(s for s in method.reward if type(s) is not type(stage))
    return replace(method, reward=tuple(sorted((*others, stage), key=lambda s: REWARD_ORDER.index(type(s)))))


def add_term(method: Method, term: Term) -> Method:
    """The method with one more term, or its own one of that kind replaced."""
    others = tuple(t for t in method.terms if type(t) is not type(term))
    return replace(method, terms=tuple(sorted((*others, term), key=lambda t: type(t).__name__)))


BOUNDS = {
    "clip_higher": ("clip_low", "clip_high", "width", "lower_share", "width_low", "width_high"),
    "dual_clip": ("dual_clip", "dual_width"),
    "two_sided": ("delta",),
}
"""The fields in which a surrogate has what a modifier sets, on whatever scale."""


def set_clip(method: Method, name: str, **values: float) -> Method:
    """Sets fields of the surrogate; raises ValueError where it has no such bound, or one of another meaning."""
    surrogate: Any = method.surrogate
    kind, known = type(surrogate).__name__, {f.name for f in fields(surrogate)}
    if set(values) <= known and (name != "clip_higher" or kind == "TokenClip"):
        return replace(method, surrogate=replace(surrogate, **values))
    own = [f"--set surrogate.{field}={getattr(surrogate, field)}" for field in BOUNDS[name] if field in known]
    sets = " and ".join(f"{field}={value:g}" for field, value in values.items())
    if not own:
        raise ValueError(f"{name} with {kind}: it sets {sets}, and {kind} has no such bound; leave {name} out")
    raise ValueError(
        f"{name} with {kind}: it sets {sets}, for a token's ratio; the bounds of {kind} mean something else; leave {name} out "
        f"and change {' '.join(own)}"
    )
