"""Memory: sizes of a model that is never built, shortages, and memory of the CPU that is kept for the next use.

For its sizes a model of the same shape, with tensors that have sizes and no contents, reads a few tokens; what it then keeps for
a backward pass, and of a prefix, is counted. A shortage is recognised whichever library reports it.

glibc returns every large block at once, and a training step frees and takes the same large blocks again and
again: the page faults cost more than the arithmetic of a small model. Blocks of a large model are still given back: kept,
they would be cut up for smaller ones, and a run would take twice the memory and more.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fairlen.engine.engine import embeddings_of, num_kept_rows
from fairlen.hangs import TrainingStopped
from fairlen.policy.lora import find_targets
from fairlen.policy.model import body
from fairlen.settings import PolicySettings

PROBE_TOKENS = 256
MALLOPT = {-3: 32 * 2**20, -1: 2**31 - 1, -2: 64 * 2**20}
"""M_MMAP_THRESHOLD (larger blocks are given back; the shipped model has smaller ones), M_TRIM_THRESHOLD and M_TOP_PAD."""
SHORTAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""How errors that are not torch.OutOfMemoryError say it."""


class OutOfMemoryError(TrainingStopped):
    """Not even the smallest micro-batch fits."""


def is_shortage(error: BaseException) -> bool:
    """Return whether it says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in SHORTAGES)


def release_memory() -> None:
    """Give back what nothing refers to any more; what an exception's traceback refers to is kept until that is gone."""
    gc.collect()
    torch.cuda.empty_cache()


def keep_freed_memory() -> None:
    """Tell glibc's allocator so, for this process; nothing happens where there is no glibc."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for name, value in MALLOPT.items():
            mallopt(name, value)


@dataclass(frozen=True)
class Measured:
    """A model of a shape, in bytes."""

    num_parameters: int
    largest: int
    """Bytes of its largest trained weight."""
    weights: int
    trained: int
    """Trained parameters."""
    num_layers: int
    activation: int
    """Kept for the backward pass, for each position."""
    casts: int
    """Kept for it besides: weights in bfloat16."""
    boundary: int
    """Kept for each position and layer with gradient checkpointing."""
    vocab_size: int
    position: int
    """Keys and values of one position."""
    fixed_state: int
    """What else a prefix takes, however long."""
    kept_rows: int


def count_parameters(shape: PreTrainedConfig) -> int:
    """Return the parameters of a model of a shape, tied ones once."""
    with FakeTensorMode():
        return AutoModelForCausalLM.from_config(shape, trust_remote_code=False).num_parameters()


def measure(shape: PreTrainedConfig, config: PolicySettings, longest: int) -> Measured:
    """Return sizes of a model of a shape, for a run with `config` whose rows have `longest` positions."""
    text: Any = shape.get_text_config()
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if config.lora_rank and config.dtype == "bfloat16":
        dtype = torch.bfloat16
    # experts have no float32 arithmetic on tensors without contents
    has_experts = bool(getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None))
    held = torch.bfloat16 if has_experts else dtype
    with FakeTensorMode():
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            shape, dtype=held, attn_implementation="sdpa", trust_remote_code=False
        ).train()
        num_parameters = model.num_parameters()
        if config.lora_rank:
            model.requires_grad_(False)
            for name in find_targets(model, config.lora_targets):
                model.set_submodule(name, Adapted(model.get_submodule(name), config.lora_rank))
        slope, start = kept_for_backward(model, is_low=config.dtype == "bfloat16")
        states, fixed = states_of_prefix(model.eval())
    trained = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return Measured(
        num_parameters=num_parameters,
        largest=max(trained) * dtype.itemsize,
        weights=num_parameters * dtype.itemsize + (4 * sum(trained) if config.lora_rank else 0),
        trained=sum(trained),
        num_layers=text.num_hidden_layers,
        activation=int(slope * dtype.itemsize / held.itemsize),
        casts=start,
        boundary=text.hidden_size * dtype.itemsize,
        vocab_size=embeddings_of(model).shape[0],
        position=sum(tensor[0, :, 0].numel() * dtype.itemsize for pair in states for tensor in pair),
        fixed_state=sum(tensor.numel() * 4 for tensor in fixed),
        kept_rows=num_kept_rows(states, config.max_num_seqs, longest) if states and not fixed else 0,
    )


def kept_for_backward(model: PreTrainedModel, is_low: bool) -> tuple[float, int]:
    """Return bytes that a forward keeps for each position, and in any case: weights cast to bfloat16 where it `is_low`."""
    sizes = []
    for length in (PROBE_TOKENS, 2 * PROBE_TOKENS):
        tokens = torch.zeros(1, length, dtype=torch.long)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_low), counted(list(model.parameters())) as saved:
            body(model)(input_ids=tokens, use_cache=False, attention_mask=None)
        sizes.append(sum(size for size, _ in saved.values()))
    slope = (sizes[1] - sizes[0]) / PROBE_TOKENS
    return slope, max(int(sizes[0] - slope * PROBE_TOKENS), 0)


class Adapted(nn.Module):
    """A linear layer with an adapter, for its sizes."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        self.base = base
        narrow, wide = cast(Tensor, base.weight).shape[:: 1 if isinstance(base, Conv1D) else -1]
        self.down, self.up = nn.Linear(narrow, rank, bias=False), nn.Linear(rank, wide, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.base(hidden)
        return (found + self.up(self.down(hidden.to(self.down.weight.dtype)))).to(found.dtype)


@contextlib.contextmanager
def counted(parameters: list[Tensor]) -> Iterator[dict[int, tuple[int, Tensor]]]:
    """Note what autograd keeps within: bytes of each storage once, the parameters' own left out."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    saved: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes(), tensor  # the tensor keeps the storage's address taken
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield saved


@torch.no_grad()
def states_of_prefix(model: PreTrainedModel) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Return keys and values of each layer that has them, and states whose size does not grow."""
    found = model(input_ids=torch.zeros(1, PROBE_TOKENS, dtype=torch.long), use_cache=True, logits_to_keep=1)
    cache: Any = getattr(found, "past_key_values", None) or getattr(found, "cache_params", None)
    pairs = [(layer.keys, layer.values) for layer in cache.layers if getattr(layer, "keys", None) is not None]
    fixed = [getattr(layer, name, None) for layer in cache.layers for name in ("conv_states", "recurrent_states")]
    return pairs, [tensor for tensor in fixed if tensor is not None]
