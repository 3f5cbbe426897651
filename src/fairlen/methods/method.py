"""A method is a value: a handful of choices, in two phases. Nothing divides after the plan.

    rollout batch --score--> Scored --updates--> Update --weigh--> Plan --(packing, forward)--> loss

The plan is made on tables, in numpy float64, without torch; the loss is a function of log-probs and the plan, in torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fairlen.batch import Bools, Floats, Ints, Plan, Responses, Rewarded, Segments, name_columns, sum_by
from fairlen.methods.conflicts import refuse_bad_pairs, refuse_missing
from fairlen.methods.stages.advantage import Advantage, GroupNormalized
from fairlen.methods.stages.aggregation import Aggregation, SequenceMean
from fairlen.methods.stages.filters import Everything, Filter
from fairlen.methods.stages.micro import Micro, Outputs, Stateful, Sums, TokenLoss, has_state, is_state, widen
from fairlen.methods.stages.reward import NUM_READ, Reward
from fairlen.methods.stages.surrogate import TokenClip
from fairlen.methods.stages.terms import Correction, NoCorrection, SamplerMismatch, SamplerRejection, Term
from fairlen.precision import settle
from fairlen.rollouts import Rollouts
from fairlen.sampling.independent import Independent, Sampler

if TYPE_CHECKING:
    from torch import Tensor

CHAINED = ("reward", "terms")
"""Choices that are tuples of stages."""
PLANNED = ("advantage", "weight", "term_weight", "bounded")
"""Numbers of a plan that the loss reads, one a sequence."""


class Surrogate(Protocol):
    """The loss of each trained token; see methods/stages/surrogate.py for the contract."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss: ...


@dataclass(frozen=True)
class Scored:
    """A rollout batch with its selected prompts, rewards and advantages, computed once."""

    responses: Responses
    graded: Bools
    """Responses that count, and those that do not for their length alone, [R]."""
    segments: Segments
    selected: Bools
    """Prompts that train, [P]."""
    reward: Floats
    """Shaped rewards, [R]; the outcome where a response is inactive."""
    value: Floats
    """Value of each segment, [B]."""
    advantage: Floats
    """[B]; 0 where inactive or not selected."""
    num_tracks: int
    """Tracks planned for a prompt."""

    @property
    def trains(self) -> Bools:
        """Segments that count: active, of a selected prompt, [B]."""
        return self.segments.active & self.selected[self.responses.prompt[self.segments.response]]


@dataclass(frozen=True)
class Update:
    """The segments of one optimizer step; groups are whole."""

    rows: Ints
    """Rows among the rollout batch's segments, [b]."""
    segments: Segments
    """Those rows, groups dense from 0."""
    advantage: Floats

    def take(self, chosen: Bools) -> Update:
        return Update(self.rows[chosen], self.segments.take(chosen).with_dense_groups(), self.advantage[chosen])


@dataclass(frozen=True)
class MicroLoss:
    """The loss of one micro-batch: a sum, to be added to those of the other micro-batches of its update."""

    total: Tensor
    """Scalar with gradient: sum of weight * token loss, plus term_weight * terms; it and its gradient are not finite where one
    of the log-probs is not."""
    token: TokenLoss
    broken: Mapping[str, Tensor]
    """How many log-probs are not finite, by their names in the order of the arithmetic."""


@dataclass(frozen=True)
class Method:
    """A training method: one stage for each choice; `dataclasses.replace` makes a variant."""

    sampling: Sampler = Independent()
    """What is compared with what?"""
    filter: Filter = Everything()
    """Which prompts train?"""
    mask_truncated: bool = False
    """Do truncated responses count at all? True: they are inactive (overlong filtering)."""
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
        """True where a term needs the entropy with its gradient."""
        return any(term.needs_entropy for term in self.terms)

    @property
    def recounts(self) -> bool:
        """Whether the correction decides which tokens denominators count, so that a plan needs log-probs."""
        return getattr(self.correction, "recount", False)

    @property
    def reads(self) -> dict[str, tuple[Any, ...]]:
        """Named columns that the stages read, each with examples of its values."""
        return {name: values for _, stage in self.stages() for name, values in getattr(stage, "reads", {}).items()}

    def score(self, rollouts: Rollouts, columns: Sequence[Mapping[str, Any]] = ()) -> Scored:
        """Rewards and advantages of one rollout batch; once, before it is split into updates.

        `columns` are those of the data, by prompt; what reward functions said is in the responses.
        """
        responses = rollouts.response_table
        if self.reads:
            rows = [
                {NUM_READ: len(r.token_ids) - r.length, **(columns[r.prompt] if columns else {}), **r.outcomes}
                for r in rollouts.responses
            ]
            responses = replace(responses, named=self.pick_columns(rows))
        return self.score_tables(responses, rollouts.segment_table)

    def pick_columns(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return the columns that stages read, from what is known of each row. Raises ValueError where no row has one."""
        refuse_missing(self, [name for row in rows for name in row])
        return name_columns({name: [row.get(name) for row in rows] for name in self.reads})

    def score_tables(self, responses: Responses, segments: Segments) -> Scored:
        """The same from tables alone, which is all that an audit has; outcomes that differ by rounding are made equal."""
        responses = replace(responses, outcome=settle(responses.prompt, responses.outcome))
        graded, tracks = responses.active, self.sampling.num_tracks
        if self.mask_truncated:
            responses = replace(responses, active=responses.active & ~responses.truncated)
        counted, reward = responses.active_rows(), responses.outcome.copy()
        shaped = counted.outcome
        for stage in self.reward:
            shaped = stage(counted, shaped)
        reward[responses.active] = shaped
        value = self.sampling.value(responses, segments, reward)
        trains = self.sampling.trains(responses, segments, value)
        if getattr(self.filter, "of_responses", False):
            chosen = responses.active.copy()
            chosen[responses.active] = self.filter(responses.with_reward(reward).active_rows())
            trains = trains & chosen[segments.response]
        segments = replace(segments, active=segments.active & trains)
        if self.reads:
            segments = replace(segments, named=responses.named[segments.response])
        selected = self.choose_prompts(responses.with_reward(reward), segments)
        scored = Scored(responses, graded, segments, selected, reward, value, np.zeros(len(segments)), tracks)
        trains = scored.trains
        scored.advantage[trains] = self.compare(segments.take(trains).with_dense_groups(), value[trains])
        return scored

    def compare(self, segments: Segments, value: Floats) -> Floats:
        """The advantage of each segment, [B]; turns of one trajectory in one group are one value, which counts once."""
        if not segments.turn.any():
            return self.advantage(segments, value)
        _, first, which = np.unique([segments.response, segments.group], axis=1, return_index=True, return_inverse=True)
        which = which.ravel()  # numpy 2.0.0 gives it two axes
        length = sum_by(which, segments.length, len(first)).astype(np.int64)
        return self.advantage(replace(segments.take(first), length=length), value[first])[which]

    def choose_prompts(self, responses: Rewarded, segments: Segments) -> Bools:
        """Mask of the prompts that train, [P]: those that the filter selects and that have an active response.

        A filter asks for prompts to learn from: with one, a prompt of which no segment would train is not selected either.
        """
        counted = responses.active_rows()
        selected = np.zeros(responses.num_prompts, np.bool_)
        is_of_responses = getattr(self.filter, "of_responses", False)
        selected[: counted.num_prompts] = True if is_of_responses else self.filter(counted)
        is_filter = self.filter != Everything()
        heard = responses.prompt[segments.response[segments.active]] if is_filter else counted.prompt
        return selected & (np.bincount(heard, minlength=len(selected)) > 0)

    def weigh(self, update: Update, kept: Ints | None = None) -> Plan:
        """One weight per sequence of an update; `kept` are the tokens of each that a correction keeps, [b], if it recounts."""
        if kept is not None:
            update, kept = update.take(kept > 0), kept[kept > 0]
        segments = update.segments if kept is None else replace(update.segments, length=kept)
        return Plan(
            rows=update.rows,
            length=update.segments.length,
            advantage=update.advantage,
            weight=self.aggregation(segments, update.advantage) * segments.mass,
            term_weight=self.aggregation.term_weight(segments) * segments.mass,
            bounded=np.maximum(update.segments.length_of(getattr(self.surrogate, "of", "response")), 1),
        )

    def plan(self, scored: Scored, kept: Ints | None = None) -> Plan:
        """The plan of a rollout batch as one update, of no rows where nothing trains; `kept` as in `weigh`, of all segments."""
        nothing = Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), *np.zeros((3, 0)))
        plans = (self.weigh(one, None if kept is None else kept[one.rows]) for one in updates(scored))
        return next(plans, nothing)

    def loss(self, outputs: Outputs, micro: Micro) -> MicroLoss:
        """The loss of one micro-batch, in at least float32. Sums over any split of an update are the same."""
        outputs = Outputs(widen(outputs.logprobs), widen(outputs.entropy))
        if micro.is_on_policy:
            micro = replace(micro, old_logprobs=outputs.logprobs.detach())  # noise of 1e-6 must not pass for drift
        token = self.surrogate(outputs.logprobs, micro)
        total = (micro.per_token(micro.weight) * self.correction(micro) * token.loss).sum()
        for term in self.terms:
            total = total + (micro.per_token(micro.term_weight) * term(outputs, micro)).sum()
        given = {"logprobs": outputs.logprobs, "old_logprobs": micro.old_logprobs, "ref_logprobs": micro.ref_logprobs}
        if isinstance(self.correction, SamplerMismatch | SamplerRejection):  # they read the sampler's log-probs
            given = {"rollout_logprobs": micro.rollout_logprobs, **given}
        broken = {name: (~values.detach().isfinite()).sum() for name, values in given.items() if values is not None}
        factor = total.detach().new_ones(())
        for count in broken.values():  # a bound would hide an infinite ratio
            factor = factor.masked_fill(count > 0, math.nan)
        return MicroLoss(total * factor, token, broken)

    @property
    def channels(self) -> dict[str, str]:
        """Channels whose lengths stages go by, by path."""
        return {path: of for path, stage in self.stages() if (of := getattr(stage, "of", "response")) != "response"}

    def stages(self) -> Iterator[tuple[str, Any]]:
        """Every stage by its path, rewards and terms one by one: "surrogate", "reward.0"."""
        for choice in fields(self):
            value = getattr(self, choice.name)
            if choice.name in CHAINED:
                yield from ((f"{choice.name}.{position}", stage) for position, stage in enumerate(value))
            elif choice.name != "mask_truncated":
                yield choice.name, value

    def stateful(self) -> list[tuple[str, Stateful]]:
        return [(path, stage) for path, stage in self.stages() if has_state(stage)]

    def with_stages(self, stages: Mapping[str, Any]) -> Method:
        """The method with other stages at some paths."""
        changed: dict[str, Any] = {}
        for path, stage in stages.items():
            choice, _, position = path.partition(".")
            value = changed.get(choice, getattr(self, choice))
            changed[choice] = (*value[: int(position)], stage, *value[int(position) + 1 :]) if position else stage
        return replace(self, **changed)

    @property
    def state(self) -> dict[str, float]:
        """State of all stages, by "surrogate.drift_average" and the like; empty for methods without state."""
        return {
            f"{path}.{f.name}": getattr(stage, f.name)
            for path, stage in self.stateful()
            for f in fields(stage)  # type: ignore[arg-type]
            if is_state(f)
        }

    def with_state(self, values: Mapping[str, float]) -> Method:
        """The method with the state that `state` gave, from a checkpoint.

        Raises ValueError where it is the state of another method, or has a number that is not finite.
        """
        if values and set(values) != set(self.state):
            raise ValueError(
                f"the state has {', '.join(sorted(values))}, the method {', '.join(sorted(self.state)) or 'none'}: "
                "give the method that the state was saved of"
            )
        if ruined := [name for name, value in values.items() if value is None or not math.isfinite(value)]:
            raise ValueError(
                f"the state has {ruined[0]}={values[ruined[0]]}, a number that is not finite, which no update would heal: go on "
                "from an earlier checkpoint, or start a new run from the weights of this one"
            )
        return self.with_stages({path: replace(stage, **of_path(values, path)) for path, stage in self.stateful()})  # type: ignore[type-var]

    def observe(self, outputs: Outputs, micro: Micro) -> dict[str, Any]:
        """Observations of stages with state in one micro-batch, by path and name: sums, to be added up like the loss."""
        seen = ((path, stage.observe(outputs, micro)) for path, stage in self.stateful())
        return {f"{path}.{name}": value for path, sums in seen for name, value in sums.items()}

    def update(self, sums: Sums) -> Method:
        """The method after one update, from what `observe` gave, added up over all micro-batches and ranks."""
        numbers = {name: float(value) for name, value in sums.items()}
        seen = {path: (stage, of_path(numbers, path)) for path, stage in self.stateful()}
        return self.with_stages({path: stage.update(own) for path, (stage, own) in seen.items() if own})


def of_path(values: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {key.removeprefix(f"{path}."): value for key, value in values.items() if key.startswith(f"{path}.")}


def updates(scored: Scored, num_updates: int = 1) -> Iterator[Update]:
    """Split selected prompts into `num_updates` updates of nearly equal numbers of them, in their order; prompts stay whole.

    Yield fewer where there are fewer prompts, and none for prompts of which no segment trains.
    """
    if num_updates < 1:
        raise ValueError(f"num_updates={num_updates}: give at least 1 update per rollout batch")
    rows = np.flatnonzero(scored.trains)
    prompt = scored.responses.prompt[scored.segments.response[rows]]
    prompts = np.flatnonzero(scored.selected)
    for part in np.array_split(prompts, min(num_updates, len(prompts)) or 1):
        chosen = rows[np.isin(prompt, part)] if len(part) < len(prompts) else rows
        if len(chosen):
            segments = scored.segments.take(chosen).with_dense_groups()
            segments = replace(segments, planned=len(part) * scored.num_tracks)
            yield Update(chosen, segments, scored.advantage[chosen])


def spread(plan: Plan, size: int) -> dict[str, np.ndarray]:
    """`trains` and PLANNED of `size` rows, [size] each; 0 where a row does not train."""
    found: dict[str, np.ndarray] = {"trains": np.isin(np.arange(size), plan.rows)}
    for name in PLANNED:
        found[name] = np.zeros(size)
        found[name][plan.rows] = getattr(plan, name)
    return found
