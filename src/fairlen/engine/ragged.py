"""Attention of one query a row over the columns that the row has: `ragged.c`, built when an engine first wants it.

Matrix products over rows of different lengths read every column up to the longest row's; this reads a third of them,
and small products cost more than loops. Without a C compiler `is_available` is false, and attention takes the
products. Not here: prefills, devices other than the CPU, half precision.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fairlen.engine.native import build_library

SOURCE = Path(__file__).with_suffix(".c")
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


def is_available(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether `attend` takes these: one query a row, CPU, full precision, and a compiler (compiled steps have one)."""
    fits = query.device.type == "cpu" and query.shape[2] == 1 and query.dtype in TYPES
    return fits and (torch.compiler.is_compiling() or build(*shape_of(query, key, value)) is not None)


def shape_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[torch.dtype, int, int, int]:
    """What `build` wants to know: dtype, heads a group, dimensions of keys and of values."""
    return query.dtype, query.shape[1] // key.shape[1], query.shape[3], value.shape[3]


@torch.library.custom_op("fairlen::attend_ragged", mutates_args=())
def attend(
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


@attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, softcap: float, window: int
) -> Tensor:
    return query.new_empty(query.shape[0], query.shape[1], value.shape[3])
