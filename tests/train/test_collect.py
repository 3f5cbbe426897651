"""Refills: rejected prompts are replaced, stay in the batch, and everything is a function of the seed."""

import asyncio
from dataclasses import replace
from itertools import accumulate, product

import pytest

from fairlen.engine import Engine
from fairlen.evaluate.run import evaluate
from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.policy.model import Policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collected, Collector

pytestmark = pytest.mark.slow


def build_engine(policy: Policy, max_num_seqs: int) -> Engine:
    return Engine(
        policy.model, eos_token_id=policy.eos_token_ids, max_length=120, max_num_seqs=max_num_seqs, compile=False
    )


def collect(policy: Policy, max_extra_batches: int, method: str = "dapo", max_num_seqs: int = 32) -> Collected:
    """Two responses of a prompt are both correct or both incorrect about half of the time: many prompts are rejected."""
    task, setting = Playground(), "sampling.streams=2" if "eqlen" in method else "sampling.n=2"
    collector = Collector(
        build_engine(policy, max_num_seqs).extend, Grader(task, policy.decode), task.train, Sampling(40, seed=0), 6,
        max_extra_batches, seed=3,
    )  # fmt: skip
    return asyncio.run(collector(compose(method, [setting]), 0, 100, 0))


def test_refills_replace_rejected_prompts_and_keep_them_in_the_batch(policy):
    once, refilled, few = collect(policy, 0), collect(policy, 40), collect(policy, 40, max_num_seqs=5)
    assert once.num_selected < 6 == refilled.num_selected and refilled.num_extra_batches >= 1
    assert len(refilled.problems) > 6 and len(refilled.rollouts.responses) == 2 * len(refilled.problems)
    assert refilled.rollouts.responses[: len(once.rollouts.responses)] == once.rollouts.responses
    expected = [Playground().train(100 + i).id for i in range(len(refilled.problems))]
    assert [problem.id for problem in refilled.problems] == expected
    assert len({response.seed for response in refilled.rollouts.responses}) == len(refilled.rollouts.responses)
    assert [r.token_ids for r in few.rollouts.responses] == [r.token_ids for r in refilled.rollouts.responses]


@pytest.mark.parametrize("method", ["dapo+effort", "prime-rl:linear"])
def test_a_refill_has_columns_and_a_reward_may_apply_to_nothing(policy, method):
    """The playground has no column of effort, as a reward function that says None has none."""
    assert collect(policy, 2, method).num_extra_batches >= 1


def test_a_refill_cuts_only_what_is_new_and_the_whole_is_scored(policy, monkeypatch):
    """Rows are numbered on, as if all had been cut at once; prompts are selected among all, which a stage may compare."""
    for method in ("dapo", "dapo+turns", "eqlen+dynamic"):
        cut, scored = [], []
        kind, score_tables = type(compose(method).sampling), Method.score_tables

        def count_cut(sampler, responses, of=kind.cut, cut=cut):
            cut.append(len(responses))
            return of(sampler, responses)

        def count_scored(self, responses, segments, of=score_tables, scored=scored):
            scored.append(len(responses))
            return of(self, responses, segments)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "cut", count_cut)
            patch.setattr(Method, "score_tables", count_scored)
            for refills in (0, 40):
                found = collect(policy, refills, method)
                number, parts = len(found.rollouts.responses), found.num_extra_batches + 1
                found.scored, found.num_selected  # noqa: B018
                assert len(cut) == parts and sum(cut) == number, method
                assert scored == [*accumulate(cut)], method
                cut.clear(), scored.clear()
        assert found.num_extra_batches > 0 and found.num_selected == 6
        assert found.rollouts.segments == found.method.sampling.cut(found.rollouts.responses)
        assert found.scored.trains.any()


LONG_AFTER = 300
"""Rounds of the event loop in which a stream that still runs would ask for more: an engine makes a step in each."""


class Broken:
    """An engine and a grader of which one fails after a while, and what was asked and made since."""

    def __init__(self, policy: Policy, place: str, max_num_seqs: int) -> None:
        self.engine = build_engine(policy, max_num_seqs)
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


def test_an_error_in_one_stream_ends_all_others(policy):
    for method, place, max_num_seqs in product(("grpo", "eqlen+grpo", "evaluation"), ("grade", "engine"), (4, 64)):
        broken, task = Broken(policy, place, max_num_seqs), Playground()
        collector = Collector(broken.extend, broken.verify, task.train, Sampling(80, seed=0), 8, 0, seed=3)
        if method == "evaluation":
            problems = [task.train(number) for number in range(16)]
            work = evaluate(broken.extend, broken.verify, problems, 4, Sampling(80, seed=0), 0)
        else:
            tracks = "sampling.streams=4" if "eqlen" in method else "sampling.n=8"
            work = collector(compose(method, [tracks]), 0, 100, 0)
        assert asyncio.run(broken.count_what_follows(work)) == (0, 0, ""), (method, place, max_num_seqs)


def test_what_an_engine_gave_up_is_an_error_and_no_response(policy):
    """vLLM's "abort" came out as a finished response: not truncated, and worth its reward."""
    for method, finish in product(("grpo", "eqlen+grpo", "evaluation"), ("abort", "error", "")):
        broken = Broken(policy, "nowhere", max_num_seqs=64)

        async def extend(prefix, sampling, broken=broken, finish=finish):
            return replace(await broken.engine.extend(prefix, sampling), finish=finish)

        if method == "evaluation":
            work = evaluate(extend, broken.verify, [Playground().train(0)], 4, Sampling(80, seed=0), 0)
        else:
            collector = Collector(extend, broken.verify, Playground().train, Sampling(80, seed=0), 2, 0, seed=3)
            work = collector(compose(method), 0, 100, 0)
        with pytest.raises(ValueError, match="look for the engine's own error") as caught:
            asyncio.run(work)
        assert f'finish="{finish}"' in str(caught.value), (method, finish)
