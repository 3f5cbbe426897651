"""Attention of new tokens over cached rows of different lengths, as transformers' attention interface calls it.

Grouped heads share keys and values without copies of them, and the softmax is at least float32.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

FLAGS = ("-O3", "-march=native", "-fPIC")


def build_library(source: Path, names: Mapping[str, object], flags: Sequence[str] = ()) -> ctypes.CDLL | None:
    """The functions of `source`, compiled with these macros and flags; None where there is no compiler that builds it."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    options = [*FLAGS, *flags, *(f"-D{name}={value}" for name, value in names.items())]
    for threading in (["-fopenmp"], []):
        with tempfile.TemporaryDirectory() as folder:
            made, loaded = (str(Path(folder) / source.with_suffix(ending).name) for ending in (".o", ".so"))
            commands = ([*options, *threading, "-c", str(source), "-o", made], ["-shared", made, "-o", loaded, "-lm"])
            if any(subprocess.run([compiler, *c], capture_output=True, check=False).returncode for c in commands):
                continue
            try:
                return ctypes.CDLL(loaded)
            except OSError:  # no OpenMP in this process
                continue
    return None


SOURCE = Path(__file__).with_name("attention.c")
TYPES = {torch.float32: ("float", "expf", "tanhf"), torch.float64: ("double", "exp", "tanh")}
ARGUMENTS = [ctypes.c_void_p] * 6 + [ctypes.c_int64] * 9 + [ctypes.c_double] * 2
UNBOUNDED = 2**62
"""A window without an end."""


@cache
def build(dtype: torch.dtype, groups: int, dim: int, value_dim: int) -> Callable[..., None] | None:
    """The C function for one shape of heads; None where there is no compiler that builds it."""
    real, exp, tanh = TYPES[dtype]
    names = {"REAL": real, "EXP": exp, "TANH": tanh, "GROUPS": groups, "DIM": dim, "VALUE_DIM": value_dim}
    library = build_library(SOURCE, names, ["-ffast-math"])
    if library is None:
        return None
    function = library.attend
    function.argtypes, function.restype = ARGUMENTS, None
    return function


def has_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether `attend` takes these: one query a row, CPU, full precision, and a compiler (compiled steps have one)."""
    fits = query.device.type == "cpu" and query.shape[2] == 1 and query.dtype == key.dtype and query.dtype in TYPES
    return fits and (torch.compiler.is_compiling() or build(*shape_of(query, key, value)) is not None)


def shape_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[torch.dtype, int, int, int]:
    """Return what `build` takes: dtype, heads a group, dimensions of keys and of values."""
    return query.dtype, query.shape[1] // key.shape[1], query.shape[3], value.shape[3]


@torch.library.custom_op("fairlen::attend_ragged", mutates_args=())
def attend_single(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    """From `query` [N, heads, 1, D], `key`, `value` [N, key heads, L, D or Dv] up to `positions`: [N, heads, Dv]."""
    function = build(*shape_of(query, key, value))
    if function is None:
        raise RuntimeError("there is no C compiler: set CC, or build the Engine with compile=False")
    for tensor in (key, value):
        assert tensor.stride()[2:] == (tensor.shape[3], 1), "columns lie back to back"
    query, positions = query.contiguous(), positions.contiguous()
    rows, heads = query.shape[:2]
    out = query.new_empty(rows, heads, value.shape[3])
    threads, columns = torch.get_num_threads(), key.shape[2]
    scratch = query.new_empty(threads * heads // key.shape[1] * columns)
    function(
        *(tensor.data_ptr() for tensor in (query, key, value, out, positions, scratch)),
        *(rows, key.shape[1], *key.stride()[:2], *value.stride()[:2], window, columns, threads, scale, softcap),
    )
    return out


@attend_single.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[3])


NAME = "fairlen_rows"
"""Under which it is registered."""
LIKE_SDPA = ("sdpa", "fairlen_tree")
"""Attentions that ignore the cap on scores; the trainer's along trees is sdpa for everything else."""


def attend_rows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    *,
    query_positions: Tensor,
    ignores_softcap: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend from `query` [N, heads, T, D] to `key` [N, key heads, L, D] and `value` [N, key heads, L, Dv].

    A query at `query_positions` [N, T] sees the columns up to that position, of a sliding window the last ones; `s_aux`
    [heads] are learned sinks. Returns [N, T, heads, Dv].
    """
    softcap = None if ignores_softcap else softcap
    rows, heads, length, dim = query.shape
    scale: float = dim**-0.5 if scaling is None else scaling
    if s_aux is None and has_kernel(query, key, value):
        window = UNBOUNDED if sliding_window is None else sliding_window
        return attend_single(query, key, value, query_positions, scale, softcap or 0.0, window)[:, None], None
    hidden = hidden_columns(query_positions, key.shape[2], sliding_window)
    if query.is_cuda and length > 1 and s_aux is None and softcap is None:
        return attend_pieces(query, key, value, hidden, scale), None
    groups = heads // key.shape[1]
    scores = (query * scale).to(key.dtype).reshape(rows, key.shape[1], groups * length, dim) @ key.transpose(2, 3)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.view(rows, key.shape[1], groups, length, -1).masked_fill(hidden[:, None, None], float("-inf"))
    weights = softmax_with_sinks(scores, s_aux).to(value.dtype)
    mixed = weights.view(rows, key.shape[1], groups * length, -1) @ value
    return mixed.view(rows, heads, length, -1).transpose(1, 2), None


def attend_pieces(query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """Attend as `attend_rows` from several queries a row, by kernels that never hold the scores of a whole prompt."""
    key, value = (heads.repeat_interleave(query.shape[1] // heads.shape[1], 1) for heads in (key, value))
    return scaled_dot_product_attention(query.to(key.dtype), key, value, ~hidden[:, None], scale=scale).transpose(1, 2)


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax over the last dimension of `scores` [N, key heads, groups, T, L], each head's sink taking its share."""
    precise = torch.promote_types(scores.dtype, torch.float32)
    if sinks is None:
        return torch.softmax(scores, -1, dtype=precise)
    sink = sinks.to(precise).view(1, *scores.shape[1:3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores.to(precise), sink], -1), -1)[..., :-1]


def hidden_columns(positions: Tensor, num_columns: int, window: int | None) -> Tensor:
    """Return whether a query at `positions` [N, T] may not see a column: later, or `window` or more before; [N, T, L]."""
    columns = torch.arange(num_columns, device=positions.device)
    hidden = columns > positions[..., None]
    return hidden if window is None else hidden | (columns <= positions[..., None] - window)


AttentionInterface.register(NAME, attend_rows)
