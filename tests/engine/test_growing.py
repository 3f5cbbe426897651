"""Following a continuation while it grows, and forking it from where it is."""

from __future__ import annotations

import asyncio

import pytest
from conftest import build, engine_of

from fairlen.extend import Continuation, Growing, Sampling

PROMPT = (2, 5, 9, 11)


@pytest.fixture(scope="module")
def model():
    return build("qwen3")


def greedy(engine, number: int = 30) -> Continuation:
    return engine.generate([PROMPT], [Sampling(number, seed=0, temperature=0.0)])[0]


def test_reach_gives_what_a_smaller_budget_would_have_given(model):
    whole = greedy(engine_of(model))
    assert len(whole.token_ids) > 8

    async def ask(number: int) -> tuple[Continuation, Continuation]:
        engine = engine_of(model)
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        assert isinstance(growing, Growing)
        return await asyncio.gather(growing.reach(number), growing)

    for number in (1, 2, 7, len(whole.token_ids) - 1):
        first, all_of_it = asyncio.run(ask(number))
        assert all_of_it == whole
        assert first == Continuation(whole.token_ids[:number], whole.logprobs[:number], "length")
    for number in (len(whole.token_ids), 1000):
        assert asyncio.run(ask(number)) == [whole, whole]


def test_reach_is_told_before_the_end_and_to_everybody(model):
    """In order of tokens, whatever the order of asking; asking again for what is there answers at once."""
    engine, told = engine_of(model), []

    async def follow() -> None:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))

        async def wait(number: int) -> None:
            told.append(len((await growing.reach(number)).token_ids))

        await asyncio.gather(wait(5), wait(2), wait(5), wait(3))
        assert not growing.sequence.future.done()
        told.append(len((await growing.reach(1)).token_ids))
        await growing
        told.append(len((await growing.reach(4)).token_ids))

    asyncio.run(follow())
    assert sorted(told[:4]) == told[:4] == [2, 3, 5, 5] and told[4:] == [1, 4]


@pytest.mark.parametrize("slots", [2, 8])
def test_a_fork_of_a_running_sequence_computes_nothing(model, slots):
    """Two forks at tokens 3 and 6 while the parent runs: as from a fresh engine, and only 3 prompt tokens are computed."""
    engine = engine_of(model, slots=slots)

    async def fork() -> list[Continuation]:
        parent = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        children = []
        for number in (3, 6):
            prefix = PROMPT + (await parent.reach(number)).token_ids
            children.append(engine.extend(prefix, Sampling(12, seed=number)))
        return await asyncio.gather(parent, *children)

    parent, *children = asyncio.run(fork())
    assert engine.stats.num_computed_tokens == len(PROMPT) - 1
    for number, child in zip((3, 6), children, strict=True):
        prefix = PROMPT + parent.token_ids[:number]
        (expected,) = engine_of(model).generate([prefix], [Sampling(12, seed=number)])
        assert child.token_ids == expected.token_ids
        assert child.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


def test_reach_of_an_abandoned_sequence_is_cancelled_not_forgotten(model):
    engine = engine_of(model)

    async def abandon() -> None:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        whole, later = asyncio.ensure_future(growing), asyncio.ensure_future(growing.reach(20))
        await asyncio.sleep(0)
        whole.cancel()
        await later

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(abandon(), 5))


def test_reach_raises_what_the_model_raised(model):
    engine = engine_of(model)
    broken = RuntimeError("broken")

    def fail(*_: object) -> None:
        raise broken

    async def follow() -> list[object]:
        growing = engine.extend(PROMPT, Sampling(30, seed=0, temperature=0.0))
        await growing.reach(2)
        handle = model.register_forward_pre_hook(fail)
        try:
            return await asyncio.gather(growing.reach(9), growing, return_exceptions=True)
        finally:
            handle.remove()

    assert asyncio.run(follow()) == [broken, broken]


def test_reach_of_no_token_is_refused(model):
    engine = engine_of(model)

    async def follow() -> None:
        await engine.extend(PROMPT, Sampling(3, seed=0)).reach(0)

    with pytest.raises(ValueError, match=r"reach\(0\): ask for at least 1 token"):
        asyncio.run(follow())
