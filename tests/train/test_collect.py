"""Refills: rejected prompts are replaced, stay in the batch, and everything is a function of the seed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fairlen import playground
from fairlen.engine import Engine
from fairlen.evaluate.run import evaluate
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector


def collect(max_extra_batches: int, method: str = "dapo", max_num_seqs: int = 32, setting: str = "sampling.n=2"):
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    engine = Engine(
        policy.model, eos_token_id=policy.eos_token_ids, max_length=120, max_num_seqs=max_num_seqs, compile=False
    )
    task = Playground()
    collector = Collector(
        engine.extend, Grader(task, policy.decode), task.train, Sampling(40, seed=0), 6, max_extra_batches, seed=3
    )
    # two responses of a prompt are both right or both wrong about half of the time: many prompts are rejected
    return asyncio.run(collector(compose(method, [setting]), 0, 100, 0))


def test_refills_replace_rejected_prompts_and_keep_them_in_the_batch():
    once, refilled = collect(0), collect(40)
    assert once.num_selected < 6 == refilled.num_selected
    assert refilled.num_extra_batches >= 1
    assert len(refilled.problems) > 6
    assert len(refilled.rollouts.responses) == 2 * len(refilled.problems)
    assert refilled.rollouts.responses[: len(once.rollouts.responses)] == once.rollouts.responses
    assert [problem.id for problem in refilled.problems] == [
        Playground().train(100 + i).id for i in range(len(refilled.problems))
    ]


def test_collections_are_equal_whatever_the_number_of_slots():
    few, many = collect(2, max_num_seqs=5), collect(2, max_num_seqs=64)
    assert [r.token_ids for r in few.rollouts.responses] == [r.token_ids for r in many.rollouts.responses]


def test_seeds_of_all_tracks_differ():
    seeds = [response.seed for response in collect(4).rollouts.responses]
    assert len(set(seeds)) == len(seeds)


LONG_AFTER = 300
"""Rounds of the event loop in which a stream that still runs would ask for more: an engine makes a step in each."""


class Broken:
    """An engine and a grader of which one fails after a while, and what was asked and made since."""

    def __init__(self, place: str, max_num_seqs: int) -> None:
        policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
        self.engine = Engine(
            policy.model, eos_token_id=policy.eos_token_ids, max_length=120, max_num_seqs=max_num_seqs, compile=False
        )
        self.place, self.num_asked, self.num_graded = place, 0, 0
        self.grade = Grader(Playground(), policy.decode)

    def extend(self, prefix, sampling):
        self.num_asked += 1
        if self.place == "engine" and self.num_asked == 6:
            raise ValueError("broken")
        return self.engine.extend(prefix, sampling)

    async def verify(self, problem, response):
        self.num_graded += 1
        if self.place == "grade" and self.num_graded == 3:
            raise ValueError("broken")
        return await self.grade(problem, response)

    async def count_what_follows(self, work) -> tuple[int, int, str]:
        """Calls of extend and generated tokens after the error has been raised, and why new weights are refused."""
        with pytest.raises(ValueError, match="broken"):
            await work
        refused = ""
        try:
            self.engine.refresh(1)
        except RuntimeError as error:
            refused = str(error)
        asked, made = self.num_asked, self.engine.stats.num_generated_tokens
        for _ in range(LONG_AFTER):
            await asyncio.sleep(0)
        return self.num_asked - asked, self.engine.stats.num_generated_tokens - made, refused


@pytest.mark.parametrize("max_num_seqs", [4, 64])
@pytest.mark.parametrize("place", ["grade", "engine"])
@pytest.mark.parametrize("method", ["grpo", "eqlen+grpo"])
def test_an_error_in_one_stream_ends_all_others(method, place, max_num_seqs):
    broken = Broken(place, max_num_seqs)
    collector = Collector(broken.extend, broken.verify, Playground().train, Sampling(80, seed=0), 8, 0, seed=3)
    tracks = "sampling.streams=4" if "eqlen" in method else "sampling.n=8"
    found = asyncio.run(broken.count_what_follows(collector(compose(method, [tracks]), 0, 100, 0)))
    assert found == (0, 0, "")


@pytest.mark.parametrize("place", ["grade", "engine"])
def test_an_error_in_an_evaluation_ends_all_of_it(place):
    broken = Broken(place, max_num_seqs=64)
    problems = [Playground().train(number) for number in range(16)]
    work = evaluate(broken.extend, broken.verify, problems, 4, Sampling(80, seed=0), 0)
    assert asyncio.run(broken.count_what_follows(work)) == (0, 0, "")


@pytest.mark.parametrize("finish", ["abort", "error", ""])
@pytest.mark.parametrize("method", ["grpo", "eqlen+grpo", "evaluation"])
def test_what_an_engine_gave_up_is_an_error_and_no_response(method, finish):
    """vLLM's "abort" came out as a finished response: not truncated, and worth its reward."""
    broken = Broken("nowhere", max_num_seqs=64)

    async def extend(prefix, sampling):
        return replace(await broken.engine.extend(prefix, sampling), finish=finish)

    if method == "evaluation":
        work = evaluate(extend, broken.verify, [Playground().train(0)], 4, Sampling(80, seed=0), 0)
    else:
        collector = Collector(extend, broken.verify, Playground().train, Sampling(80, seed=0), 2, 0, seed=3)
        work = collector(compose(method), 0, 100, 0)
    try:
        asyncio.run(work)
        complaint = ""
    except ValueError as error:
        complaint = str(error)
    assert f'finish="{finish}"' in complaint and "look for the engine's own error" in complaint


def test_a_prompt_of_streams_is_replaced_until_one_of_its_pairs_trains():
    """Two streams of a prompt may be all correct and all incorrect: mixed, and nothing to learn."""
    for refills in (0, 40):
        found = collect(refills, "eqlen+dynamic", setting="sampling.streams=2")
        scored = compose("eqlen+dynamic", ["sampling.streams=2"]).score(found.rollouts)
        trained = {
            found.rollouts.responses[s.response].prompt
            for s, t in zip(found.rollouts.segments, scored.trains, strict=True)
            if t
        }
        assert found.num_selected == len(trained) == (6 if refills else len(trained))
