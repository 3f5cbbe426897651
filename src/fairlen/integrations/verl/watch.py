"""A job under watch: what it prints is kept, and where it stands still it is ended with all of its processes.

Progress is a line "step:N" of verl's console logger. The job is a session of its own (setsid), by which its processes are found.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from fairlen.console import log
from fairlen.files.folders import open_to_append
from fairlen.integrations.verl.summary import DIED, STEP, Summary

TIMED_OUT = 124
"""Exit code of a job that was ended because it stood still."""
GLANCE = 1.0
"""Seconds between two looks for what has died."""
PATIENCE, LAST_PATIENCE = 20.0, 2.0
"""Seconds that the first process gets to end by itself, and then those that it has started."""
ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the launcher, and the job with it."""


def run_watched(
    command: Sequence[str],
    env: dict[str, str],
    path: Path,
    start_limit: float,
    step_limit: float,
    summary: Summary | None = None,
    find_death: Callable[[], str] = str,
) -> int:
    """Runs a command, keeps what it prints, and ends it with all of its processes where it stands still or one dies."""
    summary = summary or Summary()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, env=env, start_new_session=True, **pipes)
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=read_lines, args=(process.stdout, lines, path), daemon=True).start()
    threading.Thread(target=end_lines, args=(process, lines), daemon=True).start()
    with stopping(), ending(process):
        try:
            if stalled := watch(lines, start_limit, step_limit, summary, find_death):
                log(f"fairlen verl: {stalled}; the job was ended, its output is in {path}", sys.stderr)
                return DIED if summary.death else TIMED_OUT
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            log(
                f"fairlen verl: the job went on without output that could be kept; it was ended, see {path}", sys.stderr
            )
            return TIMED_OUT
    if code < 0:
        summary.death = summary.death or f"the job's first process (signal {-code})"
    return code


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Ends the block by SystemExit where the launcher is told to end."""
    before = {number: signal.getsignal(number) for number in ENDS}
    for number in ENDS:
        if before[number] is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ENDS:
            signal.signal(number, before[number])


@contextlib.contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends the job with all of its processes when it is left, also by Ctrl-C and by what ends the launcher."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted, the job was ended") from None
    finally:
        told: list[signal.Signals] = []  # who is told to end while it ends the job does so after that
        before = {number: signal.getsignal(number) for number in ENDS}
        for number in ENDS:
            signal.signal(number, lambda number, _: told.append(signal.Signals(number)))
        end_processes(process)
        for number in ENDS:
            signal.signal(number, before[number])
        if told and callable(before[told[0]]):
            stop(told[0], None)


def stop(number: int, frame: Any) -> None:
    """Whoever ends the launcher ends the job too."""
    raise SystemExit(128 + number)


def read_lines(stream: IO[str] | None, lines: queue.Queue[str | None], path: Path) -> None:
    """Hands on every line, then None, also where the log cannot be written: else the launcher would wait for ever."""
    try:
        with open_to_append(path) as file:
            for line in stream or ():
                file.write(line.encode())
                lines.put(line)
    finally:
        lines.put(None)


def end_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """None when the first process is long dead: what it has started may hold its output open."""
    process.wait()
    time.sleep(PATIENCE)
    lines.put(None)


def watch(
    lines: queue.Queue[str | None],
    start_limit: float,
    step_limit: float,
    summary: Summary | None = None,
    find_death: Callable[[], str] = str,
) -> str:
    """Reads lines until there are no more: nothing, or what took too long or died."""
    summary = summary or Summary()
    since, last = time.monotonic(), ""
    while True:
        limit = step_limit if last else start_limit
        if time.monotonic() > since + limit:
            return f"{f'no step after step {last}' if last else 'no first step'} within {limit:g} s"
        summary.death = summary.death or find_death()
        if summary.death:
            return f"died: {summary.death}"
        try:
            line = lines.get(timeout=GLANCE)
        except queue.Empty:
            continue
        if line is None:
            return ""
        summary.read(line)
        if (found := STEP.search(line)) and int(found.group(1)) > int(last or -1):
            since, last = time.monotonic(), found.group(1)


def end_processes(process: subprocess.Popen[str]) -> None:
    """Ends a job and whatever it has started on this machine: politely, then not."""
    family = find_processes(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    _, left = psutil.wait_procs(family | find_processes(process.pid), timeout=LAST_PATIENCE)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=PATIENCE)
    process.wait()


def find_processes(session: int) -> set[psutil.Process]:
    """The processes of a session, and those that its first process has started in others."""
    found: set[psutil.Process] = set()
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(one.pid) == session:
                found.add(one)
    with contextlib.suppress(psutil.NoSuchProcess):
        found |= set(psutil.Process(session).children(recursive=True))
    return found
