"""verl's synchronous trainer where an estimator does not suffice, by the name `fairlen_sync`: streams and a moving state.

Streams (EqLen): rows are segments, as many as there happen to be. Their plan needs the whole tracks, which rows bring in
`extra_fields`; verl pads them so that every rollout batch makes as many updates as its prompts would. Rows of one pair may fall
into different updates.

State (FSPO's drift) moves once per rollout batch, after its updates, and not after each of them as in fairlen's own trainer:
workers get it with their loss function. It is saved with verl's checkpoints (checkpoint.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from fairlen.batch import sum_by
from fairlen.integrations.verl import checkpoint  # noqa: F401  importing keeps the method in checkpoints
from fairlen.integrations.verl.choice import TRAINER, has_moving_state, needs_streams, read_method
from fairlen.integrations.verl.plans import is_bypassed, look_for_signal, planned, read_sums
from fairlen.integrations.verl.record import record_plan
from fairlen.integrations.verl.streams import Piece, StreamPlan, plan_streams

MAX_LOST = 0.5
"""Share of a rollout batch's streams that may be lost before the job is given up."""


@register_trainer(TRAINER)
class FairTrainer(PPOTrainerSync):
    """verl's synchronous trainer with plans of streams and a state that moves."""

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"  # verl takes any other name for an asynchronous trainer
        self.method = read_method(config.algorithm.get("fairlen") or {})
        self.is_streams = needs_streams(self.method)
        if self.is_streams and config.algorithm.use_kl_in_reward:
            raise ValueError(
                "algorithm.use_kl_in_reward=True with EqLen: a piece has no reward of its own; use +kl, or leave it out"
            )
        if is_distillation_enabled(config.get("distillation")):
            raise ValueError(
                "distillation.enabled=True: fairlen's trainer replaces the workers' loss; use verl's own trainer"
            )
        super().__init__(config)

    @property
    def settings(self) -> Any:
        """`algorithm.fairlen`."""
        return self.config.algorithm.fairlen

    @property
    def num_updates(self) -> int:
        """Updates that a rollout batch is split into."""
        return max(1, self.config.data.train_batch_size // self.config.actor_rollout_ref.actor.ppo_mini_batch_size)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows that make equal shares for every rank and update."""
        return dp_size * self.num_updates if self.is_streams else super()._get_required_batch_multiple(dp_size)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if not self.is_streams:
            return super()._compute_advantage(batch, metrics)
        plan = self._plan_streams(batch, metrics)
        with planned(plan.rows):
            return super()._compute_advantage(batch, metrics)

    def _plan_streams(self, batch: Any, metrics: dict[str, Any]) -> StreamPlan:
        """The plan of a rollout batch; padding of verl trains nothing."""
        fields = ["uid", "extra_fields", "prompts", "responses"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        prompts, extra = list(map(str, data["uid"])), read_objects(data["extra_fields"])
        pieces = [Piece(**row["fairlen"]) for row in extra]
        pieces = [  # verl's padding is a copy of its first row
            Piece(0, 0, 0, 1, False, is_end=True, active=False) if tag.get("is_padding") else piece
            for tag, piece in zip(batch.tags, pieces, strict=True)
        ]
        plan = plan_streams(self.method, prompts, pieces, int(self.settings.max_response_length), self.num_updates)
        num_ratios = self.num_updates * int(self.config.actor_rollout_ref.actor.ppo_epochs)
        num_ratios = math.inf if is_bypassed(self.config.algorithm) else num_ratios
        look_for_signal(plan.scored.responses, plan.rows, self.method, num_ratios)
        real = [not tag.get("is_padding") for tag in batch.tags]
        metrics.update(self._describe(plan, prompts, pieces, real))
        record_plan(self.settings, {
            "prompt": prompts,
            "piece": [piece.to_dict() for piece in pieces],
            "real": real,
            "prompt_ids": [prompt.tolist() for prompt in data["prompts"]],
            "response_ids": [response.tolist() for response in data["responses"]],
            "folded": plan.rows.folded.tolist(),
        })  # fmt: skip
        return plan

    def _describe(
        self, plan: StreamPlan, prompts: list[str], pieces: list[Piece], real: list[bool]
    ) -> dict[str, float]:
        """What a rollout batch of streams came to. Raises RuntimeError where most of them were lost."""
        rows = [row for row, is_real in enumerate(real) if is_real]
        found = len({(prompts[row], pieces[row].stream) for row in rows})
        asked = int(self.config.data.train_batch_size) * int(self.config.actor_rollout_ref.rollout.n)
        if found < (1.0 - MAX_LOST) * asked:
            raise RuntimeError(
                f"{asked - found} of {asked} streams were lost in generation or verification: look for the first error of an "
                "agent loop above; a rollout server may have died"
            )
        ends, segments = [pieces[row] for row in rows if pieces[row].is_end], plan.scored.segments
        value = plan.scored.value
        middle = sum_by(segments.group, value, segments.num_groups) / 2.0
        return {
            "fairlen/streams/lost": float(asked - found),
            "fairlen/tracks": float(len(ends)),
            "fairlen/outcome/mean": sum(end.outcome for end in ends) / max(len(ends), 1),
            "fairlen/length/mean": sum(end.length for end in ends) / max(len(ends), 1),
            "fairlen/truncated/mean": sum(end.truncated for end in ends) / max(len(ends), 1),
            "fairlen/tokens/trained": float(segments.length.sum()),
            "fairlen/segments": float(len(segments)),
            "fairlen/segments/trained": float(plan.rows.trains.sum()),
            "fairlen/pairs/distinct": float((abs(value - middle[segments.group]) > 0).sum() / 2.0),
        }

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        rows = len(batch) // self.num_updates
        with self._rows_per_update(rows) if self.is_streams else nothing():
            batch = super()._update_actor(batch, metrics)
        if has_moving_state(self.method):
            self.method = self.method.update(read_sums(metrics))
            self._send_state()
            metrics.update({f"fairlen/state/{name}": value for name, value in self.method.state.items()})
        return batch

    @contextmanager
    def _rows_per_update(self, rows: int) -> Iterator[None]:
        """Within it, verl takes so many rows for an update; it would multiply prompts by n, which is no number of pieces."""
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        prompts, number = actor.ppo_mini_batch_size, rollout.n
        actor.ppo_mini_batch_size, rollout.n = rows, 1
        try:
            yield
        finally:
            actor.ppo_mini_batch_size, rollout.n = prompts, number

    def _send_state(self) -> None:
        """Gives workers a loss function with the state that the method has now."""
        if not self.method.state:
            return
        actor = self.config.actor_rollout_ref.actor
        self.actor_rollout_wg.set_loss_fn(loss_with_state(actor, self.method.state))

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            self._send_state()


def loss_with_state(actor: Any, state: dict[str, float]) -> Callable[..., Any]:
    """verl's own loss function of an actor's settings, whose policy loss knows the state."""
    settings: Any = OmegaConf.create(OmegaConf.to_container(actor, resolve=True))
    settings.policy_loss.state = dict(state)
    return partial(ppo_loss, config=omega_conf_to_dataclass(settings))


def read_objects(column: Any) -> list[dict[str, Any]]:
    """The values of a column that is no tensor."""
    return [getattr(value, "data", value) for value in column]


@contextmanager
def nothing() -> Iterator[None]:
    """A context that changes nothing."""
    yield
