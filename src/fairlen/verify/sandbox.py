"""Which sandbox runs programs, chosen at the start of a run: proven by attempt, and refused where it does not hold."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Execution, Limits, Sandbox, failed, find_tool, read_ending
from fairlen.verify.process import LocalSandbox, supervise


class HostSandbox(LocalSandbox):
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


CUT = 1 << 20  # bytes after which SandboxFusion cuts an output in silence
MAX_BODY = 13 * CUT
"""Bytes of an answer: both outputs, of which JSON writes a byte with at most six, and the rest. More is more output than is
allowed."""
REMOTE_SLOTS = 32  # runs at a time
MAX_ATTEMPTS = 3


class FailedRequest(Exception):
    """A response of the service without a result."""


class RefusedRun(FailedRequest):
    """The service understood and refused, so that asking again cannot help."""


class RemoteSandbox:
    """Runs programs at a SandboxFusion-compatible service, which contains them as it is configured to, `slots` at a time.

    Source: bytedance/SandboxFusion, `sandbox/server/sandbox_api.py`, `sandbox/runners/types.py`. It reads outputs after the
    end, so that a program that writes more than a pipe holds ends by its clock.
    """

    name = "remote"

    def __init__(self, url: str, slots: int = REMOTE_SLOTS, patience: float = 60.0, pause: float = 0.5) -> None:
        """`url`: http(s)://host[:port][/path], with or without /run_code; ValueError where it is not one. `patience`: seconds of
        each attempt for its queue and the network. `pause`: seconds before the second attempt, twice as long before the third.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"sandbox={url!r}: give the URL of the service, such as http://sandbox:8080")
        if parts.username or parts.password:
            raise ValueError(
                "sandbox: leave user and password out of the URL, which is recorded; put a proxy in front that adds them"
            )
        path = parts.path.rstrip("/").removesuffix("/run_code") + "/run_code"
        self.url = urlunsplit(parts._replace(path=path, fragment=""))
        self.slots, self.patience, self.pause = slots, patience, pause
        # Its own threads: those of the event loop are few and wanted for other work.
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="fairlen-sandbox")

    def describe(self) -> dict[str, Any]:
        """Leaves out the URL's query, which may hold a key."""
        return {
            "sandbox": self.name, "unsafe": False, "url": self.url.partition("?")[0], "slots": self.slots,
            "contained_by": "the service",
        }  # fmt: skip

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        try:
            text = stdin.decode()
        except UnicodeDecodeError as error:
            return failed(f"{self.url}: stdin must be UTF-8: {error}")
        body = json.dumps(
            {
                "code": program.encode("utf-8", "replace").decode(), "stdin": text, "language": "python",
                "compile_timeout": limits.seconds, "run_timeout": limits.seconds, "memory_limit_MB": limits.memory_mib,
            }
        ).encode()  # fmt: skip
        reason, attempt = "", 0
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._post, body, limits)
            except (FailedRequest, OSError, HTTPException, RuntimeError) as error:  # RuntimeError: no thread starts
                reason = str(error) or type(error).__name__
                if isinstance(error, RefusedRun):
                    break
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
        return failed(f"{self.url}: {reason}; attempts: {attempt}")

    def _post(self, body: bytes, limits: Limits) -> Execution:
        """Ask once. Raises OSError, HTTPException or FailedRequest without a result; a drip of bytes ends at the deadline too."""
        timeout = limits.seconds + self.patience
        deadline, answer = time.monotonic() + timeout, bytearray()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                while part := response.read1(1 << 16):
                    answer += part
                    if len(answer) > MAX_BODY:
                        return Execution("output_limit", b"", b"", None, limits.seconds)
                    if time.monotonic() > deadline:
                        raise FailedRequest("the answer did not end in time")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (408, 425, 429) or error.code >= 500:
                    raise FailedRequest(f"HTTP {error.code}") from None
                raise RefusedRun(f"HTTP {error.code}: {error.read(500).decode('utf-8', 'replace')}") from None
        return read_answer(bytes(answer), limits)


def read_answer(body: bytes, limits: Limits) -> Execution:
    """Read a `RunCodeResponse`. Raises FailedRequest where it is none, or reports an error of the service."""
    try:
        answer = json.loads(body)
        run, status = answer.get("run_result") or {}, answer["status"]
        if status == "SandboxError" or run.get("status") not in ("Finished", "TimeLimitExceeded"):
            raise FailedRequest(f"status {status!r}, run {run.get('status')!r}: {str(answer.get('message'))[:500]}")
        stdout, stderr = (str(run.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr"))
        seconds, code = float(run.get("execution_time") or 0.0), run.get("return_code")
        if run["status"] == "TimeLimitExceeded":
            return Execution("timeout", stdout, stderr, None, seconds)
        if not isinstance(code, int):
            raise FailedRequest(f"return_code {code!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FailedRequest(f"not an answer of /run_code: {error!r}: {body[:200]!r}") from None
    most = min(CUT, limits.output_bytes)
    if len(stdout) >= most or len(stderr) >= most:
        return Execution("output_limit", stdout[:most], stderr[:most], None, seconds)
    code = code if code >= 0 else 128 - code
    return Execution(read_ending(code, stderr, seconds, limits), stdout, stderr, code, seconds)


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
    "  - run a SandboxFusion-compatible service and give its URL: --sandbox http://host:8080\n"
    "  - or accept that programs written by a model can read, change and send whatever you can: --unsafe-exec-on-host"
)


def open_sandbox(choice: str = "auto", unsafe_exec_on_host: bool = False, slots: int = 0) -> Sandbox:
    """Open "auto", "bubblewrap", or the http(s) URL of a SandboxFusion-compatible service. An honest program is run in it first
    and, on this machine, one that tries to escape: about a second. `slots`: programs at a time; 0 is one for each core, and 32
    at a service. Raises ValueError, with a remedy, where the sandbox is missing, fails, or does not hold."""
    if unsafe_exec_on_host:
        if choice != "auto":
            raise ValueError(f"sandbox={choice!r} with unsafe_exec_on_host: choose one of the two")
        return HostSandbox(slots)
    is_remote = choice.startswith(("http://", "https://"))
    if not is_remote and choice not in ("auto", "bubblewrap"):
        raise ValueError(
            f"sandbox={choice!r}: give auto, bubblewrap, or the URL of a service such as http://sandbox:8080"
        )
    if is_remote:
        sandbox, remedy = (
            RemoteSandbox(choice, slots or REMOTE_SLOTS),
            "Check the URL, and that the service runs `python`.",
        )
    else:
        try:
            sandbox, remedy = Bubblewrap(slots), REMEDY
        except ValueError as error:
            raise ValueError(f"sandbox={choice!r}: {error}\n{REMEDY}") from None
    complaint = run_apart(find_unfit(sandbox))
    if not complaint and not is_remote:
        complaint = "; ".join(run_apart(find_escapes(sandbox)))
    if complaint:
        raise ValueError(f"sandbox={sandbox.name!r}: {complaint}\n{remedy}")
    return sandbox


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a thread of its own, where no event loop runs."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
