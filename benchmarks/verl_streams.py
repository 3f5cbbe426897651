"""EqLen on verl's rollout servers against independent sampling on the same ones: time for a new token, reuse of forks' prefixes.

    .venv-verl-vllm/bin/python benchmarks/verl_streams.py              vLLM's CPU build, two servers
    .venv-verl-vllm/bin/python benchmarks/verl_streams.py --smoke      one batch of each side
    python benchmarks/verl_streams.py --rollout fairlen_cpu            the servers of a rehearsal

The sides take turns: a rollout batch of each, of the same prompts, and the median of each side's seconds per generated token.
Whole is EqLen that waits for whole continuations. Reuse is of the tokens that forks inherit, but for the last, in whole blocks.
The marks are 1.15 times independent sampling's time for a token, and 80% of the tokens that blocks allow.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from _checks import add_smoke, demand

from fairlen.integrations.verl.data import copy_shipped
from fairlen.integrations.verl.launch import VerlConfig, collect, environment, write_files
from fairlen.integrations.verl.settings import MAX_RESPONSE_LENGTH, ROLLOUT

BLOCK = 32
SLOWEST, LEAST = 1.15, 0.8
SIDES = ("independent", "EqLen", "whole")
STREAMS, SERVERS = 4, 2


@dataclass
class Side:
    """The measurements of one way to sample."""

    seconds: list[float] = field(default_factory=list)
    """For a generated token, by rollout batch."""
    tokens: int = 0
    requests: list[tuple[int, int, int]] = field(default_factory=list)
    """Length of the prefix, of the prompt, and tokens of it that were in the server's cache; of every request."""

    @property
    def reuse(self) -> float:
        """Share of the tokens that forks inherit whole blocks of."""
        forks = [(length, cached) for length, prompt, cached in self.requests if length > prompt]
        allowed = sum((length - 1) // BLOCK * BLOCK for length, _ in forks)
        return sum(cached for _, cached in forks) / allowed if allowed else float("nan")


def read_settings(rollout: str, folder: Path, model: str) -> tuple[VerlConfig, list[str], Any]:
    """The rehearsal's settings as verl reads them, for servers of their own that read the model's files."""
    from hydra import compose, initialize_config_module

    given = [
        f"{ROLLOUT}.name={rollout}",
        f"{ROLLOUT}.load_format=auto",
        f"{ROLLOUT}.nnodes=1",
        f"{ROLLOUT}.n_gpus_per_node={SERVERS}",
    ]
    config = VerlConfig(
        method="eqlen+grpo", overrides=(f"sampling.streams={STREAMS}",), cpu=True, out=str(folder), model=model
    )
    settings = [text for text in collect(config, given, folder) if not text.startswith("hydra.")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return config, given, compose("ppo_trainer", settings)


async def sample(
    client: Any, config: Any, tokenizer: Any, prompts: list[tuple[int, ...]], name: str, side: Side
) -> None:
    """One rollout batch."""
    from fairlen.integrations.verl.agent_loop import Servers
    from fairlen.sampling.eqlen import EqLen
    from fairlen.sampling.extend import Sampling, gather
    from fairlen.sampling.independent import Independent, Request, no_grader

    sampler = Independent(2 * STREAMS) if name == "independent" else EqLen(STREAMS)

    async def run(prompt: tuple[int, ...]) -> int:
        async def generate(request_id: str, *, prompt_ids: list[int], **kwargs: Any) -> Any:
            answer = await client.generate(request_id, prompt_ids=prompt_ids, **kwargs)
            side.requests.append((len(prompt_ids), len(prompt), int(answer.extra_fields.get("num_cached_tokens") or 0)))
            return answer

        methods = {"_acquire_server": client._acquire_server, "_release_server": client._release_server}
        manager = SimpleNamespace(generate=generate, **methods)
        rollout = config.actor_rollout_ref.rollout
        loop: Any = SimpleNamespace(config=config, rollout_config=rollout, tokenizer=tokenizer, server_manager=manager)
        servers = Servers(loop, {"temperature": 1.0}, uuid4().hex)
        servers.can_follow = servers.can_follow and name != "whole"
        request = Request(0, prompt, Sampling(MAX_RESPONSE_LENGTH, seed=0), policy_version=0, seed=(0,))
        found = await sampler(servers.extend, no_grader, request)
        return sum(response.length - response.inherited for response in found)

    begin = time.perf_counter()
    tokens = sum(await gather(map(run, prompts)))
    side.seconds.append((time.perf_counter() - begin) / tokens)
    side.tokens += tokens


async def measure(config: Any, prompts: list[tuple[int, ...]], tokenizer: Any, batches: int) -> dict[str, Side]:
    """All sides in turn, after one rollout batch of each that warms up."""
    from verl.workers.rollout.llm_server import LLMServerManager

    from fairlen.integrations.verl.servers import register_servers

    register_servers()
    starting: Any = LLMServerManager.create(config=config)
    manager: Any = await starting
    client, sides = manager.get_client(), {name: Side() for name in SIDES}
    for batch in range(batches + 1):
        for name, side in sides.items():
            await sample(client, config, tokenizer, prompts, name, side if batch else Side())
            for server in manager.server_handles:
                await server.clear_kv_cache.remote()
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollout", default="vllm", choices=("vllm", "fairlen_cpu"))
    parser.add_argument("--batches", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=16)
    add_smoke(parser)
    arguments = parser.parse_args()
    batches = 1 if arguments.smoke else arguments.batches
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        model = str(copy_shipped(folder / "model"))
        settings, given, config = read_settings(arguments.rollout, folder, model)
        write_files(settings, given, folder, "")
        os.environ.update(environment(settings, given, folder) | {"RAY_TMPDIR": place, "HF_HUB_OFFLINE": "1"})
        import ray
        from omegaconf import OmegaConf
        from transformers import AutoTokenizer

        import fairlen.integrations.verl.cpu  # noqa: F401  this machine's platform
        from fairlen.tasks.playground import Playground

        started: Any = OmegaConf.to_container(config.ray_kwargs.ray_init)
        started["runtime_env"]["env_vars"] |= {"PYTHONPATH": os.pathsep.join(sys.path)}
        ray.init(**started, log_to_driver=False)
        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
            prompts = [tuple(tokenizer.encode(Playground().train(n).text)) for n in range(arguments.prompts)]
            sides = asyncio.run(measure(config, prompts, tokenizer, batches))
        finally:
            ray.shutdown()
    report(sides, arguments.smoke)


def report(sides: dict[str, Side], is_smoke: bool) -> None:
    """A line for each side, and whether the marks are met."""
    base = median(sides["independent"].seconds)
    print(f"{'':<14}{'tokens':>10}{'ms a token':>13}{'ratio':>9}{'forks':>8}{'reused':>9}   blocks of {BLOCK}")
    for name, side in sides.items():
        forks = sum(length > prompt for length, prompt, _ in side.requests)
        mine = median(side.seconds)
        print(f"{name:<14}{side.tokens:>10}{1000 * mine:>13.2f}{mine / base:>9.2f}{forks:>8}{side.reuse:>9.1%}")
    followed = sides["EqLen"]
    demand(followed.tokens > 0 and len(followed.requests) > 0, "EqLen generated nothing")
    if not is_smoke:
        demand(median(followed.seconds) < SLOWEST * base, f"EqLen takes more than {SLOWEST} times as long for a token")
        demand(not followed.reuse < LEAST, f"less than {LEAST:.0%} of forks' prefixes are reused")


if __name__ == "__main__":
    main()
