"""Programs at a service over HTTP that speaks SandboxFusion's `POST /run_code`. How it contains them is the service's affair.

Source: bytedance/SandboxFusion, `sandbox/server/sandbox_api.py`, `sandbox/runners/types.py`. Facts to know of that server:
it hands back the first MiB of an output without saying that there was more, it isolates nothing unless configured to, and it
ends programs that write more than a pipe holds by its clock, because it reads their output only afterwards.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fairlen.verify.execution import Execution, Limits, failed, read_ending

CUT = 1 << 20
"""Bytes after which SandboxFusion cuts an output in silence."""
MAX_BODY = 13 * CUT
"""Bytes of an answer: both outputs, of which JSON writes a byte with at most six, and the rest. More is more output than is
allowed."""
REMOTE_SLOTS = 32
"""Runs at a time that a service is asked for."""
MAX_ATTEMPTS = 3


class Unusable(Exception):
    """An answer from which nothing can be learned."""


class Refused(Unusable):
    """The service understood and refused, so that asking again cannot help."""


class RemoteSandbox:
    """Runs programs at a SandboxFusion-compatible service, `slots` at a time."""

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
        """Return where programs run, without the URL's query, which may hold a key."""
        return {
            "sandbox": self.name, "unsafe": False, "url": self.url.partition("?")[0], "slots": self.slots,
            "contained_by": "the service",
        }  # fmt: skip

    async def run(self, program: str, stdin: bytes, limits: Limits) -> Execution:
        """Run a program at the service."""
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
            except (Unusable, OSError, HTTPException, RuntimeError) as error:  # RuntimeError: no thread starts
                reason = str(error) or type(error).__name__
                if isinstance(error, Refused):
                    break
            if attempt < MAX_ATTEMPTS:
                await asyncio.sleep(self.pause * 2 ** (attempt - 1))
        return failed(f"{self.url}: {reason}; attempts: {attempt}")

    def _post(self, body: bytes, limits: Limits) -> Execution:
        """Ask once. OSError, HTTPException or Unusable where nothing is learned; a drip of bytes ends at the deadline too."""
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
                        raise Unusable("the answer did not end in time")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (408, 425, 429) or error.code >= 500:
                    raise Unusable(f"HTTP {error.code}") from None
                raise Refused(f"HTTP {error.code}: {error.read(500).decode('utf-8', 'replace')}") from None
        return read_answer(bytes(answer), limits)


def read_answer(body: bytes, limits: Limits) -> Execution:
    """Return what a `RunCodeResponse` says. Raises Unusable where it is none, or speaks of an error on the service's side."""
    try:
        answer = json.loads(body)
        run, status = answer.get("run_result") or {}, answer["status"]
        if status == "SandboxError" or run.get("status") not in ("Finished", "TimeLimitExceeded"):
            raise Unusable(f"status {status!r}, run {run.get('status')!r}: {str(answer.get('message'))[:500]}")
        stdout, stderr = (str(run.get(name) or "").encode("utf-8", "replace") for name in ("stdout", "stderr"))
        seconds, code = float(run.get("execution_time") or 0.0), run.get("return_code")
        if run["status"] == "TimeLimitExceeded":
            return Execution("timeout", stdout, stderr, None, seconds)
        if not isinstance(code, int):
            raise Unusable(f"return_code {code!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Unusable(f"not an answer of /run_code: {error!r}: {body[:200]!r}") from None
    most = min(CUT, limits.output_bytes)
    if len(stdout) >= most or len(stderr) >= most:
        return Execution("output_limit", stdout[:most], stderr[:most], None, seconds)
    code = code if code >= 0 else 128 - code
    return Execution(read_ending(code, stderr, seconds, limits), stdout, stderr, code, seconds)
