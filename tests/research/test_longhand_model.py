"""The shipped model has what a study of long responses needs; `python -m research.longhand measure` shows the same numbers."""

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.batch import Responses
from research.longhand import PATH
from research.longhand.make import count_stream_rounds, draw_responses
from research.longhand.task import ALPHABET, TOKEN_IDS, Longhand, encode

PROBLEMS = 50


@pytest.fixture(scope="module")
def drawn() -> Responses:
    return draw_responses(PATH, "grpo", 200, "sampling.n=8").response_table


@pytest.mark.slow
def test_responses_are_long_and_incorrect_as_they_are_too_short_and_too_long(drawn: Responses):
    # 200 problems of 8 responses: three standard errors are 3 * 0.5 / sqrt(1600) = 0.04, were all independent
    assert 0.30 <= drawn.correct.mean() <= 0.60
    assert drawn.length.mean() >= 200
    assert 500 <= np.percentile(drawn.length, 95) <= 1500
    assert 0 < drawn.truncated.mean() < 0.08
    quarters = np.array_split(np.argsort(drawn.length, kind="stable"), 4)
    assert all(0.3 < drawn.correct[rows].mean() < 0.7 for rows in quarters)  # at no length is the verdict clear
    hurried, careful, long = (
        drawn.correct[(drawn.length >= low) & (drawn.length < high)].mean()
        for low, high in ((0, 80), (80, 180), (600, 769))
    )
    # one pass in haste has 41 to 77 tokens: 0.50 of 183 when this was written, 0.59 of 500, and 0.30 of the 64 longest
    assert hurried < careful - 0.02 and long < careful - 0.15
    share = np.bincount(drawn.prompt, drawn.correct) / np.bincount(drawn.prompt)
    assert ((share > 0) & (share < 1)).mean() >= 0.8


@pytest.mark.nightly
def test_streams_have_five_rounds_at_the_median():
    rounds = count_stream_rounds(draw_responses(PATH, "eqlen+grpo", PROBLEMS, "sampling.streams=4"))
    assert len(rounds) == 4 * PROBLEMS and np.median(rounds) >= 5


def test_the_checkpoint_is_small_and_knows_its_special_tokens():
    model = AutoModelForCausalLM.from_pretrained(PATH)
    for settings in (model.config, model.generation_config):
        assert (settings.pad_token_id, settings.eos_token_id, settings.bos_token_id) == (0, 1, 2)
    assert model.config.max_position_embeddings == 1024 >= Longhand().longest_prompt + 768
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 5e6
    assert sum(file.stat().st_size for file in PATH.iterdir() if file.is_file()) < 12_000_000


def test_token_ids_are_those_of_the_shipped_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    assert tokenizer.get_vocab() == TOKEN_IDS
    for problem in (Longhand().train(index) for index in range(20)):
        assert tuple(tokenizer(problem.text).input_ids) == problem.token_ids
    ids = [*encode(ALPHABET), tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ALPHABET  # no space anywhere
