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
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fairlen.engine.runner import num_kept_rows
from fairlen.hangs import TrainingStopped
from fairlen.policy.lora import find_targets
from fairlen.policy.model import body
from fairlen.settings import PolicySettings

PROBE_TOKENS = 256

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEEP, _MARGIN = 2**31 - 1, 64 * 2**20
_LARGE = 32 * 2**20
"""Blocks of so many bytes are given back; micro-batches of the shipped model have smaller ones."""
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
    """Whether it says that memory ran out."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in SHORTAGES)


def release_memory() -> None:
    """Gives back what nothing refers to any more; what an exception's traceback refers to is kept until that is gone."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def keep_freed_memory() -> bool:
    """Tells glibc's allocator so, for this process; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _KEEP), (_TOP_PAD, _MARGIN))
    return all([mallopt(name, value) == 1 for name, value in settings])


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
    """Of a model of a shape, tied ones once."""
    with FakeTensorMode():
        return AutoModelForCausalLM.from_config(shape, trust_remote_code=False).num_parameters()


def measure(shape: PreTrainedConfig, config: PolicySettings, longest: int) -> Measured:
    """Sizes of a model of a shape, for a run with `config` whose rows have `longest` positions."""
    with FakeTensorMode():
        return measure_without_contents(shape, config, longest)


def measure_without_contents(shape: PreTrainedConfig, config: PolicySettings, longest: int) -> Measured:
    """`measure`, where every tensor is made without contents."""
    text: Any = shape.get_text_config()
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if config.lora_rank and config.dtype == "bfloat16":
        dtype = torch.bfloat16
    # experts have no float32 arithmetic on tensors without contents
    has_experts = bool(getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None))
    held = torch.bfloat16 if has_experts else dtype
    scale = dtype.itemsize / held.itemsize
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        shape, dtype=held, attn_implementation="sdpa", trust_remote_code=False
    ).train()
    frozen = sum(parameter.numel() for parameter in model.parameters())
    if config.lora_rank:
        model.requires_grad_(False)
        for name in find_targets(model, config.lora_targets):
            model.set_submodule(name, Adapted(model.get_submodule(name), config.lora_rank))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    num_trained = sum(parameter.numel() for parameter in trained)
    slope, start = kept_for_backward(model, is_low=config.dtype == "bfloat16")
    with torch.no_grad():
        cache = model.eval()(input_ids=torch.zeros(1, PROBE_TOKENS, dtype=torch.long), use_cache=True, logits_to_keep=1)
    states, fixed = split_states(getattr(cache, "past_key_values", None) or getattr(cache, "cache_params", None))
    return Measured(
        num_parameters=frozen,
        largest=max(parameter.numel() for parameter in trained) * dtype.itemsize,
        weights=frozen * dtype.itemsize + (4 * num_trained if config.lora_rank else 0),
        trained=num_trained,
        num_layers=text.num_hidden_layers,
        activation=int(scale * slope),
        casts=start,
        boundary=text.hidden_size * dtype.itemsize,
        vocab_size=cast(Tensor, model.get_input_embeddings().weight).shape[0],
        position=sum(tensor[0, :, 0].numel() * dtype.itemsize for pair in states for tensor in pair),
        fixed_state=sum(tensor.numel() * 4 for tensor in fixed),
        kept_rows=num_kept_rows(states, config.max_num_seqs, longest) if states and not fixed else 0,
    )


def kept_for_backward(model: PreTrainedModel, is_low: bool) -> tuple[float, int]:
    """Bytes that a forward keeps for each position, and however many there are: weights cast to bfloat16 where it `is_low`."""
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
    """Within, what autograd keeps is noted: bytes of each storage once, the parameters' own left out."""
    own = {parameter.untyped_storage()._cdata for parameter in parameters}
    saved: dict[int, tuple[int, Tensor]] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage.nbytes(), tensor  # the tensor keeps the storage's address taken
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield saved


def split_states(cache: Any) -> tuple[list[tuple[Tensor, Tensor]], list[Tensor]]:
    """Keys and values of each layer that has them, and states whose size does not grow."""
    layers = getattr(cache, "layers", ())
    pairs = [(layer.keys, layer.values) for layer in layers if getattr(layer, "keys", None) is not None]
    names = ("conv_states", "recurrent_states")
    found = [getattr(layer, name, None) for layer in layers for name in names]
    return pairs, [tensor for tensor in found if tensor is not None]
