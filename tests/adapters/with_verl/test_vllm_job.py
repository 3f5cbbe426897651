"""verl with vLLM's own servers on a CPU: `make test-verl-vllm`, in an environment that has both.

Weights go from the workers to the servers by verl's own transfer; streams of EqLen run on vLLM's prefix cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-verl-vllm")
pytest.importorskip("verl.trainer", reason="verl is not installed: make test-verl-vllm")
pytestmark = pytest.mark.vllm

LIMIT = 1200.0
GAP = 1e-4


@pytest.mark.parametrize(("names", "field"), [("eqlen+grpo", "sampling.streams=4"), ("dapo+balanced", "sampling.n=8")])
def test_vllm_serves_the_weights_that_are_trained(names, field, tmp_path):
    done = subprocess.run(
        [
            sys.executable, "-m", "fairlen", "verl", "--method", names, "--set", field, "--cpu", "--out", str(tmp_path),
            "--start-limit", "700", "--step-limit", "240", "--",
            "actor_rollout_ref.rollout.name=vllm", "trainer.total_training_steps=4",
        ],
        env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    metrics = [json.loads(line)["data"] for line in (Path(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 4
    assert max(one["training/rollout_probs_diff_max"] for one in metrics) < GAP
    assert min(one["actor/grad_norm"] for one in metrics) > 0
    if names.startswith("eqlen"):
        assert min(one["fairlen/pairs/distinct"] for one in metrics) > 0
