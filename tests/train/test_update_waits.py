"""On CUDA a micro-batch of an update waits twice at most, counted on tensors of the device that have no contents.

torch's backward pass asks for streams, which only a device has: it is left out here, and counted in tests/gpu.
"""

import math

import numpy as np
import pytest
import torch
from shapes import CONFIGS
from transformers import AutoModelForCausalLM
from waits import DEVICE, counted_waits

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.policy.head import Head
from fairlen.policy.model import Policy
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.train.step import Learner, StepResult

NUM, LENGTH = 12, 20


def batch() -> tuple[Rollouts, Plan]:
    """12 responses of 4 + 20 tokens, in groups of 4."""
    responses = tuple(Response(i // 4, (5,) * (4 + LENGTH), 4, (-1.0,) * LENGTH, "stop", i) for i in range(NUM))
    segments = tuple(Segment(i, 4, 4 + LENGTH, i // 4) for i in range(NUM))
    weight = np.full(NUM, 1 / (NUM * LENGTH))
    plan = Plan(np.arange(NUM), np.full(NUM, LENGTH), np.resize([1.0, -1.0], NUM), weight, weight)
    return Rollouts(responses, segments, LENGTH), plan


def waits_of(method_name: str, max_tokens: int) -> list[str]:
    """What an update waits for whose micro-batches have `max_tokens` positions."""
    method, (rollouts, plan) = compose(method_name), batch()
    with counted_waits() as waits:
        model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"]()).to(DEVICE)
        policy = Policy(model, None, Head(model.get_output_embeddings()))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        learner = Learner(policy, optimizer, schedule, math.inf, max_tokens)
        learner.reference = policy if method.needs_ref else None
        before = len(waits.found)
        result = learner.step(method, rollouts, plan, {}, is_on_policy=False)
        assert result.num_forwarded >= NUM * (LENGTH + 3) and not result.quantity, result.quantity
        check_phases(result, waits.num_operations)
        return waits.found[before:]


def check_phases(result: StepResult, num_operations: int) -> None:
    """On the clock of a device that takes a millisecond for each operation, forward passes last as long as theirs.

    A host's clock would say how long it took to launch them. Here, where nothing goes backward, it takes no time.
    """
    operations = 1000 * result.seconds["forward"]
    assert operations == pytest.approx(round(operations)) and 50 < operations < num_operations
    assert result.seconds["backward"] == 0.0 < result.seconds["pack"]
    assert not result.spans


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fspo", "grpo", "grpo+kl"])
def test_a_micro_batch_waits_twice_at_most(method, monkeypatch):
    """Rows of 24 tokens: 12 in one micro-batch, or 2 in each of 6. The difference is what 5 micro-batches wait for."""
    monkeypatch.setattr(torch.Tensor, "backward", lambda _: None)
    one, six = waits_of(method, 1 << 12), waits_of(method, 2 * 24)
    each = (len(six) - len(one)) / 5
    found = f"{each} a micro-batch, {len(one) - each} an update"
    print(f"{method}: {len(one)} waits with one micro-batch, {len(six)} with six: {found}")
    assert each <= (2 if "fspo" in method else 1)  # the band of fspo reads sums of its own
