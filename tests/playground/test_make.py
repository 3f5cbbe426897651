"""The shipped checkpoint has what a study of length needs, and the script that made it is reproducible."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.playground import PATH
from fairlen.playground.make import EOS, MICRO, PAD, build_model, draw_examples, make, pretrain, stack
from fairlen.tasks.playground import BOS_ID, Playground
from fairlen.tasks.task import Problem

BUDGET = 160
GROUP = 16


@dataclass(frozen=True)
class Sampled:
    """What the model answers, [problems, GROUP]."""

    correct: np.ndarray
    length: np.ndarray
    truncated: np.ndarray


def sample(problems: Sequence[Problem]) -> Sampled:
    """GROUP responses a problem at temperature 1, by transformers' own `generate` and its own settings."""
    model = AutoModelForCausalLM.from_pretrained(PATH).eval()
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    prompts = tokenizer([p.text for p in problems for _ in range(GROUP)], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    with torch.no_grad():
        token_ids = model.generate(
            input_ids=prompts.input_ids, attention_mask=prompts.attention_mask, max_new_tokens=BUDGET
        )[:, prompts.input_ids.shape[1] :]
    texts = tokenizer.batch_decode(token_ids, skip_special_tokens=True)
    task = Playground()
    verdicts = [asyncio.run(task.verify(problems[row // GROUP], text)) for row, text in enumerate(texts)]
    shape = (len(problems), GROUP)
    truncated = ~(token_ids == EOS).any(1)
    length = (token_ids != PAD).sum(1)
    correct = np.array([verdict.status == "correct" for verdict in verdicts]) & ~truncated.numpy()
    return Sampled(correct.reshape(shape), length.numpy().reshape(shape), truncated.numpy().reshape(shape))


@pytest.fixture(scope="module")
def sampled() -> Sampled:
    return sample(Playground().held_out(24))


def test_half_of_the_answers_are_right_in_each_family(sampled: Sampled):
    # 12 problems of 16 responses a family: three standard errors are about 0.11
    for family in (0, 1):
        assert 0.35 < sampled.correct[family::2].mean() < 0.65


def test_nearly_every_group_is_mixed(sampled: Sampled):
    share = sampled.correct.mean(axis=1)
    assert ((share > 0) & (share < 1)).mean() >= 0.9


def test_length_varies_by_much_for_right_and_for_wrong_answers(sampled: Sampled):
    length, correct = sampled.length, sampled.correct
    assert length.std() / length.mean() > 0.6
    assert length.max() >= 20 * length.min()
    wrong_short, wrong_long = np.quantile(length[~correct], [0.2, 0.8])
    assert wrong_short <= 5 and wrong_long >= 60  # a bare guess; more than one pass over the moves
    assert 0 < sampled.truncated.mean() < 0.08


def test_careful_answers_are_nearly_always_right(sampled: Sampled):
    """The headroom of training: it has to change how the model answers, not what it can compute."""
    task = Playground()
    model = AutoModelForCausalLM.from_pretrained(PATH).eval()
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    right = 0
    problems = task.held_out(40)
    for problem in problems:
        sign = "+" if "+" in problem.text else "|"
        start, move = problem.text.removesuffix("=?").split(sign)[:2]
        # Given a first step of a single move, the model goes on step by step.
        prompt = torch.tensor([[*problem.token_ids, *tokenizer(f"{start}{sign}{move}=").input_ids[1:]]])
        with torch.no_grad():
            out = model.generate(
                input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=BUDGET, do_sample=False
            )
        text = tokenizer.decode(out[0, len(problem.token_ids) :], skip_special_tokens=True)
        right += asyncio.run(task.verify(problem, text)).status == "correct"
    assert right >= 36  # of 40


def test_tokens_that_are_never_written_have_no_probability():
    model = AutoModelForCausalLM.from_pretrained(PATH).eval()
    token_ids, labels = stack([example for example, _ in zip(draw_examples(seed=1), range(64), strict=False)])
    with torch.no_grad():
        probs = model(input_ids=token_ids).logits.softmax(-1)[:, :-1][labels[:, 1:] >= 0]
    assert probs[:, [PAD, BOS_ID]].sum(-1).max() < 1e-4


def test_the_checkpoint_is_small_and_knows_its_special_tokens():
    model = AutoModelForCausalLM.from_pretrained(PATH)
    for settings in (model.config, model.generation_config):
        assert (settings.pad_token_id, settings.eos_token_id, settings.bos_token_id) == (0, 1, 2)
    assert model.config.max_position_embeddings == 512
    assert sum(file.stat().st_size for file in PATH.iterdir() if file.is_file()) < 4_000_000


def test_one_seed_makes_one_checkpoint(tmp_path):
    def digest(name: str, seed: int) -> str:
        make(tmp_path / name, steps=2, seed=seed)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("first", seed=3) == digest("second", seed=3) != digest("third", seed=4)


def test_only_responses_are_trained():
    prompt, response = (2, 7, 20), (15, 4, 1)
    token_ids, labels = stack([(prompt, response), (prompt[:2], response[:1])])
    assert token_ids.tolist() == [[2, 7, 20, 15, 4, 1], [2, 7, 15, 0, 0, 0]]
    assert labels.tolist() == [[-100, -100, -100, 15, 4, 1], [-100, -100, 15, -100, -100, -100]]
