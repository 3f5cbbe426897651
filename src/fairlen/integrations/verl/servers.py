"""vLLM's servers of verl, whose continuations can be followed as they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

ROLLOUT = "fairlen_cpu"
"""As `rollout.name`: the servers of a rehearsal around fairlen's engine, which can be followed too."""


class Growth:
    """What a server has generated of one request."""

    def __init__(self) -> None:
        self.output: Any = None
        """vLLM's last output, with all tokens until then."""
        self.has_ended = False
        self.changed = asyncio.Event()

    def take(self, output: Any) -> None:
        """Note the next output; None for the end."""
        self.output, self.has_ended = output or self.output, output is None
        self.changed.set()
        self.changed = asyncio.Event()

    async def reach(self, num_tokens: int) -> tuple[list[int], list[float]] | None:
        """The first tokens and their log-probs, as soon as they are there; None where it ends before."""
        while not self.has_ended:
            made = self.output.outputs[0] if self.output and self.output.outputs else None
            if made and len(made.token_ids) >= num_tokens:
                token_ids = list(made.token_ids[:num_tokens])
                rows = zip(made.logprobs, token_ids, strict=False)
                return token_ids, [row[token].logprob for row, token in rows]
            await self.changed.wait()
        return None


def load_replica() -> type[RolloutReplica]:
    """verl's replica of vLLM with servers that can be followed."""
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    class FollowedServer(vLLMHttpServer):
        """verl's server, which keeps of each request what was generated so far."""

        async def run_server(self, args: Any) -> None:
            await super().run_server(args)
            self.growths: dict[str, Growth] = {}
            stock = self.engine.generate

            async def generate(*args: Any, request_id: str, **kwargs: Any) -> AsyncIterator[Any]:
                growth = self.growths.get(request_id)
                async for output in stock(*args, request_id=request_id, **kwargs):
                    if growth:
                        growth.take(output)
                    yield output

            self.engine.generate = generate

        async def generate(self, *args: Any, follow: str = "", **kwargs: Any) -> TokenOutput:
            """A continuation, which `reach` knows by the name of `follow`."""
            if not follow:
                return await super().generate(*args, **kwargs)
            growth = self.growths[follow] = Growth()
            try:
                return await super().generate(*args, **(kwargs | {"request_id": follow}))
            finally:
                del self.growths[follow]
                growth.take(None)

        async def reach(self, name: str, num_tokens: int) -> TokenOutput | None:
            """The first tokens of a continuation, as soon as they are there; None where none of the name is on its way."""
            growth = self.growths.get(name)
            found = await growth.reach(num_tokens) if growth else None
            if found is None:
                return None
            return TokenOutput(token_ids=found[0], log_probs=found[1], extra_fields={"global_steps": self.global_steps})

    class FollowedReplica(vLLMReplica):
        """verl's replica, with our servers."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.server_class = ray.remote(FollowedServer)

    return FollowedReplica


def register_servers() -> None:
    """Have verl start our servers where `rollout.name` is vllm, in this process's job."""
    RolloutReplicaRegistry.register("vllm", load_replica)
