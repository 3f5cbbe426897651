"""Asynchronous trainers of verl: which policy sampled which token, how old tokens are by length, and what was thrown away."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")

from verl.trainer.ppo.v1 import replay_buffer
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from fairlen import playground
from fairlen.integrations.verl.cpu import CpuServer
from fairlen.integrations.verl.servers import VERSIONS, VersionedClient, count_evicted, measure_staleness

PROMPT, LENGTH, NUM = (3, 4, 5), 40, 6


def test_ages_are_means_over_tokens_by_length():
    """At version 5: 2 tokens of version 5; 4 of version 4; 6 of version 3 and 2 of version 5; 1 of version 5.

    All: (0 + 4 + 12 + 0) / 15. Shorter half (1 and 2 tokens): 0. Longer half (4 and 8): 16 / 12. One of four is mixed.
    """
    parts = [[(2, 5)], [(4, 4)], [(6, 3), (2, 5)], [(1, 5)]]
    assert measure_staleness(parts, 5) == {
        "staleness/mean": 16 / 15, "staleness/shorter": 0.0, "staleness/longer": 16 / 12, "staleness/mixed": 0.25
    }  # fmt: skip
    assert measure_staleness([[(3, 1)]], 2)["staleness/longer"] == 0.0  # one response is in no half


def test_what_is_evicted_is_counted_by_reason_and_by_tokens(monkeypatch):
    """Prompts of steps 1 and 9 at step 10, of which at most 8 may pass: a, of 30 + 50 tokens, is too old, and b, of 7, is not."""
    monkeypatch.setattr(replay_buffer.tq, "kv_clear", lambda **_: None)
    buffer = count_evicted(ReplayBufferAsync("colocate_async", OmegaConf.create({}), 8, "drop", OmegaConf.create({})))
    buffer.partitions["train"] = {
        "a_0_0": {"response_len": 30},
        "a_1_0": {"response_len": 50},
        "b_0_0": {"response_len": 7},
    }
    buffer.finished_keys["train"] = {"a", "b"}
    buffer.prompt_global_steps["train"] = {"a": 1, "b": 9}
    metrics = buffer._evict_terminal_groups(10, "train", buffer._terminal_eviction_reasons(10, "train"))[-1]
    assert metrics["dropped/stale_responses"] == 2 and metrics["dropped/stale_tokens"] == 80
    assert metrics["training/off_policy/evicted_samples"] == 1 and set(buffer.partitions["train"]) == {"b_0_0"}
    assert buffer._evict_terminal_groups(10, "train", buffer._terminal_eviction_reasons(10, "train"))[-1] == {}


class Handle:
    """What Ray gives for an actor, as far as verl's client asks: methods are called by `.remote`."""

    def __init__(self, **methods: Any) -> None:
        for name, method in methods.items():
            setattr(self, name, SimpleNamespace(remote=method))


def client_of(server: CpuServer) -> VersionedClient:
    """verl's client before one server."""

    async def acquire(request_id: str) -> tuple[str, Handle]:
        return "server", Handle(generate=server.generate)

    balancer = Handle(acquire_server=acquire, release_server=lambda **_: None)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "fairlen_cpu", "response_length": LENGTH}}})
    client: Any = VersionedClient.__new__(VersionedClient)
    client.config, client._load_balancer, client._only_hybrid = config, balancer, False
    client._lb_require_acquire_fields = client._lb_require_release_fields = ()
    return client


def logprobs_of(model: Any, token_ids: list[int]) -> np.ndarray:
    """Of each token after the prompt."""
    ids = torch.tensor([[*PROMPT, *token_ids]])
    with torch.no_grad():
        rows = model(input_ids=ids).logits.log_softmax(-1)[0, len(PROMPT) - 1 : -1]
    return rows.gather(1, ids[0, len(PROMPT) :, None])[:, 0].numpy()


@pytest.mark.slow
def test_an_update_in_the_middle_goes_on_with_the_new_weights_and_every_token_has_its_policy():
    """Token ids and log-probs are those that were sampled: of the old weights up to the abort, of the new ones after it."""
    server = CpuServer(str(playground.PATH), 64, LENGTH, seed=0)
    server.engine.eos_ids = frozenset()  # as long as the budget lets them
    before = {name: weight.clone() for name, weight in server.model.state_dict().items()}
    after = {name: weight + 0.01 for name, weight in before.items()}

    async def run() -> list[Any]:
        client, asked = client_of(server), {"temperature": 1.0, "logprobs": True}
        tasks = [
            asyncio.create_task(client.generate(str(i), prompt_ids=list(PROMPT), sampling_params=asked))
            for i in range(NUM)
        ]
        while len(server.growing) < NUM or min(len(one.token_ids) for one in server.growing.values()) < 5:
            await asyncio.sleep(0)
        await server.abort_all_requests()
        await asyncio.sleep(0.1)
        assert not server.growing and not any(task.done() for task in tasks)
        await server.load_weights({name: weight.numpy() for name, weight in after.items()}, 1)
        await server.resume_generation()
        return await asyncio.gather(*tasks)

    found = asyncio.run(run())
    newer = logprobs = None
    for output in found:
        parts = output.extra_fields[VERSIONS]
        assert [version for _, version in parts] == [0, 1] and parts[0][0] >= 5
        assert sum(number for number, _ in parts) == len(output.token_ids) == len(output.log_probs) == LENGTH
        server.model.load_state_dict(before)
        older = logprobs_of(server.model, output.token_ids)
        server.model.load_state_dict(after)
        newer = logprobs_of(server.model, output.token_ids)
        logprobs = np.array(output.log_probs)
        cut = parts[0][0]
        np.testing.assert_allclose(logprobs[:cut], older[:cut], atol=1e-4)
        np.testing.assert_allclose(logprobs[cut:], newer[cut:], atol=1e-4)
        assert np.abs(older - newer).max() > 0.01
    ages = measure_staleness([output.extra_fields[VERSIONS] for output in found], 1)
    assert ages["staleness/mixed"] == 1.0 and 5 / LENGTH <= ages["staleness/mean"] < 1.0
