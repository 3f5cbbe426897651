"""Which engine a run has, and the names under which weights are handed to one that holds a copy. vLLM itself: tests/with_vllm."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from loops import over
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig

from fairlen.engine import Engine
from fairlen.engine.vllm import MARGIN, MAX_SHARE, ROOM, divide_memory, to_vllm
from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.generate import open_model
from fairlen.policy.engines import build_engine, checkpoint_weights, is_exact
from fairlen.policy.head import Head
from fairlen.policy.model import Policy
from fairlen.sampling.extend import Sampling
from fairlen.settings import RolloutConfig, choose_engine
from fairlen.train.memory import Trial
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import find_reserved, start_training

GIB = 2**30


@over(
    "choice",
    [
        ({}, "cpu", 596_000_000, True, "embedded"),
        ({}, "cuda", 596_000_000, False, "embedded"),
        ({}, "cuda", 596_000_000, True, "vllm"),
        ({}, "cuda:0", 50_000_001, True, "vllm"),
        ({}, "cuda", 50_000_000, True, "embedded"),
        ({"dtype": "float64"}, "cuda", 596_000_000, True, "embedded"),
        ({"engine": "embedded"}, "cuda", 596_000_000, True, "embedded"),
        ({"engine": "vllm"}, "cpu", 1, False, "vllm"),
    ],
)
def test_the_choice_of_an_engine(monkeypatch, choice):
    """By device, size and installation; what is named is taken, and building it says what is missing."""
    (settings, device, num_parameters, is_installed, engine), asked = choice, []
    monkeypatch.setattr("fairlen.settings.find_spec", lambda name: asked.append(name) or (is_installed or None))
    assert choose_engine(RolloutConfig.of(**settings), device, num_parameters) == engine
    assert set(asked) <= {"vllm"}


def test_the_share_is_what_training_leaves(monkeypatch):
    """60 of 80 GiB free, 16 of them for the optimizer: 60/80 - 16/80 - .05 = .5; a share that is given is taken as it is."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (60 * GIB, 80 * GIB))
    assert divide_memory(0.0, 16 * GIB, 2, GIB) == {
        "gpu_memory_utilization": pytest.approx(60 / 80 - 16 / 80 - MARGIN),
        "enable_sleep_mode": True,
    }
    assert divide_memory(0.3, 16 * GIB, 1, GIB) == {"gpu_memory_utilization": 0.3, "enable_sleep_mode": True}
    assert divide_memory(0.0, 0, 0, GIB) == {"gpu_memory_utilization": MAX_SHARE, "enable_sleep_mode": False}
    with pytest.raises(
        ValueError, match=r"need 57\.0 of 60\.0 free GiB, which leaves nothing to vLLM: give lora_rank=32"
    ):
        divide_memory(0.0, 57 * GIB, 2, GIB)  # 60/80 - 57/80 = .0375, less than the margin


def test_the_share_of_a_cpu_is_for_keys_and_values(monkeypatch):
    """What all slots need and a quarter more, up to .4 of 16 GiB or what is given."""
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 4 * 2**20}.__getitem__)
    assert divide_memory(0.0, 0, 2, GIB) == {"kv_cache_memory_bytes": int(ROOM * GIB)}
    assert divide_memory(0.0, 0, 2, 8 * GIB) == {"kv_cache_memory_bytes": int(MAX_SHARE * 16 * GIB)}
    assert divide_memory(0.05, 0, 2, 8 * GIB) == {"kv_cache_memory_bytes": int(0.05 * 16 * GIB)}


def test_what_training_takes_later_is_left_to_it(policy):
    """Two moments of each weight; where the engine does not sleep all that an update was seen to take."""
    weights, stays = sum(weight.nbytes for weight in policy.model.parameters()), TrainConfig.of(engine="embedded")
    assert weights == 4 * policy.num_trained
    assert find_reserved(stays, policy, Trial(stays)) == 2 * weights
    assert find_reserved(stays, policy, Trial(stays, taken=9 * weights)) == 9 * weights
    sleeps = TrainConfig.of(engine="vllm")
    assert find_reserved(sleeps, policy, Trial(sleeps, taken=9 * weights)) == 2 * weights


def test_the_embedded_engine_runs_the_policy_itself(policy):
    config = RolloutConfig.of(max_num_seqs=2, compile="off")
    engine = build_engine(config, policy, max_length=64)
    assert isinstance(engine, Engine) and engine.max_length == 64 and engine.stats.num_slots == 2
    assert is_exact(config, policy)
    assert not is_exact(config, replace(policy, autocast=True))
    assert not is_exact(config.replace(engine="vllm"), policy)


def test_without_vllm_the_error_says_what_to_install(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it now fails
    with pytest.raises(ValueError, match=r"engine=vllm needs the package vllm: pip install '\.\[vllm\]'"):
        build_engine(RolloutConfig.of(engine="vllm", max_num_seqs=8), policy, max_length=64)


def test_a_missing_vllm_is_refused_before_a_model_is_loaded(tmp_path, monkeypatch):
    """A model that does not exist would be the error if it were loaded first."""
    monkeypatch.setitem(sys.modules, "vllm", None)
    given: dict[str, Any] = {"engine": "vllm", "model": str(tmp_path / "none")}
    with pytest.raises(ValueError, match="engine=vllm needs the package vllm"):
        start_training(TrainConfig.of(**given, out=str(tmp_path / "run")))
    with pytest.raises(ValueError, match="engine=vllm needs the package vllm"):
        open_model(EvalConfig.of(**given))


def test_a_temperature_that_vllm_would_replace_is_refused():
    with pytest.raises(ValueError, match=r"temperature=0\.001: vLLM takes 0 \(greedy\) or 0\.01 and more"):
        to_vllm(Sampling(4, 0, temperature=0.001), [1])


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
    found = checkpoint_weights(Policy(model, tokenizer=None, head=Head(model.get_output_embeddings())))
    assert set(found) == set(saved) and "model.layers.0.mlp.experts.2.down_proj.weight" in saved
    assert all(torch.equal(found[name], saved[name]) for name in saved)
