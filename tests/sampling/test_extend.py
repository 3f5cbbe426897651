"""Independent tracks: seeds, segments, each graded once; and one error ends all siblings before it is raised, as itself."""

import asyncio
from dataclasses import replace

import pytest

from fairlen.sampling.extend import Continuation, Sampling, derive_seed, gather, siblings
from fairlen.sampling.independent import Independent, Request


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


def run(sampler, request):
    """An engine that answers with its own seed's last digits, and a grader that counts."""
    graded = []

    async def extend(prefix, sampling):
        length = 1 + sampling.seed % 4
        return Continuation((sampling.seed % 100,) * length, (-1.0,) * length, "stop")

    async def grade(response):
        graded.append(response.seed)
        return replace(response, outcome=1.0, status="correct")

    return asyncio.run(sampler(extend, grade, request)), graded


REQUEST = Request(3, (5, 6), Sampling(8, seed=0, temperature=0.7), policy_version=2, seed=(1, 2, 3, 0))


def test_tracks_have_seeds_by_position_and_are_judged_once():
    responses, graded = run(Independent(5), REQUEST)
    expected = [derive_seed(1, 2, 3, 0, 0, track, 0) for track in range(5)]
    assert [r.seed for r in responses] == expected and sorted(graded) == sorted(expected)
    assert len(set(expected)) == 5
    assert [(r.prompt, r.track, r.temperature, r.policy_version, r.num_prompt) for r in responses] == [
        (3, track, 0.7, 2, 2) for track in range(5)
    ]
    assert all(
        r.token_ids == (5, 6) + (seed % 100,) * (1 + seed % 4) for r, seed in zip(responses, expected, strict=True)
    )


def test_seeds_differ_by_every_coordinate_and_by_length():
    seeds = {
        derive_seed(*position) for position in [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (0, 0, 0), (-1,), (2**63,)]
    }
    assert len(seeds) == 9 and all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_have_no_visible_pattern():
    """Each bit of 4,096 neighbours is 1 half of the time: within 5 standard deviations of sqrt(n)/2 = 32."""
    seeds = [derive_seed(7, row) for row in range(4096)]
    for bit in range(63):
        assert abs(sum(seed >> bit & 1 for seed in seeds) - 2048) < 5 * 32
