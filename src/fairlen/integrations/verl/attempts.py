"""A job from its beginning to its end: begun again from its last checkpoint where it has lost a process or stood still."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fairlen.console import log
from fairlen.integrations.verl.summary import Summary
from fairlen.integrations.verl.watch import TIMED_OUT, run_watched, stopping

LATEST = Path("checkpoints") / "latest_checkpointed_iteration.txt"
"""Written by verl when a checkpoint is whole."""


def run_attempts(
    command: Sequence[str],
    env: dict[str, str],
    folder: Path,
    restarts: int,
    limits: tuple[float, float],
    is_rehearsal: bool,
) -> int:
    """Run a job until it ends, or until it has failed once more than it may be begun again; its exit code.

    `limits`: seconds to the first step, and for every further one. What Ray writes in a rehearsal is gone after it.
    """
    summary, code = Summary(), 0
    log(f"starting verl; all that it says: {folder / 'verl.log'}")
    for left in range(restarts, -1, -1):
        done = summary.steps
        with stopping(), tempfile.TemporaryDirectory(prefix="fairlen-", ignore_cleanup_errors=True) as scratch:
            variables = env | ({"RAY_TMPDIR": scratch} if is_rehearsal else {})
            code = run_watched(command, variables, folder / "verl.log", *limits, summary)
        may_pass = bool(summary.death) or code == TIMED_OUT or summary.steps > done
        if code == 0 or not left or not may_pass:
            break
        where = (
            f"step {last_checkpoint(folder)}" if last_checkpoint(folder) else "the start, there is no checkpoint yet"
        )
        died = f"{summary.death} has died" if summary.death else f"exit code {code}"
        log(f"fairlen verl: {died}; begun again from {where}, {left - 1} of {restarts} times left", sys.stderr)
        summary.go_on(last_checkpoint(folder))
    summary.finish(folder, code)
    return code


def last_checkpoint(folder: Path) -> int:
    """Return the step of the last whole checkpoint; 0 where there is none."""
    path = folder / LATEST
    return int(path.read_text()) if path.is_file() else 0
