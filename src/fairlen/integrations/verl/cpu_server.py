"""rollout.name=fairlen_cpu: verl's rollout server around fairlen's own engine, with exact log-probs and continuous batching."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from fairlen.engine import Engine
from fairlen.files.pretrained import read_model
from fairlen.sampling.extend import Sampling
from fairlen.seeds import derive_seed

SLOTS = 128
"""Sequences that a server decodes at a time."""
SYNC_LIMIT = 120.0
"""Seconds that a server may take for new weights."""


def name_server(rank: int) -> str:
    """What Ray knows a server by."""
    return f"fairlen_cpu_server_{rank}"


class CpuServer:
    """A Ray actor with a copy of the model. Requests are served on its event loop, all together."""

    def __init__(self, path: str, max_length: int, max_new_tokens: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.model = read_model(path, torch.float32).eval()
        eos = self.model.generation_config.eos_token_id
        self.engine = Engine(
            self.model,
            eos_token_id=tuple(eos) if isinstance(eos, list) else eos,
            max_length=max_length,
            max_num_seqs=SLOTS,
            compile=False,
        )
        self.max_new_tokens, self.seed, self.version = max_new_tokens, seed, 0
        self.requests = itertools.count()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """A continuation, and the version of the weights that made it."""
        asked = sampling_params
        made = await self.engine.extend(tuple(prompt_ids), Sampling(
            max_new_tokens=int(asked.get("max_tokens") or asked.get("max_new_tokens") or self.max_new_tokens),
            seed=derive_seed(self.seed, next(self.requests)),
            temperature=float(asked.get("temperature", 1.0)),
            top_p=float(asked.get("top_p", 1.0)),
            top_k=max(int(asked.get("top_k", 0)), 0),
        ))  # fmt: skip
        return TokenOutput(
            token_ids=list(made.token_ids),
            log_probs=list(made.logprobs) if asked.get("logprobs") else None,
            stop_reason="completed",
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
        self.engine.refresh(self.version)

    async def get_version(self) -> int:
        """Of the weights."""
        return self.version

    async def do_nothing(self, *_: Any, **__: Any) -> None:
        """There is no memory to free, and no profile to take."""

    wake_up = sleep = resume_generation = clear_kv_cache = release_kv_cache = resume_kv_cache = do_nothing
    start_profile = stop_profile = abort_all_requests = do_nothing


class CpuReplica(RolloutReplica):
    """Starts one server."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"rollout.name=fairlen_cpu with {self.world_size} workers a server: use tensor_model_parallel_size=1"
            )
        path = self.model_config.path if hasattr(self.model_config, "path") else self.model_config["path"]
        longest = self.config.prompt_length + self.config.response_length
        server: Any = ray.remote(CpuServer).options(
            name=name_server(self.replica_rank), max_concurrency=self.max_concurrency, num_cpus=1
        ).remote(path, longest, self.config.response_length, self.config.seed + self.replica_rank)  # fmt: skip
        await server.get_version.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name_server(self.replica_rank)


class CpuAdapter(BaseRollout):
    """Lives in a training worker, and sends its weights to the worker's server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    async def resume(self, tags: Any) -> None:
        """Nothing sleeps."""

    async def release(self) -> None:
        """Nothing sleeps."""

    @torch.no_grad()
    async def update_weights(  # type: ignore[override]  verl calls it by keyword
        self, weights: Iterable[tuple[str, Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Sends the weights. Every rank goes through all of them, because gathering one needs all ranks."""
        arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in weights}
        server = ray.get_actor(name_server(self.replica_rank))
        await asyncio.wait_for(server.load_weights.remote(arrays, global_steps), SYNC_LIMIT)
