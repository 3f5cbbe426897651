"""Layers that run compiled in updates: the same log-probs and gradients, one graph for all, and none where that goes wrong."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from small_policies import differences, forked_rollouts, learn, make_policy, random_plan
from torch import nn
from torch._dynamo.utils import counters

from fairlen.methods.compose import compose
from fairlen.policy import compiled
from fairlen.policy.compiled import CompiledLayers, compile_layers
from fairlen.policy.layout import Layout, choose_layout
from fairlen.policy.lora import Adapters, add_adapters
from fairlen.policy.model import Policy
from fairlen.train.step import Learner

METHOD = compose("grpo+entropy")


class Calls:
    """What stands for a compiled layer: the layer itself, counted; shifted where asked."""

    def __init__(self, shift: float = 0.0) -> None:
        self.shift, self.number = shift, 0

    def __call__(self, call, dynamic: bool):
        def count(*arguments, **named):
            self.number += 1
            return call(*arguments, **named) + self.shift

        assert dynamic
        return count


def learner_of(policy: Policy, layers: CompiledLayers, layout: str = "rows") -> Learner:
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    kind = Layout(layout, "asked")  # pyright: ignore[reportArgumentType]
    return Learner(policy, optimizer, schedule, math.inf, 1 << 20, layout=kind, compiled=layers)


def num_running(policy: Policy) -> int:
    return sum(module._compiled_call_impl is not None for module in policy.model.modules())


def test_auto_compiles_nothing_on_a_cpu_and_off_nothing_anywhere():
    policy = make_policy("qwen3")
    assert compile_layers(policy, "auto") == compile_layers(policy, "off") == CompiledLayers()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_calls_each_layer_so_and_what_follows_does_not(monkeypatch, checkpointing):
    """Three layers; 25 sequences in some micro-batches of rows, once more for each checkpoint."""
    policy, calls = make_policy("qwen3"), Calls()
    if checkpointing:
        policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    monkeypatch.setattr(torch, "compile", calls)
    layers = compile_layers(policy, "on")
    assert len(layers.layers) == 3 and num_running(policy) == 0
    rollouts = forked_rollouts()
    plan, calls.number, num_forwards = random_plan(rollouts), 0, []
    policy.model.base_model.register_forward_hook(lambda *_: num_forwards.append(num_running(policy)))
    learner_of(policy, layers).step(METHOD, rollouts, plan, {}, is_on_policy=False)
    assert set(num_forwards) == {3} and calls.number == 3 * len(num_forwards) * (1 + checkpointing)
    assert num_running(policy) == 0
    learner_of(policy, layers).old_logprobs(rollouts, plan)
    assert set(num_forwards) == {3}
    policy.model(input_ids=torch.ones(1, 3, dtype=torch.long))
    assert num_forwards[-1] == 0


def test_trees_do_not(monkeypatch):
    policy, calls = make_policy("qwen3"), Calls()
    monkeypatch.setattr(torch, "compile", calls)
    layers = compile_layers(policy, "on")
    assert choose_layout("trees", policy, 200).kind == "trees"
    rollouts, calls.number = forked_rollouts(), 0
    learner_of(policy, layers, "trees").step(METHOD, rollouts, random_plan(rollouts), {}, is_on_policy=False)
    assert calls.number == 0


def test_what_fails_or_is_wrong_is_not_taken(monkeypatch, capsys):
    """A layer that is off by .01 moves log-probs by more than 7e-4 of the largest; one that raises is named."""
    policy = make_policy("qwen3")
    monkeypatch.setattr(torch, "compile", Calls(shift=0.01))
    assert compile_layers(policy, "on") == CompiledLayers()
    assert "layers are not compiled: compiled they differ by" in capsys.readouterr().err

    def fail(*_, **__):
        raise RuntimeError("no compiler here\nand more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fail)
    assert compile_layers(policy, "on") == CompiledLayers() and num_running(policy) == 0
    assert capsys.readouterr().err.strip().endswith("layers are not compiled: no compiler here")
    assert math.isinf(compiled.find_error(torch.tensor([math.nan]), torch.ones(1)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("adapters", [False, True])
def test_compiled_log_probs_and_gradients_are_those_of_layers(monkeypatch, adapters, backend):
    """One graph serves all layers and shapes but one row at a time, which has its own; with adapters two, as the first layer's
    inputs want no gradient."""
    counters.clear()
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    policy = make_policy("qwen3")
    if adapters:
        add_adapters(policy.model, Adapters(4))
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
    layers = compile_layers(policy, "on")
    assert len(layers.layers) == 3
    before = counters["stats"]["unique_graphs"]
    assert before == (4 if adapters else 2) and not counters["graph_break"]
    rollouts = forked_rollouts()
    plan = random_plan(rollouts)
    for max_tokens in (1 << 20, 100, 1):
        expected = learn(policy, rollouts, plan, METHOD, False, max_tokens)
        with layers.used():
            found = learn(policy, rollouts, plan, METHOD, False, max_tokens)
        assert max(differences(found, expected)) < 1e-5
    assert counters["stats"]["unique_graphs"] == before
    assert num_running(policy) == 0
