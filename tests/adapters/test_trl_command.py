"""`fairlen trl`: a whole run from flags, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from fairlen.adapters.trl.config import TrlConfig

SMALL = (
    "--problems", "4", "--num-generations", "4", "--per-device-train-batch-size", "8", "--max-completion-length", "40",
    "--learning-rate", "1e-4", "--report-to", "none", "--bf16", "False", "--logging-steps", "1", "--save-steps", "1",
)  # fmt: skip


def start(*flags: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "fairlen", "trl", *SMALL, *flags]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def history(folder: Path, step: int) -> list[dict[str, float]]:
    """What was logged of each update up to a step."""
    state = json.loads((folder / f"checkpoint-{step}/trainer_state.json").read_text())
    return [entry for entry in state["log_history"] if "accuracy/mean" in entry]


def test_a_run_trains_and_goes_on_from_its_checkpoint(tmp_path):
    out = str(tmp_path / "out")
    done = start("--method", "eqlen+grpo", "--output-dir", out, "--max-steps", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    again = start(
        "--method",
        "eqlen+grpo",
        "--output-dir",
        out,
        "--max-steps",
        "2",
        "--resume-from-checkpoint",
        f"{out}/checkpoint-1",
    )
    assert again.returncode == 0, again.stderr[-2000:]
    first, both = history(tmp_path / "out", 1), history(tmp_path / "out", 2)
    assert both[: len(first)] == first and len(both) == 2
    assert all(entry["pairs/kept"] >= 0 for entry in both)
    assert (tmp_path / "out/model.safetensors").stat().st_size > 1e6


def test_the_threshold_decides_what_is_right(tmp_path):
    """A verdict is 0 or 1: above -0.5 every answer is right."""
    done = start(
        "--method", "grpo", "--output-dir", str(tmp_path / "out"), "--max-steps", "1", "--correct-threshold", "-0.5"
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (entry,) = history(tmp_path / "out", 1)
    assert (entry["accuracy/mean"], entry["prompts/all_right"]) == (1.0, 1.0)
    assert entry["outcome/mean"] < 1.0


@pytest.mark.parametrize("name", ["verifier_weight", "correct_threshold"])
def test_a_setting_that_is_no_number_is_refused(name):
    with pytest.raises(ValueError, match=f"{name}=nan: give a finite number"):
        TrlConfig(**{name: float("nan")})
