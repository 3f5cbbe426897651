"""Trajectories: what the policy wrote and read, limits, faults of an environment, keys and values that are kept over turns."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fairlen import playground
from fairlen.engine import Engine
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Continuation, Sampling, gather
from fairlen.sampling.independent import Request
from fairlen.tasks.environment import Environment, Interactive, InTurns, Observation, about
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground, encode
from fairlen.tasks.task import Problem, Verdict
from fairlen.train.collect import Collector

EOS = 1
PROBLEM = Problem("one", "3+4=?", (2, *encode("3+4=?")), "7")
HANGS = 3600.0


@dataclass
class Counting:
    """Ends after so many turns; each is answered by its number and earns a tenth of it. Correct where a text was "7"."""

    turns: int
    texts: list[str]
    first: str = ""

    async def start(self) -> str:
        return self.first

    async def act(self, text: str) -> Observation:
        self.texts.append(text)
        number = len(self.texts)
        return Observation(f"|{number}|", number == self.turns, number / 10)

    async def grade(self) -> Verdict:
        return Verdict("correct", 1.0) if "7" in self.texts else Verdict("incorrect", 0.0)

    async def end(self) -> None:
        self.texts.append("(ended)")


@dataclass(frozen=True)
class Turned(Playground):
    """The playground's problems, solved in turns with any environment."""

    make: Any = None
    max_turns: int = 4

    def environment(self, problem: Problem, seed: int) -> Environment:
        return self.make(seed)

    def encode_observation(self, text: str) -> tuple[int, ...]:
        return encode(text)


class Scripted:
    """An engine that says given texts in turn, each ended by EOS, and keeps what it was asked to continue."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked = list(texts), []

    async def __call__(self, prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
        text = self.texts[len(self.asked)]
        self.asked.append((prefix, sampling))
        ids = (*encode(text), EOS)
        whole = Continuation(ids, tuple(-0.1 * i for i in range(len(ids))), "stop")
        return whole.first(sampling.max_new_tokens)


def decode(ids: Any) -> str:
    policy = load_policy(playground.PATH, "float32", "cpu", False)
    return policy.decode(ids)


def play(engine: Any, make: Any, budget: int = 60, deadline: float = 5.0, **settings: Any) -> Continuation:
    turns = InTurns(engine, Turned(make=make, **settings), decode, deadline)
    return asyncio.run(about(turns, PROBLEM)(PROBLEM.token_ids, Sampling(budget, seed=5)))


def test_a_task_in_turns_is_told_from_others():
    assert isinstance(Turned(make=lambda seed: None), Interactive)
    assert not isinstance(Playground(), Interactive)
    engine = Scripted("7")
    assert about(engine, PROBLEM) is engine


def test_a_trajectory_is_what_was_written_and_read():
    """Two turns of 2 and 3 tokens with EOS, "|1|" of 3 tokens between them; the second ends it."""
    said: list[str] = []
    engine = Scripted("4", "17")
    found = play(engine, lambda seed: Counting(2, said))
    assert found.token_ids == (*encode("4"), EOS, *encode("|1|"), *encode("17"), EOS)
    assert found.turns == ((0, 2), (5, 8))
    assert found.logprobs == (-0.0, -0.1, -0.0, -0.1, -0.2)
    assert (found.turn_rewards, found.finish, found.status, found.outcome) == ((0.1, 0.2), "stop", "incorrect", 0.0)
    assert said == ["4", "17", "(ended)"]
    (first, one), (second, two) = engine.asked
    assert first == PROBLEM.token_ids and second == first + found.token_ids[:5]
    assert one.seed == 5 != two.seed and (one.max_new_tokens, two.max_new_tokens) == (60, 55)


def test_what_is_read_before_the_first_turn_follows_the_prompt():
    found = play(Scripted("7"), lambda seed: Counting(1, [], first="=="))
    assert found.token_ids == (*encode("=="), *encode("7"), EOS)
    assert (found.turns, found.status, found.outcome) == (((2, 4),), "correct", 1.0)


def test_what_does_not_fit_before_the_first_turn_is_a_fault(capsys):
    found = play(Scripted("7"), lambda seed: Counting(1, [], first="1" * 8), budget=8)
    assert (found.status, len(found.turns), len(found.token_ids)) == ("error", 1, 1)
    assert "start returned 8 characters, which with a turn do not fit into 8 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("budget", "max_turns", "turns", "why"),
    [
        (60, 2, 2, "the limit on turns"),
        (7, 9, 2, "the second turn's third token does not fit: 2 + 3 + 2"),
        (5, 9, 1, "2 + 3 leave no room for a turn"),
        (4, 9, 1, "the observation does not fit"),
    ],
)
def test_limits_truncate_a_trajectory_that_is_graded_all_the_same(budget, max_turns, turns, why):
    found = play(Scripted("7", "17", "1"), lambda seed: Counting(9, []), budget, max_turns=max_turns)
    assert (len(found.turns), found.finish, found.status) == (turns, "length", "correct"), why
    assert found.turns[-1][1] == len(found.token_ids) <= budget, "nothing is read after the last turn"
    assert len(found.turn_rewards) == turns


def make_broken(kind: str) -> Any:
    """An environment that goes wrong in its second turn, or where its name says."""

    class Broken(Counting):
        async def act(self, text: str) -> Any:
            if self.texts:
                match kind:
                    case "hangs":
                        await asyncio.sleep(HANGS)
                    case "raises":
                        raise KeyError("lost")
                    case "nothing":
                        return None
                    case "megabyte":
                        return Observation("1" * 1_000_000)
                    case "type":
                        return {"text": "1"}
                    case "text":
                        return Observation(b"1")  # type: ignore[arg-type]
                    case "reward":
                        return Observation("1", reward=float("nan"))
            return await super().act(text)

        async def grade(self) -> Any:
            if kind == "grade":
                return 1.0
            return await super().grade()

        async def start(self) -> Any:
            if kind == "start":
                raise OSError("no port")
            return await super().start()

        async def end(self) -> None:
            if kind == "end":
                raise RuntimeError("already gone")

    return Broken


EXPECTED = {
    "well": "correct", "hangs": "timeout", "raises": "error", "nothing": "error", "megabyte": "correct", "type": "error",
    "text": "error", "reward": "error", "grade": "error", "start": "error", "end": "correct", "blocks": "timeout",
}  # fmt: skip


class Blocking(Counting):
    """Its functions are plain ones, and one of them never returns."""

    def act(self, text: str) -> Observation:  # type: ignore[override]
        if self.texts:
            time.sleep(HANGS)
        self.texts.append(text)
        return Observation("|")


def test_a_thousand_trajectories_none_of_which_is_lost_or_trains_wrongly(capsys):
    """Every fault ends its own trajectory, without a verdict and inactive; all end within seconds; each kind is told of once."""
    kinds = [kind for kind in EXPECTED if kind != "blocks"]
    chosen = {seed: kinds[seed % len(kinds)] for seed in range(990)} | {seed: "blocks" for seed in range(990, 1000)}

    def make(seed: int) -> Environment:
        kind = chosen[seed]
        return Blocking(2, []) if kind == "blocks" else make_broken(kind)(2, [])

    async def say(prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
        return Continuation((*encode("7"), EOS), (-0.5, -0.25), "stop").first(sampling.max_new_tokens)

    task = Turned(make=make)
    policy = load_policy(playground.PATH, "float32", "cpu", False)
    turns, grader = InTurns(say, task, policy.decode, deadline=0.5), Grader(task, policy.decode)

    async def one(seed: int) -> Any:
        sampling = Sampling(60, seed=seed)
        answer = (await about(turns, PROBLEM)(PROBLEM.token_ids, sampling)).check(sampling)
        return await grader(PROBLEM, Request(0, PROBLEM.token_ids, sampling, 0, (seed,)).respond(answer, seed))

    async def all_of_them() -> list[Any]:
        return await gather(map(one, range(1000)))

    start = time.perf_counter()
    found = asyncio.run(all_of_them())
    assert time.perf_counter() - start < 30
    assert len(found) == 1000
    for response in found:
        kind = chosen[response.seed]
        assert response.status == EXPECTED[kind], kind
        assert response.active == (response.status in ("correct", "incorrect"))
        assert response.outcome == float(response.status == "correct")
        assert response.length == len(response.logprobs) > 0
    counts = Counter(response.status for response in found)
    assert counts == {"correct": 270, "error": 630, "timeout": 100}
    assert {chosen[r.seed] for r in found if r.finish == "length"} == {"megabyte"}, "a fault is no limit"
    told = capsys.readouterr().err
    assert told.count("no verdict") == 4, "act that is late, act, grade and start that are wrong: each the first time"
    assert told.count("already gone; the trajectory counts") == 1


def test_keys_and_values_are_kept_over_turns():
    """What is computed of prefixes is the prompt, and what was read: "|1|" and the EOS before it, whose keys nothing needed."""
    policy = load_policy(playground.PATH, "float32", "cpu", False)
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=200, max_num_seqs=4, compile=False)
    task = Turned(make=lambda seed: Counting(4, []))
    problem = Playground().train(3)
    turns = InTurns(engine.extend, task, policy.decode)

    async def one() -> Continuation:
        return await about(turns, problem)(problem.token_ids, Sampling(150, seed=1))

    found = asyncio.run(one())
    assert len(found.turns) > 1
    read = len(found.token_ids) - len(found.logprobs)
    stats = engine.stats
    assert stats.num_computed_tokens == len(problem.token_ids) - 1 + read
    with torch.no_grad():
        tokens = torch.tensor(problem.token_ids + found.token_ids)[None]
        whole = policy.model(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
    first = len(problem.token_ids)
    at = [first + i - 1 for start, stop in found.turns for i in range(start, stop)]
    assert (whole[at] - torch.tensor(found.logprobs)).abs().max() < 1e-4


def test_a_rollout_batch_of_trajectories_is_collected_graded_and_planned():
    policy = load_policy(playground.PATH, "float32", "cpu", False)
    engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=200, max_num_seqs=16, compile=False)
    task = Turned(make=lambda seed: Counting(1 + seed % 3, []))
    method = compose("grpo+turns", ["sampling.n=4"])
    turns = InTurns(engine.extend, task, policy.decode)
    collector = Collector(turns, Grader(task, policy.decode), task.train, Sampling(130, seed=0), 3, 0, seed=2)
    found = asyncio.run(collector(method, 0, 0, 0)).rollouts
    again = asyncio.run(collector(method, 0, 0, 0)).rollouts
    assert [r.token_ids for r in found.responses] == [r.token_ids for r in again.responses]
    assert len(found.segments) == sum(r.num_turns for r in found.responses)
    assert {r.num_turns for r in found.responses} >= {1, 2}
    for segment in found.segments:
        response = found.responses[segment.response]
        assert response.turns[segment.turn] == (segment.start, segment.stop)
