"""The process of an environment of `verifiers`: its server of episodes, a harness and a renderer.

`ChatLoop` runs a chat with the tools of a task as a coroutine, where harnesses of verifiers launch a program for every segment in
an environment that uv builds; it executes nothing that the model writes. `AppendingRenderer` only appends, whatever the chat
template is: earlier turns stay the tokens that were sampled. Tool calls are JSON within <tool_call>; `renderers` parses others.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from typing import Any

from openai import APIStatusError, AsyncOpenAI
from renderers.base import ParsedResponse, ParsedToolCall, RenderedTokens, ToolCallParseStatus, load_tokenizer
from renderers.configs import DefaultRendererConfig
from renderers.default import DefaultRenderer
from verifiers.v1 import Harness, HarnessConfig, ModelContext, ProgramResult, Runtime, TaskData, Trace
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.compaction import bound_tool_message, is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.serve import serve_env

__all__ = ["ChatLoop"]

HARNESS = "fairlen_chat"


class ChatLoop(Harness[HarnessConfig]):
    """Takes turns until one calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: ModelContext, trace: Trace, runtime: Runtime, endpoint: str, secret: str, mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:  # fmt: skip
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
    """Append a turn, and return the answers of the tools that it calls; empty where it calls none, or there is no room."""
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
    name = call.function.name
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON ({error})"
    if not isinstance(arguments, dict) or name not in dispatch:
        return f"error: give a JSON object of arguments to one of {', '.join(dispatch) or 'no tools'}"
    return await call_mcp(connections, dispatch, name, arguments)


def register() -> None:
    """Make the harness known to verifiers, which looks for it by the name of a module that lies in no package."""
    sys.modules.setdefault(HARNESS, sys.modules[__name__])


def serve(config: dict[str, Any], address: str, folder: str, death: Connection) -> None:
    """Serve episodes, with the tokenizer of a folder, until this process ends or the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted run ends its rollout batch first
    register()
    load_tokenizer(folder)  # what it imports takes seconds, which are no episode's
    serve_env(max_workers=1, address=address, death_pipe=death, config_data=config)


CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
MARK = "."  # text of the assistant in the conversation that the template is tried on


class AppendingRenderer(DefaultRenderer):
    """The tokenizer's chat template; further fields of the config are its variables."""

    config_class = DefaultRendererConfig

    @property
    def supports_tools(self) -> bool:
        return True

    def bridge_to_next_turn(
        self, previous_prompt_ids: list[int], previous_completion_ids: list[int], new_messages: list[Any], *,
        tools: list[Any] | None = None,
    ) -> RenderedTokens | None:  # fmt: skip
        """Known tokens, and after them the template's text up to the next turn."""
        known = [*previous_prompt_ids, *previous_completion_ids]
        stops = self.get_stop_token_ids()
        if stops and known[-1] not in stops:
            known.append(stops[0])  # the turn was cut off, and the template ends it
        added = self._tokenizer.encode(self.between(new_messages, tools), add_special_tokens=False)
        roles = [message["role"] for message in new_messages]
        owners = [-1] * len(known) + [len(roles) - 1] * len(added)
        return RenderedTokens(token_ids=[*known, *added], message_indices=owners, message_roles=roles)

    def between(self, messages: Sequence[Any], tools: list[Any] | None) -> str:
        """Text of the template between the end of a turn and the next one. Raises ValueError where it cannot be told."""
        answers = [one for one in messages if one["role"] == "tool"]
        functions = [{"name": one.get("name") or "f", "arguments": {}} for one in answers]
        calls = [
            {"id": one.get("tool_call_id"), "type": "function", "function": function}
            for one, function in zip(answers, functions, strict=True)
        ]
        said = {"role": "assistant", "content": MARK} | ({"tool_calls": calls} if calls else {})
        before = [{"role": "user", "content": MARK}, said]
        one = self.write(before, tools, add_generation_prompt=False)
        both = self.write([*before, *messages], tools, add_generation_prompt=True)
        if not both.startswith(one):
            raise ValueError("the chat template writes an earlier turn anew when another message follows")
        ends = [
            one.rfind(end) + len(end) for end in map(self._tokenizer.decode, self.get_stop_token_ids()) if end in one
        ]
        said_until = max(one.rfind("</tool_call>"), one.rfind(MARK)) + 1
        return both[max([end for end in ends if end > said_until], default=len(one)) :]

    def write(self, messages: Sequence[Any], tools: list[Any] | None, **settings: bool) -> str:
        variables = dict(self.config.model_extra or {}) | settings | ({"tools": tools} if tools else {})
        return self._tokenizer.apply_chat_template(list(messages), tokenize=False, **variables)

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        found = super().parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        found.tool_calls = [read_call(text) for text in CALL.findall(found.content)] if tools else []
        found.content = CALL.sub("", found.content).strip() if found.tool_calls else found.content
        return found


def read_call(text: str) -> ParsedToolCall:
    try:
        call = json.loads(text)
    except ValueError:
        return ParsedToolCall(raw=text, status=ToolCallParseStatus.INVALID_JSON)
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=text, status=ToolCallParseStatus.MISSING_NAME)
    return ParsedToolCall(raw=text, name=name, arguments=call.get("arguments", {}))
