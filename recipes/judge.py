"""A judge as reward: a model behind an OpenAI-compatible server grades each response from 0 to 10.

    JUDGE_URL=http://localhost:8000/v1 JUDGE_MODEL=NAME fairlen train --rewards recipes/judge.py:judge=0.5 …
    python recipes/judge.py    # one update of the playground, by a server on this machine that grades by length

The verdict of the task stays; `judge=0.5` adds half of the grade. At most eight calls are under way at
once, and the same answer to the same question is graded once. A call that fails raises, and the response has no verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.request import Request, urlopen

ASK = "Grade the reasoning of this answer from 0 to 10. Reply with the number alone.\n\nQuestion: {}\n\nAnswer: {}"
CALLS = ThreadPoolExecutor(max_workers=8)


@lru_cache(maxsize=4096)
def ask(text: str) -> float | None:
    """Return the grade, 0 to 1; None, which counts nowhere, where the judge says no number."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": os.environ.get("JUDGE_MODEL", ""), "temperature": 0, "messages": messages}).encode()
    request = Request(f"{os.environ['JUDGE_URL']}/chat/completions", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as reply:
        said = json.load(reply)["choices"][0]["message"]["content"]
    found = re.search(r"\d+(?:\.\d+)?", said)
    return min(float(found[0]), 10.0) / 10.0 if found else None


async def judge(prompts: list[str], completions: list[str], **columns: object) -> list[float | None]:
    """Grade each different completion once, in threads, so that the engine goes on meanwhile."""
    texts = [ASK.format(*pair) for pair in zip(prompts, completions, strict=True)]
    calls = {text: asyncio.get_running_loop().run_in_executor(CALLS, ask, text) for text in set(texts)}
    await asyncio.gather(*calls.values())
    return [calls[text].result() for text in texts]


class LocalJudge(BaseHTTPRequestHandler):
    """A stand-in for a server with a model: 10 for short answers, 0 from 100 characters on."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][0]["content"]
        grade = max(10 - len(asked.partition("Answer: ")[2]) // 10, 0)
        text = json.dumps({"choices": [{"message": {"content": str(grade)}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Leave standard error to the run."""


def main() -> int:
    """Train one update with the stand-in."""
    from fairlen.cli import main as fairlen

    server = ThreadingHTTPServer(("127.0.0.1", 0), LocalJudge)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ["JUDGE_URL"] = f"http://127.0.0.1:{server.server_port}/v1"
    with tempfile.TemporaryDirectory() as folder:
        small = ["--rollout-batches", "1", "--prompts-per-batch", "2", "--problems", "4", "--samples", "1"]
        return fairlen(["train", "--rewards", f"{__file__}:judge=0.5", *small, "--out", f"{folder}/run"])


if __name__ == "__main__":
    raise SystemExit(main())
