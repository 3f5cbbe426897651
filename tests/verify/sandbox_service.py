"""A service of the shape of SandboxFusion on this machine, which runs programs in bubblewrap, and fails on demand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Limits

CUT = 1 << 20


class Handler(BaseHTTPRequestHandler):
    """POST /run_code. The server's `plan` says how the next requests fail; then it works."""

    server: Service

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, request))
        failure = self.server.plan.pop(0) if self.server.plan else ""
        if failure.isdigit():
            self.reply(int(failure), b"no")
        elif failure == "hang":
            self.server.released.wait(300)
        elif failure == "drip":
            self.drip()
        elif failure == "hang_up":
            self.close_connection = True
        else:
            body = failure.encode() if failure else json.dumps(self.run(request)).encode()
            self.reply(200, body)

    def reply(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        while not self.server.released.is_set():
            try:
                self.wfile.write(b" ")
            except OSError:
                return
            time.sleep(0.05)

    def run(self, request: dict) -> dict:
        """As SandboxFusion's `run_python` and `parse_run_status` answer."""
        limits = Limits(seconds=request["run_timeout"], memory_mib=request["memory_limit_MB"])
        execution = asyncio.run(self.server.sandbox.run(request["code"], (request["stdin"] or "").encode(), limits))
        late = execution.status == "timeout"
        run = {
            "status": "TimeLimitExceeded" if late else "Finished", "execution_time": execution.seconds,
            "return_code": None if late else execution.exit_code,
            "stdout": execution.stdout[:CUT].decode(), "stderr": execution.stderr[:CUT].decode(),
        }  # fmt: skip
        status = "Success" if run["return_code"] == 0 else "Failed"
        return {"status": status, "message": "", "compile_result": None, "run_result": run, "files": {}}

    def log_message(self, format: str, *arguments: object) -> None:
        """Silent."""


class Service(ThreadingHTTPServer):
    """Its address is `url`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sandbox, self.plan, self.requests = Bubblewrap(), [], []
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving() -> Iterator[Service]:
    service = Service()
    thread = threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        service.released.set()
        service.shutdown()
        thread.join()
        service.server_close()
