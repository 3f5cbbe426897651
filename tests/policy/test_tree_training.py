"""Training on trees is training on rows: log-probs, gradients, updates and whole runs; and updates without sequences."""

import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loops import over
from small_policies import MODELS, differences, forked_rollouts, learn, make_policy, random_plan, readers
from train.runs import metrics, small

from fairlen.batch import Plan
from fairlen.methods.compose import compose
from fairlen.policy.layout import Layout, choose_layout
from fairlen.policy.pack import TreeInput, pack
from fairlen.policy.tree import ForestMask
from fairlen.rollouts import Response, Rollouts, Segment
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import build_learner, start_training


@over("name", MODELS)
def test_trees_give_the_logprobs_and_gradients_of_rows(name):
    rows, trees = readers(name)
    rollouts, method = forked_rollouts(), compose("grpo+entropy")
    plan = random_plan(rollouts)
    expected = learn(rows, rollouts, plan, method, False)
    assert max(differences(learn(trees, rollouts, plan, method, True), expected)) < 1e-5
    for max_tokens in (40, 100):  # trees are cut
        assert max(differences(learn(trees, rollouts, plan, method, True, max_tokens), expected)) < 1e-5
    # rows through the installed attention are bit for bit what they were
    assert differences(learn(trees, rollouts, plan, method, False), expected) == (0.0, 0.0)


def test_a_wrong_tree_would_be_seen():
    """The control: a token that sees its brother's branch, and positions that go on counting."""
    rows, trees = readers("gpt2", torch.float64)
    rollouts, method = forked_rollouts(), compose("grpo")
    plan = random_plan(rollouts)
    expected = learn(rows, rollouts, plan, method, False)[0]
    (packed,) = pack(rollouts, plan, 1 << 20, trees=True)
    inputs = packed.inputs
    assert isinstance(inputs, TreeInput)
    order = np.concatenate([np.flatnonzero(np.repeat(np.arange(len(plan)), plan.length) == row) for row in packed.rows])
    straight = torch.arange(inputs.token_ids.numel())[None]
    forest = inputs.tree.forest
    blind = ForestMask(replace(forest, until=np.full_like(forest.until, len(forest))), inputs.tree.device)
    for wrong in (replace(inputs, position_ids=straight), replace(inputs, tree=blind)):
        with torch.no_grad():
            assert (trees.forward(wrong).logprobs - expected[order]).abs().max() > 1e-3
    with torch.no_grad():
        assert (trees.forward(inputs).logprobs - expected[order]).abs().max() < 1e-10


@pytest.mark.slow
def test_a_learner_makes_the_same_update_from_either_layout(batch, policy):
    method = compose("grpo+balanced")
    plan, found = method.plan(method.score(batch.rollouts)), []
    for kind in ("rows", "trees"):
        own = policy.with_model(copy.deepcopy(policy.model))
        layout = choose_layout(kind, own, 200)
        learner = build_learner(TrainConfig(), own, method, layout)
        result = learner.step(method, batch.rollouts, plan, {}, is_on_policy=True)
        found.append((result, torch.cat([p.detach().flatten() for p in own.model.parameters()])))
    (rows, one), (trees, other) = found
    assert trees.num_forwarded < 0.8 * rows.num_forwarded
    assert trees.gradient_norm == pytest.approx(rows.gradient_norm, rel=1e-5)
    assert trees.loss == pytest.approx(rows.loss, abs=1e-6)
    assert trees.counts == pytest.approx(rows.counts, rel=1e-4, abs=1e-3)
    assert not torch.equal(one, torch.cat([p.detach().flatten() for p in policy.model.parameters()]))
    assert (one - other).abs().max() < 1e-5  # the rate is 5e-5 in the first update


@over("name", ["grpo+balanced+kl+entropy", "vespo"])
@over("has_segments", [True, False])
@over("kind", ["rows", "trees"])
def test_an_update_without_sequences_runs_with_a_gradient_of_zero(name, has_segments, kind):
    own, method = make_policy("qwen3"), compose(name)
    layout = choose_layout(kind, own, 200)
    learner = build_learner(TrainConfig(), own, method, layout)
    rollouts = forked_rollouts()
    if not has_segments:
        rollouts = replace(rollouts, segments=())
    none = np.zeros(0)
    plan = Plan(np.zeros(0, np.int64), np.zeros(0, np.int64), none, none, none)
    (packed,) = pack(rollouts, plan, 100, trees=kind == "trees")
    assert packed.is_idle and packed.micro.is_on_policy
    assert packed.micro.length.tolist() == [rollouts.segments[0].stop - 10 if has_segments else 1]
    before = copy.deepcopy(own.model.state_dict())
    result = learner.step(method, rollouts, plan, {}, is_on_policy=False)
    assert (result.quantity, result.loss, result.gradient_norm) == ("", 0.0, 0.0)
    assert result.num_forwarded > 0 and result.counts == {} and result.measured.shape == (3, 0)
    assert all(p.grad is not None and not p.grad.any() for p in own.model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in own.model.state_dict().items())
    assert learner.old_logprobs(rollouts, plan) == {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Any]:
    folders = {}
    for kind in ("rows", "trees", "auto"):
        folders[kind] = tmp_path_factory.mktemp("runs") / kind
        start_training(
            small(folders[kind], layout=kind, rollout_batches=1, save_every=0, max_response_length=40, problems=2)
        )
    return folders


@pytest.mark.slow
def test_a_run_on_trees_logs_what_a_run_on_rows_does(runs):
    logged = {kind: [e for e in metrics(folder) if "loss/total" in e] for kind, folder in runs.items()}
    assert len(logged["rows"]) == 2
    for rows, trees, auto in zip(*(logged[kind] for kind in ("rows", "trees", "auto")), strict=True):
        assert trees["tokens/forwarded"] < rows["tokens/forwarded"]
        assert trees["tokens/trained"] == rows["tokens/trained"]
        same = {key for key in rows if not key.startswith(("time/", "tokens/", "mismatch/"))}
        assert {k: trees[k] for k in same} == pytest.approx({k: rows[k] for k in same}, rel=1e-3, abs=1e-4)
        assert {k: v for k, v in auto.items() if "time/" not in k} == {
            k: v for k, v in trees.items() if "time/" not in k
        }


@pytest.mark.slow
def test_the_run_says_what_it_took_and_its_model_does_not(runs):
    told = {kind: json.loads((folder / "run.json").read_text())["layout"] for kind, folder in runs.items()}
    assert {kind: what["kind"] for kind, what in told.items()} == {"rows": "rows", "trees": "trees", "auto": "trees"}
    assert told["rows"]["reason"] == "as asked" and "shared tokens" in told["auto"]["reason"]
    for name in ("model/config.json", "best/config.json"):
        assert "fairlen" not in (runs["trees"] / name).read_text()


def test_auto_takes_the_cheaper_layout_of_an_update():
    rng = np.random.default_rng(0)

    def plan_of(rows: list[list[int]]) -> tuple[Rollouts, Plan]:
        responses = tuple(Response(0, tuple(row), 1, (0.0,) * (len(row) - 1), "stop", 0) for row in rows)
        segments = tuple(Segment(i, 1, len(row), 0) for i, row in enumerate(rows))
        rollouts = Rollouts(responses, segments, 100)
        return rollouts, random_plan(rollouts)

    apart = plan_of([rng.integers(0, 9, 41).tolist() for _ in range(4)])
    trunk = rng.integers(0, 9, 20).tolist()
    shared = plan_of([trunk + [row] * 21 for row in range(4)])
    auto = Layout("trees", "", always=False)
    assert not auto.takes_trees(*apart, 1000)  # 160 positions either way
    assert auto.takes_trees(*shared, 1000)  # 20 + 4 x 20 = 100 of 160
    assert replace(auto, always=True).takes_trees(*apart, 1000)
    assert not Layout("rows", "").takes_trees(*shared, 1000)
