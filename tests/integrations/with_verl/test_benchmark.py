"""Benchmarks on verl: whole jobs, and its rollout servers alone, with their smallest arguments."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
pytestmark = pytest.mark.ray

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PROGRAM = BENCHMARKS / "verl_adapter.py"


def test_it_measures_a_job(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--smoke"], cwd=tmp_path, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = re.findall(r"^eqlen\+grpo +(\d+)((?: +[\d.]+){4}) +([\d.]+)%$", done.stdout, re.M)
    step, parts, share = float(row[0]), [float(part) for part in row[1].split()], float(row[2])
    assert step > 0 and min(parts) > 0 and share == pytest.approx(100 * sum(parts) / step, rel=0.02, abs=0.01)


def test_without_a_step_to_measure_no_job_is_started(tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAM, "--steps", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2 and "--steps 1: the first rollout batch warms up; give at least 2" in done.stderr


@pytest.mark.nightly
def test_streams_and_independent_responses_take_turns_on_the_servers(tmp_path):
    command = [sys.executable, BENCHMARKS / "verl_streams.py", "--smoke", "--rollout", "fairlen_cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = dict(re.findall(r"^(independent|EqLen|whole) +(\d+) +[\d.]+ +[\d.]+ +\d+", done.stdout, re.M))
    assert set(rows) == {"independent", "EqLen", "whole"} and min(map(int, rows.values())) > 0
