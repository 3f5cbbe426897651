"""verl's trainers with a method: plans of every rollout batch, the method's loss in the workers, its state, its metrics.

A row of verl is a whole response, or one segment of a stream (EqLen): the prompt, the response up to the segment's end, and a
mask that is 1 on the segment. The last row of each track ends with its text and carries the verdict, whether or not it trains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
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
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from fairlen.batch import (
    CORRECT_THRESHOLD,
    NO_VERDICT,
    Plan,
    Responses,
    Segments,
    are_truncated,
    build_responses,
    build_segments,
    number_keys,
)
from fairlen.console import warn
from fairlen.files.folders import write_file
from fairlen.integrations.method_file import resume_method, save_method
from fairlen.integrations.verl.data import read_eos_ids
from fairlen.integrations.verl.loss import COLUMN, COUNTS, FairLoss
from fairlen.integrations.verl.servers import register_servers
from fairlen.integrations.verl.settings import MODES, name_trainer, read_method
from fairlen.integrations.verl.staleness import VERSIONS, VersionedClient, count_evicted, measure_staleness
from fairlen.methods.learning_signal import Counts, LearningSignal, Remedies
from fairlen.methods.method import Method, Scored, spread
from fairlen.methods.tally import merge, observed, scored_metrics, state_metrics, update_metrics

MAX_LOST = 0.5
"""Share of a rollout batch's prompts that may be lost before the job is given up."""
FIELDS = ("uid", "extra_fields", "prompts", "responses", "response_mask", "rm_scores")
REMEDIES = Remedies(
    length="raise data.max_response_length",
    verdict="set +algorithm.fairlen.correct_threshold between them",
    updates="give actor_rollout_ref.actor.ppo_epochs=2 or a smaller actor_rollout_ref.actor.ppo_mini_batch_size",
)


@dataclass(frozen=True)
class Row:
    """What a row of verl is of its response, and of its stream where it has one."""

    length: int
    """Generated tokens of the whole response."""
    truncated: bool
    track: int
    """Names the response among those of its prompt and stream."""
    is_end: bool = True
    """The row ends with the response's text, and carries its verdict."""
    start: int = 0
    """First trained token of the response."""
    stop: int = 0
    """One past the last; equal to start where the row trains nothing."""
    group: int = 0
    """The rows of the prompt that it is compared with."""
    stream: int = 0
    track_round: int = 0
    """In which the track started."""
    round: int = 0
    is_survivor: bool = False
    mass: float = 1.0
    outcome: float = 0.0
    """Of the finished text."""
    verdict: float = NO_VERDICT
    """What decides whether it is correct; nan where the verifier came to no verdict."""


IDLE = Row(length=0, truncated=False, track=-1, is_end=False)
"""Padding of verl, in no count and in no loss."""


def read_verdict(info: Mapping[str, Any], score: float) -> float:
    """The verdict on a scored response: `acc` of the reward function or else its score; nan where `verdict` says there is none.

    verl itself notes the score as `acc` where a function returns nothing else: -1 is then no verdict of correct.
    """
    if not bool(info.get("verdict", True)):
        return NO_VERDICT
    accuracy = info.get("acc")
    return float(accuracy if isinstance(accuracy, bool | int | float | np.number | np.bool_) else score)


def plan_batch(
    method: Method,
    prompts: Sequence[Any],
    rows: Sequence[Row],
    max_response_length: int,
    num_updates: int = 1,
    correct_threshold: float = CORRECT_THRESHOLD,
) -> tuple[Scored, Plan]:
    """Plan the rows [N] of a rollout batch that verl makes so many updates of; `prompts` has something hashable for each."""
    scored = method.score_tables(*build_tables(prompts, rows, max_response_length, correct_threshold))
    plan = method.plan(scored)
    weights = {"weight": num_updates * plan.weight, "term_weight": num_updates * plan.term_weight}
    trained = np.array([number for number, row in enumerate(rows) if row.stop > row.start], np.int64)
    return scored, replace(plan, rows=trained[plan.rows], **weights)


def build_tables(
    prompts: Sequence[Any], rows: Sequence[Row], max_response_length: int, correct_threshold: float
) -> tuple[Responses, Segments]:
    """The tables of a rollout batch: a response for every row that ends one, a segment for every row that trains something.

    Raises ValueError where a track has no row that carries its verdict.
    """
    ends = [number for number, row in enumerate(rows) if row.is_end]
    trained = [number for number, row in enumerate(rows) if row.stop > row.start]
    first = [prompts[number] for number in ends]  # padding has keys of its own: last
    keys = number_keys([*first, *prompts])[len(ends) :]
    names = [(int(prompt), row.stream, row.track) for prompt, row in zip(keys, rows, strict=True)]
    of_track = {names[number]: place for place, number in enumerate(ends)}
    if lost := next((names[number] for number in trained if names[number] not in of_track), None):
        raise ValueError(f"stream {lost[1]} of prompt {lost[0]}: no row carries the verdict on track {lost[2]}")

    def columns(numbers: list[int], **fields: str) -> dict[str, Any]:
        return {name: [getattr(rows[number], field) for number in numbers] for name, field in fields.items()}

    responses = build_responses(
        keys[ends],
        max_response_length=max_response_length,
        correct_threshold=correct_threshold,
        **columns(ends, length="length", outcome="outcome", verdict="verdict", truncated="truncated"),
        **columns(ends, stream="stream", round="track_round"),
    )
    return responses, build_segments(
        responses,
        [rows[number].stop - rows[number].start for number in trained],
        response=[of_track[names[number]] for number in trained],
        group=number_keys([(int(keys[number]), rows[number].group) for number in trained]),
        **columns(trained, mass="mass", survivor="is_survivor", round="round"),
    )


class FairTrainer(PPOTrainer):
    """What verl's trainers have in common with a method; before one of them among the bases."""

    mode = ""
    """verl's name of the trainer."""

    def __init__(self, config: Any) -> None:
        with open_dict(config):
            # verl takes any name that it does not know for an asynchronous trainer
            config.trainer.v1.trainer_mode = self.mode
        self.method = read_method(config.algorithm.get("fairlen"))
        self.signal = LearningSignal(REMEDIES)
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

    def get_llm_client(self) -> Any:
        """verl's client of the rollout servers; of partial rollouts it says which policy sampled which tokens."""
        client = super().get_llm_client()
        if isinstance(client, FullyAsyncLLMServerClient):
            client.__class__ = VersionedClient
        return client

    def _build_replay_buffer(self) -> Any:
        return count_evicted(super()._build_replay_buffer())

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        """Rows that make equal shares for every rank and update, also where prompts were lost."""
        return dp_size * self.num_updates

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The plan of a rollout batch, as columns of it; verl's own metrics read `advantages` and `returns`."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        prompts, rows = list(map(str, data["uid"])), self._read_rows(batch, data)
        threshold = float(self.settings.get("correct_threshold", CORRECT_THRESHOLD))
        limit = int(self.config.data.max_response_length)
        scored, plan = plan_batch(self.method, prompts, rows, limit, self.num_updates, threshold)
        updates = math.inf if self.is_bypassed else self.num_updates * self.config.actor_rollout_ref.actor.ppo_epochs
        if warning := self.signal.look(Counts.of(scored.responses, plan.weight * plan.advantage, self.method, updates)):
            warn(warning)
        lost = self._count_lost(prompts, rows)
        metrics.update(
            scored_metrics(scored, self.method) | {"prompts/lost": lost} | self._measure_staleness(batch, data)
        )
        self._record(plan, prompts, rows, data)
        columns = {COLUMN + name: torch.from_numpy(column) for name, column in spread(plan, len(rows)).items()}
        scores, mask = data["rm_scores"], data["response_mask"]
        shares = zip(columns[f"{COLUMN}advantage"], mask.unbind(0), strict=True)
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
                rows.append(replace(row, outcome=scores[number], verdict=read_verdict(info, scores[number])))
        return rows

    def _measure_staleness(self, batch: Any, data: Any) -> dict[str, float]:
        """How old the tokens of a rollout batch are, in versions; nothing where weights never change in the middle."""
        fields = [getattr(value, "data", value) for value in data["extra_fields"]]
        rows = zip(batch.tags, fields, strict=True)
        parts = [row[VERSIONS] for tag, row in rows if VERSIONS in row and not tag.get("is_padding")]
        return measure_staleness(parts, self.global_steps - 1)

    def _count_lost(self, prompts: list[str], rows: list[Row]) -> float:
        """Prompts that were lost in generation. Raises RuntimeError where most of them were."""
        found = len({prompt for prompt, row in zip(prompts, rows, strict=True) if row is not IDLE})
        expected = int(self.config.data.train_batch_size) // self.parameter_sync_step
        if found < (1.0 - MAX_LOST) * expected:
            lost = f"{expected - found} of {expected} prompts were lost in generation or verification"
            raise RuntimeError(f"{lost}: look for the first error of an agent loop above")
        return float(expected - found)

    def _record(self, plan: Plan, prompts: list[str], rows: list[Row], data: Any) -> None:
        """Write the plan where `algorithm.fairlen.record` names a folder: plan-000000.jsonl and so on, one JSON line a row."""
        if not self.settings.get("record"):
            return
        folder = Path(self.settings.record)
        columns: Mapping[str, Iterable[Any]] = {
            "prompt": prompts,
            "row": [asdict(row) for row in rows],
            "prompt_ids": [ids.tolist() for ids in data["prompts"].unbind()],
            "response_ids": [ids.tolist() for ids in data["responses"].unbind()],
            **{name: column.tolist() for name, column in spread(plan, len(rows)).items()},
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

    def _learn(self, found: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
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
            folder = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
            if trainer.resume_mode == "resume_path":
                folder = Path(trainer.resume_from_path)
            self.method = resume_method(folder, self.method)


def register(mode: str, stock: type[Any]) -> type[Any]:
    """Our trainer for one of verl's."""
    members = {"mode": mode, "__doc__": f"verl's {mode} with a method."}
    return register_trainer(name_trainer(mode))(type(f"Fair{stock.__name__}", (FairTrainer, stock), members))


STOCK = (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync)
FairTrainerSync, FairTrainerColocateAsync, FairTrainerSeparateAsync = map(register, MODES, STOCK)
