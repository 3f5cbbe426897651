"""verl's trainers with a method: plans of every rollout batch, the method's loss in the workers, its state, its metrics.

    _compute_advantage   rows -> tables -> plan -> columns of the batch
    _update_actor        the loss goes to the workers; what micro-batches came to comes back, and moves the state
    _save_checkpoint     the method goes along; no other goes on from there

Each of verl's trainers has one here, by its name with `fairlen_` before it. Streams (EqLen) have as many rows as there happen to
be segments; verl pads them so that every rollout batch makes as many updates as its prompts would.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import open_dict
from tensordict import TensorDict
from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from fairlen.batch import CORRECT_THRESHOLD, are_truncated
from fairlen.files.folders import write_file
from fairlen.integrations.method_file import resume_method, save_method
from fairlen.integrations.verl.data import read_eos_ids
from fairlen.integrations.verl.loss import COUNTS, FairLoss, plan_columns
from fairlen.integrations.verl.plans import (
    IDLE,
    REMEDIES,
    Planned,
    Row,
    look_for_signal,
    plan_batch,
    read_verdict,
)
from fairlen.integrations.verl.settings import MODES, name_trainer, read_method
from fairlen.methods.learning_signal import LearningSignal
from fairlen.methods.tally import Counts, merge, observed, scored_metrics, state_metrics, update_metrics

MAX_LOST = 0.5
"""Share of a rollout batch's prompts that may be lost before the job is given up."""
FIELDS = ("uid", "extra_fields", "prompts", "responses", "response_mask", "rm_scores")


class FairTrainer(PPOTrainer):
    """What verl's trainers have in common with a method; before one of them among the bases."""

    mode = ""
    """verl's name of the trainer."""

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = (
                self.mode
            )  # verl takes any name that it does not know for an asynchronous trainer
        self.method = read_method(config.algorithm.get("fairlen"))
        self.signal = LearningSignal(REMEDIES)
        if config.algorithm.use_kl_in_reward or is_distillation_enabled(config.get("distillation")):
            raise ValueError(
                "algorithm.use_kl_in_reward=True or distillation.enabled=True: the loss is the method's, and reads neither; "
                "leave it out, --method …+kl has the KL as a term"
            )
        if self.mode != MODES[0] and (self.method.learns or not self.method.sampling.is_whole):
            raise ValueError(
                f"trainer.v1.trainer_mode={self.mode}: EqLen and methods with state need {name_trainer(MODES[0])}"
            )
        super().__init__(config)

    @property
    def settings(self) -> Any:
        """`algorithm.fairlen`."""
        return self.config.algorithm.fairlen

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
        """Tokens that end a text."""
        return read_eos_ids(self.tokenizer)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows that make equal shares for every rank and update, also where prompts were lost."""
        return dp_size * self.num_updates

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The plan of a rollout batch, as columns of it; verl's own metrics read `advantages` and `returns`."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        prompts, rows = list(map(str, data["uid"])), self._read_rows(batch, data)
        threshold = float(self.settings.get("correct_threshold", CORRECT_THRESHOLD))
        limit = int(self.config.data.max_response_length)
        planned = plan_batch(self.method, prompts, rows, limit, self.num_updates, threshold)
        epochs = int(self.config.actor_rollout_ref.actor.ppo_epochs)
        look_for_signal(self.signal, planned, self.method, math.inf if self.is_bypassed else self.num_updates * epochs)
        lost = self._count_lost(prompts, rows)
        metrics.update(scored_metrics(planned.scored, self.method) | {"prompts/lost": lost})
        self._record(planned, prompts, rows, data)
        columns = plan_columns(planned.rows)
        scores, mask = data["rm_scores"], data["response_mask"]
        shares = zip(columns["plan_advantage"], mask.unbind(0), strict=True)
        advantages = [(advantage * row).to(scores.dtype) for advantage, row in shares]
        columns |= {"advantages": torch.nested.as_nested_tensor(advantages, layout=torch.jagged), "returns": scores}
        fields = TensorDict(columns, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _read_rows(self, batch: Any, data: Any) -> list[Row]:
        """What each row of a rollout batch is; padding of verl is a copy of its first row."""
        extra = [getattr(value, "data", value) for value in data["extra_fields"]]
        lengths = [int(mask.sum()) for mask in data["response_mask"].unbind()]
        scores = [float(row.double().sum()) for row in data["rm_scores"].unbind()]
        truncated = are_truncated([int(ids[-1]) for ids in data["responses"].unbind()], self.eos_ids)
        rows = []
        for number, tag in enumerate(batch.tags):
            if tag.get("is_padding"):
                rows.append(IDLE)
            elif "fairlen" in extra[number]:
                rows.append(Row(**extra[number]["fairlen"]))
            else:
                row = Row(lengths[number], bool(truncated[number]), track=number, stop=lengths[number])
                info = extra[number].get("reward_extra_info") or {}
                rows.append(row.graded(scores[number], read_verdict(info, scores[number])))
        return rows

    def _count_lost(self, prompts: list[str], rows: list[Row]) -> float:
        """Prompts that were lost in generation. Raises RuntimeError where most of them were."""
        found = len({prompt for prompt, row in zip(prompts, rows, strict=True) if row is not IDLE})
        expected = int(self.config.data.train_batch_size) // self.parameter_sync_step
        if found < (1.0 - MAX_LOST) * expected:
            raise RuntimeError(
                f"{expected - found} of {expected} prompts were lost in generation or verification: look for the first error of "
                "an agent loop above; a rollout server may have died"
            )
        return float(expected - found)

    def _record(self, planned: Planned, prompts: list[str], rows: list[Row], data: Any) -> None:
        """Write the plan where `algorithm.fairlen.record` names a folder: plan-000000.jsonl and so on, one JSON line a row."""
        if not self.settings.get("record"):
            return
        folder = Path(self.settings.record)
        columns: Mapping[str, Iterable[Any]] = {
            "prompt": prompts,
            "row": [row.to_dict() for row in rows],
            "prompt_ids": [ids.tolist() for ids in data["prompts"].unbind()],
            "response_ids": [ids.tolist() for ids in data["responses"].unbind()],
            "trains": planned.rows.trains.tolist(),
            "advantage": planned.rows.advantage.tolist(),
            "weight": planned.rows.weight.tolist(),
        }
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        number = len(list(folder.glob("plan-*.jsonl")))
        write_file(folder / f"plan-{number:06d}.jsonl", "\n".join(lines) + "\n")

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The updates of a rollout batch, each of an equal share of its rows."""
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
        metrics.update(self._learn(output.pop(COUNTS)))
        found = rename_dict(output, "actor/")
        found["perf/mfu/actor"] = found.pop("actor/mfu")
        metrics.update(reduce_metrics(found))
        return batch

    def _learn(self, found: Sequence[tuple[int, Counts]]) -> dict[str, float]:
        """The metrics of all updates of a rollout batch together; the method moves as it has in the workers."""
        for update in sorted({number for number, _ in found}):
            counts = reduce(merge, (counts for number, counts in found if number == update))
            self.method = self.method.update(observed(counts))
        return update_metrics(reduce(merge, (counts for _, counts in found))) | state_metrics(self.method)

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        save_method(folder, self.method)  # first: verl's last file says that all are there
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            trainer = self.config.trainer
            saved = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
            is_named = trainer.resume_mode == "resume_path"
            self.method = resume_method(Path(trainer.resume_from_path) if is_named else saved, self.method)


def register(mode: str, stock: type[Any]) -> type[Any]:
    """Our trainer for one of verl's."""
    kind = type(
        f"Fair{stock.__name__}", (FairTrainer, stock), {"mode": mode, "__doc__": f"verl's {mode} with a method."}
    )
    return register_trainer(name_trainer(mode))(kind)


STOCK = (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync)
FairTrainerSync, FairTrainerColocateAsync, FairTrainerSeparateAsync = map(register, MODES, STOCK)
