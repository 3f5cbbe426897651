"""Stages that are no part of fairlen: a reward that carries state, and a sampler of three tracks a stream."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fairlen.methods.stages.micro import state
from fairlen.rollouts import Segment
from fairlen.sampling.extend import derive_seed, gather, grow


@dataclass(frozen=True)
class RunningLength:
    """Subtracts alpha tanh(length / running mean length of what was trained - 1)."""

    choice: ClassVar = "reward"
    alpha: float = 0.2
    """Largest penalty."""
    rate: float = 0.5
    """Weight of the newest update."""
    mean: float = state(0.0)
    """Running mean of trained tokens a sequence; 0 before the first update."""
    seen: int = state(0)
    """Updates."""

    def __call__(self, responses, reward):
        return reward - self.alpha * np.tanh(responses.length / self.mean - 1.0) if self.seen else reward

    def observe(self, outputs, micro):
        sequences, tokens = map(micro.total_of_sequences, (micro.length > 0, micro.length))
        return {"sequences": sequences, "tokens": tokens}

    def update(self, sums):
        newest = sums["tokens"] / sums["sequences"]
        rate = self.rate if self.seen else 1.0
        return replace(self, mean=(1 - rate) * self.mean + rate * newest, seen=self.seen + 1)


@dataclass(frozen=True)
class Trio:
    """Streams of three tracks, compared over the length of the shortest; the next to end is forked there, once."""

    choice: ClassVar = "sampling"
    is_whole: ClassVar = False
    streams: int = 2
    """Of three tracks each, for a prompt."""

    @property
    def num_tracks(self):
        return 3 * self.streams

    def with_num_tracks(self, num_tracks):
        if num_tracks % 3:
            raise ValueError(f"Trio has three tracks a stream, not {num_tracks} for a prompt")
        return replace(self, streams=num_tracks // 3)

    async def __call__(self, extend, grade, request):
        found = await gather(self.run_stream(extend, grade, request, stream) for stream in range(self.streams))
        return tuple(response for tracks in found for response in tracks)

    async def run_stream(self, extend, grade, request, stream):
        """Three tracks from the prompt, and a fourth that continues the longer ones where the shortest ended."""
        seeds = [derive_seed(*request.seed, stream, track, 0) for track in range(4)]
        handles = [grow(extend, request.token_ids, replace(request.sampling, seed=seed)) for seed in seeds[:3]]
        found = [await handle for handle in handles]
        tracks = [request.respond(one, seeds[i], stream, i) for i, one in enumerate(found)]
        shortest, second = sorted(range(3), key=lambda i: len(found[i].token_ids))[:2]
        num_inherited = len(found[shortest].token_ids)
        if len(found[second].token_ids) > num_inherited:
            left = request.sampling.max_new_tokens - num_inherited
            sampling = replace(request.sampling, seed=seeds[3], max_new_tokens=left)
            added = await handles[second].fork(num_inherited, sampling)
            whole = replace(
                added,
                token_ids=found[second].token_ids[:num_inherited] + added.token_ids,
                logprobs=found[second].logprobs[:num_inherited] + added.logprobs,
            )
            tracks.append(request.respond(whole, seeds[3], stream, 3, 1, num_inherited))
        return await gather(map(grade, tracks))

    def cut(self, responses):
        streams: dict[tuple[int, int], list[int]] = {}
        for row, response in enumerate(responses):
            streams.setdefault((response.prompt, response.stream), []).append(row)
        return tuple(
            Segment(row, num_prompt, num_prompt + length, group)
            for group, rows in enumerate(streams.values())
            for length, num_prompt in [(min(responses[row].length for row in rows), responses[rows[0]].num_prompt)]
            for row in rows
            if responses[row].round == 0
        )

    def value(self, responses, segments, reward):
        """A piece is worth the mean of what ended from it: its own track; the fork's outcome goes to nobody."""
        return np.where(responses.active, reward, 0.0)[segments.response]

    def trains(self, responses, segments, value):
        return responses.active[segments.response]

    def metrics(self, responses, segments, reward, value, trains):
        return {"trio/forked": float((responses.round > 0).mean())}
