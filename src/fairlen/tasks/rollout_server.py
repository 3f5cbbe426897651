"""A rollout server on the loopback: vLLM's /inference/v1/generate, tokens in and tokens out, answered by the calls of episodes.

The secret `cache_salt` of a request identifies its episode, X-Session-ID its conversation.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from fairlen.sampling.extend import Sampling
from fairlen.tasks.driven import Calls, RefusedRequest

MAX_REQUEST_BYTES = 1 << 26
SHAPING = ("temperature", "top_p", "top_k", "min_p")
"""Parameters of a request that have to be those of the run, where they are given."""
READ = {*SHAPING, "max_tokens", "stop_token_ids", "logprobs", "skip_special_tokens", "routed_experts_prompt_start"}
"""Parameters that are used, or change nothing about tokens."""


@dataclass(eq=False)
class RolloutServer:
    """Bound to a free port when it is made; it answers once it was started on an event loop."""

    socket: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    episodes: dict[str, Calls] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"

    async def start(self) -> None:
        app = web.Application(client_max_size=MAX_REQUEST_BYTES)
        app.router.add_post("/inference/v1/generate", self.generate)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.SockSite(runner, self.socket.dup()).start()

    def close(self) -> None:
        self.socket.close()

    @contextmanager
    def playing(self, calls: Calls) -> Iterator[str]:
        salt = secrets.token_urlsafe()
        self.episodes[salt] = calls
        try:
            yield salt
        finally:
            del self.episodes[salt]

    async def generate(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except Exception:
            body = {}
        body = body if isinstance(body, dict) else {}
        calls = self.episodes.get(str(body.get("cache_salt")))
        if calls is None:
            return web.json_response({"error": {"message": "this episode has ended, or never began"}}, status=404)
        given = body.get("sampling_params")
        try:
            if not isinstance(given, dict):
                raise calls.refuse(f"sampling_params={given!r:.80}: give an object")
            if fault := find_sampling_fault(given, calls.sampling):
                raise calls.refuse(fault)
            name, prompt = request.headers.get("X-Session-ID", ""), body.get("token_ids", ())
            turn = await calls(name, prompt, given.get("stop_token_ids") or (), given.get("max_tokens") or 0)
        except RefusedRequest as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        pairs = zip(turn.token_ids, turn.logprobs, strict=True)
        logprobs = [{"token": f"token_id:{token}", "logprob": logprob} for token, logprob in pairs]
        choice = {"index": 0, "token_ids": turn.token_ids, "logprobs": {"content": logprobs}}
        choice |= {"finish_reason": turn.finish}
        return web.json_response({"request_id": secrets.token_hex(8), "choices": [choice]})


def find_sampling_fault(given: dict[str, Any], own: Sampling) -> str:
    """A parameter that would make a turn another distribution's than the run's; empty without one."""
    for name, value in given.items():
        if value is None or (name in READ and name not in SHAPING):
            continue
        if name not in READ:
            return f"{name}={value!r}: this server does not know it, and tokens are trained as they are sampled; leave it out"
        if value != getattr(own, name):
            return (
                f"{name}={value!r}, where the run has {getattr(own, name)!r}; leave it out of the environment's agents"
            )
    return ""
