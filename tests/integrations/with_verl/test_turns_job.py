"""A whole job of verl in turns: rollout servers play the game of guess by an agent loop of one's own, and every turn trains."""

import asyncio

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from verl_jobs import count_planned, records, run

from fairlen.integrations.verl.data import copy_shipped, verl_row, write_rows
from fairlen.tasks.task import Problem
from recipes.guess import ALPHABET, MAX_RESPONSE_LENGTH, MAX_TURNS, PATH, SPECIALS, Guess, read_guess

pytestmark = [pytest.mark.ray, pytest.mark.nightly]

METHOD, STEPS, EOS = "dapo+balanced_turns", 3, 1
GAP = 1e-4
"""Largest difference of a token's probability between a rollout server and the trainer."""
LOOPS = "- name: guess\n  _target_: guess_loop.GuessLoop\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("turns")
    copy_shipped(folder / "model", PATH)
    problems = enumerate(map(Guess().train, range(64)))
    rows = (verl_row("guess", [("user", one.text)], one.answer, number, {"kind": "guess"}) for number, one in problems)
    write_rows(rows, folder / "guess.parquet")
    (folder / "loops.yaml").write_text(LOOPS)
    agent = "actor_rollout_ref.rollout.agent"
    given = (
        f"{agent}.agent_loop_config_path={folder}/loops.yaml", f"{agent}.default_agent_loop=guess",
        f"data.max_response_length={MAX_RESPONSE_LENGTH}",
        f"data.train_files={folder}/guess.parquet", f"data.val_files={folder}/guess.parquet",
    )  # fmt: skip
    flags = ("--model", str(folder / "model"))
    return run(METHOD, folder / "job", STEPS, given=given, flags=flags), records(folder / "job")


def test_servers_and_trainer_agree_on_what_follows_an_answer(job):
    """What was read is context in both: one position off, or a token left out, and probabilities are others."""
    for one in job[0]:
        assert one["training/rollout_probs_diff_max"] < GAP
        assert one["actor/grad_norm"] > 0
        assert 1 < one["turns/mean"] < one["turns/max"] <= MAX_TURNS


def test_every_turn_has_the_weight_of_our_own_trainer(job):
    assert count_planned(METHOD, job[1], MAX_RESPONSE_LENGTH) > 500


def read(ids: list[int]) -> str:
    return "".join(ALPHABET[i - len(SPECIALS)] for i in ids if i >= len(SPECIALS))


def test_turns_are_those_of_the_game(job):
    """Each recorded trajectory is played again: the policy's turns end with an EOS, and in between stands what the game says."""
    ended = {True: 0, False: 0}
    for rows, _ in job[1]:
        for row in rows:
            ids = row["token_ids"]
            turns = row["turns"] or [row["num_prompt"], len(ids)]  # empty where there is one
            spans = list(zip(turns[::2], turns[1::2], strict=True))
            game = Guess().environment(Problem("", read(ids[: row["num_prompt"]]), (0,), row["answer"]), seed=0)
            answers = [game.tell(read_guess(read(ids[a:b]))) if ids[b - 1] == EOS else "cut off" for a, b in spans]
            stops = [stop for _, stop in spans]
            assert [read(ids[stop:start]) for stop, (start, _) in zip(stops, spans[1:], strict=False)] == answers[:-1]
            assert all(answers[:-1]) and all(ids[stop - 1] == EOS for stop in stops[:-1]) and stops[-1] == len(ids)
            assert row["outcome"] == asyncio.run(game.grade()).outcome
            is_truncated = bool(answers[-1])
            assert (row["finish"] == "length") == is_truncated
            ended[is_truncated] += 1
    assert ended[False] > 100
