"""The policy's own text of a response: messages with reasoning, content and tool calls, in the fields of many engines."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from fairlen.channels import ANSWER, THINKING, TOOL_CALL, Channel

REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")
"""Fields of a message, and of a part of one, that hold what the policy thought."""
MESSAGE, MORE = {"content", "role", "text", *REASONING}, {"tool_calls", *REASONING}
"""Fields by one of which an object is a message, and those that say more than its content does."""
THOUGHT = re.compile("reason|think|thought")  # types of the parts of a message that are reasoning

Passages = list[tuple[bool, str]]  # whether the policy wrote it, and the text
Said = list[tuple[Channel, str]]
Conversation = list[tuple[bool, Said]]  # of each message whether the policy wrote it, and what it says
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A character of a script without spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
ITEM = re.compile(r"message|reasoning|.*_call(_output)?")  # types of the items of OpenAI's Responses


class Output(NamedTuple):
    """Contents of a server's response object: messages, one for each call of the model and each result of a tool."""

    messages: list[Any]
    tokens: Any
    finish: Any


def text_of(value: Any) -> str | None:
    """Return what the policy wrote of a response: itself, or what messages of the assistant say; None as in `passages_of`."""
    said = said_in(value)
    return None if said is None else own_text(said)


def own_text(said: Conversation) -> str:
    return "\n".join(text for is_own, parts in said if is_own for _, text in parts if text)


def passages_of(value: Any) -> Passages | None:
    """Return each message of a response as one text; None as in `said_in`."""
    said = said_in(value)
    return None if said is None else [(is_own, join(parts)) for is_own, parts in said]


def join(parts: Said) -> str:
    return "\n".join(text for _, text in parts)


def said_in(value: Any) -> Conversation | None:
    """Return each message of a response, which the policy wrote or read; None where there is no text, or several."""
    if isinstance(value, str):
        return [(True, [(ANSWER, value)])]
    output = open_output(value)
    messages = output.messages if output else [value] if isinstance(value, dict) else value
    if not isinstance(messages, list) or (len(messages) > 1 and isinstance(messages[0], str)):
        return None
    said = [parts_of(message) for message in messages]
    roles = [one.get("role", "assistant") if isinstance(one, dict) else "assistant" for one in messages]
    pairs = zip(roles, said, strict=True)
    return None if None in said else [(role in ("assistant", "model"), parts or []) for role, parts in pairs]


def describe_no_text(value: Any) -> str:
    if value is None:
        return "is missing"
    if text_of(value) is not None:
        return "has encrypted reasoning, so that only a number of tokens tells its length: --columns tokens=NAME"
    is_count = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value!r:.40} is {'a number' if is_count else type(value).__name__}, not text"


def content_of(message: Any) -> str | None:
    """Return what a message says: reasoning, content, and of tool calls the names and arguments; None for no message."""
    parts = parts_of(message)
    return None if parts is None else join(parts)


def parts_of(message: Any) -> Said | None:
    """Return what a message says by channel, each text once where an engine repeats it; None for no message."""
    content = message.get("content") if isinstance(message, dict) and not MORE & message.keys() else message
    if isinstance(content, str):
        return [(ANSWER, content)]
    if not isinstance(message, dict) or not (MESSAGE & message.keys()):
        return None
    found: Said = [(THINKING, text) for name in REASONING for text in texts_in(message.get(name))]
    for part in listed(message.get("content", message.get("text"))):
        is_thought = isinstance(part, dict) and (part.get("thought") is True or THOUGHT.search(str(part.get("type"))))
        channel: Channel = THINKING if is_thought else ANSWER
        found.extend((channel, text) for text in texts_in(part))
    if isinstance(calls := message.get("tool_calls"), list) and calls:
        found.append((TOOL_CALL, json.dumps([call_in(one) for one in calls], default=str)))
    said = "\n".join(text for channel, text in found if channel == ANSWER)
    once: dict[str, Channel] = {text: channel for channel, text in reversed(found)}
    return [(one, text) for text, one in reversed(once.items()) if one != THINKING or text not in said]


def texts_in(part: Any) -> list[str]:
    """Return the texts in a part of a message, whichever field holds them, or in a list of parts; encrypted data is none."""
    if isinstance(part, list):
        return [text for one in part for text in texts_in(one)]
    if isinstance(part, dict):
        names = ("text", *REASONING, "summary", "content")
        return next((texts for name in names if (texts := texts_in(part.get(name)))), [])
    return [part] if isinstance(part, str) and part else []


def is_hidden(value: Any) -> bool:
    """Return whether a message, or one of a list, has reasoning that only its provider can read; a summary is not its text."""
    for message in listed(value):
        cells = (message.get(name) for name in (*REASONING, "content")) if isinstance(message, dict) else ()
        parts = [part for cell in cells for part in listed(cell) if isinstance(part, dict)]
        thoughts = [part for part in parts if THOUGHT.search(str(part.get("type")))]
        told = [texts_in({name: cell for name, cell in part.items() if name != "summary"}) for part in thoughts]
        if not any(told) and not all(texts_in(part) for part in thoughts):
            return True
    return False


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def call_in(call: Any) -> Any:
    """Return what the policy wrote of a tool call: a table gives every call the arguments of all others, as nulls."""
    function = call.get("function") or call if isinstance(call, dict) else call
    if not isinstance(function, dict):
        return function
    given = {name: function[name] for name in ("name", "arguments") if function.get(name) is not None}
    if isinstance(arguments := given.get("arguments"), dict):
        given["arguments"] = {name: value for name, value in arguments.items() if value is not None}
    return given


def open_output(value: Any) -> Output | None:
    """Return what an object of OpenAI's Responses says, its items, or a chat completion of one choice; None for anything else."""
    value = {"output": value} if isinstance(value, list) else value if isinstance(value, dict) else {}
    items, choices, usage = (value.get(name) for name in ("output", "choices", "usage"))
    usage = usage if isinstance(usage, dict) else {}
    if isinstance(items, list) and all(isinstance(one, dict) and ITEM.fullmatch(str(one.get("type"))) for one in items):
        finish = {name: value.get(name) for name in ("incomplete_details", "status")}
        return Output(join_items(items), usage.get("output_tokens"), finish)
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict) and "message" in choices[0]:
        return Output([choices[0]["message"]], usage.get("completion_tokens"), choices[0].get("finish_reason"))
    return None


def join_items(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return items as messages: reasoning, text and calls between two results of tools are one."""
    messages: list[dict[str, Any]] = []
    for item in items:
        if item["type"].endswith("_output") or item.get("role", "assistant") != "assistant":
            messages.append({"role": "tool", "content": str(item.get("output", item.get("content")))})
            continue
        if not messages or messages[-1]["role"] == "tool":
            messages.append({"role": "assistant", "reasoning": [], "content": [], "tool_calls": []})
        if item["type"] == "reasoning":
            messages[-1]["reasoning"] += item.get("content") or [item]  # a summary is not its text
        elif item["type"].endswith("_call"):
            messages[-1]["tool_calls"].append({"name": item["type"], "arguments": item.get("code")} | item)
        else:
            parts = listed(item.get("content"))
            messages[-1]["content"] += [part.get("refusal", part) if isinstance(part, dict) else part for part in parts]
    return messages


def lack_spaces(text: str, words: int) -> float:
    """Return whether a text of so many words has hardly any spaces between them, 1 or 0; nan of one too short to show it."""
    if not text.isascii() and len(UNSPACED.findall(text)) > 0.1 * len(text):
        return 1.0
    return float(30 * (words - 1) < len(text)) if len(text) > 20 else math.nan


def is_whole(text: str) -> bool:
    """Return whether a text ends as most that are finished do; one that was truncated ends anywhere."""
    return text.rstrip().endswith(tuple(".!?…。！？)]}>$`*|\"'”」』"))
