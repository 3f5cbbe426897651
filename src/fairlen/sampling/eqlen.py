"""Equal-length pairs built during generation: the pairs of a stream, their values, and which of them train.

    prompt --+-- a_1 EOS                      round 0: a_1 and b_1 have equal length
             +-- b_1 --+-- a_2 EOS            round 1: both tracks continue b_1
                       +-- b_2 -- ...

Whenever one track has ended, a new one starts from the tokens of the other so far. Tracks are decoded on their own and
compared afterwards, which gives the law of decoding them in lockstep: the position of EOS decides who ended first, never
time. Forks are of token ids, never of text; no generated token is thrown away.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from fairlen.batch import Bools, Floats, Responses, Segments, mean_or_nan
from fairlen.checks import NOT_NEGATIVE, Checked, Count
from fairlen.precision import tolerance
from fairlen.rollouts import Response, Role, Segment
from fairlen.sampling.extend import Continuation, Extend, Growing, Sampling, derive_seed, gather, grow, siblings
from fairlen.sampling.independent import Grade, Request
from fairlen.sampling.stream_metrics import order_streams, stream_metrics

SurvivorReward = Literal["max", "mean", "halving", "lineage"]


@dataclass(frozen=True)
class EqLen(Checked):
    """Streams of two tracks; a finisher is compared with the piece of equal length that the other track had written by then.

    Source: 2604.17328, sections 3.2 and 3.3, equations 3 to 6. How a stream ends, `halving` and `lineage` are ours
    (docs/methods/eqlen.md). A pair whose pieces are worth the same is skipped. Only new tokens train: |a_j| = |b_j|.

        b_j is worth   max: the best of all that later ended from it (the paper's rule; optimistic)
                       mean: their plain mean (the paper's ablation; biased, the next finisher is the shorter of two)
                       halving: V = (next finisher + V of what survived it) / 2 (unbiased)
                       lineage: what its own track ended with (unbiased, with more variance)
    """

    streams: Count = 8
    """Of two tracks each, for a prompt."""
    max_rounds: Annotated[int, NOT_NEGATIVE] = 0
    """Rounds of a stream, after which its survivor is completed alone: 1 is the paper's single pair. 0: until both have ended."""
    survivor_reward: SurvivorReward = "max"
    """Value of b_j: max, mean, halving or lineage."""
    round_weight: Literal["none", "halving"] = "none"
    """halving: round j weighs 2^-j (from 0), because every round doubles how often the states below it are visited."""
    prefix_gradient: bool = False
    """Train the inherited prefix too, in both tracks of every pair (the paper's ablation)."""
    is_whole = False

    @property
    def num_tracks(self) -> int:
        return 2 * self.streams

    def with_num_tracks(self, num_tracks: int) -> EqLen:
        if num_tracks % 2:
            raise ValueError(f"EqLen needs an even number of responses to a prompt, two a stream, not {num_tracks}")
        return replace(self, streams=num_tracks // 2)

    async def __call__(self, extend: Extend, grade: Grade, request: Request) -> tuple[Response, ...]:
        streams = (run_stream(extend, grade, request, stream, self.max_rounds) for stream in range(self.streams))
        return tuple(response for tracks in await gather(streams) for response in tracks)

    def cut(self, responses: tuple[Response, ...]) -> tuple[Segment, ...]:
        pairs = (pair for rows in rows_of_streams(responses) for pair in find_pairs(responses, rows, self.max_rounds))
        return tuple(segment for group, pair in enumerate(pairs) for segment in self.segments(responses, pair, group))

    def segments(self, responses: Sequence[Response], pair: Pair, group: int) -> tuple[Segment, ...]:
        num_prompt = responses[pair.finisher].num_prompt
        start = num_prompt + (0 if self.prefix_gradient else pair.start)
        mass = 0.5**pair.round if self.round_weight == "halving" else 1.0
        roles: tuple[tuple[int, Role], ...] = (
            (pair.finisher, "finisher"),
            (pair.other, "finisher" if pair.is_tie else "survivor"),
        )
        return tuple(Segment(row, start, num_prompt + pair.stop, group, role, pair.round, mass) for row, role in roles)

    def value(self, responses: Responses, segments: Segments, reward: Floats) -> Floats:
        own = np.where(responses.active, reward, np.nan)
        value = own[segments.response]
        if self.survivor_reward != "lineage":
            order, first = order_streams(responses)
            later = combine_later(own[order], first, self.survivor_reward)
            rows = np.flatnonzero(segments.survivor)
            place = np.empty(len(order), np.int64)
            place[order] = np.arange(len(order))
            beginning = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
            value[rows] = later[beginning[place[segments.response[rows]]] + segments.round[rows] + 1]
        return value

    def trains(self, responses: Responses, segments: Segments, value: Floats) -> Bools:
        """Those whose value is known and differs by more than rounding from another of their group."""
        known = segments.active & ~np.isnan(value)
        low, high = np.full(segments.num_groups, np.inf), np.full(segments.num_groups, -np.inf)
        np.minimum.at(low, segments.group[known], value[known])
        np.maximum.at(high, segments.group[known], value[known])
        is_different = high - low > tolerance(np.maximum(np.abs(high), np.abs(low)))
        return known & is_different[segments.group]

    def metrics(
        self, responses: Responses, segments: Segments, reward: Floats, value: Floats, trains: Bools
    ) -> dict[str, float]:
        found = stream_metrics(responses, segments, value, trains)
        rules: tuple[SurvivorReward, ...] = ("max", "halving")
        best, fair = (replace(self, survivor_reward=r).value(responses, segments, reward) for r in rules)
        optimism = (best - fair)[segments.survivor]
        return found | {"pairs/optimism": mean_or_nan(optimism[np.isfinite(optimism)])}


def rows_of_streams(responses: Sequence[Response]) -> Iterable[list[int]]:
    streams: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, response in enumerate(responses):
        streams[response.prompt, response.stream].append(row)
    return streams.values()


@dataclass(frozen=True)
class Pair:
    """One round of a stream: rows of the two tracks, and the generated tokens from `start` to `stop` that are new in it."""

    finisher: int
    other: int
    start: int
    stop: int
    round: int
    is_tie: bool


def find_pairs(responses: Sequence[Response], rows: list[int], max_rounds: int = 0) -> Iterator[Pair]:
    """Yield the pairs of one stream, none of two truncated tracks or of two equal texts. Raises ValueError for missing tracks."""
    order = sorted(
        rows, key=lambda row: (responses[row].length, responses[row].finish == "length", responses[row].track)
    )
    by_track = {responses[row].track: row for row in rows}
    number, lengths = len(rows), [responses[row].length for row in order[-2:]]
    if set(by_track) != set(range(number)) or number < 2:
        found = sorted(responses[row].track for row in rows)
        raise not_whole(responses[rows[0]], f"has tracks {found}: a stream has tracks 0, 1, 2 and so on, each once")
    if number - 1 != max_rounds and lengths[0] != lengths[1]:
        ends = f"ends with tracks of {lengths[0]} and {lengths[1]} tokens after {number - 1} rounds"
        raise not_whole(responses[rows[0]], f"{ends}: the last two end together unless max_rounds says otherwise")
    active, start = {by_track[0], by_track[1]}, 0
    for round, row in enumerate(order[:-1]):
        (other,) = active - {row} if row in active else (row,)
        finisher, survivor = responses[row], responses[other]
        shared = finisher.num_prompt + start
        if other == row or finisher.token_ids[:shared] != survivor.token_ids[:shared]:
            fault = f"has a track {finisher.track} that does not continue what survived round {round}"
            raise not_whole(finisher, fault)
        if finisher.finish == "length":
            return
        is_tie = survivor.finish == "stop" and survivor.length == finisher.length
        if not (is_tie and survivor.token_ids == finisher.token_ids):
            yield Pair(row, other, start, finisher.length, round, is_tie)
        if round + 2 < number:
            active = {other, by_track[round + 2]}
        start = finisher.length


def not_whole(response: Response, fault: str) -> ValueError:
    return ValueError(f"stream {response.stream} of prompt {response.prompt} {fault}; were some responses dropped?")


def combine_later(own: Floats, first: Bools, rule: SurvivorReward) -> Floats:
    """For each end, the value of a piece from which it and all later ones came, [R]; `own` is nan where unknown."""
    value, count = own.copy(), (~np.isnan(own)).astype(np.float64)
    total = np.nan_to_num(own)
    rank = np.arange(len(own)) - np.maximum.accumulate(np.where(first, np.arange(len(own)), 0))
    for position in range(int(rank.max(initial=0)) - 1, -1, -1):
        rows = np.flatnonzero((rank == position)[:-1] & ~first[1:])
        mine, later = own[rows], value[rows + 1]
        total[rows] += total[rows + 1]
        count[rows] += count[rows + 1]
        if rule == "max":
            value[rows] = np.fmax(mine, later)
        elif rule == "mean":
            value[rows] = total[rows] / np.where(count[rows] > 0, count[rows], np.nan)
        else:
            both = (mine + later) / 2
            value[rows] = np.where(np.isnan(mine), later, np.where(np.isnan(later), mine, both))
    return value


NOTHING = Continuation((), (), "length")


class Track:
    """A track on its way: its inherited tokens, those that it adds, and the verdict on the whole, for which no round waits."""

    growing: Growing

    def __init__(
        self, group: asyncio.TaskGroup, extend: Extend, grade: Grade, request: Request, place: tuple[int, int, int],
        inherited: Continuation, source: Track | None = None,
    ) -> None:  # fmt: skip
        """Start a track at (stream, track, round) from `source`, whose first tokens it inherits, or from the prompt."""
        self.inherited, self.num_inherited = inherited, len(inherited.token_ids)
        seed, max_new_tokens = derive_seed(*request.seed, *place), request.sampling.max_new_tokens - self.num_inherited
        sampling = replace(request.sampling, seed=seed, max_new_tokens=max_new_tokens)

        async def generate() -> Continuation:
            # the engine is asked in here: a track that is cancelled before has asked nothing
            self.growing = (
                source.fork(self.num_inherited, sampling) if source else grow(extend, request.token_ids, sampling)
            )
            return self.after_inherited((await self.growing).check(sampling))

        async def respond() -> Response:
            return await grade(request.respond(await self.ended, seed, *place, self.num_inherited))

        self.ended, self.response = group.create_task(generate()), group.create_task(respond())

    async def reach(self, length: int) -> Continuation:
        """The first `length` tokens of the response, inherited ones included, or all where it ended before."""
        return self.after_inherited(await self.growing.reach(length - self.num_inherited))

    def fork(self, length: int, sampling: Sampling) -> Growing:
        """Continue its first `length` tokens, which it has reached: from its own keys and values where the engine can."""
        return self.growing.fork(length - self.num_inherited, sampling)

    def after_inherited(self, added: Continuation) -> Continuation:
        inherited = self.inherited
        joined = inherited.token_ids + added.token_ids, inherited.logprobs + added.logprobs
        return Continuation(*joined, added.finish, supports=inherited.supports + added.supports)


async def run_stream(
    extend: Extend, grade: Grade, request: Request, stream: int, max_rounds: int
) -> tuple[Response, ...]:
    """All tracks of one stream, graded, in order of their start. `max_rounds` 0 goes on until both tracks have ended."""
    tracks: list[Track] = []

    def start(round: int, inherited: Continuation, survivor: Track | None = None) -> Track:
        place = stream, len(tracks), round
        tracks.append(Track(group, extend, grade, request, place, inherited, survivor))
        return tracks[-1]

    async with siblings() as group:
        active, round = (start(0, NOTHING), start(0, NOTHING)), 0
        while ends := await compare_ends(*active, request.sampling.max_new_tokens):
            finisher, survivor, inherited = ends
            finisher.growing.release()
            round += 1
            if round == max_rounds:
                break
            active = survivor, start(round, inherited, survivor)
        for track in active:
            track.growing.release()
    return tuple(track.response.result() for track in tracks)


async def compare_ends(left: Track, right: Track, max_response_length: int) -> tuple[Track, Track, Continuation] | None:
    """Finisher, survivor, and the survivor's tokens up to where the finisher ended; None where both end there."""
    await asyncio.wait((left.ended, right.ended), return_when=asyncio.FIRST_COMPLETED)
    first, other = (left, right) if left.ended.done() else (right, left)
    answer = first.ended.result()
    length = len(answer.token_ids)
    reached = await other.reach(length)
    if len(reached.token_ids) < length:
        return other, first, answer.first(len(reached.token_ids))
    if reached.finish == "stop" or length == max_response_length:
        return None
    return first, other, reached
