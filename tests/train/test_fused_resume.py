"""AdamW as it is on CUDA after everything that restores or repeats: on tensors of the device that have a shape and no contents.

The checkpoint is real and comes from a file; what it is restored into is on cuda:0.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import over
from shapes import CONFIGS
from test_update_waits import batch
from transformers import AutoModelForCausalLM, PreTrainedModel
from waits import DEVICE, counted_waits

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.policy.head import Head
from fairlen.policy.model import Policy
from fairlen.train.memory import run_largest
from fairlen.train.run.checkpoint import (
    Checkpoint,
    capture_moments,
    capture_weights,
    load_newest,
    restore_moments,
    restore_weights,
    save_checkpoint,
)
from fairlen.train.step import Learner

METHOD = compose("grpo")
STEPS = 3


def build_fused(model: PreTrainedModel) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def train(model: PreTrainedModel, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps along gradients that are the same for every caller."""
    for step in range(steps):
        for place, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(1000 * step + place)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def made_model() -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS["qwen3"]())


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Checkpoint:
    """The checkpoint of a run on the CPU, after three updates, read from its files."""
    folder: Path = tmp_path_factory.mktemp("saved")
    model = made_model()
    optimizer = build_fused(model)
    train(model, optimizer, STEPS)
    parts = {"model": capture_weights(model), "optimizer": capture_moments(model, optimizer)}
    save_checkpoint(folder, "batch-000003-update-000003", Checkpoint(parts, {}))
    found = load_newest(folder)
    assert found is not None
    return found[1]


@contextmanager
def resumed(saved: Checkpoint) -> Iterator[Learner]:
    """A learner on the device that has gone on from the checkpoint; its backward pass gives every weight a gradient."""
    with counted_waits(), pytest.MonkeyPatch.context() as patch:
        model = AutoModelForCausalLM.from_config(CONFIGS["qwen3"]()).to(DEVICE)
        model.tie_weights()  # which moving to a device undoes where tensors have no contents
        policy = Policy(model, None, Head(model.get_output_embeddings()))
        optimizer = build_fused(model)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

        def differentiate(_: torch.Tensor) -> None:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)

        patch.setattr(torch.Tensor, "backward", differentiate)  # torch's own asks for streams, which only a device has
        restore_weights(model, saved.tensors["model"])
        restore_moments(model, optimizer, saved.tensors["optimizer"])
        yield Learner(policy, optimizer, schedule, math.inf, 1 << 12)


def misplaced(learner: Learner) -> list[str]:
    """What of the optimizer is not where its parameter is, or not of its dtype; every parameter has all three."""
    found = []
    for name, parameter in learner.policy.model.named_parameters():
        moments = learner.optimizer.state[parameter]
        assert set(moments) == {"step", "exp_avg", "exp_avg_sq"}, name
        for key, value in moments.items():
            if (value.device, value.dtype) != (parameter.device, parameter.dtype) or value.device != DEVICE:
                found.append(f"{name}|{key}: {value.device}, {value.dtype}")
    return found


def test_after_a_resume_an_update_is_made(saved):
    with resumed(saved) as learner:
        assert misplaced(learner) == []
        assert not learner.step(METHOD, *batch(), {}, True).quantity
        assert misplaced(learner) == []


@pytest.mark.slow
def test_after_an_update_in_which_memory_ran_out_and_that_was_made_again(saved, monkeypatch):
    whole, sizes = Learner.accumulate, []

    def accumulate(learner, method, packed, *rest):
        sizes.append(packed.inputs.token_ids.numel())
        if sizes[-1] > 150:  # 12 rows of 24 tokens, of which the last is only predicted, are 276
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(learner, method, packed, *rest)

    monkeypatch.setattr(Learner, "accumulate", accumulate)
    with resumed(saved) as learner:
        assert not learner.step(METHOD, *batch(), {}, True).quantity
        assert sizes[0] == 12 * 23 and len(sizes) > 2 and max(sizes[1:]) <= 12 * 23 // 2
        assert misplaced(learner) == []


def test_after_an_update_that_was_not_finite_and_was_left_out(saved):
    rollouts, plan = batch()
    broken = Plan(plan.rows, plan.length, np.full(len(plan), math.nan), plan.weight, plan.term_weight)
    with resumed(saved) as learner:
        assert learner.step(METHOD, rollouts, broken, {}, True).quantity == "advantage"
        assert misplaced(learner) == []
        assert not learner.step(METHOD, rollouts, plan, {}, True).quantity


def test_after_the_trial_of_memory(saved, monkeypatch):
    monkeypatch.setattr(torch.random, "fork_rng", lambda _: nullcontext())  # which asks for a real device
    with resumed(saved) as learner:
        run_largest(learner, METHOD, 8, 16, 4)
        assert misplaced(learner) == []


@over("fused", [True, False])
def test_on_the_cpu_what_is_restored_are_the_same_bits(saved, fused):
    """Fused or not: 3 + 2 steps, stopped between, and 5 in one go, end with the same weights, and no state is of the file."""
    whole, model = made_model(), made_model()
    first, second = (torch.optim.AdamW(one.parameters(), lr=1e-3, fused=fused) for one in (whole, model))
    train(whole, first, STEPS)
    moments = {name: value.clone() for name, value in capture_moments(whole, first).items()}
    restore_weights(model, capture_weights(whole))
    restore_moments(model, second, moments)
    held = {value.data_ptr() for value in moments.values()}
    assert not held & {value.data_ptr() for value in capture_moments(model, second).values()}
    for one, optimizer in ((whole, first), (model, second)):
        train(one, optimizer, 2)
    for name, value in capture_weights(whole).items():
        assert torch.equal(value, capture_weights(model)[name]), name
