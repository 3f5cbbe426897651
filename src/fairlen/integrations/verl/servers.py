"""verl's rollout servers and their clients: continuations that can be followed, ages of tokens, evicted responses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from fairlen.batch import Ints

ROLLOUT = "fairlen_cpu"
"""As `rollout.name`: the servers of a rehearsal around fairlen's engine, which can be followed too."""
VERSIONS = "policy_versions"
"""In verl's `extra_fields`: [number of tokens, version of the policy that sampled them] of each part of a response."""
REASONS = ("stale", "filtered", "failed")
"""Reasons for which verl's replay buffer evicts prompts, in its order."""
Parts = list[tuple[int, int]]
_parts: ContextVar[Parts] = ContextVar("parts")


class Growth:
    """Tokens that a server has generated of one request."""

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


class PartClient(LLMServerClient):
    """Notes what each answer of a server adds to a response."""

    async def generate(self, request_id: Any, **asked: Any) -> TokenOutput:
        """A server's answer, which an update of the weights may have cut short."""
        found = await super().generate(request_id, **asked)
        _parts.get().append((len(found.token_ids), int(found.extra_fields.get("global_steps") or 0)))
        return found


class VersionedClient(FullyAsyncLLMServerClient, PartClient):
    """verl's client for partial rollouts, which goes on with what was cut short; its answers say which policy sampled what."""

    async def generate(self, request_id: Any, **asked: Any) -> TokenOutput:
        """A whole continuation, with `VERSIONS` among its fields."""
        _parts.set([])
        found = await super().generate(request_id, **asked)
        found.extra_fields[VERSIONS] = [part for part in _parts.get() if part[0]]
        return found


def measure_staleness(parts: Sequence[Parts], version: int) -> dict[str, float]:
    """Return means over tokens of how many versions before `version` sampled them: of all, of the shorter half, of the longer.

    `parts` has the tokens and versions of each response; `staleness/mixed` is the share of responses of more than one version.
    """
    lengths: Ints = np.array([sum(number for number, _ in response) for response in parts])
    ages = np.array([sum(number * (version - made) for number, made in response) for response in parts])
    order = np.argsort(lengths, kind="stable")
    halves = {"mean": order, "shorter": order[: len(order) // 2], "longer": order[(len(order) + 1) // 2 :]}
    means = {f"staleness/{name}": ages[rows].sum() / max(lengths[rows].sum(), 1) for name, rows in halves.items()}
    mixed = [len({made for _, made in response}) > 1 for response in parts]
    return {name: float(value) for name, value in (means | {"staleness/mixed": np.mean(mixed)}).items()}


def count_evicted(buffer: Any) -> Any:
    """Have verl's replay buffer tell how many responses it evicts, and how many tokens they have, by reason; return it."""
    stock = buffer._evict_terminal_groups

    def evict(global_steps: int, partition_id: str, reasons: Any) -> Any:
        found: dict[str, set[str]] = dict(zip(REASONS, reasons, strict=False))
        counts = count_responses(buffer.partitions[partition_id], found)
        evicted = stock(global_steps, partition_id, reasons)
        evicted[-1].update(counts)
        return evicted

    buffer._evict_terminal_groups = evict
    return buffer


def count_responses(tags: Mapping[str, Mapping[str, Any]], prompts: Mapping[str, set[str]]) -> Counter[str]:
    """Return responses and tokens by reason; a prompt that has two reasons counts for the first. `tags` are by verl's keys."""
    counts = Counter[str]()
    for key, tag in tags.items():
        reason = next((name for name, uids in prompts.items() if key.split("_")[0] in uids), None)
        if reason:
            counts[f"dropped/{reason}_responses"] += 1
            counts[f"dropped/{reason}_tokens"] += tag["response_len"]
    return counts
