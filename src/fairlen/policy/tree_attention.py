"""Attention along the rows of a forest, as transformers' attention interface calls it; plain sdpa where there is no forest.

So it may stay installed: gradient checkpointing comes back to it in the backward pass, and padded rows go through it
unchanged. On the CPU `tree.c` computes it without masks; elsewhere, in half precision and without a compiler it is sdpa
with one mask a tree. Not here: learned sinks, windows shorter than a row, dropout; they are refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fairlen.engine.attention import build_library
from fairlen.policy.tree import Forest

NAME = "fairlen_tree"
"""Under which it is registered."""
SOURCE = Path(__file__).with_name("tree.c")
TYPES: dict[torch.dtype, dict[str, object]] = {torch.float32: {}, torch.float64: {"DOUBLE": 1}}
DIM_MULTIPLE = 16


@dataclass(frozen=True, eq=False)
class Tree:
    """A forest that a model reads as one row."""

    forest: Forest
    device: torch.device

    @cached_property
    def masks(self) -> tuple[Tensor, ...]:
        """For each tree which token (row) sees which (column), [n, n]."""
        until = torch.from_numpy(self.forest.until).to(self.device)
        places = torch.arange(len(until), device=self.device)
        parts = [slice(*bounds) for bounds in pairwise(self.forest.starts.tolist())]
        return tuple((places[p] <= places[p, None]) & (places[p, None] < until[p]) for p in parts)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree: Tree | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """From `query` [1, heads, N, D], `key`, `value` [1, key heads, N, D or Dv] along the tree: [1, N, heads, Dv].

    Without a tree all is as in sdpa. Raises ValueError for what a tree would get wrong.
    """
    if tree is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options
        )
    refuse(tree, dropout, options)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if find_kernel(query, value) is None:
        return attend_masked(query, key, value, tree, scale), None
    states = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out: Any = AlongTree.apply(*states, tree.forest, scale)
    return out[None], None


def refuse(tree: Tree, dropout: float, options: dict[str, Any]) -> None:
    """Raises ValueError for what attention along a tree does not do."""
    window = options.get("sliding_window")
    if dropout > 0:
        raise ValueError(f"attention dropout of {dropout} would be drawn once for all rows that share a token")
    if options.get("s_aux") is not None:
        raise ValueError("attention has learned sinks")
    if window is not None and window < tree.forest.longest:
        raise ValueError(f"a sliding window of {window} tokens is shorter than a row of {tree.forest.longest}")
    if options.get("is_causal") is False:
        raise ValueError("attention is not causal")


def attend_masked(query: Tensor, key: Tensor, value: Tensor, tree: Tree, scale: float) -> Tensor:
    """The same by matrix products, tree by tree."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    sizes = [len(mask) for mask in tree.masks]
    parts = zip(*(tensor.split(sizes, 2) for tensor in (query, key, value)), tree.masks, strict=True)
    mixed = [nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale) for q, k, v, mask in parts]
    return torch.cat(mixed, 2).transpose(1, 2)


class Job(ctypes.Structure):
    """What one call of `tree.c` works on."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "gradient", "out", "logsum")),
        *((name, ctypes.c_void_p) for name in ("query_gradient", "key_gradient", "value_gradient")),
        *((name, ctypes.c_void_p) for name in ("parent", "depth", "until", "starts")),
        *((name, ctypes.c_int64) for name in ("trees", "longest", "heads", "key_heads", "threads")),
        *((name, ctypes.c_int64) for name in ("query_row", "query_head", "key_row", "key_head")),
        *((name, ctypes.c_int64) for name in ("value_row", "value_head", "gradient_row", "gradient_head")),
        ("scale", ctypes.c_double),
    ]


class AlongTree(torch.autograd.Function):
    """`tree.c`: from `query` [N, heads, D], `key`, `value` [N, key heads, D or Dv] to [N, heads, Dv]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, forest: Forest, scale: float) -> Tensor:
        query, key, value = (with_dense_heads(tensor) for tensor in (query, key, value))
        out, logsum = query.new_empty(*query.shape[:2], value.shape[2]), query.new_empty(query.shape[:2])
        ctx.forest, ctx.scale = forest, scale
        ctx.save_for_backward(query, key, value, out, logsum)
        call("attend", forest, scale, query=query, key=key, value=value, out=out, logsum=logsum)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        query, key, value, out, logsum = ctx.saved_tensors
        found = tuple(query.new_zeros(tensor.shape) for tensor in (query, key, value))
        names = ("query_gradient", "key_gradient", "value_gradient")
        call(
            "differentiate", ctx.forest, ctx.scale, query=query, key=key, value=value, out=out, logsum=logsum,
            gradient=with_dense_heads(gradients[0]), **dict(zip(names, found, strict=True)),
        )  # fmt: skip
        return *found, None, None


def with_dense_heads(tensor: Tensor) -> Tensor:
    """The same numbers, each head's back to back."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def call(function: str, forest: Forest, scale: float, **tensors: Tensor) -> None:
    """Calls a function of `tree.c`. Raises MemoryError where it has none to work in."""
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    job = Job(scale=scale, threads=torch.get_num_threads(), heads=query.shape[1], key_heads=key.shape[1])
    for name, tensor in tensors.items():
        setattr(job, name, tensor.data_ptr())
    for name in {"query", "key", "value", "gradient"} & tensors.keys():
        setattr(job, f"{name}_row", tensors[name].stride(0))
        setattr(job, f"{name}_head", tensors[name].stride(1))
    for name in ("parent", "depth", "until", "starts"):
        setattr(job, name, getattr(forest, name).ctypes.data)
    job.trees, job.longest = len(forest.starts) - 1, forest.longest
    kernel = find_kernel(query, value)
    assert kernel is not None
    if not kernel[function](ctypes.byref(job)):
        raise MemoryError(f"no memory for attention over {forest.longest} tokens in {job.threads} threads")


def find_kernel(query: Tensor, value: Tensor) -> dict[str, Callable[..., int]] | None:
    """The functions of `tree.c` for these states; None where it does not serve."""
    dims = query.shape[-1], value.shape[-1]
    if query.device.type != "cpu" or query.dtype not in TYPES or any(dim % DIM_MULTIPLE for dim in dims):
        return None
    return build(query.dtype, *dims)


@cache
def build(dtype: torch.dtype, dim: int, value_dim: int) -> dict[str, Callable[..., int]] | None:
    """The functions of `tree.c` for one shape of heads; None where there is no compiler that builds them."""
    library = build_library(SOURCE, TYPES[dtype] | {"DIM": dim, "VALUE_DIM": value_dim})
    if library is None:
        return None
    return {name: library[name] for name in ("attend", "differentiate")}


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
