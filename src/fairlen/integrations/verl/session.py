"""Run a job of verl as a session of its own (setsid), log and summarise its output, and end all of its processes with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from fairlen.console import log, plural
from fairlen.files.folders import open_to_append
from fairlen.files.foreign import read_file_bytes
from fairlen.secrets import hide

PATIENCE = 20.0
"""Seconds that the first process gets to end by itself, and with it those that it has started."""
ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the launcher, and the job with it."""
NODE, DEATH = "fairlen: node ", "fairlen: died: "
"""Prefixes of the job's lines on a node's versions, and on a process that died."""
DIED = 75
"""Exit code of a job that lost a process (EX_TEMPFAIL)."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"\bstep:(\d+)\b")
METRIC = re.compile(r" - ([^\s:]+):(?:np\.\w+\()?([-+.\deinfa]+)\)?(?=$|\s)")
SHOWN = (
    ("accuracy/mean", "accuracy {:.3f}"), ("reward/mean", "reward {:.3f}"), ("length/mean", "length {:.1f}"),
    ("timing_s/step", "{:.1f} s"),
)  # fmt: skip
VALIDATED = re.compile(r"val-core/.*/mean@\d+$")
LAST_LINES = 12
"""Of the log, where a job fails."""


def run_session(command: Sequence[str], env: dict[str, str], folder: Path) -> int:
    """Run a job to its end, keep what it prints in verl.log and show a summary of it; return its exit code."""
    path, summary = folder / "verl.log", JobSummary()
    log(f"starting verl; its whole output: {path}")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    threading.Thread(target=end_orphans, args=(process,), daemon=True).start()
    with stopped_by_signals(), ending(process), open_to_append(path) as file:
        for line in process.stdout or ():
            file.write(hide(line).encode())
            summary.read(line)
        code = process.wait()
    if code < 0:
        summary.death = summary.death or f"the job's first process (signal {-code})"
    summary.finish(folder, code)
    return code


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise SystemExit at the signals that end the launcher, unless they are ignored, as under nohup."""
    chosen = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in chosen}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(number: int, frame: Any) -> None:
    """Raise SystemExit with the exit code of a signal."""
    raise SystemExit(128 + number)


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """End the job with all of its processes when the block is left, by Ctrl-C or a signal too; a second one kills at once."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted, the job was ended") from None
    finally:
        try:
            process.terminate()
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            kill_session(process)


def end_orphans(process: subprocess.Popen[str]) -> None:
    """End what the first process leaves behind: it may hold the output open."""
    process.wait()
    kill_session(process)


def kill_session(process: subprocess.Popen[str]) -> None:
    """Kill all processes that a job has on this machine: they are of its first one's session, Ray's workers too."""
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(one.pid) == process.pid:
                one.kill()


class JobSummary:
    """Shows what matters of a job's lines, and keeps what its end needs."""

    def __init__(self) -> None:
        self.death, self.steps, self.shown = "", 0, -1
        self.validated: dict[int, float] = {}
        """Accuracy by step."""

    def read(self, line: str) -> None:
        text = COLOURS.sub("", line).rstrip()
        if DEATH in text:
            self.death = self.death or text.partition(DEATH)[2]
        elif NODE in text:
            log(NODE.removeprefix("fairlen: ") + text.partition(NODE)[2])
        elif (found := STEP.search(text)) and (values := dict(METRIC.findall(text))):
            self.read_step(int(found.group(1)), {name: float(value) for name, value in values.items()})

    def read_step(self, step: int, values: dict[str, float]) -> None:
        """Show a step once: raylets of one machine each pass its line on. Data sets that it was validated on are averaged."""
        if step <= self.shown:
            return
        self.shown = step
        held_out = [value for name, value in values.items() if VALIDATED.match(name)]
        shown = [form.format(values[name]) for name, form in SHOWN if name in values]
        if held_out:
            self.validated[step] = sum(held_out) / len(held_out)
            shown.append(f"held out {self.validated[step]:.3f}")
        self.steps = max(self.steps, step)
        log(f"step {step}: {', '.join(shown)}")

    def finish(self, folder: Path, code: int) -> None:
        """Show how the job has ended, and what to run next; of one that failed by itself the end of its log."""
        if len(self.validated) > 1:
            (first, before), (last, after) = min(self.validated.items()), max(self.validated.items())
            log(f"accuracy on held-out problems: {before:.1%} at step {first}, {after:.1%} at step {last}")
        path = folder / "verl.log"
        if self.death:
            log(f"fairlen verl: died: {self.death}; the job has ended with it", sys.stderr)
        if code and not self.death and path.is_file():
            log("\n".join(read_file_bytes(path).decode(errors="replace").splitlines()[-LAST_LINES:]))
        log(f"{self.steps} {plural('step', self.steps)}; run folder: {folder}; all that verl said: {path}")
