"""One stream of EqLen: two tracks; whenever one has ended, a new one starts from what the other had written by then.

    prompt --+-- a_1 EOS                      round 1: a_1 and b_1 have equal length
             +-- b_1 --+-- a_2 EOS            round 2: both tracks continue b_1
                       +-- b_2 -- ...

Tracks are decoded on their own and compared afterwards, which gives the law of decoding them in lockstep: who ended first is
decided by the position of EOS, never by time. Forks are of token ids, never of text. Engines that can tell how far a track has
got let a fork start at once; on others it starts when both tracks have ended. Nothing that was generated is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from fairlen.batch import Response, TokenIds
from fairlen.sampling.extend import Continuation, Extend, Growing, Sampling, siblings
from fairlen.sampling.independent import Grade, Request
from fairlen.seeds import derive_seed

NOTHING = Continuation((), (), "length")


class Track:
    """A track on its way: what it inherited, what it adds, and the verdict on the whole, for which no round waits."""

    def __init__(
        self,
        group: asyncio.TaskGroup,
        extend: Callable[[], Awaitable[Continuation]],
        sampling: Sampling,
        inherited: Continuation,
        max_response_length: int,
        respond: Callable[[Continuation], Awaitable[Response]],
    ) -> None:
        self.sampling, self.inherited, self.max_response_length = sampling, inherited, max_response_length
        self.ended = group.create_task(self._extend(extend))
        self.response = group.create_task(self._respond(respond))

    async def reach(self, length: int) -> Continuation:
        """The first `length` tokens of the answer, inherited ones included, or all where it ended before."""
        missing = length - len(self.inherited.token_ids)
        if isinstance(self.pending, Growing):
            return self._whole(await self.pending.reach(missing))
        return self._whole((await self.ended).first(missing))

    def fork(self, extend: Extend, prefix: TokenIds, sampling: Sampling) -> Awaitable[Continuation]:
        """Continues `prefix`, which is what this track has reached: from its own keys and values where the engine can."""
        if isinstance(self.pending, Growing):
            return self.pending.fork(
                self.max_response_length - sampling.max_new_tokens - len(self.inherited.token_ids), sampling
            )
        return extend(prefix, sampling)

    def release(self) -> None:
        """Says that nobody will fork this track any more."""
        if isinstance(self.pending, Growing):
            self.pending.release()

    def answer(self) -> Continuation:
        """The whole answer of a track that has ended."""
        return self._whole(self.ended.result())

    def _whole(self, added: Continuation) -> Continuation:
        inherited = self.inherited
        return Continuation(inherited.token_ids + added.token_ids, inherited.logprobs + added.logprobs, added.finish)

    async def _extend(self, extend: Callable[[], Awaitable[Continuation]]) -> Continuation:
        """What the engine returns in the end, checked. It is asked in here: who is cancelled before has asked nothing."""
        self.pending = extend()
        return (await self.pending).check(self.sampling)

    async def _respond(self, respond: Callable[[Continuation], Awaitable[Response]]) -> Response:
        await self.ended
        return await respond(self.answer())


@dataclass(frozen=True)
class Fork:
    """What a round came to where the stream goes on."""

    finisher: Track
    survivor: Track
    inherited: Continuation
    """The survivor's answer up to where the finisher ended."""


async def run_stream(
    extend: Extend, grade: Grade, request: Request, stream: int, max_rounds: int
) -> tuple[Response, ...]:
    """All tracks of one stream, graded, in order of their start. `max_rounds` 0 goes on until both tracks have ended.

    Raises the first error of the engine or the grader, when no track is generated or graded any more.
    """
    tracks: list[Track] = []
    max_response_length = request.sampling.max_new_tokens

    def start(round: int, inherited: Continuation, survivor: Track | None = None) -> Track:
        track, num_inherited = len(tracks), len(inherited.token_ids)
        seed = derive_seed(*request.seed, stream, track, round)
        sampling = replace(request.sampling, seed=seed, max_new_tokens=max_response_length - num_inherited)
        prefix = request.token_ids + inherited.token_ids

        def ask() -> Awaitable[Continuation]:
            return survivor.fork(extend, prefix, sampling) if survivor else extend(prefix, sampling)

        def respond(answer: Continuation) -> Awaitable[Response]:
            return grade(request.respond(answer, seed, stream, track, round, num_inherited))

        tracks.append(Track(group, ask, sampling, inherited, max_response_length, respond))
        return tracks[-1]

    async with siblings() as group:
        live, round = (start(0, NOTHING), start(0, NOTHING)), 0
        while fork := await race(*live):
            fork.finisher.release()
            round += 1
            if round == max_rounds:
                break
            live = fork.survivor, start(round, fork.inherited, fork.survivor)
        for track in live:
            track.release()
    return tuple(track.response.result() for track in tracks)


async def race(left: Track, right: Track) -> Fork | None:
    """Where the shorter of two tracks ended; None where both end there."""
    await asyncio.wait((left.ended, right.ended), return_when=asyncio.FIRST_COMPLETED)
    first, other = (left, right) if left.ended.done() else (right, left)
    answer = first.answer()
    length = len(answer.token_ids)
    reached = await other.reach(length)
    if len(reached.token_ids) < length:
        return Fork(other, first, answer.first(len(reached.token_ids)))
    if reached.finish == "stop" or length == first.max_response_length:
        return None
    return Fork(first, other, reached)
