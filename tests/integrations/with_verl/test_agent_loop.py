"""The agent loop and its worker, without Ray: a scripted client answers, and the worker's scoring is a function."""

import asyncio
from dataclasses import asdict
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from test_plans import EOS, LIMIT, draw

from fairlen.integrations.verl import agent_loop
from fairlen.integrations.verl.rows import Row
from fairlen.sampling.extend import Sampling


def scripted_loop(answer, limit=5.0):
    """An agent loop whose servers answer by a function."""
    loop = object.__new__(agent_loop.StreamLoop)
    algorithm = {"method": "eqlen+grpo", "overrides": ["sampling.streams=2"], "generate_limit": limit}
    loop.config = SimpleNamespace(algorithm=SimpleNamespace(fairlen=algorithm))
    loop.rollout_config = SimpleNamespace(name="sglang", response_length=LIMIT, full_determinism=False)
    loop.tokenizer = SimpleNamespace(eos_token_id=EOS)
    loop.server_manager = SimpleNamespace(generate=answer)

    async def tokens(messages):
        return [7, 8]

    loop.ct_build_initial_tokens = tokens
    return loop


def test_the_agent_loop_returns_segments_as_rows():
    seeds = iter(range(100))
    requests = []

    async def answer(request_id, *, prompt_ids, sampling_params):
        requests.append((request_id, len(prompt_ids), sampling_params["max_tokens"]))
        made = await draw((), Sampling(sampling_params["max_tokens"], seed=next(seeds)))
        return SimpleNamespace(
            token_ids=list(made.token_ids), log_probs=list(made.logprobs), stop_reason="completed",
            extra_fields={"global_steps": 3},
        )  # fmt: skip

    loop = scripted_loop(answer)
    outputs = asyncio.run(loop.run({"temperature": 1.0}, raw_prompt=[{"role": "user", "content": "?"}], session_id=0))
    rows = [Row(**output.extra_fields["fairlen"]) for output in outputs]
    assert len({name for name, _, _ in requests}) == 1  # one server for the prompt, whose cache has the prefixes
    assert all(prompt + limit == 2 + LIMIT for _, prompt, limit in requests) and len(requests) > 4
    for output, row in zip(outputs, rows, strict=True):
        assert output.prompt_ids == [7, 8]
        assert sum(output.response_mask) == row.stop - row.start
        assert len(output.response_mask) == len(output.response_ids) == len(output.response_logprobs)
        assert row.is_end or len(output.response_ids) == row.stop
        assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == 3
    assert {row.stream for row in rows} == {0, 1}
    assert sum(row.is_end for row in rows) == len(requests)


def test_a_server_that_does_not_answer_ends_the_stream():
    async def answer(request_id, *, prompt_ids, sampling_params):
        await asyncio.sleep(60)

    loop = scripted_loop(answer, limit=0.05)
    with pytest.raises(TimeoutError):
        asyncio.run(loop.run({}, raw_prompt=[], session_id=0))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_reason": "aborted"}, "stop_reason=aborted"),
        ({"token_ids": []}, "gave 0 tokens"),
        ({"log_probs": None}, "calculate_log_probs=True"),
        ({"token_ids": [1, 2], "log_probs": [-1.0, -1.0]}, "stopped after 2 of 9 tokens with none of"),
    ],
)
def test_answers_that_are_none_are_errors(fields, message):
    whole = {"token_ids": [1, EOS], "log_probs": [-1.0, -1.0], "stop_reason": "completed", "extra_fields": {}}

    async def answer(request_id, *, prompt_ids, sampling_params):
        return SimpleNamespace(**(whole | fields))

    with pytest.raises(RuntimeError, match=message):
        asyncio.run(scripted_loop(answer).run({}, raw_prompt=[], session_id=0))


def test_one_seed_for_all_requests_is_refused():
    loop = scripted_loop(answer=None)
    loop.rollout_config.full_determinism = True
    with pytest.raises(ValueError, match="full_determinism=True with EqLen"):
        asyncio.run(loop.run({}, raw_prompt=[], session_id=0))


def test_siblings_keep_their_own_verdicts():
    """Two tracks of which one is correct: each text is graded once, and each row has its own track's verdict."""
    first = Row(0, 0, 0, 0, False, start=0, stop=4)
    survivor = Row(0, 1, 0, 0, False, start=0, stop=4, is_end=False)
    last = Row(0, 1, 0, 0, False, start=6, stop=6)
    outputs = [
        SimpleNamespace(extra_fields={"fairlen": asdict(row)}, reward_score=None) for row in (first, survivor, last)
    ]
    graded = []

    async def score(given, kwargs):
        graded.append(given[0])
        correct = given[0] is outputs[2]
        given[0].reward_score = float(correct)
        given[0].extra_fields["reward_extra_info"] = {"acc": float(correct), "verdict": 1.0}

    worker = object.__new__(agent_loop.StreamWorker)
    worker.config = SimpleNamespace(algorithm=SimpleNamespace(fairlen={}))
    worker._compute_score = score
    asyncio.run(worker._grade(outputs, {}))
    assert [output.reward_score for output in outputs] == [0.0, 1.0, 1.0]
    assert [output.extra_fields["fairlen"]["outcome"] for output in outputs] == [0.0, 1.0, 1.0]
    assert [output.extra_fields["fairlen"]["verdict"] for output in outputs] == [0.0, 1.0, 1.0]
    assert len(graded) == 2
