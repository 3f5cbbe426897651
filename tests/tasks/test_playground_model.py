"""The shipped checkpoint has what a study of length needs, and the script that made it is reproducible."""

import hashlib

import numpy as np
import pytest

from fairlen.playground import PATH
from fairlen.tasks.playground import Playground
from research.drawing import draw
from research.playground import make


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
