"""Rows of verl as tables of a method: the plan is that of the same responses or streams in fairlen's own trainer."""

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from in_process import Batch, list_columns, make_row, make_trainer, whole_row

from fairlen.batch import NO_VERDICT
from fairlen.integrations.verl.agent_loop import cut_rows
from fairlen.integrations.verl.rows import Row, find_kept, read_rows, read_verdict
from fairlen.integrations.verl.trainer import deal, plan_batch
from fairlen.loop.tally import reward_metrics, scored_metrics
from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.eqlen import EqLen
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.sampling.independent import Request

LIMIT, EOS = 9, 0
METHODS = [
    "eqlen+grpo", "eqlen+dr_grpo", "eqlen+dapo+balanced", "eqlen+grpo+toplambda", "eqlen_unbiased", "eqlen+gspo",
    "grpo+balanced", "dapo", "fspo", "rloo",
]  # fmt: skip


async def draw(prefix, sampling):
    """A random walk that ends with EOS one time in five."""
    rng, tokens = random.Random(sampling.seed), []
    while len(tokens) < sampling.max_new_tokens and EOS not in tokens:
        tokens.append(EOS if rng.random() < 0.2 else rng.randrange(1, 9))
    return Continuation(tuple(tokens), (-1.0,) * len(tokens), "stop" if tokens[-1] == EOS else "length")


async def grade(response: Response) -> Response:
    """Correct where the sum of the tokens is even."""
    correct = sum(response.token_ids) % 2 == 0
    return replace(response, outcome=float(correct), status="correct" if correct else "incorrect")


def make_rollouts(sampler, num_prompts: int = 3) -> Rollouts:
    """Random texts by a sampler."""

    async def collect():
        requests = [Request(p, (7, 8 + p), Sampling(LIMIT, seed=0), 0, (p,)) for p in range(num_prompts)]
        return await asyncio.gather(*(sampler(draw, grade, request) for request in requests))

    responses = tuple(r for tracks in asyncio.run(collect()) for r in tracks)
    return Rollouts(responses, sampler.cut(responses), LIMIT)


def rows_of(rollouts: Rollouts) -> tuple[list[int], list[Row]]:
    """The rows of verl that the responses are: (response, row)."""
    numbers: list[int] = []
    rows: list[Row] = []
    for prompt in sorted({response.prompt for response in rollouts.responses}):
        members = [number for number, response in enumerate(rollouts.responses) if response.prompt == prompt]
        mine = [s for s in rollouts.segments if s.response in members]
        segments = [replace(s, response=members.index(s.response)) for s in mine]
        for local, row in cut_rows([rollouts.responses[number] for number in members], segments):
            response = rollouts.responses[members[local]]
            numbers.append(members[local])
            rows.append(replace(row, outcome=response.outcome, verdict=float(response.status == "correct")))
    return numbers, rows


def give_rows(rollouts: Rollouts, numbers, rows) -> list[dict]:
    """Rows as verl has them."""
    given = []
    for number, row in zip(numbers, rows, strict=True):
        response = rollouts.responses[number]
        given.append(make_row(response, row.start, response.length if row.is_end else row.stop, {"fairlen": vars(row)}))
    return given


def plan_rows(method, rollouts: Rollouts, numbers, rows, padding: tuple[int, ...] = (), num_updates: int = 1):
    """Plan rows of verl, with padding, a copy of the first row, before some of them."""
    given = give_rows(rollouts, numbers, rows)
    tags = [{} for _ in given]
    for place in padding:
        given.insert(place, given[0])
        tags.insert(place, {"is_padding": True})
    found = read_rows(list_columns(given), tags, eos_ids={EOS}, max_response_length=LIMIT, correct_threshold=0.5)
    responses = tuple(found.responses)
    segments = method.sampling.cut(responses)
    return plan_batch(method, Rollouts(responses, segments, LIMIT), found.find(segments), len(given), num_updates)


@pytest.mark.parametrize("names", METHODS)
def test_the_plan_of_rows_is_the_plan_of_responses(names):
    """Shuffled, with rows of padding, for one update and for two."""
    method = compose(names, ["sampling.streams=4" if "eqlen" in names else "sampling.n=8"])
    rollouts = make_rollouts(method.sampling)
    (update,) = updates(method.score(rollouts))
    plan = method.weigh(update)
    expected = {
        (s.response, s.stop - rollouts.responses[s.response].num_prompt): (a, w, t)
        for row, a, w, t in zip(plan.rows, plan.advantage, plan.weight, plan.term_weight, strict=True)
        for s in [rollouts.segments[row]]
    }
    numbers, rows = rows_of(rollouts)
    order = np.random.default_rng(0).permutation(len(rows))
    numbers, rows = [numbers[i] for i in order], [rows[i] for i in order]  # as verl balances them
    scored, columns = plan_rows(method, rollouts, numbers, rows, padding=(len(rows),))
    for place, (number, row) in enumerate(zip(numbers, rows, strict=True)):
        want = expected.get((number, row.stop), (0.0, 0.0, 0.0))
        have = tuple(columns[name][place].item() for name in ("advantage", "weight", "term_weight"))
        assert have == pytest.approx(want, rel=1e-12, abs=1e-15)
    assert columns["trains"].sum() == len(plan) > 4 and not columns["trains"][-1]
    assert len(scored.responses) == len(rollouts.responses)
    padded, _ = plan_rows(method, rollouts, numbers, rows, padding=(1,))
    assert padded.responses.num_prompts == scored.responses.num_prompts
    assert scored_metrics(padded, method) == pytest.approx(scored_metrics(scored, method), nan_ok=True)
    _, doubled = plan_rows(method, rollouts, numbers, rows, num_updates=2)
    assert doubled["weight"] == pytest.approx(2 * columns["weight"][:-1], rel=1e-12)
    assert doubled["advantage"] == pytest.approx(columns["advantage"][:-1], rel=1e-12)


def test_what_a_correction_keeps_of_pieces_is_counted_wherever_their_rows_lie():
    """Tokens of odd ids were sampled e times as likely as they are now, and are dropped."""
    chosen = ["sampling.streams=4", "correction=SamplerRejection", "correction.level=token", "correction.recount=true"]
    method = compose("eqlen+grpo", chosen)
    rollouts = make_rollouts(method.sampling)
    given = give_rows(rollouts, *rows_of(rollouts))
    for row in given:
        row["rollout_log_probs"] = row["old_log_probs"] + row["responses"] % 2
    data = list_columns([given[i] for i in np.random.default_rng(0).permutation(len(given))])
    found = read_rows(data, [{}] * len(given), eos_ids={EOS}, max_response_length=LIMIT, correct_threshold=0.5)
    responses = tuple(found.responses)
    segments = method.sampling.cut(responses)
    kept = find_kept(method, data, found.find(segments), Rollouts(responses, segments, LIMIT).segment_table)
    even = [sum(token % 2 == 0 for token in responses[s.response].token_ids[s.start : s.stop]) for s in segments]
    assert kept.tolist() == even and 0 < sum(even) < sum(s.stop - s.start for s in segments)


def test_every_track_has_one_row_that_carries_its_verdict():
    rollouts = make_rollouts(EqLen(streams=6))
    numbers, rows = rows_of(rollouts)
    ends = sorted(number for number, row in zip(numbers, rows, strict=True) if row.is_end)
    assert ends == list(range(len(rollouts.responses)))
    trained = [(number, row.start, row.stop) for number, row in zip(numbers, rows, strict=True) if row.stop > row.start]
    wanted = [(s.response, s.start - 2, s.stop - 2) for s in rollouts.segments]  # two tokens of prompt
    assert sorted(trained) == sorted(wanted) and len(trained) > 20
    assert any(row.stop == row.start for row in rows)  # tracks that end without a pair


def test_rows_of_a_stream_by_hand():
    """a ends with 4 tokens, b with 6; c starts from b's first 4, d from c's first 6, and the limit of 9 ends both.

    Round 0: a against b's first 4. Round 1: b's 5th and 6th against c's. Round 2 has no pair: c and d carry their verdicts alone.
    """
    a = Response(0, (7, 1, 2, 3, EOS), 1, (-1.0,) * 4, "stop", seed=0, track=0)
    b = Response(0, (7, 4, 4, 4, 4, 5, EOS), 1, (-1.0,) * 6, "stop", seed=1, track=1)
    c = Response(0, (7, 4, 4, 4, 4, 6, 6, 6, 6, 6), 1, (-1.0,) * 9, "length", seed=2, track=2, round=1, inherited=4)
    d = Response(0, (7, 4, 4, 4, 4, 6, 6, 1, 1, 1), 1, (-1.0,) * 9, "length", seed=3, track=3, round=2, inherited=6)
    responses = (a, b, c, d)
    rows = [
        (number, row.start, row.stop, row.is_end)
        for number, row in cut_rows(responses, EqLen(streams=1).cut(responses))
    ]
    assert rows == [
        (0, 0, 4, True), (1, 0, 4, False), (1, 4, 6, True), (2, 4, 6, False), (2, 9, 9, True), (3, 9, 9, True)
    ]  # fmt: skip


def test_a_lost_row_is_an_error():
    """The row that ends the only stream's second track."""
    rollouts = make_rollouts(EqLen(streams=1), num_prompts=1)
    kept = [pair for pair in zip(*rows_of(rollouts), strict=True) if pair[1].track != 1 or not pair[1].is_end]
    with pytest.raises(ValueError, match=r"stream 0 of prompt 0 has tracks .* were some responses dropped"):
        plan_rows(compose("eqlen+grpo", ["sampling.streams=1"]), rollouts, *zip(*kept, strict=True))


def test_responses_have_their_temperature_and_the_numbers_that_were_said_of_them():
    rows = [whole_row(one) for one in make_rollouts(compose("grpo").sampling, num_prompts=1).responses]
    trainer = make_trainer("grpo", limit=LIMIT, prompts=1)
    trainer.config.actor_rollout_ref.rollout.temperature = 0.7
    rows[0]["extra_fields"]["reward_extra_info"] |= {"style": np.float32(0.5), "said": "no"}
    found = trainer._read_rows(Batch([], [{} for _ in rows]), list_columns(rows)).responses
    assert {one.temperature for one in found} == {0.7}
    assert found[0].outcomes == {"acc": found[0].outcome, "verdict": 1.0, "style": 0.5}
    logged = reward_metrics(found)  # as the trainer logs them; one response alone has a style
    assert logged["rewards/style/mean"] == 0.5
    assert logged["rewards/acc/mean"] == pytest.approx(np.mean([one.outcomes["acc"] for one in found]))


def test_what_a_reward_function_says_besides_its_score():
    assert read_verdict({"acc": 0.0, "verdict": 1.0}, 1.0) == 0.0
    assert np.isnan(read_verdict({"acc": True, "verdict": 0.0}, 0.0)) and np.isnan(NO_VERDICT)
    for accuracy in (np.bool_(True), np.int64(1), np.float32(1.0)):  # what functions of arrays return
        assert read_verdict({"acc": accuracy}, 0.0) == 1.0, type(accuracy)
    assert read_verdict({}, 0.7) == 0.7
    assert read_verdict({"acc": "text"}, 0.2) == 0.2
    assert read_verdict({"acc": -1.0}, -1.0) == -1.0  # verl's own note of a score


def test_prompts_are_dealt_whole_and_by_size():
    """Tokens 9, 8, 5, 4, 3 of b, e, a, d, c: b to the first part, e and a to the second, d and c to the first."""
    prompts, sizes = "abacdbe", (2, 4, 3, 3, 4, 5, 8)
    order = deal(prompts, sizes, 2)
    assert "".join(prompts[row] for row in order) == "bbdceaa" and sorted(order) == list(range(7))
