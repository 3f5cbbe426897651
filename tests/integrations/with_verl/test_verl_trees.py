"""Rows of verl as trees: which tokens are wanted, how micro-batches are made, and what is forwarded at the playground's size."""

from __future__ import annotations

import asyncio

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
import test_update
from test_update import count_positions, deal_rows, describe, planned_rows, run_cases
from verl.utils import tensordict_utils as tu

from fairlen import playground
from fairlen.engine import Engine
from fairlen.integrations.verl.trainer import deal
from fairlen.integrations.verl.trees import find_paths, find_wanted
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector

BUDGET = 160
"""Tokens of a response."""


def make_batch(**columns):
    """Two rows: prompt 1 2 3, response 4 5 6 with a mask on its end; prompt 1 2, response 7 8 with a mask on all of it."""

    def nested(*rows):
        return torch.nested.as_nested_tensor(list(map(torch.tensor, rows)), layout=torch.jagged)

    ids, mask = nested([1, 2, 3, 4, 5, 6], [1, 2, 7, 8]), nested([0, 1, 1], [1, 1])
    return tu.get_tensordict({"input_ids": ids, "response_mask": mask, **columns})


def test_with_a_plan_those_that_train_are_wanted():
    """Of a row that does not train nothing is forwarded; where none does, the first token of all responses is wanted."""
    batch = make_batch(plan_trains=torch.tensor([False, True]))
    assert find_wanted(batch).tolist() == [8, 9]
    assert [path.tolist() for path in find_paths(batch)] == [[], [1, 2, 7]]
    assert find_wanted(make_batch(plan_trains=torch.tensor([False, False]))).tolist() == [3]


def test_prompts_are_dealt_whole_and_by_size():
    """Tokens 9, 8, 5, 4, 3 of b, e, a, d, c: b to the first part, e and a to the second, d and c to the first."""
    prompts, sizes = "abacdbe", (2, 4, 3, 3, 4, 5, 8)
    order = deal(prompts, sizes, 2)
    assert "".join(prompts[row] for row in order) == "bbdceaa" and sorted(order) == list(range(7))


def sample(policy, method):
    """8 prompts of the playground."""
    task, eos = Playground(), policy.eos_token_ids
    engine = Engine(policy.model, eos_token_id=eos, max_length=256, max_num_seqs=64, compile=False)
    collect = Collector(
        engine.extend, Grader(task, policy.decode), task.train, Sampling(BUDGET, seed=0), num_prompts=8, max_extra_batches=0,
        seed=1,
    )  # fmt: skip
    return asyncio.run(collect(method, 0, 0, 0)).rollouts


@pytest.mark.nightly
@pytest.mark.parametrize(("ranks", "num_updates"), [(1, 1), (2, 1), (2, 2)])
def test_positions_for_a_trained_token(ranks, num_updates, tmp_path, monkeypatch):
    """At most 1.2 times those of fairlen's own trainer, with as many in a micro-batch."""
    monkeypatch.setattr(test_update, "BUDGET", BUDGET)
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    method = compose("eqlen+grpo", ["sampling.streams=8"])
    rollouts = sample(policy, method)
    rows = deal_rows(planned_rows(method, rollouts), ranks * num_updates)
    shape = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 4096}
    described = [
        describe("eqlen+grpo", method, rows, {"engine": engine, "shape": shape}) for engine in ("trees", "rows")
    ]
    described = [case | {"mini_rows": len(case["rows"]) // num_updates} for case in described]
    metrics = run_cases(described, policy, tmp_path, ranks)[0]
    tokens = metrics[0]["update"]["tokens/trained"]
    trees, by_rows = (found["positions"] / tokens for found in metrics)
    own, own_rows = (count_positions(method, rollouts, 4096, t, num_updates) / tokens for t in (True, False))
    print(f"ranks {ranks}, updates {num_updates}, {tokens:.0f} trained tokens")
    print(f"by rows: verl {by_rows:.3f}, own {own_rows:.3f}; trees: verl {trees:.3f}, own {own:.3f}")
    assert trees <= 1.2 * own < by_rows
