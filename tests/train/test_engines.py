"""Which engine a run has, and the names under which weights are handed to one that holds a copy. vLLM itself: tests/with_vllm."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from fairlen.engine import Engine
from fairlen.policy.engines import build_engine, checkpoint_weights, is_exact
from fairlen.policy.model import Policy
from fairlen.settings import ModelSettings


def test_the_embedded_engine_runs_the_policy_itself(policy):
    config = ModelSettings(max_num_seqs=2, compile="off")
    engine = build_engine(config, policy, max_length=64)
    assert isinstance(engine, Engine) and engine.max_length == 64 and engine.stats.num_slots == 2
    assert is_exact(config, policy)
    assert not is_exact(config, replace(policy, autocast=True))
    assert not is_exact(replace(config, engine="vllm"), policy)


def test_without_vllm_the_error_says_what_to_install(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it now fails
    with pytest.raises(ValueError, match=r"engine=vllm needs the package vllm: pip install 'fairlen\[vllm\]'"):
        build_engine(ModelSettings(engine="vllm"), policy, max_length=64)


def test_tied_weights_have_all_of_their_names(policy):
    found = checkpoint_weights(policy)
    assert set(found) == set(policy.model.state_dict())
    assert found["lm_head.weight"].data_ptr() == found["model.embed_tokens.weight"].data_ptr()


def test_experts_have_the_names_and_values_of_the_files(tmp_path):
    """transformers holds the experts of a layer as one tensor; a saved model has each on its own."""
    torch.manual_seed(0)
    shape = dict(
        vocab_size=16, hidden_size=16, intermediate_size=8, moe_intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=3, num_experts_per_tok=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**shape))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    found = checkpoint_weights(Policy(model, tokenizer=None, head=model.get_output_embeddings()))
    assert set(found) == set(saved) and "model.layers.0.mlp.experts.2.down_proj.weight" in saved
    assert all(torch.equal(found[name], saved[name]) for name in saved)
