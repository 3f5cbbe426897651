"""Streams in a host that generates for all at once: the same tracks as one by one, in few rounds; rows of their pieces."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from random import Random

import numpy as np
import pytest

from fairlen.batch import Response, Rollouts
from fairlen.integrations.trl.streams import Asked, join_tables, piece_rows, run_streams
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request
from fairlen.sampling.stream import run_stream

BUDGET = 12


def script():
    """Answers that depend on the prefix and on how often it came."""
    seen: Counter[tuple[int, ...]] = Counter()

    def answer(prefix: tuple[int, ...], limit: int) -> Continuation:
        seen[prefix] += 1
        draw = Random(str((prefix, seen[prefix])))
        length = draw.choice((1, 2, 3, 5, 8, 13))
        return Continuation((*(draw.randint(3, 9) for _ in range(length - 1)), 1), (-1.0,) * length, "stop").first(
            limit
        )

    return answer


def request(prompt: int) -> Request:
    return Request(prompt, (7, prompt), Sampling(BUDGET, seed=0), 0, (prompt,))


async def grade(response: Response) -> Response:
    return response


def streams_of(num_prompts: int, streams: int) -> list:
    return [
        partial(run_stream, grade=grade, request=request(prompt), stream=stream, max_rounds=0)
        for prompt in range(num_prompts)
        for stream in range(streams)
    ]


def test_tracks_are_those_of_streams_on_their_own():
    answer, rounds = script(), []

    def generate(asked: list[Asked]) -> list[Continuation]:
        rounds.append(len(asked))
        return [answer(one.prefix, one.sampling.max_new_tokens) for one in asked]

    together = run_streams(streams_of(3, 4), generate, most=lambda waiting: waiting)
    alone = script()

    async def extend(prefix, sampling):
        return alone(prefix, sampling.max_new_tokens)

    expected = [
        response for prompt in range(3) for response in asyncio.run(EqLen(streams=4)(extend, grade, request(prompt)))
    ]
    found = [response for tracks in together for response in tracks]
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert [(r.stream, r.track, r.inherited) for r in found] == [(r.stream, r.track, r.inherited) for r in expected]
    # the first call serves both tracks of all 12 streams; every further one a fork of each that goes on
    assert rounds[0] == 24
    assert rounds == sorted(rounds, reverse=True)
    assert sum(rounds) == len(found)


def test_rounds_go_on_until_no_process_waits():
    answer, waiting = script(), iter([9, 9, 9, 9, 9, 9, 9, 9, 9, 0])
    called = []

    def generate(asked: list[Asked]) -> list[Continuation]:
        called.append(len(asked))
        return [answer(one.prefix, one.sampling.max_new_tokens) for one in asked]

    run_streams(streams_of(1, 1), generate, most=lambda _: next(waiting))
    assert len(called) == 9  # with nothing of its own to ask in the last ones
    assert called[-1] == 0


def test_a_notebook_has_a_loop_of_its_own():
    answer = script()

    async def cell() -> int:
        found = run_streams(
            streams_of(1, 2), lambda asked: [answer(a.prefix, a.sampling.max_new_tokens) for a in asked], len_of
        )
        return len(found)

    def len_of(waiting: int) -> int:
        return waiting

    assert asyncio.run(cell()) == 2


def test_what_goes_wrong_in_a_stream_is_raised():
    def generate(asked: list[Asked]) -> list[Continuation]:
        return [
            Continuation((5,), (-1.0,), "length") for _ in asked
        ]  # stops early without EOS: streams would never end

    with pytest.raises(ValueError, match='finish="length" for exactly that many'):
        run_streams(streams_of(2, 2), generate, lambda waiting: waiting)


def make_rollouts(prompts: range) -> Rollouts:
    answer = script()
    streams = [
        partial(run_stream, grade=grade, request=request(prompt), stream=stream, max_rounds=0)
        for prompt in prompts
        for stream in range(2)
    ]
    tracks = run_streams(
        streams, lambda asked: [answer(a.prefix, a.sampling.max_new_tokens) for a in asked], lambda n: n
    )
    responses = tuple(response for stream in tracks for response in stream)
    return Rollouts(responses, EqLen(streams=2).cut(responses), BUDGET)


def test_tables_of_two_processes_are_one_rollout_batch():
    whole, parts = make_rollouts(range(4)), [make_rollouts(range(2)), make_rollouts(range(2, 4))]
    responses, segments = join_tables([(part.response_table, part.segment_table) for part in parts])
    for name, column in whole.response_table.columns().items():
        assert np.array_equal(getattr(responses, name), column), name
    for name, column in whole.segment_table.columns().items():
        assert np.array_equal(getattr(segments, name), column), name


def test_rows_of_pieces_train_what_is_new_alone():
    rollouts = make_rollouts(range(2))
    rows = piece_rows(rollouts.responses, rollouts.segments).padded(40, [7], 1)
    assert len(rows) == 40
    for row, segment in enumerate(rollouts.segments):
        response = rollouts.responses[segment.response]
        assert tuple(rows.prompt_ids[row] + rows.completion_ids[row]) == response.token_ids[: segment.stop]
        assert sum(rows.mask[row]) == segment.stop - segment.start
        assert rows.mask[row] == sorted(rows.mask[row])  # what was inherited comes first
    assert [sum(mask) for mask in rows.mask[len(rollouts.segments) :]] == [0] * (40 - len(rollouts.segments))
