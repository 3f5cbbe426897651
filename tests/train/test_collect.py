"""Refills: rejected prompts are replaced, stay in the batch, and everything is a function of the seed."""

from __future__ import annotations

import asyncio

from fairlen import playground
from fairlen.compose import compose
from fairlen.engine import Engine
from fairlen.extend import Sampling
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector
from fairlen.train.judge import Judge
from fairlen.train.policy import load_policy


def collect(max_refills: int, method: str = "dapo", slots: int = 32):
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=120, slots=slots, compile=False)
    task = Playground()
    collector = Collector(
        engine.extend, Judge(task, policy.decode), task.train, Sampling(40, seed=0), 6, max_refills, seed=3
    )
    # two responses of a prompt are both right or both wrong about half of the time: many prompts are rejected
    return asyncio.run(collector(compose(method, ["sampling.n=2"]), 0, 100, 0))


def test_refills_replace_rejected_prompts_and_keep_them_in_the_batch():
    once, refilled = collect(0), collect(40)
    assert once.num_kept < 6 == refilled.num_kept
    assert refilled.num_refills >= 1
    assert len(refilled.problems) > 6
    assert len(refilled.rollouts.responses) == 2 * len(refilled.problems)
    assert refilled.rollouts.responses[: len(once.rollouts.responses)] == once.rollouts.responses
    assert [problem.id for problem in refilled.problems] == [
        Playground().train(100 + i).id for i in range(len(refilled.problems))
    ]


def test_collections_are_equal_whatever_the_number_of_slots():
    few, many = collect(2, slots=5), collect(2, slots=64)
    assert [r.token_ids for r in few.rollouts.responses] == [r.token_ids for r in many.rollouts.responses]


def test_seeds_of_all_tracks_differ():
    seeds = [response.seed for response in collect(4).rollouts.responses]
    assert len(set(seeds)) == len(seeds)
