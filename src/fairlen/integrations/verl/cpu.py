"""A machine without an accelerator as a platform of verl, to rehearse a job: importing this module in each process suffices."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import types
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray
import torch
import verl.utils.distributed
import verl.utils.fsdp_utils
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from verl.plugin.platform import PlatformBase, PlatformRegistry, set_platform
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from fairlen.engine import Engine
from fairlen.engine.generation import Sequence
from fairlen.files.pretrained import read_model
from fairlen.integrations.verl.servers import ROLLOUT
from fairlen.sampling.extend import Continuation, Sampling, derive_seed

COUNTED = (
    "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved", "empty_cache",
    "reset_peak_memory_stats", "set_per_process_memory_fraction", "ipc_collect",
)  # fmt: skip
"""Queries of memory that verl makes of `torch.<device>`; 0 here."""
MEMORY = 1 << 34
"""Bytes that a device is said to have."""
MAX_NUM_SEQS = 128
"""Sequences that a server decodes at a time."""
SYNC_LIMIT = 120.0
"""Seconds that a server may take for new weights."""
VLLM_WORKERS = ("vllm.v1.worker.worker_base", "vllm.v1.executor")
"""Modules that a process of vLLM's workers has loaded."""
PACKING = "dispatch_cpu_unquantized_gemm"


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


def always(value: Any) -> Any:
    return lambda *_, **__: value


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """verl's interface of a device, for none."""

    device_name = vendor_name = property(always("cpu"))  # pyright: ignore[reportIncompatibleMethodOverride]
    device_module = property(always(CpuModule()))  # pyright: ignore[reportIncompatibleMethodOverride]
    is_available = always(True)
    current_device = always(torch.device("cpu"))
    device_count = always(1)
    get_device_capability = always((None, None))
    communication_backend_name = always("gloo")
    visible_devices_envvar = always("CUDA_VISIBLE_DEVICES")
    ray_resource_name = always("GPU")  # verl counts these alone; the job tells Ray that the machine has some
    ray_noset_envvars = always([])
    is_ipc_supported = always(False)
    nvtx_range = always(contextlib.nullcontext())
    set_device = synchronize = set_allocator_settings = empty_cache = cudart = always(None)
    profiler_start = profiler_stop = always(None)

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed


def name_server(rank: int) -> str:
    return f"fairlen_cpu_server_{rank}"


class CpuServer:
    """A Ray actor with a copy of the model. Requests are served on its event loop, all together."""

    def __init__(self, path: str, max_length: int, max_new_tokens: int, seed: int, rank: int = 0) -> None:
        torch.set_num_threads(1)
        self.model = read_model(path, torch.float32).eval()
        eos = self.model.generation_config.eos_token_id
        self.engine = Engine(
            self.model,
            eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
            max_length=max_length,
            max_num_seqs=MAX_NUM_SEQS,
            compile=False,
        )
        self.max_new_tokens, self.seed, self.version = max_new_tokens, seed, 0
        self.rank, self.asked = rank, Counter[tuple[int, ...]]()
        self.growing: dict[str, Sequence] = {}
        """Continuations on their way, by the name that they are followed by."""
        self.is_open = asyncio.Event()
        """Not set from an abort until generation is resumed."""
        self.is_open.set()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], follow: str = "", **_: Any
    ) -> TokenOutput:
        """A continuation, or what there was of it at an abort, and the version of the weights that made it."""
        asked, seed = sampling_params, self.draw_seed(tuple(prompt_ids))
        wanted = int(asked.get("max_tokens") or asked.get("max_new_tokens") or self.max_new_tokens)
        await self.is_open.wait()
        growing = self.growing[follow or request_id] = self.engine.extend(tuple(prompt_ids), Sampling(
            max_new_tokens=min(wanted, self.engine.max_length - len(prompt_ids)),  # of a further turn there is less room
            seed=seed,
            temperature=float(asked.get("temperature", 1.0)),
            top_p=float(asked.get("top_p", 1.0)),
            top_k=max(int(asked.get("top_k", 0)), 0),
        ))  # fmt: skip
        try:
            return self.answer(await growing, bool(asked.get("logprobs")))
        except asyncio.CancelledError:
            if self.is_open.is_set():
                raise
            return self.answer(growing.so_far("length"), bool(asked.get("logprobs")), "aborted")
        finally:
            del self.growing[follow or request_id]

    def draw_seed(self, prompt: tuple[int, ...]) -> int:
        """Return a request's seed: each of a prompt, under each weights and on each server, has its own."""
        self.asked[prompt] += 1
        return derive_seed(self.seed, self.rank, self.version, *prompt, self.asked[prompt])

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Answers what is on its way with what there is; the rest waits until generation is resumed."""
        self.is_open.clear()
        for growing in self.growing.values():
            growing.future.cancel()

    async def resume_generation(self) -> None:
        self.is_open.set()

    async def reach(self, name: str, num_tokens: int) -> TokenOutput | None:
        """The first tokens of a continuation, as soon as they are there; None where none of the name is on its way."""
        growing = self.growing.get(name)
        return self.answer(await growing.reach(num_tokens), True) if growing else None

    def answer(self, made: Continuation, has_logprobs: bool, stop_reason: str = "completed") -> TokenOutput:
        return TokenOutput(
            token_ids=list(made.token_ids),
            log_probs=list(made.logprobs) if has_logprobs else None,
            stop_reason=stop_reason,
            num_preempted=0,
            extra_fields={"global_steps": self.version},
        )

    async def load_weights(self, weights: dict[str, np.ndarray], version: int | None) -> None:
        """Takes new weights; tied ones may be there once. Raises KeyError for weights that the model does not have, or lacks."""
        found = self.model.load_state_dict({name: torch.from_numpy(w) for name, w in weights.items()}, strict=False)
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {"lm_head.weight"})
        if found.unexpected_keys or set(found.missing_keys) - tied:
            raise KeyError(f"weights unknown to the model: {found.unexpected_keys}, not sent: {found.missing_keys}")
        self.model.tie_weights()
        self.version = self.version + 1 if version is None else version
        self.asked.clear()
        self.engine.refresh(self.version)

    async def get_version(self) -> int:
        return self.version

    async def do_nothing(self, *_: Any, **__: Any) -> None:
        """There is no memory to free, and no profile to take."""

    wake_up = sleep = clear_kv_cache = release_kv_cache = resume_kv_cache = start_profile = stop_profile = do_nothing


class CpuReplica(RolloutReplica):
    """Starts one server."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(f"{self.world_size} workers a server of fairlen_cpu: use tensor_model_parallel_size=1")
        longest = self.config.prompt_length + self.config.response_length
        server: Any = ray.remote(CpuServer).options(
            name=name_server(self.replica_rank), max_concurrency=self.max_concurrency, num_cpus=1
        ).remote(self.model_config.path, longest, self.config.response_length, self.config.seed, self.replica_rank)  # fmt: skip
        await server.get_version.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name_server(self.replica_rank)


class CpuAdapter(BaseRollout):
    """Lives in a training worker, and sends its weights to the worker's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    async def do_nothing(self, tags: Any = None) -> None:
        """Nothing sleeps."""

    resume = release = do_nothing

    @torch.no_grad()
    async def update_weights(  # type: ignore[override]  verl calls it by keyword
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Sends the weights. Every rank goes through all of them, because gathering one needs all ranks."""
        arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in weights}
        server = ray.get_actor(name_server(self.replica_rank))
        await asyncio.wait_for(server.load_weights.remote(arrays, global_steps), SYNC_LIMIT)


def keep_weight(layer: Any, remove_weight: bool) -> None:
    """In place of vLLM's packing: the layer computes with its parameter."""
    layer.cpu_linear = torch.nn.functional.linear


def make_store(host_name: str, port: int, *rest: Any, is_master: bool = False, **given: Any) -> TCPStore:
    """Return torch's store, whose server listens on the address that it is named by, where torch's own listens on every one."""
    if is_master and "master_listen_fd" not in given:
        family = socket.AF_INET6 if ":" in host_name else socket.AF_INET
        given["master_listen_fd"] = socket.create_server((host_name, port), family=family).detach()
    return TCPStore(host_name, port, *rest, is_master=is_master, **given)


def install() -> None:
    """Makes this process one of a machine without an accelerator."""
    set_platform(CpuPlatform())
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    start_group = verl.utils.distributed.initialize_global_process_group_ray
    verl.utils.distributed.initialize_global_process_group_ray = lambda timeout_second=None, backend=None: start_group(
        timeout_second, "gloo"
    )
    for module in ("torch.distributed", "torch.distributed.rendezvous"):  # the latter's name is a function's too
        vars(sys.modules[module])["TCPStore"] = make_store
    utils: Any = verl.utils.fsdp_utils
    offload = utils.CPUOffloadPolicy  # of the reference model; pinned memory needs an accelerator
    utils.CPUOffloadPolicy = lambda pin_memory=True: offload(pin_memory=False)
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    _ROLLOUT_REGISTRY[ROLLOUT, "async"] = f"{__name__}.CpuAdapter"
    RolloutReplicaRegistry.register(ROLLOUT, lambda: CpuReplica)
    if any(name in sys.modules for name in VLLM_WORKERS):
        import vllm.model_executor.layers.utils  # pyright: ignore[reportMissingImports]  # noqa: F401

        for name, module in list(sys.modules.items()):
            if name.startswith("vllm.") and hasattr(module, PACKING):
                setattr(module, PACKING, keep_weight)


install()
