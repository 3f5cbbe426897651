"""Truncated sampling: the policy that is trained is the one that was sampled, the softmax over what top-k and top-p left."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from loops import over
from small_policies import make_policy, readers
from torch import Tensor
from train.runs import small, updates_of

from fairlen.batch import Plan
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.policy.model import Policy
from fairlen.policy.pack import pack
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.extend import Sampling, gather
from fairlen.sampling.independent import Request, no_grader
from fairlen.train.start import start_training

LIMITS: dict[str, Any] = dict(top_p=0.9, top_k=20, with_support=True)
MODEL, TEMPERATURE = "gpt2", 2.0
METHODS = ("grpo+entropy+kl", "dapo+balanced", "eqlen+fspo")


@cache
def draw(name: str, dtype: torch.dtype) -> tuple[Method, Rollouts]:
    """3 prompts of a random model of 40 tokens, at most 12 new ones; the outcome is whether the last token is even."""
    method = compose(name, ["sampling.streams=3" if name.startswith("eqlen") else "sampling.n=6"])
    policy, sampling = make_policy(MODEL, dtype), Sampling(12, 0, TEMPERATURE, **LIMITS)
    extend = Engine(policy.model, eos_token_id=tuple(range(6)), max_length=32, max_num_seqs=5, compile=False).extend
    requests = [Request(prompt, (7 + prompt, 9), sampling, 0, seed=(0, 0, prompt, 0)) for prompt in range(3)]

    async def run() -> list[tuple[Response, ...]]:
        return await gather(method.sampling(extend, no_grader, request) for request in requests)

    found = tuple(
        replace(r, outcome=float(r.token_ids[-1] % 2 == 0), status="incorrect" if r.token_ids[-1] % 2 else "correct")
        for responses in asyncio.run(run())
        for r in responses
    )
    return method, Rollouts(found, method.sampling.cut(found), 12)


def ids(support: bytes) -> list[int]:
    return np.frombuffer(support, np.int32).tolist()


def trained(rollouts: Rollouts, plan: Plan) -> Iterator[tuple[Response, list[int]]]:
    """Each sequence of the plan: its response, and where its trained tokens are."""
    for row in plan.rows.tolist():
        segment = rollouts.segments[row]
        response = rollouts.responses[segment.response]
        yield response, list(response.positions(segment.start, segment.stop))


def read_by_hand(policy: Policy, rollouts: Rollouts, plan: Plan) -> Outputs:
    """Log-prob and entropy of each trained token in turn: scores of its set alone, of a forward pass of its response alone."""
    logprobs, entropies = [], []
    for response, places in trained(rollouts, plan):
        logits = policy.model(input_ids=torch.tensor([response.token_ids])).logits[0] / response.temperature
        support = dict(zip((at for a, b in response.spans for at in range(a, b)), response.supports, strict=True))
        for at in places:
            left = ids(support[at])
            law = torch.log_softmax(logits[at - 1, left], -1)
            logprobs.append(law[left.index(response.token_ids[at])])
            entropies.append(-(law.exp() * law).sum())
    return Outputs(torch.stack(logprobs), torch.stack(entropies))


def learn(policy: Policy, method: Method, rollouts: Rollouts, plan: Plan, **how: Any) -> tuple[Outputs, Tensor]:
    """Outputs of the trained tokens in the order of the plan, and the gradient of the update by the trainer's own path."""
    reference = make_reference(policy)
    policy.model.zero_grad()
    found: dict[int, tuple[Tensor, ...]] = {}
    for packed in pack(
        rollouts, plan, how.get("max_tokens", 1 << 20), trees=how.get("trees", False), is_on_policy=False
    ):
        with torch.no_grad():
            ref = reference.forward(packed.inputs).logprobs
        outputs = policy.forward(packed.inputs, method.needs_entropy)
        method.loss(outputs, replace(packed.micro, ref_logprobs=ref)).total.backward()
        parts = (x.detach().split(packed.micro.length.tolist()) for x in (outputs.logprobs, outputs.entropy))
        found |= dict(zip(packed.rows.tolist(), zip(*parts, strict=True), strict=True))
    columns = zip(*(found[row] for row in range(len(plan))), strict=True)
    return Outputs(*map(torch.cat, columns)), gradient_of(policy)


def read(policy: Policy, rollouts: Rollouts, plan: Plan) -> tuple[Tensor, Tensor]:
    """Log-probs of the trained tokens by the trainer and by the engine."""
    packs = list(pack(rollouts, plan, 1 << 20))
    with torch.no_grad():
        trainers = torch.cat([policy.forward(packed.inputs).logprobs for packed in packs])
    return trainers, torch.cat([packed.micro.rollout_logprobs for packed in packs])


def move(policy: Policy, factor: float) -> Policy:
    """The policy after an update that changes every weight."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(factor)
    return policy


def make_reference(policy: Policy) -> Policy:
    """Another policy than the one that is trained, which reads as it does."""
    other = make_policy(MODEL, policy.model.dtype)
    other.model.set_attn_implementation(policy.model.config._attn_implementation)
    return move(other, 1.02)


def gradient_of(policy: Policy) -> Tensor:
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@over("precision", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_ratios_of_a_policy_to_itself_are_1(precision):
    """By the engine's log-probs and the trainer's, of each of 88 tokens."""
    dtype, bound = precision
    method, rollouts = draw("dapo+balanced", dtype)
    plan, policy = method.plan(method.score(rollouts)), make_policy(MODEL, dtype)
    logprobs, engines = read(policy, rollouts, plan)
    ratio = (logprobs - engines).exp()
    assert len(ratio) > 80 and (ratio - 1).abs().mean() < bound and (ratio - 1).abs().max() < 5 * bound
    sizes = [len(ids(one)) for response in rollouts.responses for one in response.supports]
    assert min(sizes) >= 1 and max(sizes) < 20  # top-p cuts of what top-k left
    # the control: over the whole vocabulary the same tokens are less likely, by the share of what was cut
    whole = replace(rollouts, responses=tuple(replace(r, supports=()) for r in rollouts.responses))
    assert (read(policy, whole, plan)[0] - logprobs).max() < -0.05


@pytest.mark.slow
@over("name", METHODS)
def test_the_trainers_numbers_are_those_of_the_truncated_policy(name):
    """Rows and trees, in any micro-batches: log-probs, entropies and the gradient of the sum that is written out here."""
    method, rollouts = draw(name, torch.float64)
    plan = method.plan(method.score(rollouts))
    rows, trees = (move(policy, 0.99) for policy in readers(MODEL, torch.float64))
    expected, gradient = differentiate(rows, method, rollouts, plan)
    for policy, how in ((rows, {}), (rows, {"max_tokens": 20}), (trees, {"trees": True})):
        found, learned = learn(policy, method, rollouts, plan, **how)
        assert (found.logprobs - expected.logprobs).abs().max() < 1e-12
        assert (found.entropy - expected.entropy).abs().max() < 1e-12
        assert (learned - gradient).norm() < 1e-12 * gradient.norm()


def differentiate(policy: Policy, method: Method, rollouts: Rollouts, plan: Plan) -> tuple[Outputs, Tensor]:
    """Outputs and the gradient, off-policy: by the log-probs that were sampled with, of a policy that has moved since."""
    policy.model.zero_grad()
    outputs = read_by_hand(policy, rollouts, plan)
    with torch.no_grad():
        ref = read_by_hand(make_reference(policy), rollouts, plan).logprobs
    old = [response.logprobs_of(at[0], at[-1] + 1) for response, at in trained(rollouts, plan)]
    columns = (torch.from_numpy(x) for x in (plan.advantage, plan.weight, plan.term_weight))
    old_logprobs = torch.tensor([x for part in old for x in part], dtype=torch.float64)
    micro = Micro.of(torch.from_numpy(plan.length), *columns, old_logprobs=old_logprobs, ref_logprobs=ref)
    method.loss(outputs, micro).total.backward()
    return Outputs(outputs.logprobs.detach(), outputs.entropy.detach()), gradient_of(policy)


def test_a_token_outside_of_what_was_left_is_read_over_the_whole_vocabulary():
    """Three tokens of a response: one without a set, one whose set lacks it, and one that was drawn from its own.

    So are tokens of an engine that cuts nothing, or that somebody else wrote: each still has a ratio of 1 to itself.
    """
    policy, tokens = make_policy(MODEL, torch.float64), (7, 9, 11, 12, 13)
    supports = (b"", np.array([1, 2], np.int32).tobytes(), np.array([13, 3], np.int32).tobytes())
    response = Response(0, tokens, 2, (-1.0,) * 3, "stop", seed=0, temperature=0.5, supports=supports, status="correct")
    method = compose("grpo", ["sampling.n=2"])
    rollouts = Rollouts((response,), method.sampling.cut((response,)), 12)
    one = np.ones(1)
    (packed,) = pack(rollouts, Plan(np.zeros(1, np.int64), np.array([3]), one, one, one), 1 << 20)
    found = policy.forward(packed.inputs, entropy_grad=True)
    logits = policy.model(input_ids=torch.tensor([tokens])).logits[0, 1:4] / 0.5
    law = torch.log_softmax(logits, -1)
    last = logits[2, 13] - torch.logsumexp(logits[2, [3, 13]], -1)
    expected = torch.stack([law[0, 11], law[1, 12], last])
    assert torch.allclose(found.logprobs, expected, rtol=0, atol=1e-12)
    p = last.exp()
    assert torch.allclose(found.entropy[2], -(p * last + (1 - p) * torch.log1p(-p)), rtol=0, atol=1e-12)
    assert torch.allclose(found.entropy[:2], -(law.exp() * law).sum(-1)[:2], rtol=0, atol=1e-12)


def test_forks_keep_what_their_prefix_was_drawn_from():
    """Every token of every track is in its own set, those that it inherited among them, which are those of the other track."""
    _, rollouts = draw("eqlen+fspo", torch.float64)
    forked = [response for response in rollouts.responses if response.inherited]
    assert len(forked) > 3
    for response in rollouts.responses:
        tokens = response.token_ids[response.num_prompt :]
        assert all(token in ids(one) for token, one in zip(tokens, response.supports, strict=True))
    for response in forked:
        prefix = response.token_ids[: response.num_prompt + response.inherited]
        others = [r for r in rollouts.responses if r.track != response.track and r.token_ids[: len(prefix)] == prefix]
        assert any(r.supports[: r.inherited or 1] == response.supports[: r.inherited or 1] for r in others)


@pytest.mark.slow
def test_a_truncated_run_is_recorded_and_resumes(tmp_path):
    """Ratios of its first updates are 1; the records and a checkpoint in the middle of a rollout batch keep the sets."""
    config = small(tmp_path / "run", method="grpo", rollout_batches=1, top_p=0.9, top_k=20, save_every_updates=1)
    start_training(config.replace(temperature=1.5, problems=1))
    first, second = updates_of(tmp_path / "run")
    assert abs(first["ratio/max"] - 1) < 1e-6 and second["ratio/max"] < 1.5
    table = pq.read_table(tmp_path / "run/records/responses-000000.parquet").to_pylist()
    sizes = [len(one) for row in table for one in row["supports"]]
    assert len(sizes) == sum(row["length"] for row in table) and 1 <= min(sizes) < max(sizes) <= 20
    (within,) = (tmp_path / "run/checkpoints").glob("*-update-000001-*")
    kept = pq.read_table(within / "responses.parquet").to_pylist()
    assert [row["supports"] for row in kept] == [row["supports"] for row in table]
