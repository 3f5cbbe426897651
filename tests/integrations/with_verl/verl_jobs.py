"""Whole jobs of verl, started as a user starts them, ended in any case; and jobs that lose a process on their way."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.rollouts import Response, Rollouts

OUTSIDE = f"grpo+{Path(__file__).parents[2] / 'methods' / 'outside.py'}:RunningLength"
"""A method with a stage that is no part of fairlen, and that carries state."""
SETTINGS = {"eqlen+grpo": "sampling.streams=4"} | dict.fromkeys(
    ("dapo+balanced", "dapo+balanced_turns", OUTSIDE), "sampling.n=8"
)
SERVER = "CpuServer"
"""A rollout server, as Ray shows it among processes."""
DYING = 10.0
"""Seconds that a process may take to die."""
HARD_LIMIT = 900.0
"""Seconds for a job, on a machine that others use too."""


def command(names: str, out: Path, *given: str, flags: tuple[str, ...] = ()) -> list[str]:
    return [
        sys.executable, "-m", "fairlen", "verl", "--method", names, "--set", SETTINGS[names], "--cpu", "--out", str(out),
        *flags, "--", *given,
    ]  # fmt: skip


class Listeners:
    """What the processes of jobs listen on: looked for as long as a job lasts, by a variable that all of them inherit."""

    GLANCE = 0.5
    """Seconds between two looks."""

    def __init__(self) -> None:
        self.mark = f"FAIRLEN_WATCHED_JOB={uuid.uuid4()}"
        self.ended = threading.Event()
        self.found: dict[tuple[str, int], str] = {}
        """Address and port with the command of the process."""

    def look(self) -> None:
        """Note each TCP socket that listens, and each UDP socket, which any peer can send to."""
        for one in psutil.net_connections("inet"):
            if one.pid and one.laddr and not one.raddr and one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                with suppress(OSError, psutil.Error):
                    if self.mark.encode() in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0"):
                        self.found[one.laddr.ip, one.laddr.port] = " ".join(psutil.Process(one.pid).cmdline())[:100]

    def watch(self) -> None:
        """Look until the job has ended."""
        while not self.ended.wait(self.GLANCE):
            self.look()

    def beyond_loopback(self) -> dict[tuple[str, int], str]:
        """Those that other machines reach."""
        ours = {place: ip_address(place[0]) for place in self.found}
        plain = {place: getattr(one, "ipv4_mapped", None) or one for place, one in ours.items()}
        return {place: self.found[place] for place, one in plain.items() if not one.is_loopback}


LISTENERS: dict[Path, Listeners] = {}
"""Of each job that was started, by its folder."""


@contextmanager
def started(
    names: str, out: Path, *given: str, modules: str = "", flags: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[str]]:
    """A job on its way, ended in any case: the launcher takes everything that it has started with it.

    `modules` of this folder are imported in every process.
    """
    env = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": modules,
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        ),
    }
    watched = LISTENERS[out] = Listeners()
    env |= dict([watched.mark.split("=")])
    job = subprocess.Popen(
        command(names, out, *given, flags=flags), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    threading.Thread(target=watched.watch, daemon=True).start()
    try:
        yield job
    finally:
        watched.ended.set()
        job.terminate()
        job.wait(90)


def read_metrics(out: Path) -> list[dict]:
    """One dict a rollout batch."""
    return [json.loads(line)["data"] for line in (out / "verl-metrics.jsonl").read_text().splitlines()]


def run(
    names: str,
    out: Path,
    steps: int,
    modules: str = "",
    given: tuple[str, ...] = (),
    done: int = 0,
    flags: tuple[str, ...] = (),
) -> list[dict]:
    """Runs a job from `done` steps to its end; its metrics, one dict a rollout batch."""
    more = (f"trainer.total_training_steps={steps}",)
    with started(names, out, *more, *given, modules=modules, flags=flags) as job:
        printed, _ = job.communicate(timeout=HARD_LIMIT)
    assert job.returncode == 0, printed[-6000:]
    metrics = read_metrics(out)
    assert len(metrics) == steps - done
    return metrics


def records(folder: Path) -> list[tuple[list[dict], list[dict]]]:
    """Responses and segments of each rollout batch in a run folder."""
    kinds = (sorted((folder / "records").glob(f"{kind}-*.parquet")) for kind in ("responses", "segments"))
    return [
        (pq.read_table(one).to_pylist(), pq.read_table(other).to_pylist()) for one, other in zip(*kinds, strict=True)
    ]


def plan_by_segment(names: str, rollouts: Rollouts) -> dict[tuple[int, int], tuple[float, float]]:
    """What fairlen's own trainer would train: (advantage, weight) by (response, end of the segment)."""
    method, found = compose(names, [SETTINGS[names]]), {}
    for update in updates(method.score(rollouts)):
        plan = method.weigh(update)
        for row, weight, advantage in zip(plan.rows, plan.weight, plan.advantage, strict=True):
            segment = rollouts.segments[row]
            stop = segment.stop - rollouts.responses[segment.response].num_prompt
            found[segment.response, stop] = advantage, weight
    return found


FIELDS = (
    "prompt", "num_prompt", "finish", "seed", "stream", "track", "round", "inherited", "outcome", "status", "active",
)  # fmt: skip


def read_responses(rows: list[dict]) -> tuple[Response, ...]:
    """The responses of a recorded rollout batch, in the order that samplers give them."""
    rows = sorted(rows, key=lambda row: (row["prompt"], row["stream"], row["track"]))
    return tuple(
        Response(
            token_ids=tuple(row["token_ids"]),
            logprobs=tuple(row["logprobs"]),
            turns=tuple(zip(row["turns"][::2], row["turns"][1::2], strict=True)),
            **{name: row[name] for name in FIELDS},
        )
        for row in rows
    )


def count_planned(names: str, recorded: list[tuple[list[dict], list[dict]]], limit: int) -> int:
    """Segments that trained in recorded rollout batches, whose advantages and weights have to be those of our own trainer."""
    trained = 0
    for rows, segments in recorded:
        responses, method = read_responses(rows), compose(names, [SETTINGS[names]])
        expected = plan_by_segment(names, Rollouts(responses, method.sampling.cut(responses), limit))
        number = {response.seed: place for place, response in enumerate(responses)}
        for segment in segments:
            row = rows[segment["response"]]
            ours = expected.get((number[row["seed"]], segment["stop"] - row["num_prompt"]), (0.0, 0.0))
            weight = segment["weight"] or [0.0]
            assert len(weight) == 1 and (segment["advantage"], weight[0]) == pytest.approx(ours, rel=1e-9, abs=1e-15)
            trained += bool(segment["weight"])
    return trained


@dataclass(frozen=True)
class Killed:
    """A job one of whose processes was killed while it ran."""

    metrics: list[dict]
    """Of the steps before."""
    code: int
    printed: str
    """After the kill."""
    seconds: float
    """From the kill to the end."""
    left: list[str]
    """Processes and folders of the job that outlived it."""


def wait_until_busy(process: psutil.Process) -> None:
    """Returns when a rollout server generates: its requests are on their way, and whoever made them waits for an answer."""
    begun = process.cpu_times().user
    while process.cpu_times().user < begun + 0.2:
        time.sleep(0.05)


def run_and_kill(
    names: str, out: Path, steps: int, victim: str, modules: str = "", given: tuple[str, ...] = ()
) -> Killed:
    """Runs a job, kills one of its processes while it generates after some steps, and waits for the job's end."""
    more = ("trainer.total_training_steps=400", *given)
    with started(names, out, *more, modules=modules) as job:
        before = ""
        for line in job.stdout or ():
            before += line
            if line.startswith(f"step {steps}:"):
                break
        family = psutil.Process(job.pid).children(recursive=True)
        commands = {one: " ".join(one.cmdline()) for one in family}
        found = {name: [one for one in family if commands[one].startswith(f"ray::{name}")] for name in (victim, SERVER)}
        assert all(found.values()), before[-6000:]
        wait_until_busy(found[SERVER][0])
        found[victim][0].kill()
        begun = time.monotonic()
        printed, _ = job.communicate(timeout=HARD_LIMIT)
        seconds = time.monotonic() - begun
    psutil.wait_procs(family, timeout=DYING)
    left = [commands[one] for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    scratch = {found for text in commands.values() for found in re.findall(r"--session_dir=(\S+?)/ray/session", text)}
    assert scratch, "no process names Ray's folder"
    left += [folder for folder in scratch if Path(folder).exists()]
    return Killed(read_metrics(out)[:steps], job.returncode, printed, seconds, left)
