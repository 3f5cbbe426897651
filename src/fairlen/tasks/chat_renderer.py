"""A renderer for `verifiers` that only ever appends to a conversation, whatever the model's chat template is.

What the template writes between two turns is read off a short conversation of its own; earlier turns stay the tokens that were
sampled, reasoning included. Tool calls are JSON within <tool_call>; `renderers` has what parses other forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, RenderedTokens, ToolCallParseStatus
from renderers.configs import DefaultRendererConfig
from renderers.default import DefaultRenderer

CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
MARK = "."
"""What the assistant says in the conversation that the template is tried on."""


class AppendingRenderer(DefaultRenderer):
    """The tokenizer's chat template; further fields of the config are its variables."""

    config_class = DefaultRendererConfig

    @property
    def supports_tools(self) -> bool:
        return True

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Any],
        *,
        tools: list[Any] | None = None,
    ) -> RenderedTokens | None:
        """Return what was read and written, and after it what the template writes up to the next turn."""
        known = [*previous_prompt_ids, *previous_completion_ids]
        stops = self.get_stop_token_ids()
        if stops and known[-1] not in stops:
            known.append(stops[0])  # the turn was cut off, and the template ends it
        added = self._tokenizer.encode(self.between(new_messages, tools), add_special_tokens=False)
        roles = [message["role"] for message in new_messages]
        owners = [-1] * len(known) + [len(roles) - 1] * len(added)
        return RenderedTokens(token_ids=[*known, *added], message_indices=owners, message_roles=roles)

    def between(self, messages: Sequence[Any], tools: list[Any] | None) -> str:
        """Return what the template writes between the end of a turn and the next one. ValueError where it cannot be told."""
        calls = [
            {
                "id": one.get("tool_call_id"),
                "type": "function",
                "function": {"name": one.get("name") or "f", "arguments": {}},
            }
            for one in messages
            if one["role"] == "tool"
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
        """Return the text of a conversation."""
        variables = dict(self.config.model_extra or {}) | settings | ({"tools": tools} if tools else {})
        return self._tokenizer.apply_chat_template(list(messages), tokenize=False, **variables)

    def parse_response(
        self, token_ids: list[int], *, tools: list[Any] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        """Return what a turn says, what it thinks, and the tools that it calls; malformed calls are called that."""
        found = super().parse_response(token_ids, tools=tools, prompt_ids=prompt_ids)
        found.tool_calls = [read_call(text) for text in CALL.findall(found.content)] if tools else []
        found.content = CALL.sub("", found.content).strip() if found.tool_calls else found.content
        return found


def read_call(text: str) -> ParsedToolCall:
    """Return a call of a tool from its JSON, {"name": ..., "arguments": {...}}."""
    try:
        call = json.loads(text)
    except ValueError:
        return ParsedToolCall(raw=text, status=ToolCallParseStatus.INVALID_JSON)
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=text, status=ToolCallParseStatus.MISSING_NAME)
    return ParsedToolCall(raw=text, name=name, arguments=call.get("arguments", {}))
