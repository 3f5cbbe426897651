"""EqLen under real DeepSpeed: steps and gradients are those without it. In a process of its own, which DeepSpeed changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed (pip install deepspeed==0.19.8)")
SCRIPT = Path(__file__).parent / "trl_deepspeed.py"


def run(folder: Path, stage: int, rows: int, micro: int) -> dict:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), *map(str, (stage, rows, micro))],
        env=os.environ | (alone if stage >= 0 else {}) | {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(next(line for line in done.stdout.splitlines()[::-1] if line.startswith('{"norms"')))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_updates_are_those_without_deepspeed(stage, tmp_path):
    """Two updates of 8 micro-batches with room for 2 rows, most of which are many parts."""
    plain, zero = run(tmp_path, -1, 2, 8), run(tmp_path, stage, 2, 8)
    assert zero["steps"] == 2
    assert zero["moved"] == pytest.approx(plain["moved"], rel=1e-5)
    if stage > 0:  # without ZeRO transformers logs none
        assert zero["norms"] == pytest.approx(plain["norms"], rel=1e-5)
