"""The benchmark of vLLM beside the embedded engine, with its smallest arguments."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

PROGRAM = Path(__file__).parents[2].joinpath("benchmarks", "vllm_speed.py")


def test_it_measures_both_engines(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--smoke"], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(re.findall(r"^(embedded|vllm) +([\d,]+) tokens/s", done.stdout, re.M))
    assert set(found) == {"embedded", "vllm"} and all(int(rate.replace(",", "")) > 0 for rate in found.values())
