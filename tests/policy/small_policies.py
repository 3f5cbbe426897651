"""Small random models, forked rollouts for them, and a pass that learns: what tests of layouts compare."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from fairlen.batch import Plan
from fairlen.methods.method import Method
from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy, make_head
from fairlen.policy.pack import TreeInput, pack
from fairlen.rollouts import Response, Rollouts, Segment

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2,
}  # fmt: skip
MODELS: dict[str, Any] = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=200)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=40, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )
    ),
}  # fmt: skip


def make_policy(name: str, dtype: torch.dtype = torch.float32) -> Policy:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    return Policy(model, None, make_head(model))


def readers(name: str, dtype: torch.dtype = torch.float32) -> tuple[Policy, Policy]:
    """A model that reads rows as it came, and its copy that reads trees."""
    rows, trees = make_policy(name, dtype), make_policy(name, dtype)
    assert choose_layout("trees", trees, 200).kind == "trees"
    assert rows.model.config._attn_implementation == "sdpa"
    return rows, trees


def forked_rollouts(streams: int = 3, rounds: int = 4, segment: int = 9, seed: int = 0) -> Rollouts:
    """Streams of rounds: in each the one track ends, the other goes on; both pieces train. One response is there twice."""
    rng = np.random.default_rng(seed)
    responses: list[Response] = []
    segments: list[Segment] = []
    for stream in range(streams):
        prefix = rng.integers(0, 40, 10).tolist()
        for number in range(rounds):
            ended, other = (prefix + rng.integers(0, 40, rng.integers(1, 2 * segment)).tolist() for _ in range(2))
            for tokens in (ended, other):
                response = Response(stream, tuple(tokens), 10, (-2.0,) * (len(tokens) - 10), "stop", 0)
                responses.append(response)
                segments.append(Segment(len(responses) - 1, len(prefix), len(tokens), len(segments) // 2, round=number))
            prefix = other
    responses.append(replace(responses[1], seed=1))
    segments.append(replace(segments[1], response=len(responses) - 1))
    return Rollouts(tuple(responses), tuple(segments), 100)


def random_plan(rollouts: Rollouts) -> Plan:
    rng, length = np.random.default_rng(3), np.array([s.stop - s.start for s in rollouts.segments])
    drawn = [rng.normal(size=len(length)) for _ in range(2)]
    return Plan(np.arange(len(length)), length, drawn[0], np.abs(drawn[1]) / 100, np.abs(drawn[1]) / 50)


def learn(
    policy: Policy, rollouts: Rollouts, plan: Plan, method: Method, trees: bool, max_tokens: int = 1 << 20,
    shift: float = 0.05,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Log-probs of the plan's tokens in its order, and the gradient of the method's loss, off-policy.

    Old log-probs are up to `shift` from the current ones; 0 takes those of the rollouts.
    """
    policy.model.train()
    policy.model.zero_grad()
    found: dict[int, Tensor] = {}
    for packed in pack(rollouts, plan, max_tokens, trees=trees, is_on_policy=False):
        assert isinstance(packed.inputs, TreeInput) is trees
        outputs = policy.forward(packed.inputs, method.needs_entropy)
        moved = outputs.logprobs.detach() + shift * torch.sin(packed.inputs.target.to(outputs.logprobs.dtype))
        micro = replace(packed.micro, old_logprobs=moved) if shift else packed.micro
        method.loss(outputs, micro).total.backward()
        parts = outputs.logprobs.detach().split(micro.length.tolist())
        found |= dict(zip(packed.rows.tolist(), parts, strict=True))
    gradient = torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])
    return torch.cat([found[row] for row in range(len(plan))]), gradient


def differences(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Of log-probs in nats, and of the gradient relative to its norm."""
    return float((found[0] - expected[0]).abs().max()), float((found[1] - expected[1]).norm() / expected[1].norm())
