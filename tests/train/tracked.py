"""The bytes that tensors without contents hold at the same time, counted storage by storage as operations make and drop them."""

from __future__ import annotations

import ctypes
import subprocess
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft.tuners import lora  # noqa: F401  where bitsandbytes is, it makes tensors of its own when it is imported
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedConfig

from fairlen.policy.head import Head
from fairlen.policy.model import Policy
from fairlen.policy.pack import ModelInput
from fairlen.train.model_sizes import build_shape, make_fake
from fairlen.train.run.config import TrainConfig

BLOCK = 512
"""Bytes that torch's CUDA allocator rounds up to."""


class Tracker(TorchDispatchMode):
    """Follows every storage from the operation that made it until nothing refers to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.held = self.peak = 0
        self.peaks: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.follow(tree_leaves(found))
        return found

    def follow(self, leaves: list[Any]) -> None:
        """Count the storages of tensors that are not known yet, until they are gone."""
        for tensor in leaves:
            if isinstance(tensor, torch.Tensor) and (storage := tensor.untyped_storage())._cdata not in self.sizes:
                self.sizes[storage._cdata] = -(-storage.nbytes() // BLOCK) * BLOCK
                self.held += self.sizes[storage._cdata]
                self.peak = max(self.peak, self.held)
                weakref.finalize(storage, self.drop, storage._cdata)

    def drop(self, key: int) -> None:
        self.held -= self.sizes.pop(key)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Note the most that is held within."""
        self.peak = self.held
        yield
        self.peaks[name] = self.peak


def build(shape: PreTrainedConfig, config: TrainConfig, positions: int, tracker: Tracker) -> tuple[Policy, ModelInput]:
    """Return a policy without contents on the default device, and one row that is trained from its first token on."""
    is_low = config.dtype == "bfloat16"
    with torch.device("meta"):
        model, _ = build_shape(shape, config, torch.bfloat16 if config.lora_rank and is_low else torch.float32)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    make_fake(model)
    tracker.follow([*model.parameters(), *model.buffers()])
    head: Any = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    tokens = torch.zeros(1, positions, dtype=torch.long)
    return Policy(model, None, Head(head), autocast=is_low), ModelInput(tokens, torch.arange(positions), tokens[0], 1.0)


def track_update(shape: PreTrainedConfig, config: TrainConfig, positions: int) -> dict[str, int]:
    """Return the most that is held in the second of two micro-batches of one row, and in the optimizer's second step.

    The second: gradients of the first, and moments of the first step, are there.
    """
    with FakeTensorMode(), Tracker() as tracker:
        policy, inputs = build(shape, config, positions, tracker)
        optimizer = torch.optim.AdamW(policy.trained().values(), foreach=False, fused=True)
        policy.forward(inputs).logprobs.sum().backward()
        optimizer.step()
        with tracker.phase("update"):
            policy.forward(inputs).logprobs.sum().backward()
        with tracker.phase("step"):
            optimizer.step()
    return tracker.peaks


GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""
"""What autograd asks of a device in a forward pass, for a torch built without CUDA. Its backward pass asks for more."""


def pretend_cuda(folder: Path) -> None:
    """Let this process, for good, run forward passes with gradients on fake tensors of a device cuda."""
    torch_folder = Path(torch.__file__).parent
    (folder / "guard.cpp").write_text(GUARD)
    command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder}/include", str(folder / "guard.cpp")]
    command += ["-o", str(folder / "guard.so"), f"-L{torch_folder}/lib", "-lc10"]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(folder / "guard.so"))
    setattr(torch.cuda, "is_bf16_supported", lambda *_: True)  # noqa: B010
    setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)  # noqa: B010


def track_forward(shape: PreTrainedConfig, config: TrainConfig, positions: int, device: str) -> tuple[int, int]:
    """Return the most that a forward pass on a device holds, and what it leaves for the backward pass."""
    with torch.device(device), FakeTensorMode(), Tracker() as tracker:
        policy, inputs = build(shape, config, positions, tracker)
        with tracker.phase("forward"):
            outputs = policy.forward(inputs)
        assert outputs.logprobs.device.type == device
    return tracker.peaks["forward"], tracker.held
