"""Two processes over gloo move the weights as one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from safetensors.torch import load_file

SCRIPT = Path(__file__).parent / "trl_ranks.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
CASES = {
    "eqlen+fspo": "16:4",  # 8 prompts; the processes' streams have different numbers of rounds and pieces
    "grpo+balanced": "8:16",  # one prompt, 8 of its 16 rows in each process
    "eqlen+grpo": "8:8",  # two prompts, one in each process
}


def run(folder: Path, *launcher: str) -> None:
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *launcher, str(SCRIPT), str(folder), *(f"{name}:{rows}" for name, rows in CASES.items())],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("ranks")
    run(folder / "one")
    run(folder / "two", *TORCHRUN)
    return folder / "one", folder / "two"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(name, folders):
    alone, shared = (load_file(folder / f"{name}.safetensors")["moved"] for folder in folders)
    told, told_too = (json.loads((folder / f"{name}.json").read_text()) for folder in folders)
    assert alone.abs().max() > 1e-6
    assert float((alone - shared).abs().max() / alone.abs().max()) < 2e-5
    assert told["state"] == pytest.approx(told_too["state"], rel=2e-5)
    names = [key for key in told["logged"] if "/" in key and not key.startswith("completions/")]
    assert len(names) > 10
    for key in names:
        assert told["logged"][key] == pytest.approx(told_too["logged"][key], rel=1e-4, abs=1e-9), key
