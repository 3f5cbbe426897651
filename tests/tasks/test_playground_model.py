"""The shipped checkpoint has what a study of length needs, and the script that made it is reproducible."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.engine import Engine
from fairlen.playground import PATH
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Sampling
from fairlen.tasks.playground import Playground, encode, write_moves
from fairlen.tasks.task import Problem
from research.playground import CONTEXT, make, read_chain
from research.pretraining import EOS, label, stack

BUDGET = 160
GROUP = 16


@dataclass(frozen=True)
class Sampled:
    """What the model answers, [problems, GROUP]."""

    correct: np.ndarray
    length: np.ndarray
    truncated: np.ndarray


def is_correct(problem: Problem, text: str) -> bool:
    return asyncio.run(Playground().verify(problem, text)).status == "correct"


@pytest.fixture(scope="module")
def sampled() -> Sampled:
    """By the embedded engine, which leaves the test time for enough responses."""
    problems = [problem for problem in Playground().held_out(24) for _ in range(GROUP)]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(PATH), AutoTokenizer.from_pretrained(PATH)
    engine = Engine(model, eos_token_id=EOS, max_length=CONTEXT, compile=False)
    samplings = [Sampling(max_new_tokens=BUDGET, seed=seed) for seed in range(len(problems))]
    continuations = engine.generate([problem.token_ids for problem in problems], samplings)
    correct = [
        continuation.finish == "stop" and is_correct(problem, tokenizer.decode(continuation.token_ids[:-1]))
        for problem, continuation in zip(problems, continuations, strict=True)
    ]
    lengths = [len(continuation.token_ids) for continuation in continuations]
    truncated = [continuation.finish == "length" for continuation in continuations]
    return Sampled(*(np.array(column).reshape(-1, GROUP) for column in (correct, lengths, truncated)))


@pytest.mark.slow
def test_half_of_the_answers_are_right_in_each_family(sampled: Sampled):
    # 12 problems of 16 responses a family: three standard errors are 3 * 0.5 / sqrt(192) = 0.11
    for family in (0, 1):
        assert 0.39 < sampled.correct[family::2].mean() < 0.61


def test_nearly_every_group_is_mixed(sampled: Sampled):
    share = sampled.correct.mean(axis=1)
    assert ((share > 0) & (share < 1)).mean() >= 0.9


def test_length_varies_by_much_for_right_and_for_wrong_answers(sampled: Sampled):
    length, correct = sampled.length, sampled.correct
    assert length.std() / length.mean() > 0.6
    assert length.max() >= 20 * length.min()
    incorrect_short, incorrect_long = np.quantile(length[~correct], [0.2, 0.8])
    assert incorrect_short <= 5 and incorrect_long >= 60  # a bare guess; more than one pass over the moves
    assert 0 < sampled.truncated.mean() < 0.08


def complete(prompts: Sequence[TokenIds]) -> list[str]:
    """Greedy continuations by transformers' own `generate`: the checkpoint needs nothing of ours."""
    model = AutoModelForCausalLM.from_pretrained(PATH).eval()
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    padded = tokenizer.pad({"input_ids": [list(prompt) for prompt in prompts]}, return_tensors="pt")
    with torch.no_grad():
        token_ids = model.generate(**padded, max_new_tokens=BUDGET, do_sample=False)
    return tokenizer.batch_decode(token_ids[:, padded.input_ids.shape[1] :], skip_special_tokens=True)


def test_careful_answers_are_nearly_always_right():
    """The headroom of training: it has to change how the model answers, not what it can compute."""
    problems = Playground().held_out(60)
    starts = []
    for problem in problems:
        family, chain = read_chain(problem.text)
        # Given a first step of a single move, the model goes on step by step.
        starts.append(problem.token_ids + encode(write_moves(family, chain.start, chain.moves[:1]) + "="))
    texts = complete(starts)
    right = [is_correct(problem, text) for problem, text in zip(problems, texts, strict=True)]
    assert np.mean(right) >= 0.9


def test_the_checkpoint_is_small_and_knows_its_special_tokens():
    model = AutoModelForCausalLM.from_pretrained(PATH)
    for settings in (model.config, model.generation_config):
        assert (settings.pad_token_id, settings.eos_token_id, settings.bos_token_id) == (0, 1, 2)
    assert model.config.max_position_embeddings == 512
    assert sum(file.stat().st_size for file in PATH.iterdir() if file.is_file()) < 4_000_000


@pytest.mark.slow
def test_one_seed_makes_one_checkpoint(tmp_path):
    def digest(name: str, seed: int) -> str:
        make(tmp_path / name, steps=3, seed=seed)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("first", seed=3) == digest("second", seed=3) != digest("third", seed=4)


def test_only_responses_are_trained():
    prompt, response = (2, 7, 20), (15, 4, 1)
    token_ids, labels = stack([label(prompt, response), label(prompt[:2], response[:1])])
    assert token_ids.tolist() == [[2, 7, 20, 15, 4, 1], [2, 7, 15, 0, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 15, 4, 1], [-100, -100, 15, -100, -100, -100]]
