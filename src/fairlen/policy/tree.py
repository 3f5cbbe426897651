"""Rows of tokens that share prefixes, as a forest in which every (prefix, token) has one place, and attention along it.

Sorted rows, each without what it shares with the one before it, are a forest in depth-first preorder: what follows a token lies
between it and `until`, so that a token at q sees that at k where k <= q < until[k]. Attention is `tree.c` on the CPU and
FlexAttention on CUDA, over blocks of 128 x 128 positions in which a token sees another; without a forest plain sdpa.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from fairlen.batch import Ints
from fairlen.engine.cache import count_shared
from fairlen.engine.device import build_library, upload

LEAST_SHARED = 8
"""A shorter common prefix is repeated: a first token that all rows have would make one tree of all trees."""
NAME = "fairlen_tree"
SOURCE = Path(__file__).with_name("tree.c")
TYPES: dict[torch.dtype, dict[str, object]] = {torch.float32: {}, torch.float64: {"DOUBLE": 1}}
DIM_MULTIPLE = 16
BLOCK = 128  # positions of a block's side, as FlexAttention's kernels have it by default
NO_KERNEL = (
    f"attention along trees needs a C compiler (cc, or CC) and heads of a multiple of {DIM_MULTIPLE}, on CUDA at most float32; "
    "its heads have {}"
)
UNGROUPED = nn.Identity()
"""A layer without groups of heads: the kernels that are not quadratic in memory take no groups in float32."""


@dataclass(frozen=True)
class SortedRows:
    """Rows with common prefixes next to each other."""

    rows: Sequence[Ints]  # token ids, at least one each
    order: Ints  # positions in `rows`
    shared: Ints  # in that order, leading tokens shared with the row before; 0 where a tree begins

    def split(self, max_tokens: int) -> Iterator[slice]:
        """Yield parts of the order that are forests of at most `max_tokens`; one row may have more."""
        begin, taken = 0, 0
        for place, (row, shared) in enumerate(zip(self.order, self.shared.tolist(), strict=True)):
            length = len(self.rows[row])
            if taken and taken + length - shared > max_tokens:
                yield slice(begin, place)
                begin, taken, shared = place, 0, 0  # a prefix that was shared is there again
            taken += length - shared
        yield slice(begin, len(self.order))

    def forest(self, part: slice) -> Forest:
        """The forest of a part of the order, with paths in that order."""
        return build_forest([self.rows[row] for row in self.order[part]], [0, *self.shared[part][1:].tolist()])


@dataclass(frozen=True)
class Forest:
    """Tokens in depth-first preorder, [N]."""

    tokens: Ints
    depth: Ints  # position in its row, [N]
    parent: Ints  # place of the token before it, -1 at a root, [N]
    until: Ints  # one past the last token that follows it on some row: tokens from it to there see it, [N]
    starts: Ints  # of each tree, and the end, [trees + 1]
    paths: tuple[Ints, ...]  # places of each row's tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        return int(self.depth.max()) + 1


def sort_rows(rows: Sequence[Ints], least_shared: int = LEAST_SHARED) -> SortedRows:
    """Sort rows of token ids, and count what neighbours share: less than `least_shared` tokens count as none."""
    keys = [row.astype(">u4").tobytes() for row in rows]  # bytes of this order compare as the tokens do
    order = sorted(range(len(rows)), key=keys.__getitem__)
    shared = np.zeros(len(rows), np.int64)
    for place in range(1, len(order)):
        count = count_shared(keys[order[place - 1]], keys[order[place]]) // 4  # bytes of a token
        shared[place] = count if count >= least_shared else 0
    return SortedRows(rows, np.array(order, np.int64), shared)


def build_forest(rows: Sequence[Ints], shared: Sequence[int]) -> Forest:
    """The forest of sorted rows, each sharing `shared` leading tokens with the one before it."""
    lengths = [len(row) for row in rows]
    num_tokens = sum(lengths) - sum(shared)
    depth, parent, until = np.empty(num_tokens, np.int64), np.arange(-1, num_tokens - 1), np.empty(num_tokens, np.int64)
    places = np.arange(num_tokens)
    paths, starts, path, end = [], [], places[:0], 0
    for length, common in zip(lengths, shared, strict=True):
        begin, end = end, end + length - common
        until[path[common:]] = begin  # what the new row does not share is over
        depth[begin:end] = places[common:length]
        if end > begin:
            parent[begin] = path[common - 1] if common else -1
        if not common:
            starts.append(begin)
        path = np.concatenate((path[:common], places[begin:end]))
        paths.append(path)
    until[path] = end
    tokens = np.concatenate([row[common:] for row, common in zip(rows, shared, strict=True)])
    return Forest(tokens, depth, parent, until, np.array([*starts, num_tokens]), tuple(paths))


class ForestMask:
    """A forest that a model reads as one row; FSDP would copy a dataclass, without masks, for every layer."""

    def __init__(self, forest: Forest, device: torch.device) -> None:
        self.forest, self.device = forest, device

    @cached_property
    def block_mask(self) -> BlockMask:
        return build_block_mask(self.forest.until, self.device)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    tree: ForestMask | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend from `query` [1, heads, N, D] to `key`, `value` [1, key heads, N, D or Dv] along the tree: [1, N, heads, Dv].

    Without a tree all is as in sdpa. Raises ValueError for options that trees do not support, and without a kernel.
    """
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # norms of queries and keys give float32, values are low
        # attention in float32 takes a CPU less time than in bfloat16, and a tree a quarter of it
        dtype = torch.float32 if kind == "cpu" else torch.get_autocast_dtype(kind)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if tree is None:
        options |= {"scaling": scaling, "dropout": dropout}
        if query.device.type == "cuda" and query.dtype in TYPES:  # only flash attention takes grouped heads as they are
            options.setdefault("is_causal", getattr(module, "is_causal", True))
            module, key, value = UNGROUPED, *repeat_heads(query, key, value)
        with torch.autocast(kind, enabled=False):
            return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window = options.get("sliding_window")
    if window is not None and window < tree.forest.longest:
        raise ValueError(f"a sliding window of {window} tokens is shorter than a row of {tree.forest.longest}")
    if dropout > 0:
        raise ValueError(f"attention dropout of {dropout} would be drawn once for all rows that share a token")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if serves(query, value):
        return compile_flex(scale)(query, key, value, tree.block_mask).transpose(1, 2), None
    wide = torch.promote_types(query.dtype, torch.float32)
    states = (tensor[0].transpose(0, 1).to(wide) for tensor in (query, key, value))
    out: Any = AlongTree.apply(*states, tree.forest, scale)
    return out[None].to(query.dtype), None


def repeat_heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values for each head of the queries."""
    groups = query.shape[1] // key.shape[1]
    return (key, value) if groups == 1 else (key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))


def serves(query: Tensor, value: Tensor) -> bool:
    """Whether the kernels take these states: on CUDA, single precision at most, heads wide enough for tensor cores."""
    return query.device.type == "cuda" and query.dtype != torch.float64 and min(query.shape[-1], value.shape[-1]) >= 16


def find_blocks(until: Ints) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of queries (row) and keys (column) that are seen in part, and those seen whole, [blocks, blocks].

    They follow from the least and the largest `until` of 128 tokens: no pair of positions has an entry, on host or device.
    """
    first = np.arange(0, len(until), BLOCK)
    query, last, least = first[:, None], np.maximum.reduceat(until, first), np.minimum.reduceat(until, first)
    whole = (query > first) & (query + BLOCK <= least)
    return (query >= first) & (query < last) & ~whole, whole


def build_block_mask(until: Ints, device: torch.device) -> BlockMask:
    """A forest's mask as FlexAttention reads it; the host does not wait for the device."""
    ends = upload(until.astype(np.int32), device)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    some, whole = find_blocks(until)
    lists = (tensor for blocks in (some, whole, some.T, whole.T) for tensor in list_blocks(blocks, device))
    return BlockMask((len(until), len(until)), *lists, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=sees)  # pyright: ignore


def list_blocks(blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """By row, the number of blocks, [1, 1, rows], and their columns before all others, [1, 1, rows, columns]."""
    if len(blocks) == 1:
        blocks = np.pad(blocks, (0, 1))  # compilers take a size of 1 for a constant, and all others for one kind
    order = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return upload(blocks.sum(1, dtype=np.int32), device)[None, None], upload(order, device)[None, None]


@cache
def compile_flex(scale: float) -> Callable[[Tensor, Tensor, Tensor, BlockMask], Tensor]:
    """Attention from [1, heads, N, D] to keys and values [1, key heads, N, D or Dv], compiled once for all N."""
    options: Any = {"BACKEND": "TRITON"}  # below 128 positions another kernel would be compiled, that of decoding

    def attend(query: Tensor, key: Tensor, value: Tensor, blocks: BlockMask) -> Any:
        return flex_attention(query, key, value, None, blocks, scale, enable_gqa=True, kernel_options=options)

    return torch.compile(attend, dynamic=True)


class Job(ctypes.Structure):
    """Argument of the functions of `tree.c`."""

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
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def call(function: str, forest: Forest, scale: float, **tensors: Tensor) -> None:
    """Call a function of `tree.c`. Raises MemoryError where it cannot allocate."""
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
    if kernel is None:
        raise ValueError(f"{NO_KERNEL.format(query.shape[-1])}, and values of {value.shape[-1]}")
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
    """Build `tree.c` for one shape of heads; None where no compiler does."""
    library = build_library(SOURCE, TYPES[dtype] | {"DIM": dim, "VALUE_DIM": value_dim})
    if library is None:
        return None
    return {name: library[name] for name in ("attend", "differentiate")}


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)
