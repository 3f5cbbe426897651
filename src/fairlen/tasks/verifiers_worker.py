"""The process in which an environment of `verifiers` runs: its own server of episodes, and a harness that talks within it.

A harness of verifiers launches a program for every segment of an exchange, in an environment that uv builds; this one runs the
same loop, a chat with the tools of a task, as a coroutine, and executes nothing that the model writes.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from typing import Any

from openai import APIStatusError, AsyncOpenAI
from renderers.base import load_tokenizer
from verifiers.v1 import Harness, HarnessConfig, ModelContext, ProgramResult, Runtime, TaskData, Trace
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message, is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.serve import serve_env

__all__ = ["ChatLoop"]

HARNESS = "fairlen_chat"
"""Id of the harness."""


class ChatLoop(Harness[HarnessConfig]):
    """Turns until one calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        """Run one segment of an exchange."""
        system, prompt = self.resolve_prompt(data)
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or [])
        messages = [*([{"role": "system", "content": system}] if system else []), *asked]
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
            )
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            while answers := await take_turn(client, ctx.model, messages, tools, dispatch, connections):
                messages += answers
        return ProgramResult(0, "", "")


async def take_turn(
    client: AsyncOpenAI, model: str, messages: list[Any], tools: list[Any], dispatch: Any, connections: Any
) -> list[Any]:
    """Append a turn, and return what the tools that it calls answer; nothing where it calls none, or there is no room for it."""
    try:
        given: dict[str, Any] = {"tools": tools} if tools else {}
        completion = await client.chat.completions.create(model=model, messages=messages, **given)
    except APIStatusError as error:
        if is_context_overflow(error):
            return []
        raise
    message = completion.choices[0].message
    messages.append(message.model_dump(exclude_none=True))
    answers = []
    for call in message.tool_calls or ():
        content = await answer_call(call, dispatch, connections)
        answer = {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": content}
        answers.append(bound_tool_message(answer))
    return answers


async def answer_call(call: Any, dispatch: Any, connections: Any) -> Any:
    """Return what a tool answers, or what is wrong with the call."""
    name = call.function.name
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON ({error})"
    if not isinstance(arguments, dict) or name not in dispatch:
        return f"error: give a JSON object of arguments to one of {', '.join(dispatch) or 'no tools'}"
    return await call_mcp(connections, dispatch, name, arguments)


def register() -> None:
    """Let verifiers find the harness, which it looks for by the name of a module that lies in no package."""
    sys.modules.setdefault(HARNESS, sys.modules[__name__])


def serve(config: dict[str, Any], address: str, folder: str, death: Connection) -> None:
    """Serve episodes of an environment, with the tokenizer of a folder, until this process ends or the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted run ends its rollout batch first
    register()
    load_tokenizer(folder)  # what it imports takes seconds, which are no episode's
    serve_env(max_workers=1, address=address, death_pipe=death, config_data=config)
