"""The shipped checkpoint has what a study of length needs, and the script that made it is reproducible."""

import asyncio
import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.engine import Engine
from fairlen.playground import PATH
from fairlen.sampling.extend import Sampling
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Problem
from research.playground import CONTEXT, make
from research.pretraining import EOS

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


@pytest.mark.slow
def test_one_seed_makes_one_checkpoint(tmp_path):
    def digest(name: str, seed: int) -> str:
        make(tmp_path / name, steps=3, seed=seed)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("first", seed=3) == digest("second", seed=3) != digest("third", seed=4)
