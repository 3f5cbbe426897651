"""Modifiers, the names after `+`: each changes one choice of a base, and a second one where the first needs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from fairlen.methods.method import Method
from fairlen.methods.stages import advantage, filters, reward, terms
from fairlen.methods.stages.aggregation import Aggregation, Balanced, InverseLength, TokenMean, TurnCount, TurnMean
from fairlen.methods.stages.micro import is_state
from fairlen.methods.stages.surrogate import TokenClip
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.independent import Independent

CHAIN_ORDER = (
    reward.TruncationPenalty, reward.RelativeLength, reward.TopLambda, reward.LengthPenalty, reward.SolvedLength,
    reward.CentredLength, reward.EffortLength, reward.SoftOverlong, terms.EntropyBonus, terms.ReferenceKL, terms.SquaredLogRatio,
)  # fmt: skip
"""Of rewards: factors come before penalties, since dividing a negative reward by a length would raise it. Of terms: any."""
EVERYTHING = "everything"
"""Choices that a base sets."""


@dataclass(frozen=True)
class Component:
    """The effect of one name of a composition: a base makes a whole method, a modifier changes one choice of it."""

    name: str
    sets: str
    """EVERYTHING, or a choice, of rewards and terms with the kind; two modifiers that set the same cannot be combined."""
    summary: str
    apply: Callable[[Method], Method]
    source: str = "fairlen"
    notes: tuple[str, ...] = ()
    """Messages to its user."""

    @property
    def papers(self) -> list[str]:
        return re.findall(r"\b\d{4}\.\d{5}\b", self.summary)


def add(method: Method, choice: str, stage: Any) -> Method:
    """The method with one more reward or term, in place of its own one of that kind; in CHAIN_ORDER, a user's own last."""
    others = [one for one in getattr(method, choice) if type(one) is not type(stage)]
    rank = {kind: place for place, kind in enumerate(CHAIN_ORDER)}
    chain = sorted((*others, stage), key=lambda one: rank.get(type(one), len(rank)))
    return replace(method, **{choice: tuple(chain)})


def pair_tracks(method: Method) -> Method:
    """The method of equal-length pairs. A pair is its own group. Raises ValueError where there are pairs already.

    A token mean of the group becomes one of the update, as in the paper's combination with DAPO: within a pair it would be the
    sequence mean.
    """
    if isinstance(method.sampling, EqLen):
        raise ValueError("eqlen with a base that has EqLen already: leave eqlen out, or name another base")
    of_update = TokenMean("update") if method.aggregation == TokenMean("group") else method.aggregation
    return replace(method, sampling=EqLen(), aggregation=of_update)


def cut_turns(method: Method, name: str, aggregation: Aggregation | None = None, **compared: Any) -> Method:
    """The method whose sequences are turns. Raises ValueError where responses are cut already."""
    if not isinstance(method.sampling, Independent):
        raise ValueError(
            f"{name} with {type(method.sampling).__name__}: it cuts responses by length, and no environment is asked for "
            "copies of itself at such a cut; leave out one of the two"
        )
    sampling = replace(method.sampling, unit="turn", **compared)
    return replace(method, sampling=sampling, aggregation=aggregation or method.aggregation)


def add_top_lambda(method: Method) -> Method:
    """Keeps prompts with some correct response: dropping all-correct ones would drop exactly those that TopLambda selects.

    What was asked for by length stays: a window, with a warning, or the shortest responses.
    """
    if not isinstance(method.filter, (filters.LengthWindow, filters.ShortestKept)):
        method = replace(method, filter=filters.SomeCorrect())
    return add(method, "reward", reward.TopLambda())


def add_relative_length(method: Method) -> Method:
    """Drops all-correct prompts, as the paper of GR3 does online, unless another filter was asked for, or drops more."""
    if isinstance(method.filter, filters.MixedRewards):  # of all-correct prompts, whose rewards now differ by length
        method = replace(method, filter=filters.MixedOutcomes())
    elif not isinstance(method.filter, (filters.MixedOutcomes, filters.LengthWindow, filters.ShortestKept)):
        method = replace(method, filter=filters.SomeIncorrect())
    return add(method, "reward", reward.RelativeLength())


def set_clip(method: Method, name: str, **values: float) -> Method:
    """Sets fields of the surrogate; raises ValueError where it has no such bound, or one of another meaning."""
    surrogate: Any = method.surrogate
    kind, known = type(surrogate), [f.name for f in fields(surrogate) if not is_state(f)]
    if {*values} <= {*known} and (name != "clip_higher" or kind is TokenClip):
        return replace(method, surrogate=replace(surrogate, **values))
    sets = " and ".join(f"{field}={value:g}" for field, value in values.items())
    raise ValueError(
        f"{name} with {kind.__name__}: it sets {sets} of a token's ratio, which {kind.__name__} does not bound so; leave {name} "
        f"out, and set fields of its own (--set surrogate.FIELD=VALUE; there are {', '.join(known) or 'none'})"
    )


COMPONENTS = (
    Component("eqlen", "sampling", apply=pair_tracks,
        summary="Compares equal-length pairs built during generation, in 8 streams of two tracks (EqLen, 2604.17328)."),
    Component("dynamic", "filter", apply=partial(replace, filter=filters.MixedOutcomes()),
        summary="Only prompts with correct and incorrect responses train (DAPO's dynamic sampling, arXiv:2503.14476)."),
    Component("lspo", "filter", apply=partial(replace, filter=filters.LengthWindow()),
        summary="Only mixed prompts with short, or long but not longest, answers train (LSPO, arXiv:2510.01459)."),
    Component("gfpo", "filter", apply=partial(replace, filter=filters.ShortestKept()),
        summary="Only the shorter half of a prompt's responses train and are compared (GFPO, arXiv:2508.09726)."),
    Component("overlong_filter", "mask_truncated", apply=partial(replace, mask_truncated=True),
        summary="Truncated responses do not count at all (DAPO's overlong filtering, arXiv:2503.14476)."),
    Component("toplambda", "reward:toplambda", apply=add_top_lambda,
        summary="Penalises the length of correct responses in the best-solved 20% of prompts (GRPO-lambda, 2505.18086)."),
    Component("lp", "reward:lp", apply=partial(add, choice="reward", stage=reward.LengthPenalty()),
        summary="Penalises the length of correct responses in every prompt (the baseline LP of 2505.18086; arXiv:2502.04463)."),
    Component("gr3", "reward:gr3", apply=add_relative_length,
        summary="Divides rewards by one plus a third of the relative length (GR3, arXiv:2603.10535)."),
    Component("solved_length", "reward:solved_length", apply=partial(add, choice="reward", stage=reward.SolvedLength()),
        summary="Subtracts up to 0.25 by length, as a share of the prompt's longest, times the prompt's pass rate (prime-rl)."),
    Component("centred_length", "reward:centred_length", apply=partial(add, choice="reward", stage=reward.CentredLength()),
        summary="Adds up to 0.1 for length between a prompt's responses of reward 1, 0 in their mean (NeMo-RL)."),
    Component("effort", "reward:effort", apply=partial(add, choice="reward", stage=reward.EffortLength()),
        summary="Rewards short responses to prompts whose column effort says low (NeMo-RL)."),
    Component("overlong", "reward:overlong", apply=partial(add, choice="reward", stage=reward.SoftOverlong()),
        summary="Subtracts up to 1 over the last fifth of the max response length (DAPO's soft overlong punishment, "
                "arXiv:2503.14476)."),
    Component("no_std", "advantage", apply=partial(replace, advantage=advantage.GroupCentered()),
        summary="Leaves the standard deviation out (Dr. GRPO, arXiv:2503.20783)."),
    Component("std_trl", "advantage", apply=partial(replace, advantage=advantage.GroupNormalized(ddof=1, eps=1e-4)),
        summary="TRL's standard deviation: Bessel's correction, 1e-4 added."),
    Component("std_verl", "advantage", apply=partial(replace, advantage=advantage.GroupNormalized(ddof=1, eps=1e-6)),
        summary="verl's standard deviation: Bessel's correction, 1e-6 added."),
    Component("std_ba", "advantage", apply=partial(replace, advantage=advantage.GroupNormalized(eps=1e-6, eps_in="variance")),
        summary="The standard deviation of 2605.04077, equation 2: eps inside the root (1e-6; its value is not given)."),
    Component("maxrl", "advantage", apply=partial(replace, advantage=advantage.MeanNormalized()),
        summary="Divides by the mean reward of the prompt instead of the standard deviation (MaxRL, arXiv:2602.02710)."),
    Component("ddca", "advantage", apply=partial(replace, advantage=advantage.ConditionalLength()),
        summary="Subtracts 0.2 times the relative length among the correct responses of a prompt, times its pass rate (DDCA, "
                "arXiv:2602.02099)."),
    Component("opo", "advantage", apply=partial(replace, advantage=advantage.LengthCentered()),
        summary="Subtracts the mean of the group's tokens instead of its responses (OPO, arXiv:2505.23585)."),
    Component("gdpo", "advantage", apply=partial(replace, advantage=advantage.OutcomeNormalized()),
        summary="Normalises each reward function by itself, then their sum over the batch (GDPO, arXiv:2601.05242)."),
    Component("clip_higher", "surrogate.clip", apply=partial(set_clip, name="clip_higher", clip_low=0.2, clip_high=0.28),
        summary="Clips tokens at 0.2 below and 0.28 above (DAPO, arXiv:2503.14476)."),
    Component("dual_clip", "surrogate.dual_clip", apply=partial(set_clip, name="dual_clip", dual_clip=3.0),
        summary="Bounds the loss of negative advantages at ratio 3 (arXiv:1912.09729; verl's default)."),
    Component("two_sided", "surrogate.delta", apply=partial(set_clip, name="two_sided", delta=4.0),
        summary="Bounds the token ratio at 4 for both signs (INTELLECT-2; TRL's `delta`)."),
    Component("balanced", "aggregation", apply=partial(replace, aggregation=Balanced("group")),
        summary="Averages tokens within correct and incorrect responses of a group separately (2605.04077)."),
    Component("balanced_update", "aggregation", apply=partial(replace, aggregation=Balanced("update")),
        summary="The same over the whole update, in the general form that keeps the two sides in balance."),
    Component("vl_norm", "aggregation", apply=partial(replace, aggregation=InverseLength()),
        summary="Weighs tokens by length to the power -0.75, with the sum of weights of a constant budget (VL Norm, "
                "arXiv:2509.07558)."),
    Component("turns", "sampling.unit", apply=partial(cut_turns, name="turns"),
        summary="Each turn of a trajectory is a sequence, with a ratio, a clip and a weight of its own (per turn; 2605.06200)."),
    Component("turn_baseline", "sampling.compare", apply=partial(cut_turns, name="turn_baseline", compare="turns"),
        summary="Compares the same turn of each response by what was earned from it on (per-turn baselines, verl#7244)."),
    Component("turn_mean", "aggregation", apply=partial(cut_turns, name="turn_mean", aggregation=TurnMean()),
        summary="Every trajectory weighs the same, and so does every turn of it, whatever their lengths."),
    Component("turn_count", "aggregation", apply=partial(replace, aggregation=TurnCount()),
        summary="Divides by a trajectory's number of turns, whatever their tokens (cua-lite#13)."),
    Component("balanced_turns", "aggregation",
        apply=partial(cut_turns, name="balanced_turns", aggregation=Balanced("group", "turns")),
        summary="Averages turns, not tokens, within correct and incorrect trajectories separately."),
    Component("kl", "terms:kl", apply=partial(add, choice="terms", stage=terms.ReferenceKL()),
        summary="Adds 0.001 times the k3 estimate of KL to the starting model (arXiv:2402.03300, equation 4)."),
    Component("entropy", "terms:entropy", apply=partial(add, choice="terms", stage=terms.EntropyBonus()),
        summary="Adds 0.001 times the entropy as a bonus."),
    Component("icepop", "correction", apply=partial(replace, correction=terms.SamplerMismatch("token", "mask", 5.0, 0.5)),
        summary="Corrects the engine's log-probs by their ratio, 0 outside 0.5 to 5 (IcePop; NeMo-RL)."),
    Component("mismatch", "correction", apply=partial(replace, correction=terms.SamplerMismatch()),
        summary="Corrects an engine whose log-probs differ from the trainer's, per token, capped at 2."),
)  # fmt: skip
MODIFIERS = {part.name: part for part in COMPONENTS}
"""Every modifier by its name, in the order in which they are applied."""
