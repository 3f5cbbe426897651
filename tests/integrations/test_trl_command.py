"""recipes/trl_verified.py: a whole run from flags, as a user starts it."""

import asyncio
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
import torch

from fairlen.tasks.task import Problem, Verdict
from recipes.trl_verified import TaskTrainer, data_of, verifier_of

RECIPE = str(Path(__file__).parents[2] / "recipes/trl_verified.py")
SMALL = (
    "--train-problems", "4", "--num-generations", "4", "--per-device-train-batch-size", "8", "--max-completion-length", "40",
    "--learning-rate", "1e-4", "--report-to", "none", "--bf16", "False", "--logging-steps", "1", "--save-steps", "1",
)  # fmt: skip


def start(*flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, RECIPE, *SMALL, *flags]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def history(folder: Path, step: int) -> list[dict[str, float]]:
    """What was logged of each update up to a step."""
    state = json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "accuracy/mean" in entry]


@pytest.mark.slow
def test_a_run_trains_and_goes_on_from_its_checkpoint(tmp_path):
    out = str(tmp_path / "out")
    done = start("--method", "eqlen+grpo", "--output-dir", out, "--max-steps", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    resume = ("--resume-from-checkpoint", f"{out}/checkpoint-1")
    again = start("--method", "eqlen+grpo", "--output-dir", out, "--max-steps", "2", *resume)
    assert again.returncode == 0, again.stderr[-2000:]
    first, both = history(tmp_path / "out", 1), history(tmp_path / "out", 2)
    assert both[: len(first)] == first and len(both) == 2
    assert all(entry["pairs/trained"] >= 0 for entry in both)
    assert (tmp_path / "out/model.safetensors").stat().st_size > 1e6


@pytest.mark.slow
def test_the_verdict_decides_what_is_right_whatever_rewards_add(tmp_path):
    """A reward of -1 for everybody: outcomes are 0 and -1, and what is right stays right."""
    (tmp_path / "r.py").write_text("def dull(prompts, completions, **columns):\n    return [-1.0] * len(completions)\n")
    evaluates = ("--problems", "2", "--eval-strategy", "steps", "--eval-steps", "1")
    changes = ("--rewards", f"{tmp_path}/r.py:dull", *evaluates)
    done = start("--method", "grpo", "--output-dir", str(tmp_path / "out"), "--max-steps", "1", *changes)
    assert done.returncode == 0, done.stderr[-2000:]
    (entry,) = history(tmp_path / "out", 1)
    assert entry["accuracy/mean"] == entry["rewards/verifier/mean"] > 0
    assert entry["outcome/mean"] == pytest.approx(entry["accuracy/mean"] - 1.0)


class Asked:
    """A task that knows its problems by their ids alone; None of the answer \"?\"."""

    async def verify(self, problem, text):
        found = {"?": Verdict("timeout", 0.0), problem.id: Verdict("correct", 1.0)}
        return found.get(text, Verdict("incorrect", 0.0))


def test_problems_in_the_same_words_keep_their_own_answers():
    problems = [Problem(name, "How many?", (1, 2), name) for name in "ab"]
    rows = data_of(problems, first=0)
    verifier = verifier_of(Asked(), problems, "inactive")
    columns = {name: [*rows[name]] * 2 for name in rows.column_names if name != "prompt"}
    assert asyncio.run(verifier(["a", "b", "b", "?"], prompts=rows["prompt"], **columns)) == [1.0, 1.0, 0.0, None]


def test_what_has_no_verdict_does_not_count_although_a_reward_judged_it():
    """Rewards by function, the verifier first: right and -1, wrong and 9, none and 9; a graded one of 0.4 is wrong."""
    trainer = TaskTrainer.__new__(TaskTrainer)
    trainer.correct_threshold, trainer.reward_weights, trainer.reward_func_names = 0.5, torch.ones(2), ["a", "b"]
    found = trainer.grade_rewards(torch.tensor([[1.0, -1.0], [0.0, 9.0], [float("nan"), 9.0], [0.4, 9.0]]))
    assert found.verdict[[0, 1, 3]].tolist() == [1.0, 0.0, 0.0]
    assert math.isnan(found.verdict[2])
    assert found.outcome[[0, 1]].tolist() == [0.0, 9.0]
