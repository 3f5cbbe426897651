"""SIGTERM, SIGHUP and Ctrl-C: an exit in time with a documented code, and a run that goes on as if nothing had happened."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked_runs import SMALL, Forks, Whole, alive, differences, essence, wait_until

from fairlen.train.run.checkpoint import list_checkpoints
from fairlen.train.run.faults import Interrupted, Interruption

MAX_EXIT = 60.0
"""Seconds, on a machine that is busy; what a signal has to interrupt would take a thousand."""


def arguments(whole: Whole, folder: Path, **changes) -> list[str]:
    """The run of `whole` on the command line."""
    settings = SMALL | whole.changes("fspo") | {"out": str(folder)} | changes
    flags: list[str] = []
    for name, value in settings.items():
        for one in value if isinstance(value, list) else [value]:
            flags += [f"--{'set' if name == 'overrides' else name.replace('_', '-')}", str(one)]
    return ["train", *flags]


def wait_for(log: Path, text: str, times: int = 1) -> None:
    assert wait_until(lambda: log.exists() and log.read_text().count(text) >= times, 120), log.read_text()


def stop(forks: Forks, pid: int, number: int) -> tuple[int, float]:
    """How the run ended after a signal, and after how many seconds."""
    start = time.monotonic()
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself just before: its exit code tells
        os.kill(pid, number)
    return forks.wait(), time.monotonic() - start


MOMENTS = {
    "update": (signal.SIGTERM, "doing: learn", 3, 0.15),
    "first collection": (signal.SIGTERM, "doing: collect", 1, 0.3),
    "collection": (signal.SIGINT, "doing: collect", 2, 0.6),
    "hangup": (signal.SIGHUP, "doing: collect", 2, 0.6),
    "evaluation": (signal.SIGTERM, "doing: evaluate", 2, 0.2),
    "last evaluation": (signal.SIGINT, "doing: evaluate", 3, 0.2),
}
"""The signal, the line of the log, how often it is there, and seconds after that: in the middle of it."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_a_run_that_then_goes_on(whole, tmp_path, moment):
    """Micro-batches of 0.2 s and steps of 0.02 s are what may be finished first. No other checkpoint is made before."""
    folder, log = tmp_path / "run", tmp_path / "run.log"
    number, text, times, seconds = MOMENTS[moment]
    never = {"save_every": 0, "save_every_updates": 0}
    pid = whole.forks.start(
        log, patch="slow:down", arguments=arguments(whole, folder, max_tokens_per_microbatch=60, **never)
    )
    wait_for(log, text, times)
    time.sleep(seconds)
    code, took = stop(whole.forks, pid, number)
    assert code == 128 + number and took < MAX_EXIT
    written = log.read_text()
    assert f"stopped by {number.name}; the same command with --resume --out" in written
    assert "Traceback" not in written
    assert written.count(text) == times
    done = len(re.findall(r"^rollout batch \d/\d update", written, re.M))
    # One a place: that of the last evaluation is where the one after the last update was.
    assert len(list_checkpoints(folder / "checkpoints")) == 1
    assert done == {"collection": 4, "hangup": 4, "update": 2, "evaluation": 4, "last evaluation": 8}.get(moment, 0)

    resumed = arguments(whole, folder, max_tokens_per_microbatch=60, **never)
    whole.forks.start(log, arguments=[*resumed, "--resume"])
    assert whole.forks.wait() == 0
    assert differences(essence(run_small_micro_batches(whole)), essence(folder)) == []


def run_small_micro_batches(whole: Whole) -> Path:
    """The same run, uninterrupted; micro-batches of another size round differently."""
    folder = whole.root / "small-micro-batches"
    if not folder.exists():
        assert whole.forks.run(folder, **whole.changes("fspo") | {"max_tokens_per_microbatch": 60}) == 0
    return folder


HANGING = """
import asyncio, os, time
def hangs(prompts, completions, **columns):
    if os.path.exists(__file__ + ".hang"):
        print("doing: reward", flush=True)
        time.sleep(1000)
    return [0.0]
async def waits(prompts, completions, **columns):
    if os.path.exists(__file__ + ".hang"):
        print("doing: reward", flush=True)
        await asyncio.sleep(1000)
    return [0.0]
"""


@pytest.mark.parametrize("function", ["hangs", "waits"])
def test_a_verdict_that_never_comes_does_not_keep_a_run(whole, tmp_path, function):
    path, log = tmp_path / "rewards.py", tmp_path / "run.log"
    path.write_text(HANGING)
    pid = whole.forks.start(log, arguments=arguments(whole, tmp_path / "run", rewards=[f"{path}:{function}"]))
    wait_for(log, "update 2:")
    Path(f"{path}.hang").touch()
    wait_for(log, "doing: reward")
    code, took = stop(whole.forks, pid, signal.SIGTERM)
    assert code == 143 and took < MAX_EXIT
    assert list_checkpoints(tmp_path / "run/checkpoints")


def test_a_second_signal_ends_a_run_at_once(whole, tmp_path):
    """While the second checkpoint is written, which takes as long as it takes: the first one stays, and is what counts."""
    log = tmp_path / "run.log"
    pid = whole.forks.start(log, patch="slow:disk", arguments=arguments(whole, tmp_path / "run"))
    wait_for(log, "doing: save")
    os.kill(pid, signal.SIGINT)
    wait_for(log, "SIGINT: stopping at the next update or sooner")
    assert alive(pid)
    code, took = stop(whole.forks, pid, signal.SIGTERM)
    assert code == 143 and took < MAX_EXIT
    assert [path.name for path in list_checkpoints(tmp_path / "run/checkpoints")] == ["batch-000000-update-000001-3"]


def test_a_terminal_that_closes_does_not_end_a_run_at_once():
    """The kernel and the shell both send SIGHUP. A SIGTERM after them is the first request to stop, and the next the second."""
    with Interruption() as interruption:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            interruption.check()


def test_a_hangup_that_is_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption() as interruption:
            os.kill(os.getpid(), signal.SIGHUP)
            interruption.check()
    finally:
        signal.signal(signal.SIGHUP, before)


IN_TERMINAL = """
import os, pty, sys, time
process, terminal = pty.fork()
if not process:
    os.execv(sys.executable, [sys.executable, "-m", "fairlen", *sys.argv[1:]])
seen = b""
while b"doing" not in seen and b"rollout batch 2" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
_, status = os.waitpid(process, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_writes_a_checkpoint(tmp_path):
    """Its output has nowhere to go from then on."""
    folder = tmp_path / "run"
    flags = ("--rollout-batches", "500", "--threads", "1", "--problems", "4", "--save-every", "0", "--out", str(folder))
    command = [sys.executable, "-c", IN_TERMINAL, "train", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split()[-1:] == ["129"], done.stderr
    assert len(list_checkpoints(folder / "checkpoints")) == 1
