"""The shipped model and a rollout batch of it, as fixtures that the tests of the policy and of training share."""

import asyncio
from dataclasses import dataclass

import pytest

from fairlen import playground
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import Rollouts
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collected, Collector


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)


@dataclass(frozen=True)
class Batch:
    collected: Collected
    grader: Grader

    @property
    def rollouts(self) -> Rollouts:
        return self.collected.rollouts


@pytest.fixture(scope="session")
def batch(policy: Policy) -> Batch:
    """6 prompts x 8 responses of at most 60 tokens, by the shipped model."""
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=160, max_num_seqs=16, compile=False)
    task = Playground()
    grader = Grader(task, policy.decode)
    collector = Collector(
        engine.extend, grader, task.train, Sampling(60, seed=0), num_prompts=6, max_extra_batches=0, seed=1
    )
    method = compose("grpo", ["sampling.n=8"])
    return Batch(asyncio.run(collector(method, 0, 0, 0)), grader)
