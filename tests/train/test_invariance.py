"""The gradient of an update does not depend on how it is split: over micro-batches, in another order, over ranks."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from loops import first_quickly
from transformers import GPT2Config, GPT2LMHeadModel

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.policy.model import Policy, make_head
from fairlen.policy.pack import pack
from fairlen.rollouts import Response, Rollouts, whole_segments

METHODS = ("grpo+balanced", "dapo", "fspo_centred", "gspo+kl", "vespo")


def tiny_gpt2(dtype: torch.dtype) -> Policy:
    """A model that keeps its dtype throughout; RMSNorm computes in float32 whatever the model's dtype."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=21, n_positions=256, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0
    )
    model = GPT2LMHeadModel(config).to(dtype)
    return Policy(model, None, make_head(model))


def gradient(policy: Policy, method: Method, rollouts: Rollouts, plan: Plan, max_tokens: int) -> torch.Tensor:
    """The summed gradient over micro-batches, off-policy with shifted old log-probs so that ratios are not 1."""
    policy.model.zero_grad()
    for packed in pack(rollouts, plan, max_tokens, is_on_policy=False):
        outputs = policy.forward(packed.inputs, method.needs_entropy)
        shift = 0.05 * torch.sin(packed.inputs.target.to(outputs.logprobs.dtype))
        micro = replace(packed.micro, old_logprobs=outputs.logprobs.detach() + shift)
        if method.needs_ref:
            micro = replace(micro, ref_logprobs=outputs.logprobs.detach() - shift)
        method.loss(outputs, micro).total.backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


def reordered(plan: Plan, order: np.ndarray) -> Plan:
    return Plan(*(getattr(plan, name)[order] for name in ("rows", "length", "advantage", "weight", "term_weight")))


@pytest.mark.parametrize(
    ("names", "dtype", "tolerance"),
    first_quickly([(METHODS[::2], torch.float64, 1e-12), (METHODS[1::2], torch.float64, 1e-12), (METHODS, torch.float32, 1e-6)]),
)  # fmt: skip
def test_micro_batches_and_order_do_not_change_the_gradient(batch, names, dtype, tolerance):
    for name in names:
        policy, method = tiny_gpt2(dtype), compose(name)
        plan = method.plan(method.score(batch.rollouts))
        whole = gradient(policy, method, batch.rollouts, plan, 1 << 20)
        assert whole.norm() > 0
        order = np.random.default_rng(0).permutation(len(plan))
        for max_tokens in (1, 300):  # 1: every row alone
            assert relative(gradient(policy, method, batch.rollouts, plan, max_tokens), whole) < tolerance, name
        assert relative(gradient(policy, method, batch.rollouts, reordered(plan, order), 300), whole) < tolerance, name


def test_a_loss_that_is_averaged_over_micro_batches_would_fail(batch):
    """The control: dividing by the number of micro-batches, as frameworks do, changes the gradient."""
    policy, method = tiny_gpt2(torch.float64), compose("grpo")
    plan = method.plan(method.score(batch.rollouts))
    whole = gradient(policy, method, batch.rollouts, plan, 1 << 20)
    halves = [reordered(plan, np.arange(len(plan))[i::2]) for i in (0, 1)]
    averaged = sum(
        gradient(
            policy, method, batch.rollouts, replace(half, weight=1 / half.length.sum() * np.ones(len(half))), 1 << 20
        )
        for half in halves
    )
    assert relative(averaged / 2, whole) > 1e-3


def correct_and_incorrect() -> Rollouts:
    """One prompt, a right and an incorrect response of equal length: one micro-batch."""
    responses = tuple(
        Response(0, (1, 2, *range(3 + right, 9 + right)), 2, (-1.0,) * 6, "stop", right, outcome=float(right))
        for right in (0, 1)
    )
    return Rollouts(responses, whole_segments(responses), 16)


def idle_rank(rank: int, folder: str) -> None:
    """Gradients are summed parameter by parameter within the backward pass, as sharded models do: without it ranks would hang."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    method, policy, rollouts = compose("grpo"), tiny_gpt2(torch.float64), correct_and_incorrect()
    for parameter in policy.model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
    plan = method.plan(method.score(rollouts))
    share = plan if rank == 0 else reordered(plan, np.arange(0))
    found = gradient(policy, method, rollouts, share, 1 << 20)
    torch.save(found, f"{folder}/gradient-{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_rank_without_a_kept_sequence_takes_part(tmp_path):
    """It runs forward and backward on one sequence of weight 0: both ranks end with the gradient of the other's two."""
    mp.spawn(idle_rank, (str(tmp_path),), nprocs=2)
    method, rollouts = compose("grpo"), correct_and_incorrect()
    whole = gradient(tiny_gpt2(torch.float64), method, rollouts, method.plan(method.score(rollouts)), 1 << 20)
    assert whole.norm() > 0
    for rank in range(2):
        found = torch.load(tmp_path / f"gradient-{rank}.pt", weights_only=True)
        assert torch.isfinite(found).all() and relative(found, whole) < 1e-12
