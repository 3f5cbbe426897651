"""Streams in a host that generates for all at once: the same tracks as one by one, in few rounds; rows of their pieces."""

import asyncio
from collections import Counter
from random import Random

import pytest

from fairlen.integrations.trl.generation import PendingExtension, prepare_prompts, run_together
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request, no_grader

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


def streams_of(prompts: range, streams: int) -> list:
    """All prompts of a process, one row for each track."""
    sampler = EqLen(streams=streams)
    rows = [(7, prompt) for prompt in prompts for _ in range(sampler.num_tracks)]
    first = prompts.start * sampler.num_tracks
    return prepare_prompts(sampler, rows, first, lambda prompt, token_ids, place: request(prompt))


def serve(answer, rounds: list[int] | None = None):
    """One round of generation, noted by its size."""

    def generate(asked: list[PendingExtension]) -> list[Continuation]:
        if rounds is not None:
            rounds.append(len(asked))
        return [answer(one.prefix, one.sampling.max_new_tokens) for one in asked]

    return generate


def test_tracks_are_those_of_streams_on_their_own():
    rounds: list[int] = []
    found = run_together(streams_of(range(3), 4), serve(script(), rounds), int)
    alone = script()

    async def extend(prefix, sampling):
        return alone(prefix, sampling.max_new_tokens)

    expected = [
        response
        for prompt in range(3)
        for response in asyncio.run(EqLen(streams=4)(extend, no_grader, request(prompt)))
    ]
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert [(r.stream, r.track, r.inherited) for r in found] == [(r.stream, r.track, r.inherited) for r in expected]
    # the first call serves both tracks of all 12 streams; every further one a fork of each that goes on
    assert rounds[0] == 24
    assert rounds == sorted(rounds, reverse=True)
    assert sum(rounds) == len(found)


def test_rounds_go_on_until_no_process_waits():
    waiting, called = iter([9, 9, 9, 9, 9, 9, 9, 9, 9, 0]), []
    run_together(streams_of(range(1), 1), serve(script(), called), most=lambda _: next(waiting))
    assert len(called) == 9  # with nothing of its own to ask in the last ones
    assert called[-1] == 0


def test_what_goes_wrong_in_a_stream_is_raised():
    def generate(asked: list[PendingExtension]) -> list[Continuation]:
        return [Continuation((5,), (-1.0,), "length") for _ in asked]  # early without EOS: streams would never end

    with pytest.raises(ValueError, match='finish="length" for exactly that many'):
        run_together(streams_of(range(2), 2), generate, int)


def test_a_process_with_some_rows_of_a_prompt_runs_as_many_tracks_of_it():
    """12 rows of prompts with 8 each, the second process: the last 4 of prompt 0 and, of prompt 1, all."""
    places = []

    def ask(prompt: int, token_ids, place: int) -> Request:
        places.append((prompt, place))
        return request(prompt)

    coroutines = prepare_prompts(EqLen(streams=4), [(7, 0)] * 4 + [(7, 1)] * 8, 4, ask)
    responses = run_together(coroutines, serve(script()), int)
    assert places == [(0, 4), (1, 0)]
    assert {(r.prompt, r.stream) for r in responses} == {(0, 4), (0, 5), (1, 0), (1, 1), (1, 2), (1, 3)}
