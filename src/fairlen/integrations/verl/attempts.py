"""A job from its beginning to its end: begun again from its last checkpoint where it has lost a process or stood still."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlen.console import log
from fairlen.files.folders import write_file
from fairlen.integrations.verl.cluster import Cluster, starting_cluster
from fairlen.integrations.verl.summary import Summary
from fairlen.integrations.verl.watch import TIMED_OUT, run_watched, stopping

LATEST = Path("checkpoints") / "latest_checkpointed_iteration.txt"
"""Written by verl when a checkpoint is whole."""


@dataclass(frozen=True)
class Attempts:
    """How a job is begun, and how often."""

    restarts: int
    start_limit: float
    step_limit: float
    local_nodes: int
    """Raylets to start on this machine; 0 where Ray is somebody else's."""
    min_nodes: int
    is_rehearsal: bool


def run_attempts(command: Sequence[str], env: dict[str, str], folder: Path, plan: Attempts) -> int:
    """Run a job until it ends, or until it has failed once more than it may be begun again; its exit code."""
    summary, nodes, kept, code = Summary(), plan.local_nodes, "", 0
    log(f"starting verl; all that it says: {folder / 'verl.log'}")
    for left in range(plan.restarts, -1, -1):
        done = summary.steps
        with placed(plan, nodes, env) as (variables, cluster):
            limits, find_death = (plan.start_limit, plan.step_limit), cluster.find_death if cluster else str
            code = run_watched(command, variables, folder / "verl.log", *limits, summary, find_death)
            nodes = max(nodes - len(cluster.dead), plan.min_nodes) if cluster and plan.min_nodes else nodes
        may_pass = bool(summary.death) or code == TIMED_OUT or summary.steps > done
        if code == 0 or not left or not may_pass:
            break
        kept = keep_metrics(folder, kept)
        where = (
            f"step {last_checkpoint(folder)}" if last_checkpoint(folder) else "the start, there is no checkpoint yet"
        )
        died = f"{summary.death} has died" if summary.death else f"exit code {code}"
        log(f"fairlen verl: {died}; begun again from {where}, {left - 1} of {plan.restarts} times left", sys.stderr)
        summary.go_on(last_checkpoint(folder))
    join_metrics(folder, kept)
    summary.finish(folder, code)
    return code


@contextlib.contextmanager
def placed(plan: Attempts, nodes: int, env: dict[str, str]) -> Iterator[tuple[dict[str, str], Cluster | None]]:
    """Yield the variables of a job's first process, and the cluster where one is started for it; its files go with it."""
    with stopping(), tempfile.TemporaryDirectory(prefix="fairlen-", ignore_cleanup_errors=True) as scratch:
        if not nodes:
            yield env | ({"RAY_TMPDIR": scratch} if plan.is_rehearsal else {}), None
            return
        with starting_cluster(nodes, 1, Path(scratch), env) as cluster:
            yield cluster.variables, cluster


def last_checkpoint(folder: Path) -> int:
    """Return the step of the last whole checkpoint; 0 where there is none."""
    path = folder / LATEST
    return int(path.read_text()) if path.is_file() else 0


def keep_metrics(folder: Path, before: str) -> str:
    """Return the lines of metrics up to the checkpoint that a job goes on from; verl begins its file anew."""
    path, last, kept = folder / "verl-metrics.jsonl", last_checkpoint(folder), before
    for line in path.read_text().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError):  # the last one may be torn
            kept += f"{line}\n" if json.loads(line)["step"] <= last else ""
    return kept


def join_metrics(folder: Path, kept: str) -> None:
    """Put what was kept before what the last attempt has written."""
    path = folder / "verl-metrics.jsonl"
    if kept:
        write_file(path, kept + (path.read_text() if path.is_file() else ""))
