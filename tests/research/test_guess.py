"""The game of guess: what it asks, what it answers, and what wins and loses; its model, and the games of its pre-training."""

import asyncio
import json
import re
from collections import Counter
from itertools import zip_longest
from random import Random

import numpy as np
import pyarrow.parquet as pq
import pytest
from loops import over
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.cli import main
from fairlen.tasks.task import Verdict
from recipes.guess import ALPHABET, MAX_RESPONSE_LENGTH, PATH, TOKEN_IDS, Game, Guess, encode, make_guess, read_range
from research.drawing import draw
from research.guess import STYLES, draw_examples
from research.guess import play as play_drawn
from research.pretraining import EOS, IGNORED

TASK = make_guess(None)
FLAGS = ["--task", f"{PATH}.py:make_guess", "--model", str(PATH), "--max-response-length", str(MAX_RESPONSE_LENGTH)]


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


@pytest.mark.slow
def test_an_evaluation_plays_it(tmp_path, capsys):
    """What each sample says of its game is played again: the turns are what stands before every answer."""
    flags = ["--problems", "12", "--samples", "2", "--threads", "1", "--seed", "1", "--out", str(tmp_path / "out")]
    assert main(["eval", *FLAGS, *flags]) == 0
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
    assert "make_guess: such problems are code, which is not run to rescore samples" in capsys.readouterr().err


@pytest.mark.slow
def test_games_are_won_and_lost_early_and_late():
    drawn = draw(TASK, MAX_RESPONSE_LENGTH, PATH, "grpo", 100, "sampling.n=8").response_table
    # 33% of 800 when this was written; three standard errors are 3 * sqrt(.33 * .67 / 800) = .05, were all independent
    assert 0.20 <= drawn.correct.mean() <= 0.60
    quarter, three_quarters = np.percentile(drawn.num_turns[drawn.correct], [25, 75])
    assert three_quarters >= quarter + 3
    lost = drawn.num_turns[~drawn.correct]
    assert (lost <= 4).mean() > 0.2 and (lost == 12).mean() > 0.1
    share = np.bincount(drawn.prompt, drawn.correct) / np.bincount(drawn.prompt)
    assert ((share > 0) & (share < 1)).mean() >= 0.8, "nearly every range has both verdicts"


@pytest.mark.nightly
def test_training_with_default_settings_improves_it_by_25_points(tmp_path):
    assert main(["train", *FLAGS, "--out", str(tmp_path / "run"), "--threads", "1"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    accuracy = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    assert accuracy[-1] > accuracy[0] + 0.25


def test_model_and_tokenizer_are_read_as_any_other():
    tokenizer, model = AutoTokenizer.from_pretrained(PATH), AutoModelForCausalLM.from_pretrained(PATH)
    assert tokenizer(ALPHABET)["input_ids"] == [TOKEN_IDS["<bos>"], *encode(ALPHABET)]
    assert model.num_parameters() < 1_000_000 and len(tokenizer) == model.config.vocab_size == len(ALPHABET) + 3
    assert model.generation_config.eos_token_id == EOS


@over("name", STYLES)
def test_games_of_pretraining_follow_the_rules(name, monkeypatch):
    """Answers are true; a game goes on until the secret, a guess that was ruled out, or 12 turns."""
    monkeypatch.setattr("research.guess.draw_style", lambda rng: STYLES[name])
    rng, ends = Random(0), Counter[str]()
    for problem in map(TASK.train, range(200)):
        game, secret = play_drawn(rng, problem), int(problem.answer)
        low, high = read_range(problem.text)
        for turn, answer in zip(game.turns, game.answers, strict=False):
            assert ("-" in turn) == STYLES[name].writes
            guess = int(turn[-3:])
            assert low <= guess <= high and guess != secret and answer == ("<" if secret < guess else ">")
            low, high = (low, guess - 1) if secret < guess else (guess + 1, high)
        last = int(game.turns[-1][-3:])
        assert game.is_won == (last == secret)
        ends["won" if game.is_won else "limit" if len(game.answers) == 12 else "ruled out"] += 1
        assert game.is_won or len(game.answers) == 12 or not low <= last <= high
    assert ends["won"] > 20 and ends.total() == 200


def test_what_was_read_is_not_learned():
    examples = draw_examples(0)
    for _ in range(50):
        token_ids, labels = next(examples)
        read = [i for i, token in enumerate(token_ids) if token in encode("<>")]
        assert all(labels[i] == IGNORED for i in (*range(9), *read)), "the prompt has 9 tokens"
        assert all(labels[i] == token_ids[i] for i in range(9, len(token_ids)) if i not in read)
        turns = token_ids.count(EOS)
        assert len(read) in (turns - 1, turns), "the last turn of a game that its limit ended is answered too"
