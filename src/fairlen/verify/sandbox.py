"""The sandbox that runs programs, opened at the start of a run: proven by attempt, and refused where it does not hold."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits, find_tool
from fairlen.verify.process import Sandbox, supervise


class HostSandbox(Sandbox):
    """Runs programs as our own user, without containment, each in a temporary folder: for `--unsafe-exec-on-host` only.

    Limits of time, memory and output stop accidents; threads and processes are unlimited. A malicious program can read, change
    and send whatever our user can, and a model finds whatever is rewarded: not for training.
    """

    name = "host"

    def __init__(self, slots: int = 0) -> None:
        super().__init__(slots)
        self.dies_with_us = (find_tool("setpriv", "util-linux"), "--pdeathsig", "KILL")

    async def _run(self, bound: Sequence[str], program: bytes, stdin: bytes, limits: Limits) -> Execution:
        folder = tempfile.mkdtemp(prefix="fairlen-")
        try:
            file = Path(folder) / "program.py"
            file.write_bytes(program)
            command = [*bound, *self.dies_with_us, *self.interpreter.command(str(file), limits, processes=0)]
            environment = self.interpreter.environment() | {"HOME": folder}
            return await supervise(command, stdin, limits, environment, folder=folder)
        finally:  # by a process of its own: there may be a hundred thousand files
            await supervise(["rm", "-rf", folder], b"", Limits(seconds=60.0), {})


LIMITS = Limits(seconds=20.0, cpu_seconds=20, memory_mib=512, processes=16, file_bytes=1 << 20)
"""Limits of probes, generous in time for busy machines."""
HONEST = """
import sys, threading
word = sys.stdin.buffer.readline().decode().strip()
results = []
threading.stack_size(64 << 20)
thread = threading.Thread(target=lambda: results.append(word[::-1]))
thread.start()
thread.join()
with open("note.txt", "w") as file:
    file.write(results[0])
print(open("note.txt").read())
"""
HOSTILE = """
import ctypes, json, os, socket, sys
facts = json.loads(sys.stdin.read())
done = []

def attempt(name, action):
    try:
        if action() is not False:
            done.append(name)
    except BaseException:
        pass

def write_to(folder):
    path = os.path.join(folder, facts["name"])
    open(path, "w").close()
    os.remove(path)

def fork():
    if os.fork() == 0:
        os._exit(0)

def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(number, *arguments) >= 0

def fill(size):
    with open("filler", "wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    os.remove("filler")

attempt("reads /etc/passwd", lambda: open("/etc/passwd").read())
attempt("reads files of the host", lambda: open(facts["canary"]).read())
attempt("changes files of the host", lambda: open(facts["canary"], "r+").write("x"))
attempt("connects over TCP", lambda: socket.create_connection(("127.0.0.1", facts["port"]), timeout=2).close())
for folder in ("/", "/box", "/usr", "/usr/local", "/dev", "/dev/shm", "/var/tmp", "/run", "/proc/sys/kernel"):
    attempt(f"writes to {folder}", lambda: write_to(folder))
for path in ("core_pattern", "sem", "ns_last_pid", "modprobe"):
    attempt(f"opens kernel.{path} for writing", lambda: open(f"/proc/sys/kernel/{path}", "r+").close())
attempt("starts processes", fork)
attempt("makes namespaces", lambda: call(272, 0x10000000))
attempt("takes more memory than allowed", lambda: bytearray(1 << 30))
attempt("writes more files than allowed", lambda: fill(4 << 20))
attempt("is root", lambda: os.geteuid() == 0 or os.setuid(0) is None)
attempt("has inherited descriptors", lambda: len(os.listdir("/proc/self/fd")) > 4)
attempt("sees processes of the host", lambda: {n for n in os.listdir("/proc") if n.isdigit()} != {str(os.getpid())})
print(json.dumps(done))
"""


async def find_unfit(sandbox: Sandbox) -> str:
    execution = await sandbox.run(HONEST, b"stressed\n", LIMITS)
    if execution.status == "ok" and execution.stdout == b"desserts\n":
        return ""
    return f"an honest program {show_ending(execution)}"


async def find_escapes(sandbox: Sandbox) -> list[str]:
    with (
        tempfile.NamedTemporaryFile(prefix="fairlen-probe-") as canary,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        os.chmod(canary.name, 0o666)
        facts = {"canary": canary.name, "port": server.getsockname()[1], "name": f"fairlen{secrets.token_hex(8)}"}
        execution = await sandbox.run(HOSTILE, json.dumps(facts).encode(), LIMITS)
    try:
        return [f"a program {what}" for what in json.loads(execution.stdout)]
    except ValueError:
        return [f"the probe {show_ending(execution)}"]


def show_ending(execution: Execution) -> str:
    return f"ended with {execution.status!r}: {execution.stderr.decode('utf-8', 'replace').strip()[-500:]}"


REMEDY = (
    "Programs are verified only where they are contained. Do one of these:\n"
    "  - install bubblewrap 0.8 or later: apt-get install bubblewrap\n"
    "  - let users make namespaces, if bubblewrap is installed: on Ubuntu 24.04 AppArmor forbids it "
    "(sysctl kernel.apparmor_restrict_unprivileged_userns=0), on others sysctl user.max_user_namespaces=10000; "
    "a Docker container needs --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined\n"
    "  - or accept that programs written by a model can read, change and send whatever you can: --unsafe-exec-on-host"
)


def open_sandbox(unsafe_exec_on_host: bool = False, slots: int = 0) -> Sandbox:
    """Open bubblewrap, and run in it an honest program and one that tries to escape: about a second. `slots`: programs at a time;
    0 is one for each core. Raises ValueError, with a remedy, where it is missing, fails, or does not hold."""
    if unsafe_exec_on_host:
        return HostSandbox(slots)
    try:
        sandbox = Bubblewrap(slots)
    except ValueError as error:
        raise ValueError(f"bubblewrap: {error}\n{REMEDY}") from None
    if complaint := run_apart(find_unfit(sandbox)) or "; ".join(run_apart(find_escapes(sandbox))):
        raise ValueError(f"bubblewrap: {complaint}\n{REMEDY}")
    return sandbox


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread of its own, where no event loop runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
