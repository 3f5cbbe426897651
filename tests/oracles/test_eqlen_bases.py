"""Every base with pairs instead of independent answers, on 320 sampled streams: 40 prompts of 8, horizon 5."""

import asyncio
import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import over
from toy import Toy, random_policy
from toy_engine import Engine, grade_by, request, sample_from

from fairlen.methods.compose import compose
from fairlen.methods.method import Scored, updates
from fairlen.methods.presets import BASES
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.eqlen import EqLen

TOY, PROMPTS, STREAMS = Toy(5), 40, 8
NAMES = [base if base == "eqlen_unbiased" else f"{base}+eqlen" for base in BASES]


@functools.cache
def sampled() -> tuple[Response, ...]:
    """0/1 verdicts, half of the answers right; every tenth prompt has nothing right and every tenth has nothing wrong."""
    extend = Engine(sample_from(TOY, random_policy(TOY, 20)), grows=True)

    async def run() -> tuple[Response, ...]:
        found = []
        for prompt in range(PROMPTS):
            reward = np.random.default_rng(prompt).integers(0, 2, (TOY.num_nodes, 1)).astype(float)
            reward = {0: reward * 0, 1: reward * 0 + 1}.get(prompt % 10, reward)
            found += await EqLen(STREAMS)(extend, grade_by(TOY, reward), request(TOY, 1, prompt))
        return tuple(found)

    return asyncio.run(run())


@functools.cache
def scored_by(name: str) -> Scored:
    method = compose(name)
    return method.score(Rollouts(sampled(), method.sampling.cut(sampled()), TOY.horizon))


@pytest.mark.slow
@over("name", NAMES)
@over("num_updates", [1, 7])
def test_plans_are_whole_pairs_of_one_length(name, num_updates):
    """Every segment that trains is in one update, with its pair; |a| = |b|, opposite advantages, positive weights."""
    method, scored = compose(name), scored_by(name)
    planned, prompts = [], []
    for update in updates(scored, num_updates):
        plan = method.weigh(update)
        assert np.bincount(update.segments.group).tolist() == [2] * update.segments.num_groups
        for column in (plan.length, plan.weight, plan.term_weight, plan.advantage):
            assert np.isfinite(column).all() and column.all()
        assert min(plan.weight.min(), plan.term_weight.min()) > 0
        order = np.argsort(update.segments.group, kind="stable").reshape(-1, 2)
        lengths, weights, advantages = (c[order] for c in (plan.length, plan.weight, plan.advantage))
        assert (lengths[:, 0] == lengths[:, 1]).all()
        assert np.allclose(weights[:, 0], weights[:, 1], rtol=1e-12, atol=0)
        assert np.allclose(advantages[:, 0], -advantages[:, 1], rtol=1e-12, atol=0)
        planned += plan.rows.tolist()
        prompts.append(set(scored.responses.prompt[scored.segments.response[plan.rows]]))
    assert sorted(planned) == np.flatnonzero(scored.trains).tolist() and len(planned) > 200
    assert sum(map(len, prompts)) == len(set().union(*prompts))


@over("name", NAMES)
def test_on_policy_every_base_pushes_each_token_by_weight_times_advantage(name):
    """The loss of the whole plan through torch: its derivative by each log-prob is - weight * advantage, so that the push on a
    pair, n weight (A_a + A_b), is 0 in every base."""
    method, scored = compose(name), scored_by(name)
    plan = method.plan(scored)
    length = torch.from_numpy(plan.length)
    logprobs = torch.full((int(plan.length.sum()),), -1.0, dtype=torch.float64, requires_grad=True)
    columns = (torch.from_numpy(c) for c in (plan.advantage, plan.weight, plan.term_weight))
    sequence = torch.repeat_interleave(torch.arange(len(plan)), length)
    micro = Micro(length, sequence, *columns, logprobs.detach(), logprobs.detach(), True)
    total = method.loss(Outputs(logprobs, logprobs.detach()), micro).total
    (found,) = torch.autograd.grad(total, logprobs)
    expected = -np.repeat(plan.weight * plan.advantage, plan.length)
    assert found.numpy() == pytest.approx(expected, rel=1e-12)
    per_pair = np.bincount(np.repeat(scored.segments.group[plan.rows], plan.length), found.numpy())
    assert np.abs(per_pair).max() < 1e-12 * np.abs(expected).max() * TOY.horizon


def test_the_papers_eqlen_rloo_is_on_the_page_and_is_eqlen_grpo_at_ratio_1():
    """Appendix D: r_a - r_b, 1/n, no clip; for rewards 0 and 1 the advantages are GRPO's. `eqlen+rloo` keeps RLOO's token sum."""
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text()
    settings = ["aggregation=SequenceMean", "surrogate=PolicyGradient"]
    assert f"`eqlen+rloo --set {settings[0]} --set {settings[1]}`" in page

    def push(method):
        plan = method.plan(method.score(Rollouts(sampled(), method.sampling.cut(sampled()), TOY.horizon)))
        return plan.weight * plan.advantage

    ours, papers, plain = (
        push(compose("eqlen+grpo")),
        push(compose("eqlen+rloo", settings)),
        push(compose("eqlen+rloo")),
    )
    assert papers == pytest.approx(ours, rel=1e-12)
    assert ours @ plain / np.linalg.norm(ours) / np.linalg.norm(plain) < 0.99
