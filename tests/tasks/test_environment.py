"""Trajectories: what the policy wrote and read, limits, faults of an environment, keys and values that are kept over turns."""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loops import over

from fairlen import playground
from fairlen.engine import Engine
from fairlen.engine.generation import check_request
from fairlen.hangs import TrainingStopped
from fairlen.methods.compose import compose
from fairlen.policy.model import Policy, load_policy
from fairlen.sampling.extend import Continuation, Sampling, gather
from fairlen.sampling.independent import Request
from fairlen.tasks import environment
from fairlen.tasks.environment import Environment, InTurns, Observation, about
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import TOKEN_IDS, Playground, encode
from fairlen.tasks.task import Problem, Verdict
from fairlen.train.collect import Collector

EOS = 1
PROBLEM = Problem("one", "3+4=?", (2, *encode("3+4=?")), "7")


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


async def say(prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
    """An engine that takes what ours takes, and says "7" and EOS."""
    check_request(prefix, sampling, 10_000, len(TOKEN_IDS))
    return Continuation((*encode("7"), EOS), (-0.5, -0.25), "stop").first(sampling.max_new_tokens)


def decode(ids: Any) -> str:
    return load_small().decode(ids)


@cache
def load_small() -> Policy:
    return load_policy(playground.PATH, "float32", "cpu", False)


def play(engine: Any, make: Any, budget: int = 60, deadline: float = 5.0, **settings: Any) -> Continuation:
    turns = InTurns(engine, Turned(make=make, **settings), decode, deadline)
    return asyncio.run(about(turns, PROBLEM)(PROBLEM.token_ids, Sampling(budget, seed=5)))


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


@over(
    "budget, max_turns, turns, why",
    [
        (60, 2, 2, "the limit on turns"), (7, 9, 2, "the second turn's third token does not fit: 2 + 3 + 2"),
        (5, 9, 1, "2 + 3 leave no room for a turn"), (4, 9, 1, "the observation does not fit"),
    ],
)  # fmt: skip
def test_limits_truncate_a_trajectory_that_is_graded_all_the_same(budget, max_turns, turns, why):
    found = play(Scripted("7", "17", "1"), lambda seed: Counting(9, []), budget, max_turns=max_turns)
    assert (len(found.turns), found.finish, found.status) == (turns, "length", "correct"), why
    assert found.turns[-1][1] == len(found.token_ids) <= budget, "nothing is read after the last turn"
    assert len(found.turn_rewards) == turns


def test_a_trajectory_without_a_verdict_is_inactive_and_each_fault_is_told_of_once(capsys):
    """Of 60 trajectories a third is late, a third raises, a third is well."""

    class Faulty(Counting):
        async def act(self, text: str) -> Observation:
            if self.first == "late":
                await asyncio.sleep(3600)
            if self.first == "raises":
                raise KeyError("lost")
            return await super().act(text)

        async def start(self) -> str:
            return ""

    task = Turned(make=lambda seed: Faulty(2, [], ("late", "raises", "well")[seed % 3]))
    turns, grader = InTurns(say, task, decode, deadline=0.3), Grader(task, decode)

    async def one(seed: int) -> Any:
        sampling = Sampling(60, seed=seed)
        answer = (await about(turns, PROBLEM)(PROBLEM.token_ids, sampling)).check(sampling)
        return await grader(PROBLEM, Request(0, PROBLEM.token_ids, sampling, 0, (seed,)).respond(answer, seed))

    async def all_of_them() -> list[Any]:
        return await gather(map(one, range(60)))

    found = asyncio.run(all_of_them())
    expected = (("timeout", False, 0.0), ("error", False, 0.0), ("correct", True, 1.0))
    assert [(r.status, r.active, r.outcome) for r in found] == [expected[r.seed % 3] for r in found]
    assert all(r.finish == "stop" and r.length == len(r.logprobs) > 0 for r in found), "a fault is no limit"
    assert capsys.readouterr().err.count("no verdict") == 2


def test_an_environment_that_comes_too_late_is_ended():
    texts: list[str] = []

    def make(seed: int) -> Counting:
        time.sleep(0.3)
        return Counting(1, texts)

    play(say, make, deadline=0.05)
    until = time.monotonic() + 30
    while not texts and time.monotonic() < until:
        time.sleep(0.01)
    assert texts == ["(ended)"]


def test_calls_that_never_return_end_the_run_where_too_many_are_left_behind(monkeypatch):
    monkeypatch.setattr(environment, "MAX_GIVEN_UP", 2)
    release = threading.Event()
    turns = about(InTurns(say, Turned(make=lambda seed: release.wait()), decode, 0.05), PROBLEM)

    async def play_three() -> None:
        await gather(turns(PROBLEM.token_ids, Sampling(60, seed=seed)) for seed in range(3))

    with pytest.raises(TrainingStopped, match="environment: 2 calls were given up"):
        asyncio.run(play_three())
    release.set()


class OddError(Exception):
    """Has no text, no truth and no number."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __bool__ = __float__ = __repr__  # type: ignore[assignment]


def raises(error: BaseException, later: bool = False) -> Callable[..., Any]:
    def plain(*_: Any) -> Any:
        raise error

    async def on_the_loop(*_: Any) -> Any:
        raise error

    return on_the_loop if later else plain


def recurse(*_: Any) -> Any:
    return recurse()


ERRORS: dict[str, Callable[..., Any]] = {
    "raises": raises(KeyError("gone")), "exits": raises(SystemExit(3)), "is cancelled": raises(asyncio.CancelledError()),
    "stops": raises(StopIteration()), "has no text": raises(OddError()), "recurses": recurse,
    "raises, async": raises(KeyError("gone"), True), "exits, async": raises(SystemExit(3), True),
    "is cancelled, async": raises(asyncio.CancelledError(), True), "is closed, async": raises(GeneratorExit(), True),
    "raises several, async": raises(BaseExceptionGroup("two", [SystemExit(1), ValueError()]), True),
}  # fmt: skip
WRONG: dict[str, Any] = {"none": None, "a number": 5, "bytes": b"7", "a class": Observation, "odd": OddError()}
OUTSIDE, BELOW, WORDS = "an id outside", "an id below 0", "ids of text"
OBSERVATIONS: dict[str, Any] = {
    **WRONG, **{text: Observation(text) for text in (OUTSIDE, BELOW, WORDS, "\ud800")}, "no text": Observation(None),
    **{f"reward {n}": Observation("7", False, value) for n, value in enumerate((math.nan, "1", None, 10**400, 1j, OddError()))},
    "odd end": Observation("7", OddError()),
}  # fmt: skip
VERDICTS: dict[str, Any] = {
    **WRONG, **{f"status {status}": Verdict(status, 1.0) for status in (None, "great", "error")},
    **{f"outcome {n}": Verdict("correct", value) for n, value in enumerate((math.nan, "1", None, 10**400, OddError()))},
}  # fmt: skip


@dataclass(frozen=True)
class Strange(Turned):
    """Some of its observations become tokens that no model has."""

    def encode_observation(self, text: str) -> Any:
        return {OUTSIDE: (len(TOKEN_IDS),), BELOW: (-1,), WORDS: ("a",)}.get(text) or encode(text)


def other(**functions: Callable[..., Any]) -> SimpleNamespace:
    """An environment that ends after one turn, and fails after that; some of its functions are others."""
    own = {"start": lambda: "", "act": lambda text: Observation("", True), "grade": lambda: Verdict("correct", 1.0)}
    return SimpleNamespace(**own | {"end": raises(OddError())} | functions)


def test_nonsense_ends_its_own_trajectory_and_no_other():
    kinds: dict[str, Callable[[], Any]] = {"good": other, "no environment": lambda: None}
    texts = {OUTSIDE: OUTSIDE, "too much": "7" * 10**7}
    for function, values in (("start", WRONG | texts), ("act", OBSERVATIONS), ("grade", VERDICTS)):
        calls = ERRORS | {f"returns {name}": lambda *_, value=value: value for name, value in values.items()}
        kinds |= {f"{function} {name}": partial(other, **{function: call}) for name, call in calls.items()}
    kinds |= {f"made: {name}": error for name, error in ERRORS.items() if "async" not in name}

    async def play_each() -> list[Continuation]:
        tasks = (Strange(make=lambda seed, kind=kind: kind()) for kind in kinds.values())
        works = (about(InTurns(say, task, decode), PROBLEM)(PROBLEM.token_ids, Sampling(40, seed=1)) for task in tasks)
        return await gather(works)

    found = dict(zip(kinds, asyncio.run(play_each()), strict=True))
    assert len(found) > 70 and [name for name, one in found.items() if one.status != "error"] == ["good"]
    assert [name for name, one in found.items() if not one.turns or one.outcome != (name == "good")] == []
    assert found[f"act returns {OUTSIDE}"].turns == ((0, 2),), "the turn before it stays"
    assert found[f"start returns {OUTSIDE}"].turns == ((0, 1),), "a response has a token"


def test_keys_and_values_are_kept_over_turns():
    """What is computed of prefixes is the prompt, and what was read: "|1|" and the EOS before it, whose keys nothing needed."""
    policy = load_small()
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
    policy = load_small()
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
        turns_of = response.turns or ((response.num_prompt, len(response.token_ids)),)
        assert turns_of[segment.turn] == (segment.start, segment.stop)
