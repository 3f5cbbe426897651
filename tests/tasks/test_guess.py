"""The game of guess: what it asks, what it answers, and what wins and loses."""

import asyncio
import json
import re
from itertools import zip_longest

import pyarrow.parquet as pq
import pytest
from loops import over

from fairlen.cli import main
from fairlen.tasks.guess import TOKEN_IDS, Game, Guess, encode, read_range
from fairlen.tasks.task import Verdict

TASK = Guess()


def play(game: Game, *turns: str) -> tuple[list[str], bool, Verdict]:
    """What was answered, whether the game had ended, and the verdict."""

    async def all_turns() -> tuple[list[str], bool, Verdict]:
        seen = [await game.act(turn) for turn in turns]
        assert await game.start() == "" and not any(one.is_last for one in seen[:-1])
        return [one.text for one in seen], seen[-1].is_last, await game.grade()

    return asyncio.run(all_turns())


def test_a_problem_is_a_range_with_a_secret_in_it():
    widths = []
    for problem in (TASK.train(index) for index in range(200)):
        assert re.fullmatch("[0-9]{3}-[0-9]{3}\\?", problem.text)
        low, high = read_range(problem.text)
        assert low <= int(problem.answer) <= high and problem.columns == {"width": high - low}
        assert problem.token_ids == (TOKEN_IDS["<bos>"], *encode(problem.text))
        assert len(problem.token_ids) == TASK.longest_prompt == 9  # <bos>, twice three digits, - and ?
        widths.append(high - low)
    assert min(widths) >= 20 and max(widths) <= 900
    # even on a logarithmic scale: half of them are below sqrt(20 * 900) = 134; three standard errors are 21 of 200
    assert 79 <= sum(width < 134 for width in widths) <= 121


def test_a_game_by_hand():
    # 100 to 200, the secret is 130: 150 is too high, 120 too low, 130 it is
    seen, has_ended, verdict = play(Game(100, 200, 130), ":150", "100-149:120", "121-149:130")
    assert (seen, has_ended) == (["<", ">", ""], True)
    assert verdict == Verdict("correct", 1.0, "130")


@over(
    "turns, status, answer",
    [
        ((":150", ":150"), "incorrect", "150"),  # ruled out by its own answer
        ((":150", ":160"), "incorrect", "160"), ((":120", ":110"), "incorrect", "110"),
        ((":099",), "incorrect", "099"),  # never in the range
        ((":150", "130"), "no_answer", None), (("130:",), "no_answer", None), ((":130?",), "no_answer", None),
        ((":٠٣١",), "no_answer", None),  # other digits
        (("",), "no_answer", None),
    ],
)  # fmt: skip
def test_what_loses(turns, status, answer):
    seen, has_ended, verdict = play(Game(100, 200, 130), *turns)
    assert has_ended and seen[-1] == ""
    assert (verdict.status, verdict.outcome, verdict.answer) == (status, 0.0, answer)


@over("widths", [(0, 4), (5, 4), (1, 1000)])
def test_widths_that_cannot_be_are_refused(widths):
    with pytest.raises(ValueError, match=re.escape(f"widths={widths}: give 1 <= least <= largest <= 999")):
        Guess(widths)


def test_an_evaluation_plays_it(tmp_path, capsys):
    """What each sample says of its game is played again: the turns are what stands before every answer."""
    flags = ["--problems", "12", "--samples", "2", "--threads", "1", "--seed", "1", "--out", str(tmp_path / "out")]
    assert main(["eval", "--task", "guess", *flags]) == 0
    rows = pq.read_table(tmp_path / "out/samples/guess.parquet").to_pylist()
    assert len(rows) == 24 and {row["status"] for row in rows} == {"correct", "incorrect"}
    for row in rows:
        turns = re.findall("[^<>]+", row["text"])
        seen, has_ended, verdict = play(Game(*read_range(row["problem"]), int(row["answer"])), *turns)
        assert (verdict.status, verdict.outcome) == (row["status"], row["outcome"])
        assert has_ended == (row["finish"] == "stop")
        assert row["text"].count("<") + row["text"].count(">") == len(turns) - 1
        assert "".join(map("".join, zip_longest(turns, seen[:-1], fillvalue=""))) == row["text"]
    (found,) = json.loads((tmp_path / "out/summary.json").read_text())["sets"].values()
    assert found["scores"]["avg@2"]["value"] == sum(row["outcome"] for row in rows) / 24
    assert main(["eval", "--from-samples", str(tmp_path / "out"), "--out", str(tmp_path / "again")]) == 2
    assert "guess: it is solved in turns, which its environment grades as they are played" in capsys.readouterr().err
