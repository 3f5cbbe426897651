"""A sampler of three tracks, as a user writes one: three texts, compared over as many tokens as the shortest of them has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fairlen.batch import Bools, Floats, Response, Responses, Segment, Segments
from fairlen.sampling.extend import Extend, gather
from fairlen.sampling.independent import Grade, Request
from fairlen.seeds import derive_seed

TRACKS = 3


@dataclass(frozen=True)
class Triples:
    triples: int = 4
    """Of three tracks each, for a prompt."""
    choice = "sampling"
    is_whole = False

    @property
    def num_tracks(self) -> int:
        return TRACKS * self.triples

    def with_num_tracks(self, num_tracks: int) -> Triples:
        if num_tracks % TRACKS:
            raise ValueError(f"Triples needs a multiple of 3 responses to a prompt, not {num_tracks}")
        return Triples(num_tracks // TRACKS)

    async def __call__(self, extend: Extend, grade: Grade, request: Request) -> tuple[Response, ...]:
        async def run(number: int) -> Response:
            stream, track = divmod(number, TRACKS)
            seed = derive_seed(*request.seed, stream, track, 0)
            sampling = replace(request.sampling, seed=seed)
            found = (await extend(request.token_ids, sampling)).check(sampling)
            return await grade(request.respond(found, seed, stream, track))

        return tuple(await gather(map(run, range(self.num_tracks))))

    def cut(self, responses: tuple[Response, ...]) -> tuple[Segment, ...]:
        shortest: dict[tuple[int, int], int] = {}
        for r in responses:
            key = r.prompt, r.stream
            shortest[key] = min(shortest.get(key, r.length), r.length)
        groups = {key: group for group, key in enumerate(shortest)}
        return tuple(
            Segment(row, r.num_prompt, r.num_prompt + shortest[r.prompt, r.stream], groups[r.prompt, r.stream])
            for row, r in enumerate(responses)
        )

    def value(self, responses: Responses, segments: Segments, reward: Floats) -> Floats:
        return reward[segments.response]

    def trains(self, responses: Responses, segments: Segments, value: Floats) -> Bools:
        active = responses.active[segments.response]
        low, high = np.full(segments.num_groups, np.inf), np.full(segments.num_groups, -np.inf)
        np.minimum.at(low, segments.group[active], value[active])
        np.maximum.at(high, segments.group[active], value[active])
        return active & (high > low)[segments.group]

    def metrics(
        self, responses: Responses, segments: Segments, reward: Floats, value: Floats, trains: Bools
    ) -> dict[str, float]:
        return {"triples/trained": float(trains.sum() / TRACKS)}
