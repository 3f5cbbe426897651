"""Sums in one order on CUDA: atomic additions give other last bits each time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fairlen.hangs import TrainingStopped

WORKSPACES = ":4096:8"
"""With buffers of a fixed size, products of matrices on CUDA are summed in one order."""


def prepare_determinism() -> None:
    """Set the variable that cuBLAS reads at its start. Raises ValueError where the environment has another value."""
    found = os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACES)
    if found not in (WORKSPACES, ":16:8"):
        raise ValueError(
            f"deterministic=True with CUBLAS_WORKSPACE_CONFIG={found}: unset it, or give {WORKSPACES} or :16:8"
        )


@contextmanager
def determinism(is_on: bool) -> Iterator[None]:
    """Use torch's deterministic algorithms within. Raises TrainingStopped where an operation has none."""
    if not is_on:
        yield
        return
    mode: Any = torch.utils.deterministic
    filling, mode.fill_uninitialized_memory = mode.fill_uninitialized_memory, False  # what is read was written
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise TrainingStopped(f"deterministic=True: {str(error).splitlines()[0]} Leave --deterministic out") from error
    finally:
        torch.use_deterministic_algorithms(False)
        mode.fill_uninitialized_memory = filling
