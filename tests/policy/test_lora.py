"""Adapters: exact in the engine, a reference without a copy, small checkpoints, and a sum that loads anywhere."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from shapes import CONFIGS, write_shape
from test_architectures import run_of
from train.runs import updates_of
from transformers import AutoModelForCausalLM

from fairlen import playground
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.methods.stages.terms import ReferenceKL
from fairlen.policy.layout import choose_layout
from fairlen.policy.lora import without_adapters
from fairlen.policy.model import Policy, Unadapted, load_policy
from fairlen.policy.pack import pack
from fairlen.sampling.extend import Sampling
from fairlen.settings import PolicySettings, flatten
from fairlen.tasks.playground import Playground
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import build_learner, start_training

pytestmark = pytest.mark.slow

LORA = dict(lora_rank=4)


def adapted(gradient_checkpointing: bool = False, dtype: str = "float32", move: float = 0.05) -> Policy:
    """The shipped model with adapters that do something: B is not zero."""
    torch.manual_seed(0)
    policy = load_policy(playground.PATH, dtype, "cpu", gradient_checkpointing, adapters=PolicySettings(lora_rank=4))
    with torch.no_grad():
        for name, parameter in policy.trained().items():
            if ".lora_B." in name:
                parameter.normal_(std=move)
    return policy


@pytest.fixture(scope="module")
def plan(batch):
    method = compose("grpo", ["sampling.n=8"])
    return method.plan(method.score(batch.rollouts))


def read(policy: Policy, batch, plan) -> torch.Tensor:
    """Log-probs of the plan's tokens."""
    found = [
        policy.forward(packed.inputs).logprobs for packed in pack(batch.rollouts, plan, 4096, device=policy.device)
    ]
    return torch.cat(found)


def gradients(policy: Policy, batch, plan, layout: str = "rows") -> dict[str, torch.Tensor]:
    """Of one update, by parameter."""
    method = compose("grpo", ["sampling.n=8"])
    learner = build_learner(TrainConfig.of(learning_rate=1e-9), policy, method, choose_layout(layout, policy, 160))
    result = learner.step(method, batch.rollouts, plan, {}, is_on_policy=True)
    assert result.quantity == ""
    return {name: parameter.grad.clone() for name, parameter in policy.trained().items()}


def test_adapters_alone_are_trained_and_start_at_nothing(policy, batch, plan):
    own = adapted(move=0.0)
    assert own.has_adapters and all(".lora_" in name for name in own.trained())
    # 7 linear layers a block: q, k, v, o, gate, up, down; A and B each
    assert len(own.trained()) == 14 * own.model.config.num_hidden_layers
    assert torch.equal(read(own, batch, plan), read(policy, batch, plan))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_the_engine_has_the_trainers_logprobs(compiled):
    own, acts = adapted(), 0.0
    engine = Engine(own.model, eos_token_id=own.eos_token_ids, max_length=96, max_num_seqs=8, compile=compiled)
    prefix = Playground().train(0).token_ids
    for made in engine.generate([prefix] * 12, [Sampling(40, seed=seed) for seed in range(12)]):
        whole = logprobs_of(own, prefix, made.token_ids)
        with without_adapters(own.model):
            without = logprobs_of(own, prefix, made.token_ids)
        assert (whole - torch.tensor(made.logprobs)).abs().max() <= 1e-4
        acts = max(acts, float((whole - without).abs().max()))
    assert acts > 0.1  # without the adapters the same tokens have other log-probs


def logprobs_of(policy: Policy, prefix: tuple[int, ...], made: tuple[int, ...]) -> torch.Tensor:
    """By one plain forward."""
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prefix + made]), use_cache=False).logits[0, len(prefix) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(made)[:, None])[:, 0]


def test_without_adapters_it_is_a_frozen_copy(policy, batch, plan):
    own = adapted()
    reference = Unadapted(own)
    own.model.train()
    packed = next(pack(batch.rollouts, plan, 4096, device=own.device))
    found = reference.forward(packed.inputs)
    with torch.no_grad():
        assert torch.equal(found.logprobs, policy.forward(packed.inputs).logprobs)
    assert not found.logprobs.requires_grad and own.model.training
    assert all(parameter.requires_grad for parameter in own.trained().values()) and len(own.trained()) > 0
    assert not torch.equal(own.forward(packed.inputs).logprobs, found.logprobs)


def test_a_reference_between_forward_and_backward_changes_no_gradient(batch, plan):
    """With a KL term the adapters are off between the forward pass and the backward pass of one micro-batch."""
    method = replace(compose("grpo", ["sampling.n=8"]), terms=(ReferenceKL(coefficient=0.5),))
    config, found = TrainConfig.of(learning_rate=1e-9), []
    for frozen in (False, True):
        own = adapted(gradient_checkpointing=not frozen)
        learner = build_learner(config, own, method)
        assert isinstance(learner.reference, Unadapted)
        if frozen:
            copied = load_policy(playground.PATH, "float32", "cpu", False).model.eval()
            learner.reference = own.with_model(copied.requires_grad_(False))
        assert learner.step(method, batch.rollouts, plan, {}, is_on_policy=True).quantity == ""
        found.append({name: parameter.grad for name, parameter in own.trained().items()})
    without = gradients(adapted(), batch, plan)
    largest = max(float(gradient.abs().max()) for gradient in found[0].values())
    for name, gradient in found[0].items():
        assert (gradient - found[1][name]).abs().max() <= 1e-5 * largest, name
    assert any((gradient - without[name]).abs().max() > 1e-2 * largest for name, gradient in found[0].items())


def test_neither_trees_nor_gradient_checkpointing_change_a_gradient(batch, plan):
    plain = gradients(adapted(), batch, plan)
    largest = max(float(gradient.abs().max()) for gradient in plain.values())
    for layout, checkpointing, tolerance in (("rows", True, 1e-5), ("trees", True, 1e-4)):
        again = gradients(adapted(checkpointing), batch, plan, layout)
        assert all((plain[name] - again[name]).abs().max() <= tolerance * largest for name in plain), layout
    assert largest > 0


def test_frozen_weights_in_bfloat16_have_adapters_in_float32():
    own = adapted(dtype="bfloat16")
    kinds = {(".lora_" in name, parameter.dtype) for name, parameter in own.model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    assert {weight.dtype for _, weight in own.named_weights()} == {torch.bfloat16}
    engine = Engine(own.model, eos_token_id=own.eos_token_ids, max_length=64, max_num_seqs=4, compile=False)
    (made,) = engine.generate([(1, 2, 3)], [Sampling(8, seed=0)])
    assert 1 <= len(made.token_ids) <= 8


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    return run_of(folder, "qwen3", rollout_batches=3, save_every=1, eval_every=1, **LORA)


def test_the_saved_model_is_the_sum_and_the_adapter_loads_on_the_base(finished):
    whole = AutoModelForCausalLM.from_pretrained(finished / "model", dtype=torch.float32).eval()
    torch.manual_seed(0)
    base = load_policy(finished.parent / "shape", "float32", "cpu", False, random_init=True).model.eval()
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        start = base(input_ids=ids).logits
        together = PeftModel.from_pretrained(base, finished / "adapter").eval()(input_ids=ids).logits
        found = whole(input_ids=ids).logits
    assert torch.allclose(found, together, atol=1e-4) and not torch.allclose(found, start, atol=1e-3)
    settings = json.loads((finished / "adapter/adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (4, 8)
    assert (finished / "best/model.safetensors").exists() and (finished / "best-adapter/adapter_config.json").exists()


def test_a_checkpoint_holds_adapters_and_their_moments_only(finished):
    newest = sorted((finished / "checkpoints").iterdir())[-1]
    weights, moments = (load_file(newest / f"{part}.safetensors") for part in ("model", "optimizer"))
    assert weights and all(".lora_" in name for name in weights)
    assert {name.partition("|")[0] for name in moments} == set(weights)


def test_a_resumed_run_ends_as_an_uninterrupted_one(finished, tmp_path):
    settings = dict(rollout_batches=1, save_every=1, eval_every=1, **LORA)
    half = run_of(tmp_path, "qwen3", **settings)
    asked = json.loads((half / "run.json").read_text())["config"]
    again = {name: tuple(value) if isinstance(value, list) else value for name, value in flatten(asked).items()}
    start_training(TrainConfig.of(**(again | dict(resume=True, rollout_batches=3))))
    for part in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        first, second = (load_file(run / part) for run in (finished, half))
        assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    assert [entry["loss/total"] for entry in updates_of(half)] == [
        entry["loss/total"] for entry in updates_of(finished)
    ]


def test_a_model_with_experts_trains_adapters(tmp_path):
    run = run_of(tmp_path, "qwen3_moe", **LORA)
    (update,) = updates_of(run)
    assert update["mismatch/max"] <= 1e-4 and update["gradient/norm"] > 0
    described = json.loads((run / "run.json").read_text())
    assert 0 < described["model"]["trained"] < described["model"]["parameters"]


def test_without_peft_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"lora_rank=4 needs the package peft: pip install '\.\[lora\]'"):
        load_policy(write_shape(tmp_path, CONFIGS["qwen3"]()), "float32", "cpu", False, random_init=True,
                    adapters=PolicySettings(lora_rank=4))  # fmt: skip
