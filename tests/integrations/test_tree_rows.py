"""Prefixes that are forwarded once: what is in a row, what a model is given of it, and that nothing else changes."""

from random import Random

import numpy as np
import pytest

from fairlen.integrations.rows import build_rows, fold, read_forest
from fairlen.rollouts import Response, Segment

PROMPT = (2, 3, 4, 5, 6, 7, 8, 9)
A, B, C = (11, 12, 1), (11, 13, 14, 15, 1), (11, 13, 14, 16, 1)
"""A ends after 3 tokens; B goes on, and C forks from it there; both end after 5."""


def respond(tokens: tuple[int, ...], track: int, stream: int = 0) -> Response:
    return Response(
        0, PROMPT + tokens, len(PROMPT), tuple(-float(t) for t in tokens), "stop", 0, stream=stream, track=track
    )


def stream(number: int = 0) -> tuple[list[Response], list[Segment]]:
    """Both pairs of a stream: 3 + 3 and 2 + 2 trained tokens."""
    responses = [respond(tokens, track, number) for track, tokens in enumerate((A, B, C))]
    spans = ((0, 8, 11), (1, 8, 11), (1, 11, 13), (2, 11, 13))
    return responses, [Segment(3 * number + r, start, stop, group=i // 2) for i, (r, start, stop) in enumerate(spans)]


def test_a_stream_is_one_row_in_which_what_forks_continue_is_there_once():
    (row,) = build_rows(*stream(), range(4), max_tokens=100)
    # A, then B as far as the fork, the rest of B, and the fork: 3 + 3 + 2 + 2 tokens, all of them trained
    assert row.segments == [0, 1, 2, 3]
    assert row.token_ids == [11, 12, 1, 11, 13, 14, 15, 1, 16, 1]
    assert row.depth == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert row.mask == [1] * 10
    assert row.logprobs == [-float(token) for token in row.token_ids]


def test_positions_by_hand():
    """10 trained tokens. A row each: 8 + 3, 8 + 3, 8 + 5 and 8 + 5 = 48 positions. Together: the prompt 8, 11 of A and B 1, 12 of
    A 1, 13, 14 and 15 of B 3, 16 of C 1: 14. What ends a track predicts nothing."""
    rows = [build_rows(*stream(), range(4), max_tokens) for max_tokens in (0, 100)]
    assert [sum(len(row.prompt_ids + row.token_ids) for row in part) for part in rows] == [48, 18]
    for part in rows:
        tokens = np.array([token for row in part for token in row.prompt_ids + row.token_ids])
        depth = np.array([d for row in part for d in (*range(8), *(8 + d for d in row.depth))])
        forest, source = read_forest(tokens, depth)
        assert len(forest) == 14
        for place, (token, at) in enumerate(zip(source.tolist(), depth.tolist(), strict=True)):
            assert (token < 0) == (at == 0)
            assert token < 0 or forest.depth[token] == at - 1, place  # read where the token before it is
        # each token of a track is predicted by the one before it on its own path
        paths = {tuple(path_to(forest, node)) for node in source.tolist() if node >= 0}
        assert {PROMPT + text[:-1] for text in (A, B, C)} <= paths


def path_to(forest, node: int) -> list[int]:
    found = []
    while node >= 0:
        found.insert(0, int(forest.tokens[node]))
        node = int(forest.parent[node])
    return found


def test_rows_are_cut_where_they_would_be_too_long_and_repeat_their_prefix():
    rows = build_rows(*stream(), range(4), max_tokens=8 + 6)
    assert [row.segments for row in rows] == [[0, 1], [2], [3]]  # 3 + 3, then 5 and 5 tokens with what they inherit
    assert rows[2].token_ids == list(C) and rows[2].mask == [0, 0, 0, 1, 1]
    columns = fold({"weight": np.array([1.0, 2.0, 3.0, 4.0])}, [row.segments for row in rows])
    assert columns["weight"].tolist() == [[1.0, 2.0], [3.0, 0.0], [4.0, 0.0]]


@pytest.mark.parametrize("seed", range(20))
def test_every_segment_trains_once_along_its_own_path(seed):
    """Tracks that fork from each other at random, and segments of them that may begin anywhere and overlap."""
    draw, responses, segments = Random(seed), [], []
    for track in range(8):
        parent = draw.choice(responses).token_ids[8:] if responses else ()
        text = parent[: draw.randint(0, len(parent))] + tuple(draw.choices((11, 12), k=draw.randint(1, 9)))
        responses.append(respond(text, track))
        for _ in range(draw.randint(0, 3)):
            start = draw.randrange(len(text))
            segments.append(Segment(track, 8 + start, 8 + draw.randint(start + 1, len(text)), group=0))
    rows = build_rows(responses, segments, range(len(segments)), max_tokens=draw.choice((0, 18, 1000)))
    found: dict[int, list[tuple[int, ...]]] = {}
    for row in rows:
        path, left = list(PROMPT), [n for n in row.segments for _ in range(segments[n].stop - segments[n].start)]
        for token, depth, is_trained in zip(row.token_ids, row.depth, row.mask, strict=True):
            path[8 + depth :] = [token]
            if is_trained:
                found.setdefault(left.pop(0), []).append(tuple(path))
        assert not left
    for number, segment in enumerate(segments):
        ids = responses[segment.response].token_ids
        assert found[number] == [ids[: stop + 1] for stop in range(segment.start, segment.stop)]
