"""The shipped models have what studies of length and of turns need, are made again by their scripts, and are in the table."""

import hashlib
import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from loops import over
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.cli import main
from fairlen.playground import GUESS, PATH
from fairlen.tasks.guess import ALPHABET, MAX_RESPONSE_LENGTH, TOKEN_IDS, Guess, encode, read_range
from fairlen.tasks.playground import Playground
from fairlen.tasks.shipped import SHIPPED, make_shipped, place_model, shipped_settings
from research.drawing import draw
from research.guess import STYLES, draw_examples, play
from research.playground import make
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


@pytest.mark.slow
def test_groups_are_mixed_and_lengths_vary_for_correct_and_for_incorrect_responses():
    drawn = draw(Playground(), 160, PATH, "grpo", 24, "sampling.n=16").response_table
    length, correct = drawn.length, drawn.correct
    # 384 responses: three standard errors are 3 * 0.5 / sqrt(384) = 0.08, were all independent
    assert 0.39 < correct.mean() < 0.61
    share = np.bincount(drawn.prompt, correct) / np.bincount(drawn.prompt)
    assert ((share > 0) & (share < 1)).mean() >= 0.9
    assert length.std() / length.mean() > 0.6
    assert length.max() >= 20 * length.min()
    incorrect_short, incorrect_long = np.quantile(length[~correct], [0.2, 0.8])
    assert incorrect_short <= 5 and incorrect_long >= 60  # a bare guess; more than one pass over the moves
    assert 0 < drawn.truncated.mean() < 0.08


@pytest.mark.slow
def test_one_seed_makes_one_checkpoint(tmp_path):
    def digest(name: str, seed: int) -> str:
        make(tmp_path / name, steps=3, seed=seed)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("first", seed=3) == digest("second", seed=3) != digest("third", seed=4)


def test_the_table_of_shipped_tasks_names_what_there_is():
    assert {name: make_shipped(name).name for name in SHIPPED} == {name: name for name in SHIPPED}
    assert make_shipped("playground:cups").describe()["families"] == ["cups"]
    for place in ("gsm8k", "guess:sums", "playground:hats"):
        with pytest.raises(ValueError, match=f"--task {place}: there are playground, playground:sums, .*, guess;"):
            make_shipped(place)
    assert shipped_settings("guess") == {"model": "guess", "max_response_length": 192}
    assert shipped_settings("playground:sums") == {"model": "playground", "max_response_length": 160}
    assert shipped_settings("tasks.py:Mine") == {}


def test_a_shipped_model_has_one_revision_and_its_weights():
    assert place_model("guess").endswith("fairlen/guess") and place_model("owner/name", "main") == "owner/name"
    with pytest.raises(ValueError, match="model=guess with revision or random_init: name a model folder or hub id"):
        place_model("guess", random_init=True)
