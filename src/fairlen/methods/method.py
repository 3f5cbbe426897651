"""A method is a value: a handful of choices, in two phases.

Plan (`score`, `weigh`): everything decided before the forward pass, on tables, in numpy float64, without torch.
Surrogate (`loss`): a function of log-probs and the plan, per micro-batch, in torch. Nothing divides after the plan.

    rollout batch --score--> Scored --updates--> Update --weigh--> Plan --(packing, forward)--> loss

Not here: names of papers (presets.py), the combination of names (compose.py), loops and devices (train/).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from fairlen.batch import Bools, Floats, Ints, Plan, Responses, Rewarded, Rollouts, Segments
from fairlen.methods.conflicts import refuse_bad_pairs
from fairlen.methods.micro import Micro, Outputs, TokenLoss, UpdateSums
from fairlen.methods.stages.advantage import Advantage, GroupNormalized
from fairlen.methods.stages.aggregation import Aggregation, SequenceMean
from fairlen.methods.stages.fair_band import FairBand
from fairlen.methods.stages.filters import Everything, Keep
from fairlen.methods.stages.reward import Reward
from fairlen.methods.stages.state import is_state
from fairlen.methods.stages.surrogate import TokenClip
from fairlen.methods.stages.terms import Correction, NoCorrection, Term
from fairlen.sampling.independent import Independent, Sampler

if TYPE_CHECKING:
    from torch import Tensor


class Surrogate(Protocol):
    """The loss of each trained token; see methods/stages/surrogate.py for the contract."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss: ...


@dataclass(frozen=True)
class Scored:
    """One rollout batch with everything that is decided once: which prompts train, rewards and advantages."""

    responses: Responses
    segments: Segments
    kept: Bools
    """Prompts that train, [P]."""
    reward: Floats
    """Shaped rewards, [R]; the outcome where a response is inactive."""
    value: Floats
    """What each segment is worth, [B]."""
    advantage: Floats
    """[B]; 0 where inactive or not kept."""
    num_tracks: int
    """Tracks planned for a prompt."""

    @property
    def trains(self) -> Bools:
        """Segments that count: active, of a kept prompt, [B]."""
        return self.segments.active & self.kept[self.responses.prompt[self.segments.response]]


@dataclass(frozen=True)
class Update:
    """The segments of one optimizer step; groups are whole."""

    rows: Ints
    """Rows among the rollout batch's segments, [b]."""
    segments: Segments
    """Those rows, groups dense from 0."""
    advantage: Floats


@dataclass(frozen=True)
class MicroLoss:
    """The loss of one micro-batch: a sum, to be added to those of the other micro-batches of its update."""

    total: Tensor
    """Scalar with gradient: sum of weight * token loss, plus term_weight * terms."""
    token: TokenLoss


@dataclass(frozen=True)
class Method:
    """The choices, each answering one question; `replace` makes a variant."""

    sampling: Sampler = Independent()
    """What is compared with what?"""
    keep: Keep = Everything()
    """Which prompts train?"""
    mask_truncated: bool = False
    """Do responses that the budget stopped count at all? True: they are inactive (overlong filtering)."""
    reward: tuple[Reward, ...] = ()
    """What is an outcome worth? Stages applied in order."""
    advantage: Advantage = GroupNormalized()
    """Relative to what?"""
    surrogate: Surrogate = TokenClip()
    """How far may one update go?"""
    aggregation: Aggregation = SequenceMean()
    """How much does each token of a sequence weigh?"""
    terms: tuple[Term, ...] = ()
    """What else is added?"""
    correction: Correction = NoCorrection()
    """What multiplies the surrogate?"""

    def __post_init__(self) -> None:
        refuse_bad_pairs(self)

    @property
    def needs_ref(self) -> bool:
        return any(term.needs_ref for term in self.terms)

    @property
    def needs_entropy(self) -> bool:
        """Whether a term needs the entropy with its gradient."""
        return any(term.needs_entropy for term in self.terms)

    def score(self, rollouts: Rollouts) -> Scored:
        """Rewards and advantages of one rollout batch; once, before it is split into updates."""
        return self.score_tables(rollouts.response_table, rollouts.segment_table)

    def score_tables(self, responses: Responses, segments: Segments) -> Scored:
        """The same from tables alone, which is all that an audit has."""
        responses = self.mask(responses)
        reward = responses.outcome.copy()
        reward[responses.active] = self.shape(responses.active_rows())
        value = self.sampling.value(responses, segments, reward)
        segments = replace(segments, active=segments.active & self.sampling.trains(responses, segments, value))
        kept = self.choose_prompts(responses.with_reward(reward), segments)
        scored = Scored(responses, segments, kept, reward, value, np.zeros(len(segments)), self.sampling.num_tracks)
        trains = scored.trains
        scored.advantage[trains] = self.advantage(segments.take(trains).with_dense_groups(), value[trains])
        return scored

    def mask(self, responses: Responses) -> Responses:
        """The same responses, truncated ones inactive if they are not to count."""
        return replace(responses, active=responses.active & ~responses.truncated) if self.mask_truncated else responses

    def choose_prompts(self, responses: Rewarded, segments: Segments) -> Bools:
        """Which prompts train, [P]: those that the filter selects and that have an active response.

        A filter asks for prompts to learn from: with one, a prompt of which no segment would train is not selected either.
        """
        counted = responses.active_rows()
        kept = np.zeros(responses.num_prompts, np.bool_)
        kept[: counted.num_prompts] = self.keep(counted)
        is_filter = not isinstance(self.keep, Everything)
        heard = responses.prompt[segments.response[segments.active]] if is_filter else counted.prompt
        return kept & (np.bincount(heard, minlength=len(kept)) > 0)

    def shape(self, responses: Responses) -> Floats:
        """Shaped rewards of active responses, [R]."""
        reward = responses.outcome
        for stage in self.reward:
            reward = stage(responses, reward)
        return reward

    def weigh(self, update: Update) -> Plan:
        """One weight per sequence of an update."""
        segments = update.segments
        return Plan(
            rows=update.rows,
            length=segments.length,
            advantage=update.advantage,
            weight=self.aggregation(segments, update.advantage) * segments.mass,
            term_weight=self.aggregation.term_weight(segments) * segments.mass,
        )

    def loss(self, outputs: Outputs, micro: Micro) -> MicroLoss:
        """The loss of one micro-batch. Sums over any split of an update are the same."""
        if micro.is_on_policy:
            micro = micro.as_sampled_by(outputs.logprobs)
        token = self.surrogate(outputs.logprobs, micro)
        total = (micro.per_token(micro.weight) * self.correction(micro) * token.loss).sum()
        for term in self.terms:
            total = total + (micro.per_token(micro.term_weight) * term(outputs, micro)).sum()
        return MicroLoss(total=total, token=token)

    @property
    def state(self) -> dict[str, float]:
        """What the method has learned so far, by name; empty for methods without state."""
        return {f.name: getattr(self.surrogate, f.name) for f in fields(self.surrogate) if is_state(f)}  # type: ignore[arg-type]

    def with_state(self, values: dict[str, float]) -> Method:
        """The method with the state that `state` gave, from a checkpoint."""
        return replace(self, surrogate=replace(self.surrogate, **values)) if values else self  # type: ignore[type-var]

    def update(self, sums: UpdateSums) -> Method:
        """The method after one update, from sums over all micro-batches and ranks."""
        if isinstance(self.surrogate, FairBand):
            return replace(self, surrogate=self.surrogate.update(sums))
        return self


def updates(scored: Scored, num_updates: int = 1) -> Iterator[Update]:
    """Splits kept prompts into `num_updates` updates of nearly equal numbers of them, in their order; prompts stay whole.

    Yields fewer where there are fewer prompts, and none for prompts of which no segment trains.
    """
    if num_updates < 1:
        raise ValueError(f"num_updates={num_updates}: give at least 1 update per rollout batch")
    rows = np.flatnonzero(scored.trains)
    prompt = scored.responses.prompt[scored.segments.response[rows]]
    kept = np.flatnonzero(scored.kept)
    for part in np.array_split(kept, min(num_updates, len(kept)) or 1):
        chosen = rows[np.isin(prompt, part)] if len(part) < len(kept) else rows
        if len(chosen):
            segments = scored.segments.take(chosen).with_dense_groups()
            segments = replace(segments, planned=len(part) * scored.num_tracks)
            yield Update(chosen, segments, scored.advantage[chosen])
