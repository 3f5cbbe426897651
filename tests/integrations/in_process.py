"""verl's driver and workers in one process, without Ray: a queue that is a dict, and workers that make updates as verl's do.

The trainer, its plans and the loss are ours and whole; what stands in for verl is transport, and the forward pass where it is not
that of verl's FSDP engine.
"""

import pickle
from collections.abc import Callable, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor
from verl.trainer.ppo.v1.trainer_base import get_trainer_cls
from verl.utils.tensordict_utils import assign_non_tensor, get_tensordict
from verl.utils.torch_functional import entropy_from_logits
from verl.workers.engine.base import BaseEngine
from verl.workers.engine.fsdp import transformer_impl

import fairlen.integrations.verl.plugin  # noqa: F401  registers
from fairlen.integrations.verl import trainer as trainer_module
from fairlen.integrations.verl.loss import COUNTS, finish_after_steps
from fairlen.integrations.verl.settings import read_method
from fairlen.integrations.verl.trainer import REMEDIES
from fairlen.loop.learning_signal import LearningSignal
from fairlen.loop.update import Skips
from fairlen.rollouts import Response

EOS = 0
"""Token id."""


def nested(columns: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(columns), layout=torch.jagged)


def list_columns(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows as verl has them: columns by name."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return {name: nested(x) if isinstance(x[0], Tensor) else x for name, x in columns.items()}


class Queue:
    """What verl's TransferQueue does for one rollout batch: columns by name."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def kv_batch_get(self, keys: Sequence[str], partition_id: str, select_fields: Sequence[str]) -> dict[str, Any]:
        return {name: self.columns[name] for name in select_fields}

    def kv_batch_put(self, keys: Sequence[str], partition_id: str, fields: Any) -> Any:
        self.columns |= dict(fields.items())
        return self.batch


def make_row(
    response: Response, start: int, stop: int, extra: dict[str, Any], mask: Sequence[int] = ()
) -> dict[str, Any]:
    """One row of verl: the response up to `stop`, of which `mask` trains, or what comes from `start` on."""
    prompt, text = response.token_ids[: response.num_prompt], response.token_ids[response.num_prompt :][:stop]
    return {
        "prompts": torch.tensor(prompt), "responses": torch.tensor(text), "extra_fields": extra, "uid": f"uid-{response.prompt}",
        "response_mask": torch.tensor(mask or [int(place >= start) for place in range(len(text))]),
        "old_log_probs": torch.tensor(response.logprobs[: len(text)], dtype=torch.float64),
        "rollout_log_probs": torch.tensor(response.logprobs[: len(text)], dtype=torch.float64),
        "rm_scores": torch.tensor([0.0] * (len(text) - 1) + [response.outcome], dtype=torch.float64),
        "entropy": torch.zeros(len(text), dtype=torch.float64), "reward_model": {"ground_truth": ""},
    }  # fmt: skip


def whole_row(response: Response, mask: Sequence[int] = ()) -> dict[str, Any]:
    """A response as verl's own agent loops return it, with what a reward function says."""
    info = {"acc": float(response.status == "correct"), "verdict": float(response.active)}
    return make_row(response, 0, response.length, {"reward_extra_info": info}, mask)


def make_trainer(names: str, overrides: Sequence[str] = (), *, limit: int, prompts: int, updates: int = 1, mode: str = "sync",
                 **fairlen: Any) -> Any:  # fmt: skip
    """A trainer of ours that is about to plan, and no more."""
    made: Any = object.__new__(get_trainer_cls(f"fairlen_{mode}"))
    made.config = OmegaConf.create({
        "algorithm": {"fairlen": {"method": names, "overrides": list(overrides)} | fairlen, "rollout_correction": {}},
        "data": {"train_batch_size": prompts, "max_response_length": limit},
        "actor_rollout_ref": {
            "actor": {
                "ppo_mini_batch_size": prompts // updates, "ppo_epochs": 1, "data_loader_seed": 0, "shuffle": True,
                "calculate_entropy": False,
            },
            "rollout": {"n": 1, "temperature": 1.0},
        },
    })  # fmt: skip
    made.method = read_method(made.config.algorithm.fairlen)
    made.global_steps, made.parameter_sync_step, made.local_trigger_step = 1, 1, 0
    made.eos_ids, made.skips, made.signal = frozenset((EOS,)), Skips(), LearningSignal(REMEDIES)
    return made


def make_engine(model: Any, patch: Any) -> Any:
    """verl's FSDP engine around a model, as far as its forward pass goes: nothing is sharded, and the device is none."""
    patch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    patch.setattr(transformer_impl, "get_device_name", lambda: "cpu")
    engine: Any = object.__new__(transformer_impl.FSDPEngineWithLMHead)
    engine.module, engine._autocast_dtype, engine.use_ulysses_sp, engine.pad_to_length = model, torch.float32, False, 0
    engine.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
    engine.compute_entropy_from_logits = entropy_from_logits
    engine.get_data_parallel_group = lambda: None
    return engine


def engine_batch(data: dict[str, Any]) -> Any:
    """A micro-batch as verl's trainer sends it to an engine: texts without padding, back to back."""
    texts = [torch.cat(pair) for pair in zip(data["prompts"].unbind(), data["responses"].unbind(), strict=True)]
    found = get_tensordict({
        "input_ids": nested(texts), "position_ids": nested([torch.arange(len(text)) for text in texts]),
        **{name: column for name, column in data.items() if isinstance(column, Tensor)},
    })  # fmt: skip
    assign_non_tensor(found, dp_size=1, temperature=1.0, calculate_entropy=True)
    return found


class Workers(BaseEngine):
    """One rank of verl's: updates of equal shares of the rows, in micro-batches, as verl's TrainingWorker makes them."""

    def __init__(
        self,
        queue: Queue,
        forward: Callable[[int], Tensor],
        parameters: Sequence[Tensor],
        micro_rows: int,
        rate: float = 0.0,
        engine: Any = None,
    ) -> None:
        """`forward` gives the log-probs of a row's response, and entropies where it has them; SGD steps on `parameters`.

        With `engine`, of verl, it calls the loss after its own forward pass.
        """
        self.engine = engine
        self.queue, self.forward, self.micro_rows = queue, forward, micro_rows
        self.optimizer = torch.optim.SGD(parameters, lr=rate)
        self.module: Any = SimpleNamespace(parameters=lambda: parameters)
        self.optimizer_config, self._qat_enabled = SimpleNamespace(clip_grad=1e9), False
        self.parts: dict[str, tuple[Tensor, Sequence[Tensor]]] = {}
        self.gradients: list[list[Tensor]] = []
        self.losses: list[float] = []
        """Of each update."""
        finish_after_steps(self, lambda: self.loss_fn)

    def set_loss_fn(self, loss_fn: Any) -> None:
        self.loss_fn = pickle.loads(pickle.dumps(loss_fn))  # as it goes to other processes

    def update_actor(self, batch: Any) -> dict[str, Any]:
        rows, info = list(range(len(batch))), batch.extra_info
        starts = [start for _ in range(info["epochs"]) for start in rows[:: info["mini_batch_size"]]]
        parts = [{"rows": rows[start : start + info["mini_batch_size"]]} for start in starts]
        found = [self.train_batch(part, self.loss_fn)["metrics"] for part in parts]
        self.counts, norms = ([update[name] for update in found] for name in (COUNTS, "grad_norm"))
        return {"metrics": {COUNTS: list(chain.from_iterable(self.counts)), "mfu": [0.0], "grad_norm": norms}}

    def optimizer_zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def forward_backward_batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> dict[str, Any]:
        found, self.losses = [], [*self.losses, 0.0]
        for start in range(0, len(data["rows"]), self.micro_rows):
            total, metrics = self.call_loss(data["rows"][start : start + self.micro_rows])
            total.backward()
            self.losses[-1] += float(total.detach())
            found.append(metrics[COUNTS])
        return {"metrics": {COUNTS: found}}

    def optimizer_step(self) -> float:
        """That of verl's FSDP engine, which skips a gradient that is not finite."""
        parameters = self.module.parameters()
        self.gradients.append([parameter.grad.clone() for parameter in parameters])
        return transformer_impl.FSDPEngine.optimizer_step(self)

    def get_data_parallel_group(self) -> None:
        return None

    def is_mp_src_rank_with_outputs(self) -> bool:
        return True

    def call_loss(self, rows: list[int]) -> tuple[Tensor, dict[str, Any]]:
        if self.engine is None:
            return self.loss_fn(*self.micro_batch(rows), dp_group=None)
        _, data = self.micro_batch(rows)
        total, output = self.engine.forward_step(engine_batch(data), self.loss_fn, forward_only=False)
        return total, output["metrics"]

    def split(self, name: str) -> Sequence[Tensor]:
        """A column of unequal rows, row by row, split once."""
        column = self.queue.columns[name]
        if self.parts.get(name, (None,))[0] is not column:
            self.parts[name] = column, column.unbind()
        return self.parts[name][1]

    def micro_batch(self, rows: list[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What verl's engine calls a loss with: log-probs of all tokens, shifted by one, and the columns."""
        data: dict[str, Any] = {"dp_size": 1}
        for name, column in self.queue.columns.items():
            if isinstance(column, Tensor):
                is_wide = column.is_nested or column.ndim > 1  # verl's queue gives all rows of tensors as nested
                data[name] = nested([self.split(name)[row] for row in rows]) if is_wide else column[rows]
        found = [self.forward(row) for row in rows]
        pairs = [one if isinstance(one, tuple) else (one, torch.zeros_like(one)) for one in found]
        prompts = [len(self.split("prompts")[row]) for row in rows]
        flat = [
            torch.cat(
                [torch.nn.functional.pad(values, (size - 1, 1)) for size, values in zip(prompts, part, strict=True)]
            )
            for part in zip(*pairs, strict=True)
        ]
        return dict(zip(("log_probs", "entropy"), flat, strict=True)), data


def train(
    trainer: Any,
    rows: Sequence[dict[str, Any]],
    forward: Callable[[int], Any],
    parameters: Sequence[Tensor],
    monkeypatch: Any,
    *,
    micro_rows: int = 4,
    num_padding: int = 0,
    rate: float = 0.0,
    engine: Any = None,
) -> tuple[Workers, dict[str, float], Queue]:
    """Plan a rollout batch and make its updates: (workers with their gradients, metrics, the columns of the batch)."""
    padded = [*rows, *[rows[0] | {"response_mask": rows[0]["response_mask"] * 0}] * num_padding]
    queue = Queue(list_columns(padded))
    tags = [{"is_padding": number >= len(rows)} for number in range(len(padded))]
    queue.batch = Batch([f"uid_{number}_0" for number in range(len(padded))], tags)
    monkeypatch.setattr(trainer_module, "tq", queue)
    given = lambda row: forward(row if row < len(rows) else 0)  # noqa: E731
    trainer.actor_rollout_wg = workers = Workers(queue, given, parameters, micro_rows, rate, engine)
    metrics: dict[str, float] = {}
    batch = trainer._compute_advantage(queue.batch, metrics)
    workers.planned = dict(metrics)
    trainer._update_actor(batch, metrics)
    return workers, metrics, queue


class Batch(SimpleNamespace):
    """verl's KVBatchMeta."""

    def __init__(self, keys: list[str], tags: list[dict[str, Any]]) -> None:
        super().__init__(keys=keys, tags=tags, partition_id="train", extra_info={})

    def __len__(self) -> int:
        return len(self.keys)
