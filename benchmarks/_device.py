"""The peak rates of a device, measured on the spot, and a timer for it."""

from __future__ import annotations

import platform
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SIZES = {"cuda": (4096, 8192), "cpu": (512, 1024)}
"""Of square matrices; the best rate counts."""
COPIED = {"cuda": 2**30, "cpu": 2**27}
"""Bytes of the copy: many times any cache."""
REPEATS = 10


@dataclass(frozen=True)
class Rates:
    """The measured rates of a device."""

    name: str
    flops: float
    """Multiplications and additions a second in products of large matrices of `dtype`."""
    bandwidth: float
    """Bytes a second, read and written ones together, of a large copy."""
    dtype: str


@dataclass(frozen=True)
class Turn:
    """One run of one side."""

    seconds: float
    peak: int
    """Bytes. CUDA: the most that was allocated during the turn. CPU: the most that the process ever had resident."""


def measure_rates(device: torch.device, dtype: torch.dtype) -> Rates:
    """The rates of `device` for numbers of `dtype`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    flops = max(matmul_rate(size, device, dtype) for size in SIZES[device.type])
    source = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = median_seconds(lambda: target.copy_(source), device)
    return Rates(name, flops, 2 * source.numel() / copy, str(dtype).removeprefix("torch."))


def matmul_rate(size: int, device: torch.device, dtype: torch.dtype) -> float:
    """Flop/s of one product of square matrices."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_seconds(lambda: left @ right, device)


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of REPEATS runs after one that is not counted."""
    run(work, device)
    return statistics.median(run(work, device).seconds for _ in range(REPEATS))


def run(work: Callable[[], object], device: torch.device) -> Turn:
    """Runs `work` to its end on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return Turn(time.perf_counter() - start, peak_bytes(device))


def peak_bytes(device: torch.device) -> int:
    """As in `Turn`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
