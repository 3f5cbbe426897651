"""Streams as rows of verl, and back to the tables of a method: the plan is that of the same streams in fairlen's own trainer.

Tests of the agent loop run without Ray: a scripted client answers, and the worker's scoring is a function.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fairlen.batch import Response, Rollouts
from fairlen.integrations.verl.streams import Piece, build_tables, cut_stream, plan_streams, read_status
from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

BUDGET, EOS = 9, 0
METHODS = ["eqlen+grpo", "eqlen+dr_grpo", "eqlen+dapo+balanced", "eqlen+grpo+toplambda", "eqlen_unbiased", "eqlen+gspo"]


async def draw(prefix, sampling):
    """A random walk that ends with EOS one time in five."""
    rng, tokens = random.Random(sampling.seed), []
    while len(tokens) < sampling.max_new_tokens and EOS not in tokens:
        tokens.append(EOS if rng.random() < 0.2 else rng.randrange(1, 9))
    return Continuation(tuple(tokens), (-1.0,) * len(tokens), "stop" if tokens[-1] == EOS else "length")


def make_streams(sampler: EqLen, num_prompts: int = 3) -> Rollouts:
    """Streams of random texts, right where the sum of the tokens is even."""

    async def grade(response: Response) -> Response:
        right = sum(response.token_ids) % 2 == 0
        return replace(response, outcome=float(right), status="correct" if right else "incorrect")

    async def collect():
        requests = [Request(p, (7, 8 + p), Sampling(BUDGET, seed=0), 0, (p,)) for p in range(num_prompts)]
        return await asyncio.gather(*(sampler(draw, grade, request) for request in requests))

    responses = tuple(r for tracks in asyncio.run(collect()) for r in tracks)
    return Rollouts(responses, sampler.cut(responses), BUDGET)


def rows_of(rollouts: Rollouts) -> tuple[list[int], list[Piece]]:
    """The rows of verl that the streams are: (response, piece)."""
    rows: list[int] = []
    pieces: list[Piece] = []
    streams: dict[tuple[int, int], list[int]] = {}
    for number, response in enumerate(rollouts.responses):
        streams.setdefault((response.prompt, response.stream), []).append(number)
    for members in streams.values():
        local = [rollouts.responses[number] for number in members]
        segments = [
            replace(s, response=members.index(s.response)) for s in rollouts.segments if s.response in members
        ]  # fmt: skip
        for index, piece in cut_stream(local, segments):
            response = local[index]
            rows.append(members[index])
            pieces.append(piece.graded(response.outcome, response.status == "correct", response.active))
    return rows, pieces


@pytest.mark.parametrize("names", METHODS)
def test_the_plan_of_rows_is_the_plan_of_streams(names):
    method = compose(names, ["sampling.streams=4"])
    rollouts = make_streams(method.sampling)
    (update,) = updates(method.score(rollouts))
    plan = method.weigh(update)
    expected = {
        (s.response, s.stop - rollouts.responses[s.response].num_prompt): w * a
        for row, w, a in zip(plan.rows, plan.weight, plan.advantage, strict=True)
        for s in [rollouts.segments[row]]
    }
    rows, pieces = rows_of(rollouts)
    order = np.random.default_rng(0).permutation(len(rows))
    rows, pieces = [rows[i] for i in order], [pieces[i] for i in order]  # as verl balances them
    prompts = [f"uid-{rollouts.responses[row].prompt}" for row in rows]
    found = plan_streams(method, prompts, pieces, BUDGET, num_updates=1)
    for row, piece, folded in zip(rows, pieces, found.rows.folded, strict=True):
        assert folded == pytest.approx(expected.get((row, piece.stop), 0.0), rel=1e-12, abs=1e-15)
    assert sum(found.rows.trains) == len(plan) > 4
    assert np.count_nonzero(found.rows.folded) > 2
    doubled = plan_streams(method, prompts, pieces, BUDGET, num_updates=2)
    assert doubled.rows.folded == pytest.approx(2 * found.rows.folded)


def test_every_track_has_one_row_that_carries_its_verdict():
    rollouts = make_streams(EqLen(streams=6))
    rows, pieces = rows_of(rollouts)
    assert sorted(row for row, piece in zip(rows, pieces, strict=True) if piece.is_end) == list(
        range(len(rollouts.responses))
    )
    trained = [(row, p.start, p.stop) for row, p in zip(rows, pieces, strict=True) if p.stop > p.start]
    wanted = [
        (s.response, s.start - 2, s.stop - 2) for s in rollouts.segments  # two tokens of prompt
    ]  # fmt: skip
    assert sorted(trained) == sorted(wanted) and len(trained) > 20
    assert any(p.stop == p.start for p in pieces)  # tracks that end without a pair


def test_rows_of_a_stream_by_hand():
    """a ends with 4 tokens, b with 6; c starts from b's first 4, d from c's first 6, and the budget of 9 cuts both.

    Round 0: a against b's first 4. Round 1: b's 5th and 6th against c's. Round 2 has no pair: c and d carry their verdicts alone.
    """
    a = Response(0, (7, 1, 2, 3, EOS), 1, (-1.0,) * 4, "stop", seed=0, track=0)
    b = Response(0, (7, 4, 4, 4, 4, 5, EOS), 1, (-1.0,) * 6, "stop", seed=1, track=1)
    c = Response(0, (7, 4, 4, 4, 4, 6, 6, 6, 6, 6), 1, (-1.0,) * 9, "length", seed=2, track=2, round=1, inherited=4)
    d = Response(0, (7, 4, 4, 4, 4, 6, 6, 1, 1, 1), 1, (-1.0,) * 9, "length", seed=3, track=3, round=2, inherited=6)
    responses = (a, b, c, d)
    rows = [
        (number, p.start, p.stop, p.round, p.is_survivor, p.is_end)
        for number, p in cut_stream(responses, EqLen(streams=1).cut(responses))
    ]
    assert rows == [
        (0, 0, 4, 0, False, True),
        (1, 0, 4, 0, True, False), (1, 4, 6, 1, False, True),
        (2, 4, 6, 1, True, False), (2, 9, 9, 0, False, True),
        (3, 9, 9, 0, False, True),
    ]  # fmt: skip


def test_padding_of_verl_counts_nowhere():
    method = compose("eqlen+grpo", ["sampling.streams=4"])
    rows, pieces = rows_of(make_streams(method.sampling))
    prompts = [f"uid-{row}" for row in np.zeros(len(rows), int)]
    idle = [Piece(0, 0, 0, 1, False, is_end=True, active=False)] * 3
    bare = plan_streams(method, prompts, pieces, BUDGET, 1)
    more = plan_streams(method, [*prompts, "pad", "pad", "pad"], [*pieces, *idle], BUDGET, 1)
    assert more.rows.folded[:-3] == pytest.approx(bare.rows.folded) and not more.rows.folded[-3:].any()
    assert len(more.scored.segments) == len(bare.scored.segments)


def test_a_lost_row_is_told():
    piece = Piece(0, 1, 0, 6, False, is_end=False, start=0, stop=4)
    with pytest.raises(ValueError, match="stream 0 of prompt 0: no row carries the verdict on track 1"):
        build_tables(["u"], [piece], BUDGET)


def test_what_a_reward_function_says_besides_its_score():
    assert read_status({"acc": 0.0, "verdict": 1.0}, 1.0, 0.5) == (False, True)
    assert read_status({"acc": True, "verdict": 0.0}, 0.0, 0.5) == (True, False)
    for told in (np.bool_(True), np.int64(1), np.float32(1.0)):  # what functions of arrays return
        assert read_status({"acc": told}, 0.0, 0.5) == (True, True), type(told)
    assert read_status({}, 0.7, 0.5) == (True, True)
    assert read_status({"acc": "text"}, 0.2, 0.5) == (False, True)
    assert read_status({"acc": -1.0}, -1.0, 0.5) == (False, True)  # verl's own note of a score
    assert read_status({"acc": -1.0}, -1.0, -2.0) == (True, True)


@pytest.fixture
def loop_module():
    pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
    return pytest.importorskip("fairlen.integrations.verl.agent_loop")


def scripted_loop(loop_module, answer, limit=5.0):
    """An agent loop whose servers answer by a function."""
    loop = object.__new__(loop_module.StreamLoop)
    algorithm = {"method": "eqlen+grpo", "settings": [], "generate_limit": limit}
    loop.config = SimpleNamespace(algorithm=SimpleNamespace(fairlen=algorithm))
    loop.rollout_config = SimpleNamespace(response_length=BUDGET, full_determinism=False)
    loop.tokenizer = SimpleNamespace(eos_token_id=EOS)
    loop.server_manager = SimpleNamespace(generate=answer)

    async def tokens(messages):
        return [7, 8]

    loop.ct_build_initial_tokens = tokens
    return loop


def test_the_agent_loop_returns_segments_as_rows(loop_module):
    seeds = iter(range(100))
    asked = []

    async def answer(request_id, *, prompt_ids, sampling_params):
        asked.append((request_id, len(prompt_ids), sampling_params["max_tokens"]))
        made = await draw((), Sampling(sampling_params["max_tokens"], seed=next(seeds)))
        return SimpleNamespace(
            token_ids=list(made.token_ids), log_probs=list(made.logprobs), stop_reason="completed",
            extra_fields={"global_steps": 3},
        )  # fmt: skip

    loop = scripted_loop(loop_module, answer)
    rows = asyncio.run(loop.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": "?"}], session_id=2))
    pieces = [Piece(**row.extra_fields["fairlen"]) for row in rows]
    assert len({name for name, _, _ in asked}) == 1  # one server for the stream, whose cache has the prefix
    assert (
        all(prompt + max_response_length == 2 + BUDGET for _, prompt, max_response_length in asked) and len(asked) > 2
    )
    for row, piece in zip(rows, pieces, strict=True):
        assert piece.stream == 2 and row.prompt_ids == [7, 8]
        assert sum(row.response_mask) == piece.stop - piece.start and len(row.response_mask) == len(row.response_ids)
        assert len(row.response_ids) == (piece.length if piece.is_end else piece.stop) == len(row.response_logprobs)
        assert row.extra_fields["min_global_steps"] == row.extra_fields["max_global_steps"] == 3
    texts = {tuple(row.response_ids) for row, piece in zip(rows, pieces, strict=True) if piece.is_end}
    assert len(texts) == len(asked)


def test_a_server_that_does_not_answer_ends_the_stream(loop_module):
    async def answer(request_id, *, prompt_ids, sampling_params):
        await asyncio.sleep(60)

    loop = scripted_loop(loop_module, answer, limit=0.05)
    with pytest.raises(TimeoutError):
        asyncio.run(loop.run({}, raw_prompt=[], session_id=0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_reason": "aborted"}, "stop_reason=aborted"),
        ({"token_ids": []}, "gave 0 tokens"),
        ({"log_probs": None}, "calculate_log_probs=True"),
    ],
)
def test_answers_that_are_none_are_told(loop_module, fields, message):
    whole = {"token_ids": [1, EOS], "log_probs": [-1.0, -1.0], "stop_reason": "completed", "extra_fields": {}}

    async def answer(request_id, *, prompt_ids, sampling_params):
        return SimpleNamespace(**(whole | fields))

    with pytest.raises(RuntimeError, match=message):
        asyncio.run(scripted_loop(loop_module, answer).run({}, raw_prompt=[], session_id=0))


def test_one_seed_for_all_requests_is_refused(loop_module):
    with pytest.raises(ValueError, match="full_determinism=True with EqLen"):
        loop_module.refuse_shared_seeds(SimpleNamespace(full_determinism=True))


def test_siblings_keep_their_own_verdicts(loop_module):
    """Two tracks of which one is right: each text is graded once, and each row has its own track's verdict."""
    first = Piece(0, 0, 0, 4, False, is_end=True, start=0, stop=4)
    survivor = Piece(0, 1, 0, 6, False, is_end=False, start=0, stop=4, is_survivor=True)
    last = Piece(0, 1, 0, 6, False, is_end=True, start=6, stop=6)
    rows = [
        SimpleNamespace(extra_fields={"fairlen": p.to_dict()}, reward_score=None) for p in (first, survivor, last)
    ]  # fmt: skip
    graded = []

    async def score(outputs, kwargs):
        graded.append(outputs[0])
        right = outputs[0] is rows[2]
        outputs[0].reward_score = float(right)
        outputs[0].extra_fields["reward_extra_info"] = {"acc": float(right), "verdict": 1.0}

    worker = object.__new__(loop_module.StreamWorker)
    worker.config = SimpleNamespace(algorithm=SimpleNamespace(fairlen={}))
    worker._compute_score = score
    asyncio.run(worker._grade(rows, {}))
    assert [row.reward_score for row in rows] == [0.0, 1.0, 1.0]
    assert [row.extra_fields["fairlen"]["outcome"] for row in rows] == [0.0, 1.0, 1.0]
    assert [row.extra_fields["fairlen"]["correct"] for row in rows] == [False, True, True]
    assert len(graded) == 2
