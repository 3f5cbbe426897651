"""Scripted runs, in one process or in several under torchrun: `trl_ranks.py FOLDER CASES STRATEGY …`.

CASES are JSON, {method: fields of a Case}. Each method gets three updates by each strategy. FOLDER/STRATEGY-METHOD.safetensors
holds the gradient of each and how far the parameters of FOLDER/model moved, STRATEGY-METHOD.json the state, the metrics of the
last update and what accelerate calls the strategy. STRATEGY-RANK.json is what a process saw of other runs, but for ZeRO 1 and 2.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, TrainerCallback
from trl_lives import live
from trl_runs import ScriptedFair, scripted

from fairlen.integrations.trl.settings import choose_method, take_num_generations

RANK, WORLD = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
AUTO = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping")


@dataclass(frozen=True)
class Case:
    """The rollout batches of a method."""

    rows: int
    """Of a rollout batch, over all processes and micro-batches."""
    per_prompt: int
    updates: int
    """Of a rollout batch; all but the first are off-policy."""
    seen: dict[str, float]
    """Sums that the method's state has moved by before."""


def settings_of(strategy: str) -> dict[str, Any]:
    """GRPOConfig's settings for "none", "ddp", "fsdp2", "zero1", "zero2" or "zero3"."""
    if strategy == "fsdp2":
        return {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}}
    if strategy.startswith("zero"):
        options = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
        stage = {"stage": int(strategy[-1]), "stage3_param_persistence_threshold": 0}
        return {"deepspeed": {"zero_optimization": stage, **dict.fromkeys(AUTO, "auto"), **options}}
    return {}


def shard_on_cpu() -> None:
    """Let accelerate shard on a CPU: it passes an FSDP plugin over there and would train with DDP, in silence."""
    make = AcceleratorState.__init__

    def make_sharded(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        make(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = make_sharded


def speak_gloo() -> None:
    """Keep DeepSpeed from compiling shared memory for processes of one machine, which takes a minute."""
    from deepspeed.ops import __compatible_ops__

    __compatible_ops__["deepspeed_shm_comm"] = False


class Gradients(TrainerCallback):
    """Keeps the whole gradient of every update."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.found = trainer, list[dict[str, Tensor]]()

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """DeepSpeed's engine makes its step within the backward pass, before the Trainer's callback."""
        wrapper = getattr(self.trainer.accelerator, "deepspeed_engine_wrapped", None)
        if wrapper is None:
            return
        from deepspeed.utils import safe_get_full_grad

        step = wrapper.engine.step

        def keep_and_step() -> None:
            self.keep(safe_get_full_grad)
            step()

        wrapper.engine.step = keep_and_step

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        if not self.trainer.is_deepspeed_enabled:
            self.keep(lambda parameter: whole(parameter.grad))

    def keep(self, read: Any) -> None:
        named = self.trainer.model.named_parameters()
        self.found.append({name: read(parameter).detach().clone() for name, parameter in named})


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def parameters_of(trainer: Any) -> dict[str, Tensor]:
    named = dict(trainer.model.named_parameters())
    if not hasattr(next(iter(named.values())), "ds_id"):
        return {name: whole(parameter.detach()).clone() for name, parameter in named.items()}
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(named.values())):
        return {name: parameter.detach().clone() for name, parameter in named.items()}


def run(folder: Path, strategy: str, name: str, case: Case) -> None:
    micro = 1 if WORLD == 1 else 2  # several processes split what one process takes as a whole
    own = case.rows // WORLD // micro
    made = scripted(
        folder / f"{strategy}-{name}", **settings_of(strategy), num_generations=case.per_prompt, per_device_train_batch_size=own,
        gradient_accumulation_steps=micro, num_iterations=case.updates, max_steps=3, learning_rate=0.1,
    )  # fmt: skip
    composition = take_num_generations(choose_method(name, []), [], case.per_prompt)
    method = composition.method.update(case.seen)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    trainer = ScriptedFair(**made | {"model": model}, method=method)
    start = parameters_of(trainer)
    trainer.first_occurrence = RANK * micro * own % case.per_prompt
    gradients = Gradients(trainer)
    trainer.add_callback(gradients)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "loss/total" in entry][-1]
    parameters = parameters_of(trainer)
    if RANK == 0:
        tensors = {f"{i} {k}": v for i, found in enumerate(gradients.found) for k, v in found.items()}
        tensors |= {f"moved {k}": v - start[k] for k, v in parameters.items()}
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{strategy}-{name}.safetensors")
        told = {"state": trainer.method.state, "logged": logged, "type": str(trainer.accelerator.distributed_type)}
        (folder / f"{strategy}-{name}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    torch.set_num_threads(1)
    shard_on_cpu()
    cases = {name: Case(**case) for name, case in json.loads(sys.argv[2]).items()}
    if any(strategy.startswith("zero") for strategy in sys.argv[3:]):
        speak_gloo()
    for strategy in sys.argv[3:]:
        for name, case in cases.items():
            run(Path(sys.argv[1]), strategy, name, case)
        if strategy in ("zero1", "zero2"):
            continue
        seen = live(Path(sys.argv[1]) / strategy, settings_of(strategy), parameters_of)
        (Path(sys.argv[1]) / f"{strategy}-{RANK}.json").write_text(json.dumps(seen))
    if WORLD > 1:
        torch.distributed.destroy_process_group()
