"""One error ends all siblings before it is raised, as itself."""

import asyncio

import pytest

from fairlen.sampling.extend import gather, siblings


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def wait(ended: list[str]) -> None:
    """Takes two more rounds of the event loop to end when it is cancelled."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        ended.append("ended")


def test_results_come_in_order():
    async def after(rounds: int) -> int:
        for _ in range(rounds):
            await asyncio.sleep(0)
        return rounds

    assert asyncio.run(gather(after(n) for n in (3, 1, 2))) == [3, 1, 2]
    assert asyncio.run(gather(())) == []


def test_the_error_is_itself_with_its_cause_and_comes_when_all_have_ended():
    error, ended = ValueError("one"), []
    error.__cause__ = KeyError("why")

    async def run() -> list[str]:
        with pytest.raises(ValueError) as caught:
            await gather([wait(ended), fail(error), wait(ended)])
        assert caught.value is error and isinstance(error.__cause__, KeyError) and error.__context__ is None
        return list(ended)

    assert asyncio.run(run()) == ["ended", "ended"]


def test_an_error_in_the_body_ends_what_it_started():
    ended: list[str] = []

    async def run() -> None:
        async with siblings() as group:
            group.create_task(wait(ended))
            await asyncio.sleep(0)
            raise KeyError("body")

    with pytest.raises(KeyError, match="body"):
        asyncio.run(run())
    assert ended == ["ended"]


def test_cancelling_whoever_waits_cancels_all():
    ended: list[str] = []

    async def run() -> list[str]:
        task = asyncio.ensure_future(gather([wait(ended), wait(ended)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(ended)

    assert asyncio.run(run()) == ["ended", "ended"]
