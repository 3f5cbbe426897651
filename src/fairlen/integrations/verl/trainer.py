"""verl's trainers with a method: plans of every rollout batch, the method's loss in the workers, its state, its metrics.

A row of verl is a whole response, or one segment of a stream (EqLen): the prompt, the response up to the segment's end, and a
mask that is 1 on the segment. The last row of each track ends with its text and carries the verdict, whether or not it trains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from fairlen.batch import CORRECT_THRESHOLD, Ints, number_keys
from fairlen.console import warn
from fairlen.integrations.rows import fold, group_by_row
from fairlen.integrations.run_folder import NOWHERE, HomeRun, build_evaluation, resume_method, save_method
from fairlen.integrations.verl.data import read_eos_ids
from fairlen.integrations.verl.loss import COLUMN, COUNTS, FairDetachWorker, FairLoss, FairWorker
from fairlen.integrations.verl.rows import ReadRows, find_kept, group_by_prompt, read_rows, read_values, tell_validated
from fairlen.integrations.verl.servers import (
    VERSIONS,
    VersionedClient,
    count_evicted,
    measure_staleness,
    register_servers,
)
from fairlen.integrations.verl.settings import MODES, name_trainer, read_method
from fairlen.loop.learning_signal import LearningSignal, Remedies
from fairlen.loop.tally import merge, reward_metrics, scored_metrics, state_metrics, update_metrics
from fairlen.loop.update import Skips, finish_update
from fairlen.methods.compose import explain
from fairlen.methods.method import Method, Scored, spread
from fairlen.rollouts import Rollouts

MAX_LOST = 0.5
"""Share of a rollout batch's prompts that may be lost before the job is given up."""
FIELDS = ("uid", "extra_fields", "prompts", "responses", "response_mask", "rm_scores")
RECORDED = ("rollout_log_probs", "reward_model")
"""Fields of verl's that only the run folder needs."""
LOGPROBS = ("old_log_probs", "rollout_log_probs")
"""And those that a correction which recounts needs."""
ACTORS = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)
"""Roles of workers that train."""
Measured = tuple[int, Mapping[str, float], np.ndarray]
REMEDIES = Remedies(
    length="raise data.max_response_length",
    verdict="set +algorithm.fairlen.correct_threshold between them",
    updates="give actor_rollout_ref.actor.ppo_epochs=2 or a smaller actor_rollout_ref.actor.ppo_mini_batch_size",
)


def deal(prompts: Sequence[str], sizes: Sequence[int], num_parts: int) -> list[int]:
    """Return an order of rows in which those of a prompt follow each other, and equal parts have prompts of all sizes."""
    keys = number_keys(prompts)
    rank = np.argsort(np.argsort(-np.bincount(keys, sizes), kind="stable"))[keys]
    turn = rank % (2 * num_parts)
    return np.lexsort((rank, np.minimum(turn, 2 * num_parts - 1 - turn))).tolist()


def plan_batch(
    method: Method,
    rollouts: Rollouts,
    rows: Ints,
    size: int,
    num_updates: int = 1,
    columns: Sequence[Mapping[str, Any]] = (),
    kept: Ints | None = None,
) -> tuple[Scored, dict[str, np.ndarray]]:
    """Plan a rollout batch that is split into `num_updates` updates, given the row of each segment [B] among `size` of verl's.

    `columns` are those of the data, by prompt; `kept` are the tokens of each segment that a correction keeps, where it recounts.
    Returns the plan's columns by name, [size, most segments of a row]; `row` is where a segment is in its table.
    """
    scored = method.score(rollouts, columns)
    plan = spread(method.plan(scored, kept), len(scored.segments))
    plan |= {name: num_updates * plan[name] for name in ("weight", "term_weight")}
    plan |= {"length": scored.segments.length, "row": np.arange(len(scored.segments))}
    return scored, fold(plan, group_by_row(rows, size))


class FairTrainer(PPOTrainer):
    """Mixin of a method for verl's trainers; stands before one of them among the bases."""

    mode = ""
    """verl's name of the trainer."""
    run: HomeRun | None = None
    """Run folder for `fairlen report`; None where none was named."""

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            # verl takes any name that it does not know for an asynchronous trainer
            config.trainer.v1.trainer_mode = self.mode
        self.method = read_method(config.algorithm.get("fairlen"))
        precision = OmegaConf.select(config, "actor_rollout_ref.actor.fsdp_config.dtype")
        self.signal, self.skips = LearningSignal(REMEDIES), Skips(with_loss_scaler=precision in ("float16", "fp16"))
        self.signal.name_method(str(config.algorithm.fairlen.get("method", "")), self.method)
        if config.algorithm.use_kl_in_reward or is_distillation_enabled(config.get("distillation")):
            raise ValueError(
                "algorithm.use_kl_in_reward=True or distillation.enabled=True: the loss is the method's, and reads neither; "
                "leave it out, --method …+kl has the KL as a term"
            )
        if self.mode != MODES[0] and not self.method.sampling.is_whole:
            raise ValueError(
                f"trainer_mode={self.mode}: EqLen compares two continuations of one prefix by one policy, and there the weights "
                f"change in the middle; give {name_trainer(MODES[0])}"
            )
        if not self.method.sampling.is_whole:
            register_servers()
        super().__init__(config)

    @property
    def settings(self) -> Any:
        return self.config.algorithm.fairlen

    @property
    def threshold(self) -> float:
        return float(self.settings.get("correct_threshold", CORRECT_THRESHOLD))

    @property
    def num_updates(self) -> int:
        """Updates that a rollout batch is split into: as many as verl makes, whose last one may have fewer prompts."""
        prompts = self.config.data.train_batch_size // self.parameter_sync_step
        return max(1, math.ceil(prompts / self.config.actor_rollout_ref.actor.ppo_mini_batch_size))

    @property
    def is_bypassed(self) -> bool:
        """Whether verl takes the servers' log-probs for those of the old policy, so that the first update has ratios too."""
        return bool((self.config.algorithm.get("rollout_correction") or {}).get("bypass_mode"))

    @cached_property
    def eos_ids(self) -> frozenset[int]:
        return read_eos_ids(self.tokenizer)

    def get_llm_client(self) -> Any:
        """verl's client of the rollout servers; of partial rollouts it says which policy sampled which tokens."""
        client = super().get_llm_client()
        if isinstance(client, FullyAsyncLLMServerClient):
            client.__class__ = VersionedClient
        return client

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        worker = ray.remote(FairDetachWorker if self.mode == MODES[2] else FairWorker)
        self.role_worker_mapping |= {role: worker for role in ACTORS if role in self.role_worker_mapping}

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows that make equal shares for every rank and update, also where prompts were lost."""
        return dp_size * self.num_updates

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """verl's order of the rows; those of a stream stay together, so that an update has both sides of a pair."""
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        if not self.method.sampling.is_whole:
            ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
            prompts, sizes = [key.rsplit("_", 2)[0] for key in batch.keys], [tag["seq_len"] for tag in batch.tags]
            batch.reorder(deal(prompts, sizes, ranks * self.num_updates))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The plan of a rollout batch, as columns of it; verl's own metrics read `advantages` and `returns`."""
        method, is_recorded = self.method, self.run is not None
        if any(
            not key.endswith("_0") for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")
        ):
            raise ValueError(
                "an agent loop returned several AgentLoopOutputs of one trajectory: return one, masking its turns"
            )
        wanted = {RECORDED: is_recorded, LOGPROBS: method.recounts, ("extra_info",): bool(method.reads)}
        fields = dict.fromkeys([*FIELDS, *chain.from_iterable(names for names, is_read in wanted.items() if is_read)])
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*fields])
        found = self._read_rows(batch, data)
        responses = tuple(found.responses)
        if is_recorded or method.channels:
            responses = tuple(one.with_channels(self.tokenizer.decode) for one in responses)
        segments = method.sampling.cut(responses)
        rollouts = Rollouts(responses, segments, int(self.config.data.max_response_length))
        rows = found.find(segments)
        kept = find_kept(method, data, rows, rollouts.segment_table) if method.recounts else None
        scored, plan = plan_batch(method, rollouts, rows, len(batch), self.num_updates, found.columns, kept)
        updates = math.inf if self.is_bypassed else self.num_updates * self.config.actor_rollout_ref.actor.ppo_epochs
        folded = plan["weight"] * plan["advantage"]
        for warning in self.signal.look_at(self.global_steps, scored.responses, folded, self.method, updates):
            warn(warning)
        lost, ages = self._count_lost(scored.responses.num_prompts), self._measure_staleness(batch, data)
        own = scored_metrics(scored, self.method) | reward_metrics(responses)
        metrics.update(own | {"prompts/lost": lost} | ages)
        if self.run is not None:
            weight = np.zeros(len(segments))
            weight[plan["row"][plan["trains"]]] = plan["weight"][plan["trains"]]
            self.run.add_batch(0, rollouts, scored, weight, self.method, found.answers)
        columns = {COLUMN + name: torch.from_numpy(column) for name, column in plan.items()}
        scores: Any = data["rm_scores"]
        mask: Any = data["response_mask"]
        # of turns, their trajectory's
        advantage = columns[f"{COLUMN}advantage"][:, 0].to(scores.dtype)
        of_tokens = advantage.repeat_interleave(mask.offsets().diff()) * mask.values()
        advantages = torch.nested.nested_tensor_from_jagged(of_tokens, mask.offsets())
        columns |= {"advantages": advantages, "returns": scores}
        planned = TensorDict(columns, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=planned)

    def _read_rows(self, batch: Any, data: Any) -> ReadRows:
        return read_rows(
            data,
            batch.tags,
            eos_ids=self.eos_ids,
            max_response_length=int(self.config.data.max_response_length),
            correct_threshold=self.threshold,
            policy_version=self.global_steps - 1,
            temperature=float(self.config.actor_rollout_ref.rollout.temperature),
        )

    def _measure_staleness(self, batch: Any, data: Any) -> dict[str, float]:
        """How old the tokens of a rollout batch are, in versions; nothing where weights never change in the middle."""
        rows = zip(batch.tags, read_values(data["extra_fields"]), strict=True)
        parts = [row[VERSIONS] for tag, row in rows if VERSIONS in row and not tag.get("is_padding")]
        return measure_staleness(parts, self.global_steps - 1) if parts else {}

    def _count_lost(self, num_prompts: int) -> float:
        """Prompts that were lost in generation. Raises RuntimeError where most of them were."""
        expected = int(self.config.data.train_batch_size) // self.parameter_sync_step
        if num_prompts < (1.0 - MAX_LOST) * expected:
            lost = f"{expected - num_prompts} of {expected} prompts were lost in generation or verification"
            raise RuntimeError(f"{lost}: look for the first error of an agent loop above")
        return float(expected - num_prompts)

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        actor = self.config.actor_rollout_ref.actor
        is_fresh = not self.is_bypassed and self.local_trigger_step == 0
        chosen = {"method": self.settings.method, "overrides": list(self.settings.get("overrides") or ())}
        self.actor_rollout_wg.set_loss_fn(FairLoss(chosen, self.method.state, is_fresh))
        batch.extra_info.update({
            "calculate_entropy": actor.calculate_entropy or self.method.needs_entropy,
            "global_batch_size": len(batch) // self.num_updates,
            "mini_batch_size": len(batch) // self.num_updates,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            "dataloader_kwargs": {"shuffle": actor.shuffle},
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
        })  # fmt: skip
        output = dict(self.actor_rollout_wg.update_actor(batch)["metrics"])
        metrics.update(self._learn(output.pop(COUNTS), output))
        found = rename_dict(output, "actor/")
        found["perf/mfu/actor"] = found.pop("actor/mfu")
        metrics.update(reduce_metrics(found))
        return batch

    def _learn(self, found: Sequence[Measured], output: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """The metrics of all updates of a rollout batch together; the method moves as it has in the workers."""
        updates = sorted({number for number, *_ in found})
        made: list[Mapping[str, float]] = []
        for place, update in enumerate(updates):
            counts = [counts for number, counts, _ in found if number == update]
            finished = finish_update(self.method, counts, float(output["grad_norm"][place]), self.skips)
            self.method = finished.method
            made += counts if finished.may_step else []
            if self.run is not None:
                rows = np.concatenate([measured for number, _, measured in found if number == update], 1)
                told = finished.metrics | state_metrics(self.method)
                for name, theirs in (("gradient/norm", "grad_norm"), ("learning_rate", "lr")):
                    values = output.get(theirs, ())
                    told |= {name: float(values[min(place, len(values) - 1)])} if len(values) else {}
                self.run.add_update(self.run.num_updates + 1, rows[0].astype(np.int64), rows[1:], told)
        if self.run is not None:
            self.run.write([*self.run.pending])
        metrics = update_metrics(reduce(merge, made)) if made else {}
        return metrics | state_metrics(self.method) | {"updates/skipped": float(self.skips.num_skipped)}

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        position = self.run.capture() if self.run else NOWHERE
        # first: verl's last file says that all are there
        save_method(folder, self.method, run=position, watch=self.signal.watch.state())
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        kept = NOWHERE
        if self.global_steps:
            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
            if trainer.resume_mode == "resume_path":
                folder = Path(trainer.resume_from_path)
            self.method, kept = resume_method(folder, self.method)
            self.signal.watch.restore(kept.get("watch", NOWHERE))
        if self.settings.get("folder"):
            self.run = HomeRun(Path(self.settings.folder), partial(self.tokenizer.decode, skip_special_tokens=True))
            overrides = list(self.settings.get("overrides") or ())
            told = {"max_response_length": int(self.config.data.max_response_length), "overrides": overrides}
            self.run.describe(explain(self.settings.method, overrides), told, "verl")
            self.run.start(kept.get("run", NOWHERE))

    def _build_replay_buffer(self) -> Any:
        return tell_validated(count_evicted(super()._build_replay_buffer()), self._add_held_out)

    def _add_held_out(self, batch: Any) -> None:
        """Remember what was validated, where it is graded already."""
        if self.run is not None and self.reward_loop_manager.reward_loop_worker_handles:
            data: Any = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
            self.held_out += self._read_rows(batch, data).responses

    def _validate(self) -> dict[str, float]:
        self.held_out = []
        found = super()._validate()
        if self.run is not None and self.held_out:
            self.run.add_evaluation(self.run.num_updates, build_evaluation(group_by_prompt(self.held_out)))
        return found


def register(mode: str, stock: type[Any]) -> type[Any]:
    members = {"mode": mode, "__doc__": f"verl's {mode} with a method."}
    return register_trainer(name_trainer(mode))(type(f"Fair{stock.__name__}", (FairTrainer, stock), members))


STOCK = (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync)
FairTrainerSync, FairTrainerColocateAsync, FairTrainerSeparateAsync = map(register, MODES, STOCK)
