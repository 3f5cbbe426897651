"""How often a program waits for a CUDA device, counted without one: tensors on cuda:0 have a shape and no contents."""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pytest import MonkeyPatch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda:0")
aten = torch.ops.aten
UNKNOWN_SIZES = {
    aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.repeat_interleave,
    aten.bincount,
}  # fmt: skip
"""Operations whose result has a size that only the device knows; `repeat_interleave` where it is not given."""
INDEXING = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
CUDA, META, NUM_TYPES = 1, 14, 20


@contextmanager
def counted_waits() -> Iterator[Waits]:
    """Within, tensors can be made on DEVICE; gives what the program waited for."""
    with MonkeyPatch.context() as patch, device_guard(), FakeTensorMode(allow_non_fake_inputs=True), Waits() as waits:
        patch.setattr(torch.cuda, "Event", partial(Event, waits))
        patch.setattr(torch.cuda, "current_stream", lambda device=None: None)
        yield waits


@dataclass
class Event:
    """Stands in for an event of a device: its clock goes on by a millisecond with every operation on the device."""

    waits: Waits
    enable_timing: bool = False
    time: int = 0

    def record(self, stream: object = None) -> None:
        self.time = self.waits.num_operations

    def synchronize(self) -> None:
        self.waits.note("an event")

    def elapsed_time(self, end: Event) -> float:
        assert self.enable_timing and end.enable_timing
        return float(end.time - self.time)


@contextmanager
def device_guard() -> Iterator[None]:
    """Let the guard of meta tensors, which does nothing, stand in for CUDA's, which a torch built without CUDA has not."""
    if torch.version.cuda or torch.version.hip:
        yield
        return
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * NUM_TYPES).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    before, guards[CUDA] = guards[CUDA], guards[META]
    try:
        yield
    finally:
        guards[CUDA] = before


class Waits(TorchDispatchMode):
    """Notes what a host waits in: numbers that are read, results of unknown size, copies that are not asynchronous.

    A copy is asynchronous if it says so and comes from page-locked memory. Numbers read are 0, or True.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.num_uploads = self.num_operations = 0
        self.pinned: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, packet = kwargs or {}, func.overloadpacket
        on_device = any(map(is_on_device, tree_leaves((args, kwargs))))
        self.num_operations += on_device
        if packet is aten.is_pinned:
            return id(args[0]) in self.pinned
        if packet is aten._pin_memory:
            with unset_fake_temporarily():
                pinned = args[0].clone()
            self.pinned[id(pinned)] = pinned
            return pinned
        if packet in (aten._to_copy, aten.copy_):
            return self.copy(func, packet, args, kwargs)
        if not on_device:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if packet is aten._local_scalar_dense:
            self.note(packet)
            return args[0].dtype == torch.bool or 0
        by_mask = packet in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        if by_mask or (packet in UNKNOWN_SIZES and kwargs.get("output_size") is None):
            raise AssertionError(f"{func} waits for the device, and what follows depends on what it finds")
        return func(*args, **kwargs)

    def note(self, what: object) -> None:
        """Keep what was waited for, and the line of ours that did."""
        frames = traceback.extract_stack()
        place = next((frame for frame in reversed(frames) if "fairlen" in frame.filename), frames[0])
        self.found.append(f"{what}: {Path(place.filename).name}:{place.lineno} {place.line}")

    def copy(self, func: Any, packet: Any, args: Any, kwargs: Any) -> Any:
        """Make a copy; note it where it goes to or from the device and the host waits for it."""
        source, flags = (args[1], args[2:]) if packet is aten.copy_ else (args[0], ())
        target = args[0].device if packet is aten.copy_ else kwargs.get("device") or source.device
        kinds = {source.device.type, target.type}
        if kinds == {"cpu"}:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        self.num_uploads += len(kinds) > 1 and target.type != "cpu"
        is_asynchronous = (kwargs.get("non_blocking") or any(flags)) and id(source) in self.pinned
        if len(kinds) > 1 and not is_asynchronous:
            self.note(f"{packet} from {source.device} to {target}")
        if target.type != "cpu":
            return func(*args, **kwargs)
        with unset_fake_temporarily():
            dtype = kwargs.get("dtype") or source.dtype
            found = torch.full(source.shape, dtype == torch.bool, dtype=dtype)
            return args[0].copy_(found) if packet is aten.copy_ else found


def is_on_device(leaf: object) -> bool:
    """Return whether it is the device, or a tensor on it."""
    device = leaf.device if isinstance(leaf, Tensor) else leaf
    return isinstance(device, torch.device) and device.type == DEVICE.type
