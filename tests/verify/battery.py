"""Runs the programs of a kind in the sandbox as another user, beside bait, and says what became of all of them.

python battery.py UID < request, where UID -1 keeps the user, prints results as JSON. Everything is imported before the user
changes, as the checkout may not be readable for it.
"""

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from programs import ENDLESS, HONEST, HOSTILE, build_program

from fairlen.verify.execution import Execution, Limits, failed
from fairlen.verify.process import Sandbox
from fairlen.verify.program import ProgramTests, grade_code, with_prelude
from fairlen.verify.sandbox import open_sandbox

AT_A_TIME = 6
KILLED = ("busy_loop", "sleep_for_ever", "floods_stdout")
THREADS = """
import threading, time
stop = threading.Event()
threading.stack_size(1 << 20)
for _ in range(29): threading.Thread(target=stop.wait).start()
time.sleep(1.0)
print(threading.active_count())
stop.set()
"""
AS_FIRST_PROCESS = (
    "unshare", *(() if os.geteuid() == 0 else ("--user", "--map-current-user")), "--pid", "--fork", "--mount-proc",
)  # fmt: skip
"""A command whose program is the first process of a namespace."""


class Recorder:
    """The sandbox with limits of its own, whose first runs fail, as machines do: counts runs, and keeps the last one."""

    name = "recorder"

    def __init__(self, sandbox: Sandbox, failures: int = 0, **limits: Any) -> None:
        self.sandbox, self.failures, self.limits = sandbox, failures, limits
        self.runs, self.last = 0, failed("nothing has run")

    def describe(self) -> dict[str, Any]:
        return self.sandbox.describe()

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        self.runs += 1
        is_failing = self.runs <= self.failures
        limits = replace(limits, **self.limits)
        self.last = failed("no room left") if is_failing else await self.sandbox.run(program, stdin, limits)
        return self.last


async def run_one(sandbox: Sandbox, code: str, test: tuple[str, str], limits: dict[str, Any]) -> dict[str, Any]:
    recorder = Recorder(sandbox, **limits)
    verdict = await grade_code(recorder, code, ProgramTests((test,)))
    last = recorder.last
    return {
        "verdict": verdict, "status": last.status, "exit_code": last.exit_code,
        "said": [line for line in last.stdout.decode("utf-8", "replace").splitlines() if "ESCAPED" in line],
        "stdout": len(last.stdout), "stderr": len(last.stderr), "end": last.stdout[-500:].decode("utf-8", "replace"),
    }  # fmt: skip


def choose_work(kind: str, facts: dict[str, Any]) -> tuple[dict[str, tuple[str, tuple[str, str]]], dict[str, Any]]:
    """Code and its test by name, and limits of all of them."""
    if kind in ("hostile", "killed"):
        test = ("1\n", f"answer-{facts['secret']}")
        programs = {name: (build_program(name, facts), test) for name in (HOSTILE if kind == "hostile" else KILLED)}
        return programs, {"output_bytes": 1 << 20, "memory_mib": 256}
    if kind == "parallel":
        return {str(number): (THREADS, ("", "30")) for number in range(AT_A_TIME)}, {"processes": 32}
    return {name: (code, (given, output)) for name, (code, given, output) in HONEST.items()}, {}


async def run_all(kind: str, facts: dict[str, Any], file_bytes: int) -> dict[str, Any]:
    sandbox = open_sandbox(slots=AT_A_TIME)
    work, limits = choose_work(kind, facts | {"parent": os.getpid()})
    # a second for programs that go on until they are stopped; the others end by themselves, on busy machines later
    jobs = (
        run_one(sandbox, *job, limits | {"file_bytes": file_bytes, "seconds": 1.0 if name in ENDLESS else 30.0})
        for name, job in work.items()
    )
    return {"sandbox": sandbox.describe(), "programs": dict(zip(work, await asyncio.gather(*jobs), strict=True))}


def main() -> None:
    uid, request = int(sys.argv[1]), json.load(sys.stdin)
    with_prelude("")
    if uid >= 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    os.chdir("/")
    results = asyncio.run(run_all(**request))
    time.sleep(0.2)
    print(json.dumps(results | {"pid": os.getpid(), "zombies": count_zombies()}))


def run_battery(kind: str, uid: int = -1, within: Sequence[str] = ()) -> dict[str, Any]:
    """What `main` prints, and `harm`: what happened to the bait, and what was left behind half a second later."""
    file_bytes = (8 << 20) + 4096 * (1 + secrets.randbelow(1 << 10))
    with laid_bait() as (facts, find_bites):
        done = subprocess.run(
            [*within, sys.executable, __file__, str(uid)],
            input=json.dumps({"kind": kind, "facts": facts, "file_bytes": file_bytes}), capture_output=True, text=True,
            timeout=300, check=False, env=dict(os.environ, FAIRLEN_TOKEN=facts["secret"]),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        time.sleep(0.5)
        harm = [*find_bites(), *find_processes(file_bytes), *find_files(facts["secret"])]
    return json.loads(done.stdout) | {"harm": harm}


@contextmanager
def laid_bait() -> Iterator[tuple[dict[str, Any], Callable[[], list[str]]]]:
    """A file that all may change, four listeners, and a process with a secret: facts on where they are, for the programs, and
    what happened to them, whatever a program said."""
    secret = f"fairlen{secrets.token_hex(8)}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fairlen-bait-")))
        folder.chmod(0o777)
        canary = folder / "canary"
        canary.write_text("canary")
        canary.chmod(0o666)
        before = canary.stat()
        listeners = tuple(open_listeners(stack, str(folder / "socket"), secret))
        (folder / "socket").chmod(0o777)
        command = ["/bin/sh", "-c", "read line", secret]
        victim = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, env={"SECRET": secret}))
        stack.callback(victim.kill)
        (_, tcp), (_, udp) = (listener.getsockname() for listener in listeners[:2])

        def find_bites() -> list[str]:
            is_whole = canary.is_file() and canary.stat() == before and canary.read_text() == "canary"
            bites = [] if is_whole else ["changed a file of the host"]
            bites += [] if victim.poll() is None else ["killed a process of the host"]
            return bites + ["reached a socket of the host" for listener in listeners if is_reached(listener)]

        facts = {
            "secret": secret, "victim": victim.pid, "folder": str(folder), "canary": str(canary), "unix": str(folder / "socket"),
            "abstract": secret, "tcp": tcp, "udp": udp,
        }  # fmt: skip
        yield facts, find_bites


def open_listeners(stack: ExitStack, path: str, abstract: str) -> Iterator[socket.socket]:
    """TCP, UDP, a Unix socket at `path` and an abstract one; none of them blocks."""
    for family, kind, address in (
        (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
        (socket.AF_UNIX, socket.SOCK_STREAM, path),
        (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{abstract}"),
    ):
        listener = stack.enter_context(socket.socket(family, kind))
        listener.bind(address)
        listener.setblocking(False)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        yield listener


def is_reached(listener: socket.socket) -> bool:
    try:
        if listener.type == socket.SOCK_DGRAM:
            listener.recv(16)
        else:
            listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def find_processes(file_bytes: int) -> list[str]:
    """Commands of sandboxes that were started with this size of the private folder, which marks them."""
    commands = (one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"]))
    return [" ".join(words) for words in commands if {"--size", str(file_bytes)} <= {*words}]


def count_zombies() -> int:
    """Processes that have ended and that nobody has waited for."""
    return sum(one.info["status"] == psutil.STATUS_ZOMBIE for one in psutil.process_iter(["status"]))


def find_files(secret: str) -> list[str]:
    folders = [Path(name) for name in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/")]
    return [str(path) for folder in folders if folder.is_dir() for path in folder.iterdir() if secret in path.name]


if __name__ == "__main__":
    main()
