"""The trainer of `fairlen train` on the playground, one rollout batch a turn."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from fairlen import playground
from fairlen.engine.device import free_memory
from fairlen.methods.compose import explain
from fairlen.policy.engines import build_engine, find_max_length
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import load_policy
from fairlen.tasks.grader import Grader
from fairlen.tasks.load import load_task
from fairlen.train.loop import Trainer
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.folder import open_run
from fairlen.train.start import build_learner, build_trainer, choose_settings


class OurTrainer:
    """A trainer with settings of `TrainConfig`, without evaluations; `entries` has what it logs."""

    def __init__(self, **settings: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        config = TrainConfig.of(out=str(Path(self.folder.name) / "run"), warmup_updates=0, problems=1, **settings)
        composition = explain(config.method, config.overrides)
        policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
        task = load_task(config, policy.tokenizer, config.run.seed)
        config = choose_settings(config, policy, task, free_memory("cpu"))
        longest = find_max_length(policy, task.longest_prompt, config.sampling.max_response_length)
        layout, engine = choose_layout("auto", policy, longest), build_engine(config, policy, longest)
        run = open_run(config, composition, layout)
        grader = Grader(task, policy.decode)
        self.entries: list[dict[str, Any]] = []
        learner = build_learner(config, policy, composition.method, layout)
        self.trainer = build_trainer(run, learner, engine, grader, (), self.entries.append)

    def turn(self) -> None:
        """Collects a rollout batch and makes all of its updates; each adds an entry."""
        asyncio.run(learn_batch(self.trainer))


async def learn_batch(trainer: Trainer) -> None:
    """The next rollout batch, from its collection to its last update."""
    await trainer.step()
    while trainer.started is not None:
        await trainer.step()
