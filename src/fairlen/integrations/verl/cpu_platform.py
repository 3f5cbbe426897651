"""A machine without an accelerator as a platform of verl, to rehearse a job: importing this module in each process suffices.

It adds what verl lacks on a CPU: the platform, a process group of gloo alone (verl asks for "cpu:gloo,cpu:gloo", which torch
refuses), its FSDP engine for the device (verl registers it for cuda and npu), and rollout.name=fairlen_cpu (cpu_server.py). No
trainer, worker, loss, advantage, reward or agent loop of verl is replaced. Says nothing of speed or memory on GPUs.
"""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import verl.utils.distributed
import verl.utils.fsdp_utils
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform
from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

ROLLOUT = "fairlen_cpu"
"""As `rollout.name`."""
COUNTED = (
    "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "empty_cache",
    "reset_peak_memory_stats", "set_per_process_memory_fraction", "ipc_collect",
)  # fmt: skip
"""What verl asks `torch.<device>` of memory; 0 here."""
MEMORY = 1 << 34
"""Bytes that a device is said to have."""


class CpuModule(types.ModuleType):
    """`torch.cpu` with what verl calls on `torch.<device>` besides."""

    def __init__(self) -> None:
        super().__init__("fairlen_torch_cpu")
        for name in COUNTED:
            setattr(self, name, lambda *_, **__: 0)
        self.is_available = lambda: True
        self.device_count = lambda: 1
        self.current_device = lambda: torch.device("cpu")
        self.mem_get_info = lambda *_: (MEMORY, MEMORY)
        self.get_device_name = lambda *_: "cpu"
        self.get_rng_state, self.set_rng_state = torch.get_rng_state, torch.set_rng_state
        self.manual_seed = self.manual_seed_all = torch.manual_seed

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """verl's interface of a device, for none."""

    module = CpuModule()

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return self.module

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # type: ignore[override]
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts these alone; the job tells Ray that the machine has some

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


def load_replica() -> type[Any]:
    """The class that starts our rollout servers."""
    from fairlen.integrations.verl.cpu_server import CpuReplica

    return CpuReplica


def install() -> None:
    """Makes this process one of a machine without an accelerator."""
    set_platform(CpuPlatform())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    start_group = verl.utils.distributed.initialize_global_process_group_ray
    verl.utils.distributed.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: start_group(
        timeout_second, "gloo"
    )
    utils: Any = verl.utils.fsdp_utils
    offload = utils.CPUOffloadPolicy  # of the reference model; pinned memory needs an accelerator
    utils.CPUOffloadPolicy = lambda pin_memory=True: offload(pin_memory=False)
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    _ROLLOUT_REGISTRY[ROLLOUT, "async"] = "fairlen.integrations.verl.cpu_server.CpuAdapter"
    RolloutReplicaRegistry.register(ROLLOUT, load_replica)


install()
