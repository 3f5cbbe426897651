"""The model of rollout servers against the embedded engine: the same lengths, slots and streams; steps, not seconds.

A rollout batch of the playground is generated; the model then gets the lengths that came out, and has to find in how many steps
the engine made them and how full its slots were. Nothing is fitted.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from _cluster import Cluster
from _lengths import Forks, Job, Made, Replayed
from _servers import Cost, Machine

from fairlen import playground
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import EngineStats, Extend, Sampling
from fairlen.sampling.independent import Independent
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collected, Collector

BUDGET = 160
STEPS = Cost(1, 0, 0, 0)


@dataclass(frozen=True)
class Recorded:
    """What the engine did."""

    collected: Collected
    stats: EngineStats
    seconds: float

    @property
    def lengths(self) -> dict[tuple[int, int, int], int]:
        """Of every track, inherited tokens included, by (prompt, stream, track)."""
        return {(r.prompt, r.stream, r.track): r.length for r in self.collected.rollouts.responses}

    @property
    def num_prompt(self) -> int:
        """Tokens of a prompt, the mean; steps do not depend on it."""
        problems = self.collected.problems
        return round(sum(len(problem.token_ids) for problem in problems) / len(problems))


@dataclass(frozen=True)
class Row:
    """Measured, and predicted."""

    name: str
    slots: int
    measured_steps: int
    predicted_steps: int
    measured_busy: float
    """Mean share of slots that held a sequence."""
    predicted_busy: float


def hide_progress(extend: Extend) -> Extend:
    """The same engine, but nobody can tell how far a continuation has got."""

    async def whole(prefix: TokenIds, sampling: Sampling) -> Any:
        return await extend(prefix, sampling)

    return whole


class Embedded:
    """The engine with the playground's model; a new one for every run."""

    def __init__(self) -> None:
        self.policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)

    def roll_out(self, method: str, prompts: int, slots: int, *, is_whole: bool = False, seed: int = 0) -> Recorded:
        """One rollout batch."""
        task = Playground()
        engine = Engine(
            self.policy.model, eos_token_id=self.policy.eos_token_ids, max_length=256, max_num_seqs=slots, compile=False
        )
        extend = hide_progress(engine.extend) if is_whole else engine.extend
        grader, sampling = Grader(task, self.policy.decode), Sampling(BUDGET, seed=0)
        collect = Collector(extend, grader, task.train, sampling, num_prompts=prompts, max_extra_batches=0, seed=seed)
        start = time.perf_counter()
        collected = asyncio.run(collect(compose(method), 0, 0, 0))
        return Recorded(collected, engine.stats, time.perf_counter() - start)


def predict(recorded: Recorded, machine: Machine, forks: Forks | None, streams: int) -> tuple[Cluster, float]:
    """What the model makes of the lengths that the engine made; the cluster, and the time in its units."""
    prompts = len(recorded.collected.problems)
    job = Job(Replayed(recorded.lengths, BUDGET), recorded.num_prompt, streams, forks)
    cluster, made = Cluster(machine), Made()
    for prompt in range(prompts):
        job.launch(cluster, prompt, made)
    return cluster, cluster.run()


def compare(prompts: int, slots: tuple[int, ...]) -> list[Row]:
    """Independent sampling, EqLen, and EqLen on whole continuations, each with so many slots."""
    engine, rows = Embedded(), []
    sides: tuple[tuple[str, str, Forks | None], ...] = (
        ("independent, 16", "grpo", None),
        ("EqLen 8 x 2", "eqlen+grpo", "reach"),
        ("EqLen 8 x 2, whole continuations", "eqlen+grpo", "whole"),
    )
    for name, method, forks in sides:
        for count in slots:
            recorded = engine.roll_out(method, prompts, count, is_whole=forks == "whole")
            cluster, steps = predict(
                recorded, Machine(STEPS, count, forks_first=forks == "reach"), forks, Independent().n // 2
            )
            stats = recorded.stats
            busy = cluster.servers[0].num_tokens / (steps * count)
            rows.append(Row(name, count, stats.num_steps, round(steps), stats.occupancy, busy))
    return rows
