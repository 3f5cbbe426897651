"""A fused AdamW after a resume: bits on the CPU, and on a device each number where its parameter is.

The checkpoint is real and comes from a file; the tensors of the device have a shape and no contents.
"""

import math

import pytest
import torch
from loops import over
from shapes import CONFIGS
from test_update_waits import batch
from transformers import AutoModelForCausalLM, PreTrainedModel
from waits import DEVICE, counted_waits

from fairlen.methods.compose import compose
from fairlen.policy.head import Head
from fairlen.policy.model import Policy
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

STEPS = 3


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


def misplaced(learner: Learner) -> list[str]:
    """Numbers of the optimizer that are not where their parameter is, or not of its dtype; every parameter has all three."""
    found = []
    for name, parameter in learner.policy.model.named_parameters():
        moments = learner.optimizer.state[parameter]
        assert set(moments) == {"step", "exp_avg", "exp_avg_sq"}, name
        for key, value in moments.items():
            if (value.device, value.dtype) != (parameter.device, parameter.dtype) or value.device != DEVICE:
                found.append(f"{name}|{key}: {value.device}, {value.dtype}")
    return found


@pytest.mark.slow
def test_on_a_device_an_update_is_made_after_a_resume(tmp_path, monkeypatch):
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    train(model, optimizer, STEPS)
    parts = {"model": capture_weights(model), "optimizer": capture_moments(model, optimizer)}
    save_checkpoint(tmp_path, "batch-000003-update-000003", Checkpoint(parts, {}))
    found = load_newest(tmp_path)
    assert found is not None
    with counted_waits():
        model = made_model().to(DEVICE)
        model.tie_weights()  # which moving to a device undoes where tensors have no contents
        policy = Policy(model, None, Head(model.get_output_embeddings()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)

        def differentiate(_: torch.Tensor) -> None:
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)

        monkeypatch.setattr(torch.Tensor, "backward", differentiate)  # torch's own asks for streams of a real device
        restore_weights(model, found[1].tensors["model"])
        restore_moments(model, optimizer, found[1].tensors["optimizer"])
        learner = Learner(policy, optimizer, schedule, math.inf, 1 << 12)
        assert misplaced(learner) == []
        assert not learner.step(compose("grpo"), *batch(), {}, True).quantity
        assert misplaced(learner) == []


@over("fused", [True, False])
def test_on_the_cpu_what_is_restored_are_the_same_bits(fused):
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
