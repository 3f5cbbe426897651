"""What an environment must not do, some sixty kinds of it: its own trajectory has no verdict, and the others of the run go on."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fairlen.engine.generation import check_request
from fairlen.sampling.extend import Continuation, Sampling, gather
from fairlen.tasks.driven import Driven
from fairlen.tasks.environment import InTurns, Observation, Played, about
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem, Verdict

NUM_IDS, EOS = 64, 1
GOOD = Verdict("correct", 1.0)
Nonsense = dict[str, Callable[..., Any]]


async def extend(prefix: tuple[int, ...], sampling: Sampling) -> Continuation:
    """An engine that takes what ours takes, and says 5 and EOS."""
    check_request(prefix, sampling, 10_000, NUM_IDS)
    await asyncio.sleep(0)
    return Continuation((5, EOS), (-0.5, -0.5), "stop").first(sampling.max_new_tokens)


class Odd:
    """Has no text, no truth and no length."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __bool__ = __len__ = __float__ = __index__ = __repr__  # type: ignore[assignment]


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raises(error: BaseException) -> Callable[..., Any]:
    def act(*_: Any) -> Any:
        raise error

    return act


def async_raises(error: BaseException) -> Callable[..., Any]:
    async def act(*_: Any) -> Any:
        raise error

    return act


async def deaf(*_: Any) -> Any:
    while True:  # it does not end when it is told to
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            if is_over[0]:
                raise


is_over = [False]


def recurse(*_: Any) -> Any:
    return recurse()


ERRORS: Nonsense = {
    "raises": raises(KeyError("gone")), "exits": raises(SystemExit(3)), "exits, async": async_raises(SystemExit(3)),
    "is cancelled": raises(asyncio.CancelledError()), "is cancelled, async": async_raises(asyncio.CancelledError()),
    "has no text": raises(OddError()), "several": raises(BaseExceptionGroup("two", [SystemExit(1), ValueError()])),
    "recurses": recurse, "stops": raises(StopIteration()), "is interrupted by itself": raises(GeneratorExit()),
    "lines": raises(ValueError("a\n" * 10_000)), "never ends": deaf,
}  # fmt: skip
WRONG: dict[str, Any] = {
    "none": None, "a number": 5, "bytes": b"x", "a list": [], "a class": Observation, "odd": Odd(),
    "messages": [{"role": "user"}],
}  # fmt: skip
OBSERVATIONS: dict[str, Any] = {
    **WRONG, "no text": Observation(None), "bytes as text": Observation(b"x"), "nan": Observation("a", False, math.nan),
    "inf": Observation("a", False, math.inf), "a reward of text": Observation("a", False, "1"),
    "a reward of none": Observation("a", False, None), "a huge reward": Observation("a", False, 10**400),
    "a complex reward": Observation("a", False, 1j), "odd end": Observation("a", Odd()), "odd reward": Observation("a", False,
    Odd()),
    "half a character": Observation("\ud800"), "an unknown character": Observation("\U0001f600"),
    "an id outside": Observation("outside"), "an id below 0": Observation("below"), "an id of text": Observation("text"),
}  # fmt: skip
VERDICTS: dict[str, Any] = {
    **WRONG, "nan": Verdict("correct", math.nan), "text": Verdict("correct", "1"), "no outcome": Verdict("correct", None),
    "huge": Verdict("correct", 10**400), "odd": Verdict("correct", Odd()), "no status": Verdict(None, 1.0),
    "a list as status": Verdict([], 1.0), "an unknown status": Verdict("great", 1.0), "nobody's status": Verdict("error", 1.0),
}  # fmt: skip


@dataclass
class Other:
    """An environment that ends after one turn, of which one function is another."""

    function: str = ""
    instead: Any = None

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, name)
        if name in ("start", "act", "grade") and name == object.__getattribute__(self, "function"):
            return object.__getattribute__(self, "instead")
        return own

    def start(self) -> str:
        return ""

    def act(self, text: str) -> Observation:
        return Observation("", True)

    def grade(self) -> Verdict:
        return GOOD

    def end(self) -> None:
        raise OddError


@dataclass(frozen=True)
class Turned(Playground):
    """A problem's environment is found by its id."""

    kinds: Any = None
    max_turns: Any = 3

    def environment(self, problem: Problem, seed: int) -> Any:
        return self.kinds[problem.id]()

    def encode_observation(self, text: str) -> Any:
        special = {"outside": (NUM_IDS,), "below": (-1,), "text": ("a",)}
        return special[text] if text in special else tuple(3 + byte % 32 for byte in text.encode("ascii"))


def play(task: Any, kinds: Any, turns: Any) -> dict[str, Continuation]:
    """Play all kinds at once, as a rollout batch does."""

    async def run() -> list[Continuation]:
        problems = [Problem(name, "?", (9,), "") for name in kinds]
        try:
            return list(await gather(about(turns, one)(one.token_ids, Sampling(40, seed=1)) for one in problems))
        finally:
            is_over[0] = True

    is_over[0] = False
    try:
        return dict(zip(kinds, asyncio.run(run()), strict=True))
    except BaseException as error:
        reason = type(error).__name__
    raise AssertionError(f"the run ended with {reason}")


def ended_alone(found: dict[str, Continuation], good: tuple[str, ...] = ("good",)) -> list[str]:
    """Return the kinds that had a verdict and must not, or the other way round."""
    statuses = {name: one.status for name, one in found.items()}
    wrong = [name for name, status in statuses.items() if (status in ("error", "timeout")) is (name in good)]
    return wrong + [name for name, one in found.items() if not one.turns or not math.isfinite(one.outcome)]


def test_nonsense_in_turns_ends_its_own_trajectory():
    kinds: Nonsense = {"good": Other}
    for function, values in (("start", WRONG), ("act", OBSERVATIONS), ("grade", VERDICTS)):
        kinds |= {
            f"{function} returns {n}": (lambda f=function, v=v: Other(f, lambda *_: v)) for n, v in values.items()
        }
        kinds |= {f"{function} {n}": (lambda f=function, e=e: Other(f, e)) for n, e in ERRORS.items()}
    kinds |= {f"made: {n}": e for n, e in ERRORS.items() if n != "never ends"}
    kinds |= {"no environment": lambda: None, "start returns too much": lambda: Other("start", lambda: "a" * 10**7)}
    task = Turned(kinds=kinds)
    found = play(task, kinds, InTurns(extend, task, lambda ids: "x", deadline=2.0))
    assert len(found) > 80 and ended_alone(found) == []


@pytest.mark.parametrize("max_turns", [0, -3])
def test_a_task_without_turns_has_no_verdict(max_turns):
    task = Turned(kinds={"bad": Other}, max_turns=max_turns)
    assert ended_alone(play(task, task.kinds, InTurns(extend, task, lambda ids: "x", deadline=2.0))) == []


def asks(name: Any = "a", prompt: Any = (9, 2), stops: Any = (), limit: Any = 0) -> Callable[..., Any]:
    async def drive(calls: Any) -> Played:
        await calls("a", (9, 2))
        await calls(name, prompt if name != "a" or prompt != (9, 2) else (9, 2, 5, EOS, 3), stops, limit)
        return Played("a", GOOD)

    return drive


def returns(value: Any) -> Callable[..., Any]:
    async def drive(calls: Any) -> Any:
        await calls("a", (9, 2))
        return value

    return drive


KNOWN = (9, 2, 5, EOS)
DRIVEN: Nonsense = {
    "max_tokens=-5": asks(limit=-5), "max_tokens of text": asks(limit="5"), "max_tokens=1.5": asks(limit=1.5),
    "max_tokens=nan": asks(limit=math.nan), "max_tokens=none": asks(limit=None), "max_tokens, odd": asks(limit=Odd()),
    "an id outside": asks(prompt=(*KNOWN, NUM_IDS)), "a huge id": asks(prompt=(*KNOWN, 2**80)),
    "an id below 0": asks(prompt=(*KNOWN, -1)),
    "a text as id": asks(prompt=(*KNOWN, "a")), "a text as ids": asks(prompt="ids"), "a float as id": asks(prompt=(*KNOWN, 3.0)),
    "none as id": asks(prompt=(*KNOWN, None)), "no ids": asks(prompt=None), "an odd id": asks(prompt=(*KNOWN, Odd())),
    "other ids": asks(prompt=(9, 3)), "fewer ids": asks(prompt=(9,)), "nothing": asks(prompt=()),
    "a number as ids": asks(prompt=5),
    "too long": returns(None), "stops of text": asks(stops=("a",)), "stops=5": asks(stops=5), "stops below 0": asks(stops=(-1,)),
    "a name of none": asks(name=None), "a list as name": asks(name=[]), "odd name": asks(name=Odd()),
    "an id outside first": lambda calls: calls("b", (9, NUM_IDS)),
    "played: unknown": returns(Played("z", GOOD)), "played: a list": returns(Played([], GOOD)), "played: odd": returns(Odd()),
    **{f"played: {name}": returns(value) for name, value in WRONG.items()},
    **{f"verdict: {name}": returns(Played("a", value)) for name, value in VERDICTS.items()},
    **{name: error for name, error in ERRORS.items() if "async" in name},
}  # fmt: skip


class Drives(Playground):
    async def drive(self, problem: Problem, calls: Any) -> Any:
        return await DRIVEN.get(problem.id, returns(Played("a", GOOD)))(calls)


def test_nonsense_of_an_environment_that_drives_ends_its_own_trajectory(capsys):
    """And one line tells of each kind."""
    kinds = {"good": None, **DRIVEN}
    found = play(Drives(), kinds, Driven(extend, Drives(), 2.0))
    assert len(found) > 40 and ended_alone(found) == []
    told = capsys.readouterr().err.splitlines()
    assert told and all(len(line) < 500 for line in told)


def test_nonsense_over_http_ends_its_own_trajectory():
    """What the server is sent instead of a request for a turn: it answers, and the conversation is refused or not there."""
    aiohttp = pytest.importorskip("aiohttp")
    from fairlen.tasks.driven import Calls
    from fairlen.tasks.rollout_server import RolloutServer

    good: dict[str, Any] = {"token_ids": [9, 2], "sampling_params": {}}
    bodies = [
        {"sampling_params": {"max_tokens": -5}}, {"sampling_params": {"max_tokens": "many"}}, {"sampling_params": None},
        {"sampling_params": []}, {"sampling_params": {"stop_token_ids": "x"}}, {"sampling_params": {"stop_token_ids": 5}},
        {"token_ids": "ids"}, {"token_ids": None}, {"token_ids": [9, "a"]}, {"token_ids": [9, NUM_IDS]}, {"token_ids": [9, -1]},
        {"token_ids": [9, 2.5]}, {"token_ids": {}}, {"sampling_params": {"temperature": "hot"}}, {"token_ids": [9, [2]]},
    ]  # fmt: skip

    async def run() -> list[tuple[int, str]]:
        server, found = RolloutServer(), []
        await server.start()
        url = server.url.removesuffix("/v1") + "/inference/v1/generate"
        async with aiohttp.ClientSession() as session:
            for body in bodies:
                calls = Calls(extend, (9,), Sampling(40, seed=1), 5.0)
                with server.playing(calls) as salt:
                    async with session.post(url, json=good | body | {"cache_salt": salt}) as answer:
                        found.append((answer.status, calls.refusal))
                assert calls.failure is None
            for raw in (b"", b"{", b"[]", b"5", b"\xff"):
                async with session.post(url, data=raw) as answer:
                    found.append((answer.status, "no episode"))
            with server.playing(Calls(extend, (9,), Sampling(40, seed=1), 5.0)) as salt:
                async with session.post(url, json=good | {"cache_salt": salt}) as answer:
                    found.append((answer.status, "good"))
        server.close()
        return found

    *refused, last = asyncio.run(run())
    assert last == (200, "good")
    assert [(status, why) for status, why in refused if status not in (400, 404) or not why] == []
