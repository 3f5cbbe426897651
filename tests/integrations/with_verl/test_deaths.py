"""A rehearsal on two nodes loses one process after another: each is noticed and named, and the job goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
pytestmark = pytest.mark.ray

NOTICED = 15.0
"""Seconds from a death to its line."""
LIMIT = 900.0
"""Seconds for one beginning of the job, on a machine that others use too."""
SMALL = (
    "data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=4", "data.max_response_length=64",
)  # fmt: skip
TIMED = ("timing", "perf/", "agent_loop", "actor/perf", "global_seqlen")
"""Begin the names of metrics of time, memory and of how requests were dealt out: different in every job."""
VICTIMS = {
    "AgentLoopWorker": r"^ray::AgentLoopWorker",
    "CpuServer": r"^ray::CpuServer",
    "RewardLoopWorker": r"^ray::RewardLoopWorker",
    "SimpleStorageUnit": r"^ray::SimpleStorageUnit",
    "WorkerDict": r"^ray::WorkerDict",
    "raylet": r"^(?!.*--head)\S*/raylet/raylet ",
}
"""What is killed, in order: the name in the line on its death, and what finds it among processes."""


def command(out: Path, *flags: str, given: tuple[str, ...] = SMALL) -> list[str]:
    start = [
        sys.executable,
        "-m",
        "fairlen",
        "verl",
        "--method",
        "grpo",
        "--set",
        "sampling.n=8",
        "--cpu",
        "--nodes",
        "2",
    ]
    return [*start, "--start-limit", "600", "--step-limit", "240", "--out", str(out), *flags, "--", *given]


def read_until(job: subprocess.Popen[str], pattern: str, seen: list[str]) -> re.Match[str]:
    """Reads what a job prints up to a line."""
    for line in job.stdout or ():
        print(f"{time.strftime('%H:%M:%S')} {line}", end="")
        seen.append(line)
        if found := re.search(pattern, line):
            return found
    raise AssertionError(f"no line {pattern!r} in:\n{''.join(seen)[-6000:]}")


def family_of(job: subprocess.Popen[str]) -> dict[psutil.Process, str]:
    """The processes of a job with their command lines."""
    found = {}
    for one in psutil.Process(job.pid).children(recursive=True):
        try:
            found[one] = " ".join(one.cmdline())
        except psutil.NoSuchProcess:
            continue
    return found


def folders_of(family: dict[psutil.Process, str]) -> set[Path]:
    """Ray's folders, as its processes name them."""
    texts = [
        re.search(r"--session_dir=(\S+?)/session", text) or re.search(r"--temp_dir=(\S+)", text)
        for text in family.values()
    ]
    return {Path(found.group(1)) for found in texts if found}


def lose_processes(job: subprocess.Popen[str], victims: dict[str, str], every: int) -> Iterator[tuple[str, float, str]]:
    """Kills one process after so many steps each time: name, seconds until it was noticed, what was said."""
    seen: list[str] = []
    begun, folders = set(), set()
    for number, (name, pattern) in enumerate(victims.items(), 1):
        read_until(job, rf"^step {number * every}:", seen)
        family = family_of(job)
        begun |= set(family)
        folders |= folders_of(family)
        found = [one for one, text in family.items() if re.search(pattern, text)]
        assert found, f"no {name} among {sorted(family.values())}"
        found[-1].kill()
        killed = time.monotonic()
        said = read_until(job, "has died|died: ", seen).string
        yield name, time.monotonic() - killed, said
    rest, _ = job.communicate(timeout=LIMIT)
    print(rest)
    assert job.returncode == 0, rest[-6000:]
    assert folders, "no process names Ray's folder"
    left = [one for one in begun if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not left and not [folder for folder in folders if folder.exists()]


def check_losses(out: Path, victims: dict[str, str], *flags: str, every: int = 2) -> list[dict]:
    """A job that loses these processes and ends well; its metrics, a dict a step."""
    steps = every * len(victims) + 2
    given = (*SMALL, f"trainer.total_training_steps={steps}")
    job = subprocess.Popen(
        command(out, "--restarts", str(len(victims)), *flags, given=given),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        for name, seconds, said in lose_processes(job, victims, every):
            print(f"{name}: noticed after {seconds:.1f} s: {said}", end="")
            assert name in said and seconds < NOTICED, (name, seconds, said)
    finally:
        job.terminate()
        job.wait(90)
    lines = [json.loads(line) for line in (out / "verl-metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    return [line["data"] for line in lines]


@pytest.mark.nightly
@pytest.mark.parametrize("names", [tuple(VICTIMS)[:-1], ("raylet",)], ids=["processes", "raylet"])
def test_whoever_dies_is_named_and_the_job_goes_on(names, tmp_path):
    """Weights, optimizer and servers are those of the checkpoint: tokens' probabilities agree in every step."""
    metrics = check_losses(tmp_path / "out", {name: VICTIMS[name] for name in names})
    assert max(one["training/rollout_probs_diff_max"] for one in metrics) < 1e-4
    assert min(one["actor/grad_norm"] for one in metrics[1:]) > 0


def check_equal(found: list[dict], expected: list[dict], limit: float = 1e-4) -> None:
    """Every metric of every step, but those of time, to `limit` of the larger of itself and 1."""
    for step, (one, other) in enumerate(zip(found, expected, strict=True), 1):
        names = [name for name, value in other.items() if isinstance(value, float | int) and not name.startswith(TIMED)]
        assert len(names) > 50 and set(names) <= set(one)
        for name in names:
            assert one[name] == pytest.approx(other[name], rel=limit, abs=limit), (step, name)


@pytest.mark.nightly
def test_a_job_that_was_begun_again_has_the_metrics_of_one_that_was_not(tmp_path):
    """The rehearsal's samples depend on weights, prompt and number alone: what differs is the order in which sums are made."""
    lost = check_losses(tmp_path / "lost", {"AgentLoopWorker": VICTIMS["AgentLoopWorker"]}, every=3)
    calm = subprocess.run(
        command(tmp_path / "calm", given=(*SMALL, f"trainer.total_training_steps={len(lost)}")), timeout=LIMIT
    )
    assert calm.returncode == 0
    lines = (tmp_path / "calm" / "verl-metrics.jsonl").read_text().splitlines()
    check_equal(lost, [json.loads(line)["data"] for line in lines])


@pytest.mark.nightly
def test_a_job_ends_on_the_nodes_that_are_left(tmp_path):
    """The lost node is not given back: one worker reads what two wrote, and its probabilities are those of its server."""
    metrics = check_losses(tmp_path / "out", {"raylet": VICTIMS["raylet"]}, "--min-nodes", "1")
    said = (tmp_path / "out" / "verl.log").read_text()
    assert "1 of 2 are there, the job runs on 1" in said
    written = {path.name for path in (tmp_path / "out" / "checkpoints").glob("global_step_*/actor/model_world_size_*")}
    assert {"model_world_size_2_rank_1.pt", "model_world_size_1_rank_0.pt"} <= written
    assert max(one["training/rollout_probs_diff_max"] for one in metrics) < 1e-4
    assert min(one["actor/grad_norm"] for one in metrics[1:]) > 0
