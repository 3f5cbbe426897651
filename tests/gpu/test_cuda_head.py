"""The output layer of Qwen3-0.6B on a CUDA device: kernels add in float32 and wait for nothing, no number of chunks matters."""

import pytest
import torch
from on_cuda import ON_CUDA
from torch import Tensor, nn

from fairlen.policy import head as module
from fairlen.policy.head import Head
from fairlen.policy.pack import ModelInput

DEVICE = "cuda"
pytestmark = ON_CUDA
LENGTH, WIDTH, VOCABULARY = 518, 1024, 151_936
GIB = 2**30


def layer(dtype: torch.dtype, is_frozen: bool = False) -> nn.Linear:
    """The same weights in any dtype; logits have a standard deviation of 2."""
    torch.manual_seed(0)
    linear = nn.Linear(WIDTH, VOCABULARY, bias=False, device=DEVICE)
    nn.init.normal_(linear.weight, std=2 / WIDTH**0.5)
    return linear.to(dtype).requires_grad_(not is_frozen)


def compute(linear: nn.Linear, is_low: bool, length: int = LENGTH) -> dict[str, Tensor]:
    """Log-probs of targets and gradients of their weighted sum."""
    torch.manual_seed(1)
    hidden = torch.randn(length, WIDTH, device=DEVICE).to(linear.weight.dtype).requires_grad_()
    target = torch.randint(0, VOCABULARY, (length,), device=DEVICE)
    of_logprob = torch.randn(length, device=DEVICE)
    inputs = ModelInput(target[None], target, target, 1.0)
    linear.zero_grad()
    torch.cuda.set_sync_debug_mode("error" if is_low else "default")
    try:
        logprobs = Head(linear).read(hidden, inputs, is_low, is_low, False).logprobs
        (logprobs * of_logprob).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = dict(logprobs=logprobs.detach(), hidden=hidden.grad, weight=linear.weight.grad)
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def distance(found: dict[str, Tensor], expected: dict[str, Tensor], is_norm: bool = False) -> dict[str, float]:
    """The largest difference over the largest number, or of their norms."""
    size = (lambda tensor: float(tensor.norm())) if is_norm else (lambda tensor: float(tensor.abs().max()))
    return {name: size(found[name].double() - tensor.double()) / size(tensor) for name, tensor in expected.items()}


@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
def test_no_number_of_chunks_matters(monkeypatch, is_frozen):
    """1, 7 and 74 chunks: log-probs to 1e-6 of the largest, gradients to 1e-5 of their norm, errors no larger than autocast's.

    A logit that another kernel rounds differently in float32 may take one of a thousand gradients to the next bfloat16.
    """
    exact = compute(layer(torch.float64, is_frozen), is_low=False)
    linear = layer(torch.float32, is_frozen)
    monkeypatch.setattr(module, "CHUNK_LOGITS", 1 << 40)
    with torch.autocast(DEVICE, torch.bfloat16):
        usual = distance(compute(linear, is_low=False), exact)
    found = {}
    for chunks in (1, 7, 74):
        monkeypatch.setattr(module, "CHUNK_LOGITS", LENGTH // chunks * VOCABULARY)
        found[chunks] = {name: tensor.clone() for name, tensor in compute(linear, is_low=True).items()}
        error, apart = distance(found[chunks], exact), distance(found[chunks], found[1], is_norm=True)
        print(chunks, {name: f"error {usual[name]:.1e} -> {error[name]:.1e}, {apart[name]:.1e}" for name in error})
        assert all(error[name] <= usual[name] for name in error)
        assert distance(found[chunks], found[1])["logprobs"] <= 1e-6 and max(apart.values()) <= 1e-5
    again = compute(linear, is_low=True)
    assert all(torch.equal(again[name], found[74][name]) for name in again), "no atomics"


@pytest.mark.parametrize("is_frozen", [False, True], ids=["trained", "frozen"])
def test_the_head_takes_what_the_account_says(is_frozen):
    """16,384 positions: two copies of a chunk's logits; trained weights in bfloat16, and their gradient twice after the first."""
    linear, length = layer(torch.bfloat16 if is_frozen else torch.float32, is_frozen), 16_384
    compute(linear, True, length)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compute(linear, True, length)
    peak = torch.cuda.max_memory_allocated() - before
    # one gradient was there before
    account = 2 * 4 * module.CHUNK_LOGITS + (0 if is_frozen else 2 * linear.weight.numel())
    states = 6 * 4 * length * WIDTH  # hidden states, their gradients and derivatives
    print(f"{peak / GIB:.2f} GiB, account {account / GIB:.2f}")
    assert peak <= 1.05 * account + states
