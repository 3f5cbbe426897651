"""Trees on a CUDA device at the size of a real update: heads of 128, 8,192 positions, and no entry for each pair of them."""

import copy
import math
from functools import cache
from typing import Any

import numpy as np
import torch
from on_cuda import ON_CUDA
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy, make_head
from fairlen.policy.tree import ForestMask, attend, sort_rows
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.train.step import Learner

DEVICE = torch.device("cuda")
pytestmark = ON_CUDA
PROMPT, ANSWER, NUMBER = 2048, 1024, 6
SHAPE = Qwen3Config(
    hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2, head_dim=128,
    vocab_size=2000, max_position_embeddings=4096,
)  # fmt: skip
METHOD = compose("grpo")
MIB = 2**20


def batch() -> tuple[Rollouts, Plan]:
    """A prompt of 2,048 tokens with 6 answers of 1,024, of which two share their first half: 8,192 - 512 positions."""
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 2000, PROMPT).tolist()
    answers = [rng.integers(0, 2000, ANSWER).tolist() for _ in range(NUMBER)]
    answers[1][: ANSWER // 2] = answers[0][: ANSWER // 2]
    none = (-7.0,) * ANSWER
    responses = tuple(Response(0, (*trunk, *row), PROMPT, none, "stop", i) for i, row in enumerate(answers))
    segments = tuple(Segment(i, PROMPT, PROMPT + ANSWER, 0) for i in range(NUMBER))
    weight = np.full(NUMBER, 1 / (NUMBER * ANSWER))
    plan = Plan(np.arange(NUMBER), np.full(NUMBER, ANSWER), rng.normal(size=NUMBER), weight, weight)
    return Rollouts(responses, segments, ANSWER), plan


@cache
def weights() -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(SHAPE, dtype=torch.float32).to(DEVICE)


@cache
def measured(kind: str, autocast: bool) -> tuple[Tensor, Tensor, int]:
    """Log-probs of every trained token, the gradient of an update, and the positions that were forwarded."""
    model = copy.deepcopy(weights())
    policy = Policy(model, None, make_head(model), autocast=autocast)
    layout = choose_layout(kind, policy, PROMPT + ANSWER)  # pyright: ignore
    assert layout.kind == kind, str(layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    learner = Learner(policy, optimizer, schedule, math.inf, 1 << 15, layout=layout)
    rollouts, plan = batch()
    by_row = learner.old_logprobs(rollouts, plan)
    result = learner.step(METHOD, rollouts, plan, {}, True)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return torch.cat([by_row[row] for row in range(NUMBER)]).double(), gradient.double(), result.num_forwarded


def distances(found: tuple[Tensor, Tensor, int], exact: tuple[Tensor, Tensor, int]) -> tuple[float, float]:
    """Of log-probs in nats, root of the mean square, and of the gradient relative to its norm."""
    logprobs = float((found[0] - exact[0]).square().mean().sqrt())
    return logprobs, float((found[1] - exact[1]).norm() / exact[1].norm())


def test_trees_are_rows_in_float32():
    rows, trees = measured("rows", False), measured("trees", False)
    logprobs, gradient = distances(trees, rows)
    print(f"float32: log-probs {logprobs:.1e}, gradient {gradient:.1e}, {trees[2]:,} of {rows[2]:,} positions")
    assert logprobs < 1e-5 and gradient < 1e-4
    assert trees[2] < 0.45 * rows[2]  # 2,048 + 5.5 x 1,024 of 6 x 3,072


def test_trees_in_bfloat16_are_no_further_from_float32_than_rows_are():
    """Eight bits are rounded elsewhere in either layout; neither may be worse."""
    exact = measured("rows", False)
    rows, trees = (distances(measured(kind, True), exact) for kind in ("rows", "trees"))
    print(f"bfloat16 against float32, log-probs and gradient: rows {rows}, trees {trees}")
    assert trees[0] < 1.5 * rows[0] and trees[1] < 1.5 * rows[1]


def branches(number: int, length: int) -> ForestMask:
    """A trunk of `length` tokens with so many branches of `length`."""
    rows = [np.r_[np.full(length, 1), np.full(length, 2 + branch)] for branch in range(number)]
    return ForestMask(sort_rows(rows).forest(slice(0, number)), DEVICE)


def states(length: int, heads: int, key_heads: int, dtype: torch.dtype) -> list[Tensor]:
    sizes = (heads, key_heads, key_heads)
    return [torch.randn(1, n, length, 128, dtype=dtype, device=DEVICE, requires_grad=True) for n in sizes]


def peak_of(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> float:
    """MiB that attention and its gradients take at their peak, beside the states; compiled before."""
    peak = 0.0
    for _ in range(2):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = attend(nn.Identity(), query, key, value, None, **options)[0]
        torch.autograd.grad(out.float().square().sum(), (query, key, value))
        peak = (torch.cuda.max_memory_allocated() - before) / MIB
        del out
    return peak


def test_attention_along_a_tree_of_16384_positions_holds_nothing_for_each_pair():
    """A bias of 16,384^2 in bfloat16 has 512 MiB. Queries of 2 heads have 8, and so has each of what is kept of their size."""
    tree = branches(15, 1024)
    peak = peak_of(*states(len(tree.forest), 2, 1, torch.bfloat16), tree=tree)
    print(f"{peak:.0f} MiB at the peak")
    assert len(tree.forest) == 16384 and peak < 128


def test_rows_with_grouped_heads_in_float32_hold_nothing_for_each_pair():
    """Scores of 16,384^2 for 2 heads have 2 GiB. The kernel that holds none takes no groups, so that keys are repeated."""
    query, key, value = states(16384, 2, 1, torch.float32)
    module = nn.Module()
    module.num_key_value_groups = 2  # pyright: ignore
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        found = attend(module, query, key, value, None)[0]
    peak = peak_of(query, key, value)
    print(f"{peak:.0f} MiB at the peak")
    assert peak < 512
    with torch.no_grad():
        last = torch.softmax(query[:, :, -1:] @ key.transpose(2, 3) * 128**-0.5, -1) @ value
    assert (found[:, -1:] - last.transpose(1, 2)).abs().max() < 1e-4
