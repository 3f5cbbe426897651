"""What a person reads of a run at its end, on the terminal and in the model's card."""

import io
from pathlib import Path

import numpy as np
from loops import over
from rich.console import Console

from fairlen.evaluate.run import Evaluation
from fairlen.methods.compose import explain
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.display import Clock, Display, compare
from fairlen.train.start import RunSummary


def shown_of(summary: RunSummary) -> str:
    """What is printed at the end."""
    shown = io.StringIO()
    Display(TrainConfig(), explain("grpo", ()), Console(file=shown, width=200)).finish(summary)
    return shown.getvalue()


def all_of(verdict: bool, num_problems: int = 8, num_samples: int = 2) -> Evaluation:
    shape = num_problems, num_samples
    return Evaluation(np.full(shape, verdict), np.full(shape, 5), np.zeros(shape, np.bool_))


POINTS = "+100.0 points [+100.0, +100.0] in "


@over(
    "num_updates, warning, said",
    [
        (3, "", POINTS + "3 updates, 2 s of training"),
        (1, "every response of 1 rollout batch counts as incorrect", POINTS + "1 update, 2 s of training"),
        (1, "nothing was trained in 1 rollout batch", "2 s of training"),
        (0, "", "2 s of training"),
    ],
)
def test_points_are_gained_only_where_something_was_trained(num_updates, warning, said):
    """From none of 8 problems to all of them is +100 points; without training that would be chance."""
    summary = RunSummary(Path("run"), all_of(False), all_of(True), num_updates, 2.0, warning)
    lines = shown_of(summary).splitlines()
    assert any("8 held-out problems x 2 samples" in line for line in lines)
    assert any(line.startswith(said) for line in lines)
    assert any("points" in line for line in lines) == said.startswith("+")


def test_what_does_not_exist_is_a_dash():
    """Before, no answer of 8 problems is right, after, all are: lengths 4 and 6, mean 5."""
    wrong = Evaluation(np.zeros((8, 2), np.bool_), np.tile([4, 6], (8, 1)), np.zeros((8, 2), np.bool_))
    right = Evaluation(~wrong.correct, wrong.lengths, wrong.is_truncated)
    shown = shown_of(RunSummary(Path("run"), wrong, right, 1, 2.0))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "length, correct (tokens) - 5.0" in lines
    assert "length, incorrect (tokens) 5.0 -" in lines
    # Clopper-Pearson of 0 of 8 problems: 1 - .025^(1/8) = 36.9%
    assert "accuracy, 95% interval 0.0% [0.0%, 36.9%] 100.0% [63.1%, 100.0%]" in lines
    assert compare(wrong, right)[2:4] == [
        ("length, correct (tokens)", "-", "5.0"),
        ("length, incorrect (tokens)", "5.0", "-"),
    ]


def test_a_limit_on_updates_is_the_number_of_rollout_batches():
    """10 updates of 4 a rollout batch take 3 of 16 rollout batches; of 2 prompts at most 2 updates are made, so 5."""
    config = TrainConfig().replace(max_updates=10, updates_per_batch=4)
    assert [Clock(one).num_batches for one in (config, config.replace(prompts_per_batch=2), TrainConfig())] == [
        3,
        5,
        16,
    ]
