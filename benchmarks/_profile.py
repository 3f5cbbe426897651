"""Kernels of one decoding step and of one micro-batch, and the gaps between them in which the device does nothing.

By torch.profiler, which slows launches. On CUDA kernels and copies on the device count; on a CPU operations that none calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from _training import METHOD, Batch
from torch.profiler import ProfilerActivity, profile

from fairlen.engine import Engine
from fairlen.sampling.extend import Sampling
from fairlen.train.step import Learner

STEPS = 8
LARGEST = 6
"""Names that are listed."""
Interval = tuple[float, float]


@dataclass(frozen=True)
class Profile:
    """The device's kernels and gaps of one interval."""

    work: str
    kernels: float
    seconds: float
    """From the first kernel's start to the last one's end."""
    busy_seconds: float
    """During which at least one ran."""
    idle_share: float
    largest: dict[str, float]
    """Seconds by name of what took longest."""


@dataclass(frozen=True)
class Trace:
    """Kernels of one piece of work: name, start and end in microseconds."""

    kernels: Sequence[tuple[str, float, float]]

    @property
    def span(self) -> float:
        return max((end for *_, end in self.kernels), default=0.0) - min((s for _, s, _ in self.kernels), default=0.0)

    @property
    def busy(self) -> float:
        return covered((start, end) for _, start, end in self.kernels)

    @property
    def by_name(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name, start, end in self.kernels:
            found[name] += end - start  # pyright: ignore[reportArgumentType]  seconds, not counts
        return found


def covered(intervals: Any) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    return total


def trace(work: Callable[[], object], device: torch.device) -> Trace:
    """The kernels of `work`, which has been done once before."""
    on_cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_cuda else [])]
    with profile(activities=activities) as found:
        work()
        if on_cuda:
            torch.cuda.synchronize(device)
    wanted = torch.autograd.DeviceType.CUDA if on_cuda else torch.autograd.DeviceType.CPU
    events: Any = found.events()
    return Trace(
        [
            (event.name, event.time_range.start, event.time_range.end)
            for event in events
            if event.device_type == wanted and event.cpu_parent is None and not event.is_user_annotation
        ]
    )


def summarize(work: str, whole: Trace, times: int = 1) -> Profile:
    """A mean over `times`."""
    span, busy = whole.span / 1e6 / times, whole.busy / 1e6 / times
    largest = {name: taken / 1e6 / times for name, taken in whole.by_name.most_common(LARGEST)}
    return Profile(work, len(whole.kernels) / times, span, busy, 1 - busy / span, largest)


def profile_decoding(engine: Engine, prompts: Sequence[tuple[int, ...]], device: torch.device) -> Profile:
    """One step of all rows, of one trace: what comes after as many kernels as the first token takes.

    The difference of two traces would be below 0 where another process runs during the shorter one.
    """
    more = min(STEPS, engine.max_length - len(prompts[0]) - 1)

    def decode(length: int) -> None:
        engine.refresh(engine.policy_version)
        engine.generate(prompts, [Sampling(length, seed=row) for row in range(len(prompts))])

    decode(1 + more)
    first, whole = (trace(lambda length=length: decode(length), device) for length in (1, 1 + more))
    later = sorted(whole.kernels, key=lambda kernel: kernel[1])[len(first.kernels) :]
    return summarize(f"decoding step, {len(prompts)} rows", Trace(later), more)


def profile_update(learner: Learner, batch: Batch, device: torch.device) -> Profile:
    """Forward and backward of the micro-batches of a batch, by their number."""

    def differentiate() -> int:
        result = learner.differentiate(METHOD, batch.rollouts, batch.plan, {}, True)
        return result.num_forwarded

    positions = differentiate()
    times = max(round(positions / max(learner.largest, 1)), 1)
    found = summarize(f"micro-batch of {learner.largest} positions", trace(differentiate, device), times=times)
    learner.optimizer.zero_grad(set_to_none=True)
    return found
