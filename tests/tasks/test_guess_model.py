"""The shipped player has what a study of turns needs; `python -m research.guess measure` shows the same numbers."""

import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from loops import over
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.cli import main
from fairlen.playground import GUESS
from fairlen.tasks.guess import ALPHABET, MAX_RESPONSE_LENGTH, TOKEN_IDS, Guess, encode, read_range
from research.drawing import draw
from research.guess import STYLES, draw_examples, play
from research.pretraining import EOS, IGNORED


@pytest.mark.slow
def test_games_are_won_and_lost_early_and_late():
    drawn = draw(Guess(), MAX_RESPONSE_LENGTH, GUESS, "grpo", 100, "sampling.n=8").response_table
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
    assert main(["train", "--task", "guess", "--out", str(tmp_path / "run"), "--threads", "1"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    accuracy = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    assert accuracy[-1] > accuracy[0] + 0.25


def test_model_and_tokenizer_are_read_as_any_other():
    tokenizer, model = AutoTokenizer.from_pretrained(GUESS), AutoModelForCausalLM.from_pretrained(GUESS)
    assert tokenizer(ALPHABET)["input_ids"] == [TOKEN_IDS["<bos>"], *encode(ALPHABET)]
    assert model.num_parameters() < 1_000_000 and len(tokenizer) == model.config.vocab_size == len(ALPHABET) + 3
    assert model.generation_config.eos_token_id == EOS


@over("name", STYLES)
def test_games_of_pretraining_follow_the_rules(name, monkeypatch):
    """Answers are true; a game goes on until the secret, a guess that was ruled out, or 12 turns."""
    monkeypatch.setattr("research.guess.draw_style", lambda rng: STYLES[name])
    rng, task, ends = Random(0), Guess(), Counter[str]()
    for problem in map(task.train, range(200)):
        game, secret = play(rng, problem), int(problem.answer)
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
