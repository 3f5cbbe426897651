"""The shipped model as a policy with vLLM on it, once for all tests, and small random models of other kinds."""

import gc
from collections.abc import Iterator

import pytest
import torch

from fairlen import playground
from fairlen.engine.vllm import VllmEngine
from fairlen.policy.engines import build_engine
from fairlen.policy.model import Policy, load_policy
from fairlen.rollouts import TokenIds
from fairlen.settings import RolloutConfig
from fairlen.tasks.playground import Playground


@pytest.fixture(scope="session")
def policy() -> Policy:
    return load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)


@pytest.fixture(scope="session")
def engines() -> list[VllmEngine]:
    """The one that tests share."""
    return []


@pytest.fixture
def engine(policy, engines):
    """With the shipped weights, and no keys and values from another test.

    vLLM's groups are one for a process: an engine that was given up in another test has taken them along.
    """
    from vllm.distributed import model_parallel_is_initialized

    if not (engines and model_parallel_is_initialized()):
        engines.clear()
        gc.collect()
        engines.append(build_engine(RolloutConfig.of(engine="vllm", max_num_seqs=16), policy, max_length=256))
    engines[0].refresh(0)
    return engines[0]


@pytest.fixture
def moved(policy) -> Iterator[None]:
    """The policy's weights are others: each is multiplied by a random number around 1."""
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.mul_(1.0 + 0.05 * torch.randn(weight.shape, generator=generator))
        yield
        for name, weight in policy.model.named_parameters():
            weight.copy_(before[name])


@pytest.fixture(scope="session")
def prompts() -> list[TokenIds]:
    task = Playground()
    return [task.train(number).token_ids for number in range(48)]
