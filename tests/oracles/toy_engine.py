"""Engines of the toy policy for the real sampler.

An engine answers by the seed alone, so that time cannot change a token: every track has a pace of its own, drawn from its seed.
With `grows` it can tell how far a continuation has got, as fairlen.sampling.extend.Growing asks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from toy import PROMPT, Listing, Stream, Toy, Track

from fairlen.rollouts import Response, TokenIds
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

Answer = Callable[[TokenIds, Sampling], Continuation]


async def wait(ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)


class Growing:
    """A continuation whose tokens appear one by one, `pace` turns of the event loop apart."""

    def __init__(self, engine: Engine, prefix: TokenIds, whole: Continuation, pace: int) -> None:
        self.engine, self.prefix, self.whole, self.pace, self.written = engine, prefix, whole, pace, 0
        self.is_released = False
        self.writer = asyncio.ensure_future(self.write())

    async def write(self) -> Continuation:
        for _ in self.whole.token_ids:
            await wait(self.pace)
            self.written += 1
        return self.whole

    async def reach(self, num_tokens: int) -> Continuation:
        while self.written < min(num_tokens, len(self.whole.token_ids)):
            await asyncio.sleep(0)
        return self.whole.first(num_tokens)

    def fork(self, num_tokens: int, sampling: Sampling) -> Any:
        assert not self.is_released and num_tokens <= self.written
        return self.engine(self.prefix + self.whole.token_ids[:num_tokens], sampling)

    def release(self) -> None:
        self.is_released = True

    def __await__(self):
        return self.writer.__await__()


@dataclass(frozen=True)
class Engine:
    """`extend` by any way to find the answer."""

    answer: Answer
    grows: bool = False
    slowest: int = 3
    fastest: int = 0
    """Paces are between the two."""

    def __call__(self, prefix: TokenIds, sampling: Sampling) -> Any:
        whole, pace = self.answer(prefix, sampling), self.fastest + sampling.seed % (self.slowest - self.fastest + 1)
        return Growing(self, prefix, whole, pace) if self.grows else self.write(whole, pace)

    async def write(self, whole: Continuation, pace: int) -> Continuation:
        await wait(pace * len(whole.token_ids))
        return whole


def sample_from(toy: Toy, policy: np.ndarray) -> Answer:
    """Draws from the policy by the seed."""
    table = policy.tolist()

    def answer(prefix: TokenIds, sampling: Sampling) -> Continuation:
        draw, tokens, node = random.Random(sampling.seed), [], toy.node(prefix[1:])
        while len(tokens) < sampling.max_new_tokens and not (tokens and toy.is_end(tokens[-1])):
            tokens += draw.choices(range(toy.size), table[node])
            node = toy.letters * node + 1 + tokens[-1]
        return Continuation(tuple(tokens), (-1.0,) * len(tokens), toy.finish(tokens))

    return answer


def replay(toy: Toy, stream: Stream) -> Answer:
    """Answers call after call with what the tracks of a listed stream had added; refuses any other prefix or budget."""
    tracks = iter(stream)

    def answer(prefix: TokenIds, sampling: Sampling) -> Continuation:
        tokens, _, inherited = next(tracks)
        assert (prefix, sampling.max_new_tokens) == ((PROMPT, *tokens[:inherited]), toy.horizon - inherited)
        return Continuation(tokens[inherited:], (-1.0,) * (len(tokens) - inherited), toy.finish(tokens))

    return answer


def grade_by(toy: Toy, reward: np.ndarray) -> Callable[[Response], Coroutine[Any, Any, Response]]:
    async def grade(response: Response) -> Response:
        worth = toy.worth(response.token_ids[1:], reward)
        return replace(response, outcome=worth, status="correct" if worth > 0.5 else "incorrect")

    return grade


def request(toy: Toy, seed: int, prompt: int = 0) -> Request:
    return Request(prompt, (PROMPT,), Sampling(toy.horizon, seed=0), policy_version=0, seed=(seed, 0, prompt, 0))


def run_sampler(sampler: EqLen, toy: Toy, extend: Engine, reward: np.ndarray, seed: int) -> tuple[Response, ...]:
    return asyncio.run(sampler(extend, grade_by(toy, reward), request(toy, seed)))


def streams_of(responses: tuple[Response, ...]) -> list[Stream]:
    """The tracks of each stream in order."""
    streams: dict[int, list[Track]] = {}
    for r in responses:
        streams.setdefault(r.stream, []).append(Track(r.token_ids[1:], r.round, r.inherited))
    return [tuple(tracks) for tracks in streams.values()]


def count_outcomes(listing: Listing, streams: list[Stream]) -> np.ndarray:
    """How often each outcome of a listing occurred, [N]; KeyError where one is not listed."""
    place = {stream: at for at, stream in enumerate(listing.outcomes)}
    return np.bincount([place[stream] for stream in streams], minlength=len(listing))
