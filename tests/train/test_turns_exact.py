"""Trajectories with spans that the policy did not write: log-probs, plan, loss and gradient of one forward pass by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loops import first_quickly
from policy.small_policies import learn, make_policy, readers

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.micro import Micro, Outputs
from fairlen.policy.model import Policy
from fairlen.rollouts import Response, Rollouts

PROMPTS = 3
METHODS = ("grpo", "dapo+balanced", "fspo", "gspo+turns", "dr_grpo+turns+turn_baseline", "grpo+turn_count")


def make_trajectory(prompt: int, number: int, rng: np.random.Generator) -> Response:
    """One to four turns of one to six tokens; zero to five tokens are read before the first and one to five between."""
    tokens = np.random.default_rng(prompt).integers(0, 40, 8).tolist()
    turns = []
    for turn in range(rng.integers(1, 5)):
        tokens += rng.integers(0, 40, rng.integers(turn > 0, 6)).tolist()
        start = len(tokens)
        tokens += rng.integers(0, 40, rng.integers(1, 7)).tolist()
        turns.append((start, len(tokens)))
    written = sum(stop - start for start, stop in turns)
    right = number % 2 == 0
    return Response(
        prompt, tuple(tokens), 8, tuple(rng.uniform(-3, -0.1, written).tolist()), "stop", seed=number,
        outcome=float(right), status="correct" if right else "incorrect", turns=tuple(turns),
        turn_rewards=tuple(rng.uniform(0, 0.2, len(turns)).tolist()),
    )  # fmt: skip


def rollouts_of(method: Method, seed: int = 0) -> Rollouts:
    rng = np.random.default_rng(seed)
    responses = tuple(make_trajectory(prompt, number, rng) for prompt in range(PROMPTS) for number in range(4))
    return Rollouts(responses, method.sampling.cut(responses), 60)


def by_hand(policy: Policy, method: Method, rollouts: Rollouts, plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """Each sequence forwarded alone and whole, its trained tokens picked out of all log-probs by the spans of its turns."""
    policy.model.zero_grad()
    logprobs, rollout = [], []
    for row in plan.rows.tolist():
        segment = rollouts.segments[row]
        response = rollouts.responses[segment.response]
        tokens = torch.tensor(response.token_ids)[None]
        every = policy.model(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        at = [i for a, b in response.spans for i in range(a, b) if segment.start <= i < segment.stop]
        drawn = dict(zip([i for a, b in response.spans for i in range(a, b)], response.logprobs, strict=True))
        logprobs.append(every[torch.tensor(at) - 1])
        rollout.append(torch.tensor([drawn[i] for i in at], dtype=every.dtype))
    sizes = torch.tensor([len(x) for x in logprobs])
    assert plan.length.tolist() == sizes.tolist()
    columns = (torch.from_numpy(x) for x in (plan.advantage, plan.weight, plan.term_weight))
    micro = Micro.of(sizes, *columns, old_logprobs=torch.cat(rollout))
    now = torch.cat(logprobs)
    method.loss(Outputs(now, torch.full_like(now, torch.nan)), micro).total.backward()
    return now.detach(), torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", first_quickly(METHODS[::-1], 2))
def test_rows_and_trees_are_one_forward_pass_with_what_was_read_masked(name):
    method = compose(name, ["sampling.n=4"])
    rollouts = rollouts_of(method)
    plan = method.plan(method.score(rollouts))
    rows, trees = readers("gpt2", torch.float64)
    expected = by_hand(rows, method, rollouts, plan)
    for policy, is_tree, limits in ((rows, False, (1 << 20, 60)), (trees, True, (1 << 20, 90))):
        for max_tokens in limits:
            found = learn(policy, rollouts, plan, method, is_tree, max_tokens, shift=0.0)
            assert float((found[0] - expected[0]).abs().max()) < 1e-12
            assert float((found[1] - expected[1]).norm() / expected[1].norm()) < 1e-12


def test_what_was_read_is_seen_and_not_trained():
    """The control: another observation changes the log-probs of what follows; a token of it has none."""
    method = compose("grpo", ["sampling.n=4"])
    rollouts = rollouts_of(method)
    plan, policy = method.plan(method.score(rollouts)), make_policy("gpt2", torch.float64)
    row = next(i for i, r in enumerate(rollouts.responses) if len(r.spans) > 1)
    response = rollouts.responses[row]
    (_, end), (begin, _) = response.spans[:2]
    tokens = list(response.token_ids)
    tokens[begin - 1] = (tokens[begin - 1] + 1) % 40
    assert begin > end  # something was read
    other = tuple(replace(r, token_ids=tuple(tokens)) if r is response else r for r in rollouts.responses)
    one = learn(policy, rollouts, plan, method, False, shift=0.0)[0].split(plan.length.tolist())
    two = learn(policy, replace(rollouts, responses=other), plan, method, False, shift=0.0)[0].split(
        plan.length.tolist()
    )
    place = plan.rows.tolist().index(row)
    first = response.spans[0][1] - response.spans[0][0]
    assert torch.equal(one[place][:first], two[place][:first])
    assert (one[place][first:] - two[place][first:]).abs().min() > 0
    assert len(one[place]) == response.length == len(response.logprobs)


def test_a_response_of_one_turn_has_one_form():
    response = rollouts_of(compose("grpo", ["sampling.n=4"])).responses[0]
    size = len(response.token_ids)
    spoken = replace(response, turns=(), logprobs=(-1.0,) * (size - 8), turn_rewards=())
    assert replace(spoken, turns=((8, size),)) == spoken and spoken.spans == ((8, size),)


@pytest.mark.parametrize("name", ["rloo", "dapo+balanced", "grpo+balanced_update"])
def test_rules_by_token_are_the_same_for_trajectories_and_their_turns(name):
    """What weighs tokens alike cannot depend on where a trajectory is cut, nor can its advantage."""
    whole, turns = compose(name, ["sampling.n=4"]), compose(f"{name}+turns", ["sampling.n=4"])
    plans = []
    for method in (whole, turns):
        rollouts = rollouts_of(method)
        plan = method.plan(method.score(rollouts))
        signed = {}
        for row, weight, advantage in zip(plan.rows.tolist(), plan.weight, plan.advantage, strict=True):
            segment = rollouts.segments[row]
            for at in rollouts.responses[segment.response].positions(segment.start, segment.stop):
                signed[segment.response, int(at)] = weight * advantage
        plans.append(signed)
    assert plans[0].keys() == plans[1].keys()
    assert [plans[1][key] for key in plans[0]] == pytest.approx(list(plans[0].values()), rel=1e-12)
