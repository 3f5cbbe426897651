"""The rehearsal on two nodes as a job of Slurm's: its parser takes the script, the job ends well, nothing of it is left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
from slurm_cluster import running_slurm
from test_deaths import SMALL, command

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
pytestmark = [pytest.mark.ray, pytest.mark.nightly]

STEPS = 2
LIMIT = 900.0
"""Seconds for the job, on a machine that others use too."""
ONE_MACHINE = " ".join((
    "--dashboard-agent-listen-port=0 --min-worker-port=0 --max-worker-port=0",
    "--num-cpus=16 --object-store-memory=250000000",
))  # fmt: skip
"""Options of Ray for nodes that share a machine."""


def find_left(folder: Path) -> list[str]:
    """Processes and folders of a job whose files are in a folder."""
    processes = [one for one in psutil.process_iter(["cmdline"]) if one.pid != psutil.Process().pid]
    found = [" ".join(one.info["cmdline"] or ()) for one in processes]
    ours = [text for text in found if str(folder) in text or "ray::" in text or "/raylet/raylet" in text]
    return ours + [str(path) for path in Path("/tmp").glob("fairlen-??????")]


def test_slurm_runs_the_rehearsal_on_two_nodes(tmp_path):
    script, out = tmp_path / "job.sh", tmp_path / "out"
    start = command(out, "--slurm", str(script), given=(*SMALL, f"trainer.total_training_steps={STEPS}"))
    before = find_left(tmp_path)
    subprocess.run(start, cwd=tmp_path, check=True)
    with running_slurm() as variables:

        def ask(*words: str) -> subprocess.CompletedProcess[str]:
            given: Any = {"cwd": tmp_path, "env": variables | {"RAY_OPTIONS": ONE_MACHINE}, "timeout": LIMIT}
            return subprocess.run(words, capture_output=True, text=True, **given)

        checked = ask("sbatch", "--test-only", str(script))
        assert checked.returncode == 0 and "on nodes n[1-2]" in checked.stderr, checked.stderr
        job = ask("sbatch", "--wait", "--parsable", str(script))
        (log,) = tmp_path.glob("fairlen-*.log")
        assert job.returncode == 0, f"{job.stderr}\n{log.read_text()[-6000:]}"
        assert log.name == f"fairlen-{job.stdout.strip()}.log"
        print(log.read_text())
    metrics = [json.loads(line)["data"] for line in (out / "verl-metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == STEPS and all(one["actor/grad_norm"] > 0 for one in metrics)
    assert sum(line.startswith("node ") for line in log.read_text().splitlines()) == 2, "each node is asked what it has"
    assert find_left(tmp_path) == before
