"""Which sandbox runs programs, chosen at the start of a run: proven by attempt, and refused where it does not hold."""

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
from fairlen.verify.execution import Execution, Limits, Sandbox, find_tool
from fairlen.verify.process import LocalSandbox, supervise
from fairlen.verify.remote import REMOTE_SLOTS, RemoteSandbox


class HostSandbox(LocalSandbox):
    """Runs programs as our own user, without containment, each in a temporary folder: for `--unsafe-exec-on-host` only.

    Time, memory and output are limited, which stops accidents; threads and processes are not, as the limit would count all of
    ours. A program that means harm can read, change and send whatever our user can. Not for training: what a model is rewarded
    for, it finds.
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
"""Of probes. Generous in time: the machine may be busy."""
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
    """Why honest programs do not run, or empty."""
    execution = await sandbox.run(HONEST, b"stressed\n", LIMITS)
    if execution.status == "ok" and execution.stdout == b"desserts\n":
        return ""
    return f"an honest program {describe(execution)}"


async def find_escapes(sandbox: Sandbox) -> list[str]:
    """Return what a program could do that it must not, by attempt; empty for a sandbox that holds."""
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
        return [f"the probe {describe(execution)}"]


def describe(execution: Execution) -> str:
    """How it ended, and its last words."""
    return f"ended with {execution.status!r}: {execution.stderr.decode('utf-8', 'replace').strip()[-500:]}"


REMEDY = (
    "Programs are verified only where they are contained. Do one of these:\n"
    "  - install bubblewrap 0.8 or later: apt-get install bubblewrap\n"
    "  - let users make namespaces, if bubblewrap is installed: on Ubuntu 24.04 AppArmor forbids it "
    "(sysctl kernel.apparmor_restrict_unprivileged_userns=0), on others sysctl user.max_user_namespaces=10000; "
    "a Docker container needs --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined\n"
    "  - run a SandboxFusion-compatible service and give its URL: --sandbox http://host:8080\n"
    "  - or accept that programs written by a model can read, change and send whatever you can: --unsafe-exec-on-host"
)


def open_sandbox(choice: str = "auto", unsafe_exec_on_host: bool = False, slots: int = 0) -> Sandbox:
    """The sandbox of a run: "auto" or "bubblewrap", or the http(s) URL of a SandboxFusion-compatible service.

    `slots`: programs at a time; 0 is one for each core, and 32 at a service.

    Takes about a second, in which it runs an honest program and tries to escape. A service is only asked to run the honest
    one: how it contains programs is its own affair.

    Raises ValueError, with what to do, where the sandbox is missing, does not run programs, or does not hold them.
    """
    if unsafe_exec_on_host:
        if choice != "auto":
            raise ValueError(f"sandbox={choice!r} with unsafe_exec_on_host: choose one of the two")
        return HostSandbox(slots)
    if choice.startswith(("http://", "https://")):
        remote = RemoteSandbox(choice, slots or REMOTE_SLOTS)
        return admit(remote, run_apart(find_unfit(remote)), "Check the URL, and that the service runs `python`.")
    if choice not in ("auto", "bubblewrap"):
        raise ValueError(
            f"sandbox={choice!r}: give auto, bubblewrap, or the URL of a service such as http://sandbox:8080"
        )
    try:
        sandbox = Bubblewrap(slots)
    except ValueError as error:
        raise ValueError(f"sandbox={choice!r}: {error}\n{REMEDY}") from None
    unfit = run_apart(find_unfit(sandbox))
    escapes = [] if unfit else run_apart(find_escapes(sandbox))
    return admit(sandbox, unfit or "; ".join(escapes), REMEDY)


def admit(sandbox: Sandbox, complaint: str, remedy: str) -> Sandbox:
    """The sandbox, or ValueError with the complaint and the remedy."""
    if complaint:
        raise ValueError(f"sandbox={sandbox.name!r}: {complaint}\n{remedy}")
    return sandbox


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, whether or not this thread has an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
