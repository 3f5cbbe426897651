"""Rows or trees: which models may read trees, and what is said of those that may not."""

from typing import Any

import pytest
import torch
from loops import over
from small_policies import SIZES, forked_rollouts, make_policy, random_plan
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from fairlen.policy.layout import choose_layout
from fairlen.policy.model import Policy, make_head
from fairlen.policy.pack import pack
from fairlen.policy.tree import build as build_kernel


def with_rope(**parameters: Any) -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **parameters}))


def with_attention(name: str) -> LlamaForCausalLM:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    model.set_attn_implementation(name)
    return model


REFUSED: dict[str, tuple[Any, str]] = {
    "linear": (
        lambda: Qwen3NextForCausalLM(
            Qwen3NextConfig(
                **SIZES, num_experts=2, num_experts_per_tok=1, moe_intermediate_size=16,
                shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
                layer_types=["linear_attention", "full_attention", "linear_attention"], decoder_sparse_step=1,
            )
        ),
        "layers of type linear_attention, whose state is not attention alone",
    ),
    "window": (
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=199)),
        "sliding window of 199 tokens, and sequences have up to 200",
    ),
    "rope": (lambda: with_rope(rope_type="dynamic", factor=2.0), "rotary embeddings of type dynamic"),
    "eager": (lambda: with_attention("eager"), "runs with attention eager"),
    "dropout": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)), "attention dropout of 0.1"),
    "heads": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, head_dim=8)), "heads of a multiple of 16"),
    "gpt2": (
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=256, n_embd=64, n_layer=1, n_head=4)),
        "attention dropout of 0.1",
    ),
}  # fmt: skip


def build(name: str) -> Policy:
    torch.manual_seed(0)
    model = REFUSED[name][0]()
    return Policy(model.train(name == "window"), None, make_head(model))


@over("name", REFUSED)
def test_a_model_that_cannot_read_trees_takes_rows_and_the_reason_is_told(name):
    own, reason = build(name), REFUSED[name][1]
    before, was_training = own.model.config._attn_implementation, own.model.training
    layout = choose_layout("auto", own, 200)
    assert layout.kind == "rows" and reason in layout.reason
    with pytest.raises(ValueError, match=rf"layout=trees: .*{reason}.*; give layout=auto or layout=rows"):
        choose_layout("trees", own, 200)
    assert own.model.config._attn_implementation == before
    assert own.model.training is was_training


def test_without_a_compiler_a_model_takes_rows(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    build_kernel.cache_clear()
    layout = choose_layout("auto", make_policy("llama"), 200)
    build_kernel.cache_clear()
    assert layout.kind == "rows" and "needs a C compiler" in layout.reason


def test_a_window_as_long_as_every_sequence_is_no_window():
    assert choose_layout("trees", make_policy("mistral"), 200).kind == "trees"


def test_the_probe_refuses_a_model_whose_numbers_differ(monkeypatch):
    """A model that counts positions itself: trees would be silently wrong."""
    own = make_policy("llama")
    forward = type(own.model.model).forward
    monkeypatch.setattr(
        type(own.model.model), "forward",
        lambda self, position_ids=None, **options: forward(self, **options),
    )  # fmt: skip
    layout = choose_layout("auto", own, 200)
    assert layout.kind == "rows"
    assert "log-probs of LlamaForCausalLM from a tree differ from those of rows by" in layout.reason
    assert own.model.config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_a_tree_never_reaches_a_model_that_was_not_asked():
    """sdpa would take it for a row in which every token sees every other."""
    own = make_policy("llama")
    rollouts = forked_rollouts()
    (packed,) = pack(rollouts, random_plan(rollouts), 1 << 20, trees=True)
    with pytest.raises(ValueError, match="a tree for a model that reads rows"):
        own.forward(packed.inputs)
    for _ in range(2):  # asking twice changes nothing
        assert choose_layout("auto", own, 200).kind == "trees"
    own.forward(packed.inputs)
