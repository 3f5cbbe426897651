"""Calls of an environment that drives: what is continued, what is refused, and what ends an episode."""

import asyncio
from typing import Any

import pytest

from fairlen.sampling.extend import Continuation, Sampling
from fairlen.settings import TaskConfig
from fairlen.tasks.driven import Calls, Driven, RefusedRequest
from fairlen.tasks.environment import Driving, Fault, Played, about
from fairlen.tasks.load import load_task
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem, Verdict

PROBLEM = Problem("one", "?", (9,), "")
END = 1


class Echo:
    """An engine that continues with as many tokens as it was asked for, at most three, the last of them END."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[int, ...], Sampling]] = []

    async def __call__(self, prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
        self.asked.append((prefix, sampling))
        await asyncio.sleep(0)
        return Continuation((5, 6, END), (-0.5, -0.25, -0.125), "stop").first(sampling.max_new_tokens)


class Play(Playground):
    """Problems whose environment does what it is given."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        object.__setattr__(self, "act", act)

    async def drive(self, problem: Problem, calls: Calls) -> Played:
        await self.act(calls)
        return Played("a", Verdict("correct", 0.75))


def play(act: Any, budget: int = 20, deadline: float = 30.0, extend: Any = None) -> Continuation:
    turns = Driven(extend or Echo(), Play(act), deadline)
    return asyncio.run(about(turns, PROBLEM)(PROBLEM.token_ids, Sampling(budget, seed=3)))


def test_a_trajectory_is_what_was_asked_and_answered():
    """Two tokens are read, three written, two read, three written: 2..5 and 7..10 after the prompt of one."""
    engine = Echo()

    async def act(calls: Calls) -> None:
        first = await calls("a", (9, 2, 3))
        await calls("a", (9, 2, 3, *first.token_ids, 4, 4))

    found = play(act, extend=engine)
    assert isinstance(Play(act), Driving) and not isinstance(Playground(), Driving)
    assert found.token_ids == (2, 3, 5, 6, END, 4, 4, 5, 6, END)
    assert found.turns == ((2, 5), (7, 10)) and found.logprobs == (-0.5, -0.25, -0.125) * 2
    assert (found.finish, found.status, found.outcome) == ("stop", "correct", 0.75)
    assert [prefix for prefix, _ in engine.asked] == [(9, 2, 3), (9, 2, 3, 5, 6, END, 4, 4)]
    assert [sampling.max_new_tokens for _, sampling in engine.asked] == [20 - 2, 20 - 7]
    assert engine.asked[0][1].seed == 3 != engine.asked[1][1].seed


def test_agents_have_conversations_of_their_own():
    engine = Echo()

    async def act(calls: Calls) -> None:
        await asyncio.gather(calls("a", (9, 2)), calls("b", (9, 8, 8)))
        await calls("b", (9, 8, 8, 5, 6, END, 7))

    assert play(act, extend=engine).token_ids == (2, 5, 6, END)
    assert len({sampling.seed for _, sampling in engine.asked}) == 3


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ((9, 2, 5, 7, END, 4), "turn 2 does not continue what was read and written before, 5 tokens: token 3 is another"),
        ((9, 2, 5), "token 3 is another"), ((8,), "token 0 is another"),
    ],
    ids=["rewritten", "shorter", "another start"],
)  # fmt: skip
def test_what_rewrites_earlier_turns_is_refused_with_the_reason(second, why, capsys):
    async def act(calls: Calls) -> None:
        await calls("a", (9, 2))
        with pytest.raises(RefusedRequest, match=why):
            await calls("a", second)
        raise RuntimeError("as environments do where a call of theirs fails")

    found = play(act)
    assert (found.status, found.token_ids) == ("error", (2, 5, 6, END))
    assert why in " ".join(capsys.readouterr().err.split())


def test_two_turns_of_one_conversation_at_once_are_refused():
    async def act(calls: Calls) -> None:
        results = await asyncio.gather(calls("a", (9, 2)), calls("a", (9, 2)), return_exceptions=True)
        assert isinstance(results[0], Continuation) and "at the same time" in str(results[1])
        raise results[1]

    assert play(act).status == "error"


def test_what_does_not_fit_ends_the_trajectory_and_is_graded():
    """The limit is 8: 2 read, 3 written, 3 more read leave no token for a turn; with 2 there is one, which is cut off."""

    async def too_much(calls: Calls) -> None:
        first = await calls("a", (9, 2, 3))
        with pytest.raises(RefusedRequest, match="maximum context length: 9 tokens, of which at most 9 fit"):
            await calls("a", (9, 2, 3, *first.token_ids, 4, 4, 4))

    async def enough(calls: Calls) -> None:
        first = await calls("a", (9, 2, 3))
        last = await calls("a", (9, 2, 3, *first.token_ids, 4, 4))
        assert (last.token_ids, last.finish) == ((5,), "length")

    found = play(too_much, budget=8)
    assert (found.finish, found.status, found.turns) == ("length", "correct", ((2, 5),))
    found = play(enough, budget=8)
    assert (found.finish, found.status, found.turns) == ("length", "correct", ((2, 5), (7, 8)))


def test_an_environment_may_ask_for_less():
    async def act(calls: Calls) -> None:
        turn = await calls("a", (9, 2), limit=2)
        assert (turn.token_ids, turn.finish) == ((5, 6), "length")
        await calls("a", (9, 2, 5, 6, 4), stops={END, 6})  # the first of them ends it

    found = play(act)
    assert (found.token_ids, found.finish) == ((2, 5, 6, 4, 5, 6), "stop")


def test_one_that_hangs_has_no_verdict_and_the_clock_stands_while_the_policy_writes():
    async def slowly(prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
        await asyncio.sleep(0.6)
        return await Echo()(prefix, sampling)

    async def waits(calls: Calls) -> None:
        await calls("a", (9, 2))

    async def hangs(calls: Calls) -> None:
        await waits(calls)
        await asyncio.sleep(3600)

    assert play(waits, deadline=0.3, extend=slowly).status == "correct"
    found = play(hangs, deadline=0.3, extend=slowly)
    assert (found.status, found.token_ids) == ("timeout", (2, 5, 6, END))


@pytest.mark.parametrize("error", [KeyError("gone"), TimeoutError(), Fault("error", "episode", "is odd")], ids=repr)
def test_one_that_raises_before_a_turn_still_has_a_token(error):
    async def act(calls: Calls) -> None:
        raise error

    found = play(act)
    assert (found.status, found.token_ids, found.turns) == ("error", (5,), ((0, 1),))


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setattr("fairlen.tasks.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fairlen\[verifiers\]'"):
        load_task(TaskConfig.of(task="verifiers:wordle"), None)


def test_an_engine_that_fails_ends_the_run():
    async def fails(prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
        raise MemoryError("no room")

    async def act(calls: Calls) -> None:
        try:
            await calls("a", (9, 2))
        except MemoryError:
            raise RuntimeError("as it is told an environment") from None

    with pytest.raises(MemoryError):
        play(act, extend=fails)
