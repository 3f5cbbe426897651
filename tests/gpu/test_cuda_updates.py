"""Updates on a CUDA device as users have them: heads of 128, bfloat16, adapters, a reference, long rows, too little memory."""

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from on_cuda import ON_CUDA
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.policy.lora import add_adapters
from fairlen.policy.model import Policy, Unadapted, make_head
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.settings import PolicySettings
from fairlen.train.step import Learner, StepResult, release_memory

DEVICE = "cuda"
pytestmark = ON_CUDA

PROMPT, VOCABULARY = 64, 1024
LONG = 8192
SHAPE = Qwen3Config(
    vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=128, max_position_embeddings=2 * LONG, initializer_range=0.1, eos_token_id=1,
    bos_token_id=None, pad_token_id=0,
)  # fmt: skip


@cache
def original() -> PreTrainedModel:
    """Random weights, of which every test has a copy."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(SHAPE, dtype=torch.float32)


def learner(device: str = DEVICE, *, max_tokens: int = 1 << 14, rank: int = 0, **options: Any) -> Learner:
    """A learner whose rate is 0: updates have gradients and change nothing. `options` are the policy's."""
    model = copy.deepcopy(original())
    if rank:
        torch.manual_seed(1)
        add_adapters(model, PolicySettings(lora_rank=rank))
        draw_adapters(model)
    model.to(device)
    policy = Policy(model, None, make_head(model), **options)
    optimizer = torch.optim.AdamW(policy.trained().values(), lr=0.0, fused=device == "cuda" or None)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return Learner(policy, optimizer, schedule, math.inf, max_tokens)


def draw_adapters(model: PreTrainedModel) -> None:
    """Random numbers for what adapters begin with as zeros: without them one of each pair has no gradient."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.02)


def batch(lengths: tuple[int, ...] = (60, 100, 200, 150, 33, 256, 90, 120)) -> tuple[Rollouts, Plan]:
    """Responses to one prompt of 64 random tokens."""
    rng = np.random.default_rng(0)
    prompt = tuple(rng.integers(2, VOCABULARY, PROMPT).tolist())
    drawn = [tuple(rng.integers(2, VOCABULARY, length).tolist()) for length in lengths]
    responses = tuple(
        Response(0, prompt + made, PROMPT, (-math.log(VOCABULARY),) * len(made), "stop", seed)
        for seed, made in enumerate(drawn)
    )
    segments = tuple(Segment(row, PROMPT, len(one.token_ids), 0) for row, one in enumerate(responses))
    length = np.array(lengths)
    weight = 1 / (len(length) * length)
    plan = Plan(np.arange(len(length)), length, rng.normal(size=len(length)), weight, weight)
    return Rollouts(responses, segments, max(lengths)), plan


def update(
    found: Learner, method: str = "grpo", data: tuple[Rollouts, Plan] | None = None
) -> tuple[StepResult, Tensor]:
    """One update, and its gradient on the CPU."""
    result = found.step(compose(method), *(data or batch()), {}, True)
    assert not result.quantity, result.quantity
    gradients = [p.grad.flatten() for p in found.policy.trained().values() if p.grad is not None]
    return result, torch.cat(gradients).double().cpu()


def apart(found: Tensor, expected: Tensor) -> float:
    """The difference relative to the size."""
    return float((found - expected).norm() / expected.norm())


def test_with_heads_of_128_the_gradient_is_that_of_the_cpu():
    here, there = update(learner("cpu")), update(learner())
    print(f"float32: {apart(there[1], here[1]):.1e}")
    assert there[0].loss == pytest.approx(here[0].loss, abs=1e-6)
    assert apart(there[1], here[1]) < 1e-3


def peak_of(found: Learner) -> tuple[int, Tensor]:
    """Bytes that an update adds at its peak, gradients and moments there already; and its gradient."""
    update(found)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradient = update(found)[1]
    return torch.cuda.max_memory_allocated() - before, gradient


def test_checkpointing_has_the_same_gradient_in_less_memory():
    kept, again = learner(), learner()
    again.policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    (most, expected), (less, found) = peak_of(kept), peak_of(again)
    print(f"kept {most / 2**20:.0f} MiB, computed again {less / 2**20:.0f} MiB")
    assert apart(found, expected) < 1e-5
    assert less < 0.8 * most


def test_adapters_have_the_gradient_of_the_cpu_and_nothing_else_has_one():
    here, there = learner("cpu", rank=8), learner(rank=8)
    expected, found = update(here)[1], update(there)[1]
    assert len(found) == there.policy.num_trained < 0.2 * there.policy.model.num_parameters()
    assert all(p.grad is None for p in there.policy.model.parameters() if not p.requires_grad)
    assert apart(found, expected) < 1e-3


@pytest.mark.parametrize("rank", [0, 8], ids=["a copy", "the weights under adapters"])
def test_the_distance_to_a_reference_is_that_of_the_cpu(rank):
    found = {}
    for device in ("cpu", DEVICE):
        one = learner(device, rank=rank)
        if rank:
            one.reference = Unadapted(one.policy)
        else:
            one.reference = one.policy.with_model(copy.deepcopy(one.policy.model).requires_grad_(False).eval())
            with torch.no_grad():
                for parameter in one.policy.trained().values():
                    parameter.mul_(1.01)
        found[device] = update(one, "grpo+kl")
    (here, expected), (there, gradient) = found["cpu"], found[DEVICE]
    assert here.counts["kl/reference"] > 1e-3
    assert there.counts["kl/reference"] == pytest.approx(here.counts["kl/reference"], rel=1e-3)
    assert apart(gradient, expected) < 1e-3


def test_8192_positions_take_no_memory_for_pairs_of_them():
    """Were scores of attention kept, four layers of four heads would have 8,192^2 numbers of 2 bytes each: 2 GiB."""
    found = learner(autocast=True)
    rollouts, plan = batch((LONG - PROMPT,))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result, gradient = update(found, data=(rollouts, plan))
    peak = torch.cuda.max_memory_allocated() - before
    print(f"{peak / 2**20:.0f} MiB at {LONG} positions")
    assert result.num_forwarded == LONG - 1
    assert torch.isfinite(gradient).all() and peak < 4 * 4 * LONG**2 * 2


def test_where_memory_runs_out_smaller_micro_batches_give_the_same_gradient():
    """The allocator has a limit between what the whole batch and what half of it needs, both measured."""
    data = batch((960,) * 16)
    whole, expected = reserved_by(learner(), data)
    half, _ = reserved_by(learner(max_tokens=8 * (PROMPT + 960)), data)
    assert half < 0.8 * whole
    release_memory()
    found = learner()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((half + whole) / 2 / total)
    try:
        gradient = update(found, data=data)[1]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    print(f"whole {whole / 2**20:.0f} MiB, half {half / 2**20:.0f} MiB, now {found.max_tokens} positions at a time")
    assert found.max_tokens < 16 * (PROMPT + 960)
    assert apart(gradient, expected) < 1e-5


def reserved_by(found: Learner, data: tuple[Rollouts, Plan]) -> tuple[int, Tensor]:
    """Bytes that the allocator holds at most in an update, weights included, and its gradient."""
    release_memory()
    torch.cuda.reset_peak_memory_stats()
    gradient = update(found, data=data)[1]
    return torch.cuda.max_memory_reserved(), gradient
