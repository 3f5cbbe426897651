"""TRL with top_p and top_k: whole updates are those of fairlen's own trainer on the policy that was sampled."""

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from test_trl_parity import RATE, grade, prompts_of, relative
from trl_runs import parts, scripted, weights_of

from fairlen import playground
from fairlen.engine import Engine
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.policy.model import load_policy
from fairlen.rollouts import Rollouts
from fairlen.sampling.extend import Sampling, gather
from fairlen.sampling.independent import Request
from fairlen.train.step import Learner

LIMITS: dict[str, Any] = {"top_p": 0.9, "top_k": 4, "min_p": 0.01}


def collect(method: Method, policy: Any, prompts: list[str]) -> Rollouts:
    """What the trainer's first rollout batch has to be, on fairlen's engine by itself; the seed of the run is 1."""
    sampling = Sampling(10, 0, 1.3, **LIMITS, with_support=True)
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=160, max_num_seqs=16, compile=False)

    async def run() -> list[Any]:
        token_ids = [tuple(policy.tokenizer(text)["input_ids"]) for text in prompts]
        requests = [Request(i, ids, sampling, 0, seed=(1, 0, i, 0)) for i, ids in enumerate(token_ids)]
        return await gather(method.sampling(engine.extend, grade, request) for request in requests)

    responses = tuple(response for found in asyncio.run(run()) for response in found)
    return Rollouts(responses, method.sampling.cut(responses), 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo+entropy+kl", "eqlen+fspo"])
def test_updates_are_those_of_fairlens_own_trainer(name, tmp_path):
    """4 prompts, one rollout batch trained twice, so that the second update is off-policy; entropy, KL and trees among it."""
    method = compose(name, ["sampling.streams=2" if name.startswith("eqlen") else "sampling.n=4"])
    given = scripted(tmp_path, **LIMITS, temperature=1.3, num_iterations=2, learning_rate=RATE)
    trainer = FairGRPOTrainer(**given, method=method, max_extra_batches=0)
    start = weights_of(trainer).clone()
    trainer.train()
    moved = weights_of(trainer) - start

    policy, reference = (load_policy(playground.PATH, "float64", "cpu", False) for _ in range(2))
    rollouts = collect(method, policy, prompts_of(trainer, num_prompts=4))
    sizes = [len(one) // 4 for response in rollouts.responses for one in response.supports]
    assert min(sizes) == 1 and max(sizes) == 4
    optimizer = torch.optim.SGD(policy.trained().values(), lr=RATE)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    learner = Learner(policy, optimizer, schedule, math.inf, max_tokens=400, reference=reference)
    (update,) = updates(method.score(rollouts))
    plan = method.weigh(update)
    old = learner.old_logprobs(rollouts, plan)
    for epoch in range(2):
        learner.step(method, rollouts, plan, old, is_on_policy=epoch == 0)
    here = torch.cat([p.detach().flatten() for p in policy.model.parameters()]) - start
    assert here.abs().max() > 1e-6 and relative(moved, here) < 2e-5
    # the control: over the whole vocabulary the same responses move the weights elsewhere
    whole = replace(rollouts, responses=tuple(replace(r, supports=()) for r in rollouts.responses))
    other = load_policy(playground.PATH, "float64", "cpu", False)
    optimizer = torch.optim.SGD(other.trained().values(), lr=RATE)
    learner = Learner(other, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0), math.inf, 400, reference)
    learner.step(method, whole, plan, {}, is_on_policy=True)
    assert relative(torch.cat([p.detach().flatten() for p in other.model.parameters()]) - start, here / 2) > 1e-2


def test_every_token_of_a_batch_is_in_its_own_set_through_further_rounds(tmp_path):
    """Prompts with equal outcomes are replaced: rows of several rounds are joined, shuffled and split with their sets."""
    given = parts(tmp_path, **LIMITS, max_steps=1)
    trainer = FairGRPOTrainer(**given, method="dapo")
    seen: list[tuple[np.ndarray, ...]] = []
    lose = trainer._compute_loss

    def look(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        ids = inputs["fair_support"].unflatten(1, (-1, LIMITS["top_k"]))
        width = ids.shape[1]
        mask = inputs["completion_mask"][:, :width].bool()
        is_own = (ids == inputs["completion_ids"][:, :width, None] + 1).any(-1)
        seen.append((is_own[mask].numpy(), (ids > 0).sum(-1)[mask].numpy()))
        return lose(model, inputs)

    trainer._compute_loss = look
    trainer.train()
    assert trainer.refill.drawn > 0
    assert all(is_own.all() for is_own, _ in seen) and {1, 4} <= set(np.concatenate([n for _, n in seen]).tolist())
    (first, *_) = trainer.state.log_history
    assert abs(first["ratio/max"] - 1) < 1e-6
