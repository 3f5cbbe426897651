"""Trees of tracks that fork at set lengths: the value of a node, and which nodes are compared.

    prompt --+-- a ------+-- a        -----+-- a   EOS       level 0: a and b, the tracks that start from the prompt
             |           |                 +-- a''' -- ...   level 1: what a and its fork a' wrote next
             |           +-- a' EOS                          level 2: ...
             +-- b EOS

A node is the part of one track from one fork to the next, or to its end. Forks are at set lengths, whatever was written, so that
each of them is an exact sample of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Literal

import numpy as np

from fairlen.batch import Bools, Floats, Responses, Segments, count_by, mean_by
from fairlen.checks import Checked, Count, Rule
from fairlen.rollouts import Response, Segment
from fairlen.sampling.eqlen import NOTHING, Track, find_different, not_whole, rows_of_streams
from fairlen.sampling.extend import Continuation, Extend, gather, siblings
from fairlen.sampling.independent import Grade, Request

Several = Annotated[int, Rule(lambda value: value >= 2, "2 or more")]


@dataclass(frozen=True)
class Tree(Checked):
    """Tracks that fork at set lengths; siblings, which continue the same tokens, are compared by what came of them.

    Source: TreeRPO (arXiv:2506.05183); `parts`, `level_weight` and the first level of another size are ours
    (docs/methods/tree.md). A node that was forked is worth the mean of its children, any other one the reward of its response.
    Every generated token trains at most once; nodes that are worth the same as all of their siblings do not.
    """

    n: Count = 4
    """Tracks that start from a prompt."""
    branching: Several = 2
    """Tracks that continue a node where it is forked, its own among them."""
    depth: Count = 3
    """Levels; tracks of the last one are not forked. At most n * branching^(depth - 1) responses to a prompt."""
    parts: Count = 8
    """Parts of the max response length; a node above the last level is one of them long."""
    level_weight: Literal["none", "branching"] = "none"
    """branching: level k weighs branching^-k (from 0), because states there are visited branching^k times as often."""
    is_whole = False

    @property
    def num_tracks(self) -> int:
        return self.n

    def with_num_tracks(self, num_tracks: int) -> Tree:
        return replace(self, n=num_tracks)

    async def __call__(self, extend: Extend, grade: Grade, request: Request) -> tuple[Response, ...]:
        trees = (grow_tree(self, extend, grade, request, stream) for stream in range(self.n))
        return tuple(response for tracks in await gather(trees) for response in tracks)

    def cut(self, responses: tuple[Response, ...]) -> tuple[Segment, ...]:
        groups: dict[tuple[int, ...], int] = {}
        trees = (self.cut_tree(responses, rows, groups) for rows in rows_of_streams(responses))
        return tuple(chain.from_iterable(trees))

    def cut_tree(
        self, responses: Sequence[Response], rows: list[int], groups: dict[tuple[int, ...], int]
    ) -> Iterator[Segment]:
        """Yield the segments of one tree; `groups` numbers those that are compared. Raises ValueError for missing tracks."""
        size = self.find_size(responses, rows)
        for row in rows:
            response, last = responses[row], self.last_level(responses[row], size)
            first = response.num_prompt
            for level in range(response.round, last + 1):
                start, stop = level * size, response.length if level == last else (level + 1) * size
                parent = (response.stream, level, response.track % self.branching ** (level - 1)) if level else ()
                group = groups.setdefault((response.prompt, *parent), len(groups))
                role = "whole" if level == last else "survivor"
                yield Segment(row, first + start, first + stop, group, role, level, self.mass(level))

    def mass(self, level: int) -> float:
        return float(self.branching) ** -level if self.level_weight == "branching" else 1.0

    def last_level(self, response: Response, size: int) -> int:
        """The level at which a track ended; `Response.round` is its first one."""
        return min((response.length - 1) // size, self.depth - 1)

    def find_size(self, responses: Sequence[Response], rows: list[int]) -> int:
        """Tokens of a node that was forked. Raises ValueError where the tracks are not all of a tree."""
        tracks = [responses[row] for row in rows]
        sizes = [track.inherited // track.round for track in tracks if track.round]
        size = sizes[0] if sizes else max(track.length for track in tracks)
        wanted = {(0, 0, 0)}
        for track in tracks:
            for level in range(track.round + 1, self.last_level(track, size) + 1):
                wanted |= {(number, level, level * size) for number in self.forks(track.track, level)}
        found = sorted((track.track, track.round, track.inherited) for track in tracks)
        if found != sorted(wanted):
            names = [number for number, *_ in found]
            raise not_whole(tracks[0], f"has tracks {names}, and Tree of depth {self.depth} would have others")
        return size

    def forks(self, track: int, level: int) -> list[int]:
        """Numbers of a track's forks that begin at a level: in base `branching`, that digit more, from the lowest one."""
        return [track + digit * self.branching ** (level - 1) for digit in range(1, self.branching)]

    def value(self, responses: Responses, segments: Segments, reward: Floats) -> Floats:
        value = np.where(responses.active, reward, np.nan)[segments.response]
        deepest = int(segments.round.max(initial=0))
        place = np.full((len(responses), deepest + 2), -1)
        place[segments.response, segments.round] = np.arange(len(segments))
        for level in range(deepest - 1, -1, -1):
            below = (segments.round == level + 1) & ~np.isnan(value)
            group, size = segments.group[below], segments.num_groups
            mean = np.where(count_by(group, size) > 0, mean_by(group, value[below], size), np.nan)
            own_child = place[segments.response, level + 1]
            forked = (segments.round == level) & (own_child >= 0)
            value[forked] = mean[segments.group[own_child[forked]]]
        return value

    def trains(self, responses: Responses, segments: Segments, value: Floats) -> Bools:
        return find_different(segments, value)

    def metrics(
        self, responses: Responses, segments: Segments, reward: Floats, value: Floats, trains: Bools
    ) -> dict[str, float]:
        return {
            "tree/responses": len(responses) / max(responses.num_prompts, 1),
            "tree/nodes": float(len(segments)),
            "tree/forked": float(segments.survivor.mean()),
            "tree/trained": float(trains.mean()),
        }


async def grow_tree(tree: Tree, extend: Extend, grade: Grade, request: Request, stream: int) -> tuple[Response, ...]:
    """All tracks of one that started from the prompt, graded, in order of their numbers."""
    tracks: dict[int, Track] = {}
    budget = request.sampling.max_new_tokens
    size = max(budget // tree.parts, 1)

    def start(number: int, level: int, inherited: Continuation, source: Track | None = None) -> None:
        tracks[number] = Track(group, extend, grade, request, (stream, number, level), inherited, source)
        group.create_task(follow(tracks[number], number, level))

    async def follow(track: Track, number: int, level: int) -> None:
        for below in range(level + 1, tree.depth):
            reached = await track.reach(below * size) if below * size < budget else NOTHING
            if len(reached.token_ids) < below * size or reached.finish == "stop":
                break
            for fork in tree.forks(number, below):
                start(fork, below, reached, track)
            await asyncio.sleep(0)  # the tasks of the forks come first, and ask the engine before anything is given up
        track.growing.release()

    async with siblings() as group:
        start(0, 0, NOTHING)
    return tuple(tracks[number].response.result() for number in sorted(tracks))
