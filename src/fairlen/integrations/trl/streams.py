"""Streams of equal-length pairs in a host that generates for all at once, and their pieces as rows of a framework.

Coroutines run until all of them wait, then one call of the host's own generation serves them. The coroutines live on a thread of
their own, so that the host may have an event loop of its own, as notebooks do; generation stays on the caller's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from fairlen.batch import Response, Responses, Segment, Segments, Table, TokenIds
from fairlen.sampling.extend import Continuation, Extend, Sampling

Stream = Callable[[Extend], Awaitable[tuple[Response, ...]]]
"""A coroutine that asks for all that it can use before it waits."""


@dataclass
class Asked:
    """One continuation that a stream waits for."""

    prefix: TokenIds
    sampling: Sampling
    answer: asyncio.Future[Continuation]


@dataclass
class Seat:
    """What one stream waits for."""

    asked: list[Asked] = field(default_factory=list)

    def extend(self, prefix: TokenIds, sampling: Sampling) -> asyncio.Future[Continuation]:
        """Notes the wish; the answer comes with the host's next generation."""
        self.asked.append(Asked(prefix, sampling, asyncio.get_running_loop().create_future()))
        return self.asked[-1].answer


def run_streams(
    streams: Sequence[Stream], generate: Callable[[list[Asked]], list[Continuation]], most: Callable[[int], int]
) -> list[tuple[Response, ...]]:
    """All responses of each stream.

    `generate` serves a round; `most(waiting)` is the largest number waiting in any process: rounds go on until it is 0, so that
    every process takes part in as many, some of them with nothing of its own to ask. Raises what a stream raises.
    """
    loop, seats = asyncio.new_event_loop(), [Seat() for _ in streams]
    tasks: list[asyncio.Task[tuple[Response, ...]]] = []

    async def begin() -> list[Asked]:
        started = (stream(seat.extend) for stream, seat in zip(streams, seats, strict=True))
        tasks.extend(asyncio.ensure_future(one) for one in started)
        return await settle(tasks, seats)

    async def go_on(asked: list[Asked], answers: list[Continuation]) -> list[Asked]:
        for one, found in zip(asked, answers, strict=True):
            one.answer.set_result(found)
        return await settle(tasks, seats)

    async def end() -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with ThreadPoolExecutor(1) as thread:
        try:
            asked = thread.submit(loop.run_until_complete, begin()).result()
            while most(len(asked)):
                asked = thread.submit(loop.run_until_complete, go_on(asked, generate(asked))).result()
            return [task.result() for task in tasks]
        finally:
            thread.submit(loop.run_until_complete, end()).result()
            loop.close()


async def settle(tasks: Sequence[asyncio.Task[tuple[Response, ...]]], seats: list[Seat]) -> list[Asked]:
    """Lets streams run until each has ended or waits; what they wait for, in their order. Raises what a stream raised."""
    while any(not task.done() and not seat.asked for task, seat in zip(tasks, seats, strict=True)):
        await asyncio.sleep(0)
    for task in tasks:
        if task.done():
            task.result()
    asked = [one for seat in seats for one in seat.asked]
    for seat in seats:
        seat.asked = []
    return asked


def join_tables(parts: Sequence[tuple[Responses, Segments]]) -> tuple[Responses, Segments]:
    """One rollout batch of those of several processes, in their order; prompts are numbered over all of them already."""
    responses, segments, first_response, first_group = [], [], 0, 0
    for part, pieces in parts:
        responses.append(part)
        segments.append(replace(pieces, response=pieces.response + first_response, group=pieces.group + first_group))
        first_response, first_group = first_response + len(part), first_group + pieces.num_groups
    return concatenate(responses), concatenate(segments)


def concatenate(tables: Sequence[Table]) -> Table:
    """The rows of tables of one kind, one after the other."""
    names = tables[0].columns()
    return replace(tables[0], **{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})


@dataclass(frozen=True)
class PieceRows:
    """Segments as rows: a prompt, the answer up to where the segment ends, and a mask that is 0 on what was inherited."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    mask: list[list[int]]
    """1 on trained tokens."""
    logprobs: list[list[float]]
    """Nats by the engine, of every token of the completion."""

    def __len__(self) -> int:
        return len(self.mask)

    def padded(self, num_rows: int, prompt_ids: Sequence[int], token_id: int) -> PieceRows:
        """The same with rows of one token that does not train, until there are `num_rows`."""
        missing = num_rows - len(self)
        return PieceRows(
            self.prompt_ids + [list(prompt_ids)] * missing,
            self.completion_ids + [[token_id]] * missing,
            self.mask + [[0]] * missing,
            self.logprobs + [[0.0]] * missing,
        )


def piece_rows(responses: Sequence[Response], segments: Sequence[Segment]) -> PieceRows:
    """One row a segment."""
    rows = [(responses[segment.response], segment) for segment in segments]
    return PieceRows(
        prompt_ids=[list(r.token_ids[: r.num_prompt]) for r, _ in rows],
        completion_ids=[list(r.token_ids[r.num_prompt : s.stop]) for r, s in rows],
        mask=[[0] * (s.start - r.num_prompt) + [1] * (s.stop - s.start) for r, s in rows],
        logprobs=[list(r.logprobs[: s.stop - r.num_prompt]) for r, s in rows],
    )
