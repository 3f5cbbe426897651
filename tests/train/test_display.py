"""What a person reads of a run at its end, on the terminal and in the model's card."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from rich.console import Console

from fairlen.compose import explain
from fairlen.evaluate.run import Evaluation
from fairlen.train.config import TrainConfig
from fairlen.train.display import Display
from fairlen.train.model_card import write_lengths
from fairlen.train.start import Summary


def test_what_does_not_exist_is_a_dash():
    """Before, no answer of 8 problems is right, after, all are: lengths 4 and 6, mean 5."""
    wrong = Evaluation(np.zeros((8, 2), np.bool_), np.tile([4, 6], (8, 1)), np.zeros((8, 2), np.bool_))
    right = Evaluation(~wrong.right, wrong.lengths, wrong.is_truncated)
    shown = io.StringIO()
    with Display(TrainConfig(), explain("grpo", ()), Console(file=shown, width=120)) as display:
        display.finish(Summary(Path("run"), wrong, right, 1.0, 1, 2.0))
    lines = [" ".join(line.split()) for line in shown.getvalue().splitlines()]
    assert "length, right answers (tokens) - 5.0" in lines
    assert "length, wrong answers (tokens) 5.0 -" in lines
    assert "accuracy, 95% interval 0.0% [0.0%, 32.4%] 100.0% [67.6%, 100.0%]" in lines
    assert write_lengths(wrong, right).splitlines()[1:] == [
        "| of right answers | - | 5.0 |",
        "| of wrong answers | 5.0 | - |",
    ]


def test_settings_that_make_fewer_updates_are_noted():
    shown = io.StringIO()
    with Display(TrainConfig(prompts=3, updates_per_batch=4), explain("grpo"), Console(file=shown, width=200)):
        pass
    assert "prompts=3 make at most 3 updates of a rollout batch, not 4" in shown.getvalue()
