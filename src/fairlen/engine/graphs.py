"""Steps on CUDA as graphs: captured once for each bucket of rows and columns, then all of their kernels are launched at once.

A replay reads weights, keys and values where they were when it was captured, so that weights must change in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fairlen.batch import Ints
from fairlen.engine.sampler import Drawn
from fairlen.engine.transfer import upload

Key = tuple[int, int, tuple[bool, bool]]
"""Rows, columns, and whether draws are tempered and truncated."""


def bucket(number: int, least: int, most: int) -> int:
    """Return a size that many numbers share: at least `number`, at most a quarter more, a multiple of `least` or else `most`."""
    step = max(least, 1 << max(number.bit_length() - 3, 0))
    return min(-(-number // step) * step, most)


@dataclass(frozen=True)
class Graph:
    """A captured step, what it reads and where it writes its result."""

    replayed: torch.cuda.CUDAGraph
    packed: Tensor
    found: Drawn


class Graphs:
    """The steps captured so far, which share memory: the result of one is read before another runs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.captured: dict[Key, Graph] = {}
        self.weights: tuple[int, ...] = ()
        """Where they were when steps were captured."""

    def keep(self, weights: tuple[int, ...]) -> None:
        """Forget what was captured with weights elsewhere in memory."""
        if weights != self.weights:
            self.captured.clear()
            self.weights = weights

    def __call__(self, key: Key, step: Callable[[Tensor], Drawn], packed: Ints) -> Drawn:
        """Return what `step` makes of `packed`, by its graph."""
        if key not in self.captured:
            with torch.cuda.device(self.device):
                self.captured[key] = self.capture(step, upload(packed, self.device))
        graph = self.captured[key]
        graph.packed.copy_(torch.from_numpy(packed).pin_memory(), non_blocking=True)
        graph.replayed.replay()
        return graph.found

    def capture(self, step: Callable[[Tensor], Drawn], packed: Tensor) -> Graph:
        """Run a step once, which compiles it and makes libraries take what they need, then capture it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(packed)
        torch.cuda.current_stream().wait_stream(stream)
        pool = next((graph.replayed.pool() for graph in self.captured.values()), None)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = step(packed)
        return Graph(graph, packed, found)
