"""Responses of a shipped model to held-out problems, drawn as training draws them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from safetensors.torch import load_file

from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import Rollouts
from fairlen.sampling.extend import Sampling
from fairlen.tasks.environment import choose_extend
from fairlen.tasks.grader import Grader
from fairlen.tasks.task import Synthetic
from fairlen.train.collect import Collector
from research import longhand


def load_weights(model: Path, dtype: str = "float32") -> Policy:
    """Load a shipped model on the CPU: a folder, or a file of weights for the model of longhand."""
    policy = load_policy(longhand.PATH if model.is_file() else model, dtype, "cpu", False)
    if model.is_file():
        policy.model.load_state_dict(load_file(model), strict=False)  # without the head, which is the embedding
    return policy


def draw(
    task: Synthetic, max_response_length: int, model: Path, method: str, problems: int, *settings: str
) -> Rollouts:
    """Return responses to the first held-out problems of a task, by the sampler of a method."""
    policy = load_weights(model)
    policy.model.eval()
    held_out, length = task.held_out(problems), task.longest_prompt + max_response_length
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=length, compile=False)
    extend = choose_extend(task, engine.extend, policy.decode)
    grader, sampling = Grader(task, policy.decode), Sampling(max_response_length, seed=0)
    collector = Collector(extend, grader, held_out.__getitem__, sampling, problems, 0, seed=0)
    return asyncio.run(collector(compose(method, settings), 0, 0, 0)).rollouts
