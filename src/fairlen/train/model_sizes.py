"""Sizes of a model of a shape, in bytes, found on tensors without contents before any memory is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from fairlen.engine.cache import num_kept_rows
from fairlen.engine.engine import embeddings_of
from fairlen.policy.lora import adapters_of, add_adapters
from fairlen.policy.model import body
from fairlen.settings import PolicySettings
from fairlen.train.optimizer import count_moments, embedding_weights
from fairlen.train.run.config import TrainConfig

PROBE_TOKENS = 320
"""Read by the model that is measured: whole chunks of 64, of layers that compute in chunks, and no usual width of a weight."""
ATTENTION = "fairlen_sizes"
"""Under which attention without contents is registered."""


def attend(_: nn.Module, query: Tensor, key: Tensor, value: Tensor, *__: Any, **___: Any) -> tuple[Tensor, None]:
    """Attend as FlashAttention, which keeps queries, keys, values, its result and a number for each head and position."""
    is_low = torch.is_autocast_enabled(query.device.type)
    heads = [tensor.to(torch.bfloat16) if is_low else tensor for tensor in (query, key, value)]
    made = torch.ops.aten._scaled_dot_product_flash_attention(*heads, 0.0, True)[0]
    return made[..., : value.shape[-1]].transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, attend)


@dataclass(frozen=True)
class Sizes:
    """A model of a shape, in bytes."""

    num_parameters: int
    """Of the model without adapters, tied ones once."""
    weights: int
    trained: int
    """Trained parameters."""
    moments: int
    """Of the optimizer, on the device."""
    largest: int
    """Bytes of its largest trained weight."""
    head: int
    """Elements of the output layer's weight where it is trained, or 0."""
    activation: int
    """Kept for the backward pass, for each position."""
    casts: int
    """Kept for it besides: weights in bfloat16."""
    layer: int
    """The part of `activation` that one layer has."""
    boundary: int
    """Kept between layers for each position, with gradient checkpointing."""
    vocab_size: int
    position: int
    """Keys and values of one position."""
    fixed_state: int
    """What else a prefix takes, however long."""
    kept_rows: int


def build_shape(shape: PreTrainedConfig, config: PolicySettings, dtype: torch.dtype) -> tuple[PreTrainedModel, int]:
    """Return a model of a shape on the meta device, with the adapters of `config`, and its parameters without them."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            shape, dtype=dtype, attn_implementation=ATTENTION, trust_remote_code=False
        ).train()
        num_parameters = model.num_parameters()
        if adapters := adapters_of(config):
            add_adapters(model, adapters)
    return model, num_parameters


def count_parameters(shape: PreTrainedConfig) -> int:
    """Return the parameters of a model of a shape, tied ones once."""
    return build_shape(shape, PolicySettings(), torch.float32)[1]


def measure(shape: PreTrainedConfig, config: TrainConfig, longest: int) -> Sizes:
    """Return sizes of a model of a shape, for a run with `config` whose rows have `longest` positions."""
    text: Any = shape.get_text_config()
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if config.lora_rank and config.dtype == "bfloat16":
        dtype = torch.bfloat16
    cached = torch.bfloat16 if config.dtype == "bfloat16" else dtype
    # experts have no float32 arithmetic on tensors without contents
    has_experts = bool(getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None))
    held = torch.bfloat16 if has_experts else dtype
    model, num_parameters = build_shape(shape, config, held)
    with FakeTensorMode():
        make_fake(model)
        activation, casts = kept_for_backward(model, is_low=config.dtype == "bfloat16")
        states, fixed = states_of_prefix(model.eval())
        states = [(keys.to(cached), values.to(cached)) for keys, values in states]
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trained = [weight.numel() for weight in weights]
    head: Any = model.get_output_embeddings()
    return Sizes(
        num_parameters=num_parameters,
        weights=num_parameters * dtype.itemsize + (4 * sum(trained) if config.lora_rank else 0),
        trained=sum(trained),
        moments=sum(
            count_moments(config.optim, weights, embedding_weights(model), 8 if config.dtype == "float64" else 4)
        ),
        largest=max(trained) * dtype.itemsize,
        head=head.weight.numel() * head.weight.requires_grad,
        activation=activation * dtype.itemsize // held.itemsize,
        casts=casts,
        layer=activation * dtype.itemsize // held.itemsize // text.num_hidden_layers,
        boundary=text.num_hidden_layers * text.hidden_size * dtype.itemsize,
        vocab_size=embeddings_of(model).shape[0],
        position=sum(tensor[0, :, 0].nbytes for pair in states for tensor in pair),
        fixed_state=sum(tensor.numel() * 4 for tensor in fixed),
        kept_rows=num_kept_rows(states, config.max_num_seqs, longest) if states and not fixed else 0,
    )


def make_fake(model: nn.Module) -> None:
    """Put tensors of the current FakeTensorMode in the place of a model's own, tied ones once."""
    made: dict[Tensor, Tensor] = {}
    for module in model.modules():
        for tensors in cast(tuple[dict[str, Any], ...], (module._parameters, module._buffers)):
            for name, tensor in tensors.items():
                if tensor is not None:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                    is_weight = isinstance(tensor, nn.Parameter)
                    tensors[name] = made.setdefault(
                        tensor, nn.Parameter(fake, tensor.requires_grad) if is_weight else fake
                    )


def kept_for_backward(model: PreTrainedModel, is_low: bool) -> tuple[int, int]:
    """Return bytes that a forward keeps for each position, and in any case: weights cast to bfloat16 where it `is_low`."""
    tokens = torch.zeros(1, PROBE_TOKENS, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_low), counted(list(model.parameters())) as saved:
        body(model)(input_ids=tokens, use_cache=False, attention_mask=None)
    shapes = {tuple(sorted(parameter.shape)) for parameter in model.parameters()}
    casts = sum(size for size, tensor in saved.values() if tuple(sorted(tensor.shape)) in shapes)
    return (sum(size for size, _ in saved.values()) - casts) // PROBE_TOKENS, casts


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
