"""The same weights after the same rollout batch as stock TRL, where TRL has the method; test_contract.py has our own trainer.

Whole trainers run, through shuffling, splitting into updates and gradient accumulation, in float64 with plain SGD and without
clipping of the gradient norm, so that a wrong factor anywhere shows. Answers are scripted."""

import ast
import asyncio
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl_runs import Script, ScriptedFair, ScriptedStock, graded, problems, scripted, weights_of

from fairlen import playground
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.methods.stages.surrogate import TokenClip
from fairlen.methods.stages.terms import ReferenceKL
from fairlen.policy.model import load_policy
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.extend import Sampling
from fairlen.sampling.independent import Independent, Request

pytestmark = pytest.mark.slow

TRLS = GroupNormalized(ddof=1, eps=1e-4)
"""TRL's standard deviation."""
SEQUENCE = {"importance_sampling_level": "sequence"}


def like(name: str, **choices) -> Method:
    """A base with TRL's standard deviation, for every prompt, without shaping."""
    given = {"advantage": TRLS, "sampling": Independent(4), "filter": Method().filter, "reward": ()}
    return replace(compose(name), **(given | choices))


STOCK = {
    "dapo": (like("dapo_verl", surrogate=TokenClip(0.2, 0.28)), {"loss_type": "dapo", "epsilon_high": 0.28}),
    "gspo": (like("gspo"), {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, **SEQUENCE}),
    "delta": (like("grpo", surrogate=TokenClip(delta=1.5)), {"loss_type": "grpo", "delta": 1.5}),
    "kl": (
        like("grpo", terms=(ReferenceKL(0.04),)),
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    ),
}


def read_table() -> dict[str, tuple[str, list[str], dict[str, Any]]]:
    """The page's table of what is what, literally: method, its settings and GRPOConfig's, by the first cell."""
    page = (Path(__file__).parents[2] / "docs/trl.md").read_text()
    rows = re.findall(r"^\| (`loss_type=[^|]*) \| `([a-z_+]+)`(?:, `overrides=(\[[^`]*\])`)? \|$", page, re.M)
    return {
        cell: (
            method,
            ast.literal_eval(settings or "[]"),
            {k: ast.literal_eval(v) for k, v in re.findall(r"`(\w+)=([^`]+)`", cell)},
        )
        for cell, method, settings in rows
    }


TABLE = read_table()


def run(trainer_class, folder, method=None, **settings):
    """A finished trainer and how its weights moved."""
    of_ours = {} if method is None else {"method": method, "max_extra_batches": 0}
    trainer = trainer_class(**scripted(folder, **settings), **of_ours)
    start = weights_of(trainer)
    trainer.train()
    return trainer, weights_of(trainer) - start


@pytest.mark.parametrize("row", TABLE)
def test_the_table_of_the_page_holds_as_it_stands(row, tmp_path):
    """Off-policy updates at that: the second of two is, and at this rate it is clipped under most of the methods."""
    name, choices, config = TABLE[row]
    settings = config | {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 2}
    theirs, moved = run(ScriptedStock, tmp_path, **settings)
    for key in config:
        settings.pop(key)
    ours = ScriptedFair(**scripted(tmp_path, **settings), method=name, overrides=choices, max_extra_batches=0)
    start = weights_of(ours)
    ours.train()
    assert theirs.state.global_step == ours.state.global_step == 2
    assert relative(weights_of(ours) - start, moved) < 2e-5


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@pytest.mark.parametrize("name", sorted(STOCK, key="kl".__ne__))
def test_updates_are_those_of_the_stock_trainer(name, tmp_path):
    """16 rows, 4 micro-batches, 2 updates of 2: groups are split over updates, and the second update is off-policy."""
    method, settings = STOCK[name]
    settings = settings | {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 2}
    theirs, moved = run(ScriptedStock, tmp_path, **settings)
    own = {key: value for key, value in settings.items() if key not in ("beta", "delta", "scale_rewards")}
    ours, moved_too = run(ScriptedFair, tmp_path, method, **own)
    assert theirs.state.global_step == ours.state.global_step == 2
    assert moved.abs().max() > 1e-5
    # TRL keeps rewards and advantages in float32, 6e-8, and compares the first update with log-probs computed twice
    assert relative(moved_too, moved) < 2e-5


def test_an_update_of_two_rollout_batches_is_their_mean_as_in_the_stock_trainer(tmp_path):
    method, settings = STOCK["dapo"]
    settings = settings | {
        "per_device_train_batch_size": 8,
        "steps_per_generation": 2,
        "gradient_accumulation_steps": 4,
    }
    trainers = ((ScriptedFair, tmp_path, method), (ScriptedStock, tmp_path))
    assert relative(*(run(*given, **settings, max_steps=1)[1] for given in trainers)) < 2e-5


class Replay:
    """`extend` with the scripted answers, for a sampler of fairlen's."""

    def __init__(self) -> None:
        self.script = Script()

    async def extend(self, prefix, sampling):
        return self.script.answer(prefix, sampling.max_new_tokens)


async def grade(response: Response) -> Response:
    (outcome,) = graded([list(response.token_ids[response.num_prompt :])])
    return replace(response, outcome=outcome, status="correct" if outcome else "incorrect")


def collect(method: Method, policy, prompts: list[str], max_response_length: int = 10) -> Rollouts:
    """One rollout batch of fairlen's own samplers, of the answers that TRL's generation was given."""
    replay, responses = Replay(), []
    for prompt, text in enumerate(prompts):
        token_ids = tuple(policy.tokenizer(text)["input_ids"])
        request = Request(prompt, token_ids, Sampling(max_response_length, seed=0), 0, (prompt,))
        responses += asyncio.run(method.sampling(replay.extend, grade, request))
    return Rollouts(tuple(responses), method.sampling.cut(tuple(responses)), max_response_length)


def test_the_rows_of_pairs_have_the_segments_of_fairlens_own_collection(tmp_path):
    """Every trained segment is in one row once: its tokens, the path to them by depth, and its length."""
    method = compose("eqlen+grpo", ["sampling.streams=2"])
    trainer = ScriptedFair(**scripted(tmp_path), method=method)
    trainer.model.train()
    inputs = [{"prompt": row["prompt"]} for row in problems(4) for _ in range(4)]
    output = trainer._generate_and_score_completions(inputs)
    policy = load_policy(playground.PATH, "float64", "cpu", gradient_checkpointing=False)
    rollouts = collect(method, policy, [row["prompt"] for row in problems(4)])
    scored = method.score(rollouts)
    trained = [rollouts.segments[row] for row in scored.trains.nonzero()[0]]
    assert len(trained) > 4
    assert len(output["fair_trains"]) % 2 == 0  # steps_per_generation: TRL drops nothing
    assert int(output["fair_trains"].sum()) == len(trained)
    found = []
    for row, lengths in enumerate(output["fair_length"].tolist()):
        size = int(output["completion_mask"][row].sum())
        ids, depth, mask = (output[name][row][:size].tolist() for name in ("completion_ids", "fair_depth", "tool_mask"))
        path, own = [], []
        for token, position, is_trained in zip(ids, depth, mask, strict=True):
            path = [*path[:position], token]
            own += [tuple(path)] * is_trained
        ends = list(itertools.accumulate(length for length in lengths if length))
        found += [(own[end - 1], length) for end, length in zip(ends, filter(None, lengths), strict=True)]
    paths = [(rollouts.responses[s.response], s) for s in trained]
    assert sorted(found) == sorted((r.token_ids[r.num_prompt : s.stop], s.stop - s.start) for r, s in paths)
