"""How old tokens are under verl's asynchronous trainers, by length, and what verl threw away, which is what takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient, LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from fairlen.batch import Ints

VERSIONS = "policy_versions"
"""In verl's `extra_fields`: [number of tokens, version of the policy that sampled them] of each part of a response."""
REASONS = ("stale", "filtered", "failed")
"""Reasons for which verl's replay buffer evicts prompts, in its order."""
Parts = list[tuple[int, int]]
_parts: ContextVar[Parts] = ContextVar("parts")


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
    if not parts:
        return {}
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


def count_responses(tags: Mapping[str, Mapping[str, Any]], prompts: Mapping[str, set[str]]) -> dict[str, int]:
    """Return responses and tokens by reason; a prompt that has two reasons counts for the first. `tags` are by verl's keys."""
    counts: dict[str, int] = {}
    for key, tag in tags.items():
        reason = next((name for name, uids in prompts.items() if key.split("_")[0] in uids), None)
        if reason:
            for name, number in (("responses", 1), ("tokens", tag["response_len"])):
                counts[f"dropped/{reason}_{name}"] = counts.get(f"dropped/{reason}_{name}", 0) + number
    return counts
