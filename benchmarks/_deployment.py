"""Bytes, arithmetic and seconds of a model on a kind of device: what the model of servers takes as given.

Peaks are of the device's data sheet, the shape is of the model's public configuration; the shares of the peaks that are reached
are assumptions: `python benchmarks/gpu.py` measures them on a device of yours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from _servers import Cost, Machine

UPDATE_PASSES = 10
"""Multiplications and additions of an update, a parameter and token: 2 old log-probs, 2 forward, 4 backward, 2 recomputed."""

DEATHS = 419 / (54 * 16_384 / 8)
"""A node of eight GPUs and day: unexpected interruptions in 54 days of 16,384 H100 (arXiv:2407.21783, section 3.3.4)."""
NOTICED = 1.1
"""Seconds until the launcher names who has died: the longest measured (docs/log.md, 2026-11-23)."""
BEGUN = 300.0
"""Seconds from there to the first step of the next attempt. Assumed; a rehearsal on a CPU takes 80, most of them imports."""
SAVED_BYTES, DISK = 12, 2e9
"""Of a checkpoint, for each parameter: float32 weights and two moments. Bytes a second that a node writes (assumed)."""


@dataclass(frozen=True)
class Device:
    """One GPU."""

    name: str
    bandwidth: float
    """Bytes a second."""
    flops: float
    """Bfloat16, dense, a second."""
    memory: float
    """Bytes."""
    read_share: float = 0.7
    """Of the bandwidth, while decoding. Assumed."""
    prefill_share: float = 0.5
    """Of the arithmetic, in prefills and, for each row, in decoding. Assumed."""
    train_share: float = 0.35
    """Of the arithmetic, in updates. Assumed."""
    memory_share: float = 0.8
    """For weights, keys and values while decoding. Assumed."""
    launch: float = 2e-3
    """Seconds of a step that are neither. Assumed."""


@dataclass(frozen=True)
class Shape:
    """A model in bfloat16."""

    name: str
    parameters: float
    layers: int
    key_heads: int
    head_size: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def position_bytes(self) -> int:
        """Keys and values of one position."""
        return 2 * 2 * self.layers * self.key_heads * self.head_size


H100 = Device("H100", 3.35e12, 989e12, 80e9)
QWEN3_8B = Shape("Qwen3-8B", 8.2e9, 36, 8, 128)


@dataclass(frozen=True)
class Deployment:
    """A model on GPUs of one kind, one server a GPU."""

    device: Device = H100
    shape: Shape = QWEN3_8B
    slots: int = 256

    @property
    def machine(self) -> Machine:
        """One server, in seconds."""
        device, shape = self.device, self.shape
        bandwidth = device.read_share * device.bandwidth
        token = 2 * shape.parameters / (device.prefill_share * device.flops)
        cost = Cost(device.launch + shape.weight_bytes / bandwidth, token, shape.position_bytes / bandwidth, token)
        return Machine(cost, self.slots, self.capacity)

    @property
    def capacity(self) -> int:
        """Positions whose keys and values fit."""
        return int(
            (self.device.memory_share * self.device.memory - self.shape.weight_bytes) / self.shape.position_bytes
        )

    def update_seconds(self, tokens: int, devices: int) -> float:
        """Of an update that forwards so many tokens; attention is not counted."""
        return UPDATE_PASSES * self.shape.parameters * tokens / (devices * self.device.train_share * self.device.flops)

    @property
    def push_seconds(self) -> float:
        """New weights to every server: each reads all of them over a link of 50 GB/s (assumed), and 1 s to pause and wake."""
        return 1 + self.shape.weight_bytes / 50e9

    def save_seconds(self, nodes: int) -> float:
        """Of a checkpoint, of which each node writes its part."""
        return SAVED_BYTES * self.shape.parameters / (nodes * DISK)


@dataclass(frozen=True)
class Deaths:
    """What a job loses to deaths and to the checkpoints that bound what a death costs."""

    every: float
    """Seconds between two deaths, on average."""
    save: float
    """Seconds of a checkpoint."""
    step: float
    """Seconds between two moments at which there can be one."""

    @property
    def steps(self) -> int:
        """Steps from one checkpoint to the next at which least is lost, to first order (Young, CACM 17(9), 1974)."""
        return max(1, round(math.sqrt(2 * self.save * self.every) / self.step))

    def lost(self, noticed: float = NOTICED) -> float:
        """Return the share of the time that goes into checkpoints, work done twice, noticing and beginning again."""
        between = self.steps * self.step
        return self.save / between + (between / 2 + noticed + BEGUN) / self.every
