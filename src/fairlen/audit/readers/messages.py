"""The policy's own text of a response: messages with reasoning, content and tool calls, in the fields of many engines."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from fairlen.audit.readers.calls import list_calls, list_returned, write_call
from fairlen.channels import ANSWER, OBSERVATION, THINKING, TOOL_CALL

REASONING = ("reasoning_content", "reasoning", "thinking", "thought", "reasoning_details")
"""Fields of a message, and of a part of one, that hold what the policy thought."""
CONTENT = ("content", "text", "parts", "value")
"""Fields that hold the text of a message, or its parts; the first one that is set counts."""
MESSAGE = frozenset({"role", "from", *CONTENT[:3], *REASONING})
"""Fields by one of which an object is a message."""
TEXT_FIELDS = frozenset({*CONTENT, *REASONING})
OWN_ROLES = frozenset({"assistant", "model", "gpt", "ai", "aimessage", "bot", "chatbot", "agent", "policy"})
"""Roles of messages that the policy generated."""
READ_ROLES = frozenset(
    [
        "user",
        "human",
        "humanmessage",
        "tool",
        "toolmessage",
        "tool_response",
        "tool_result",
        "function",
        "ipython",
        "system",
        "systemmessage",
        "developer",
        "environment",
        "env",
        "observation",
    ]
)
"""Roles of messages that the policy read."""
ASKS = frozenset({"user", "system", "developer", "human", "humanmessage", "systemmessage"})
"""Roles of messages that are a part of the prompt."""
NO_TEXT = re.compile("image|audio|video|file|redacted|encrypted", re.I)
"""Types of parts of a message that hold no text."""
RESULT = re.compile("result|(tool|call|function).*(output|response)", re.I)
"""Types of parts of a message that hold what a tool returned."""
THOUGHT = re.compile("reason|think|thought")  # types of the parts of a message that are reasoning

Passages = list[tuple[bool, str]]  # whether the policy wrote it, and the text
Said = list[tuple[str, str]]  # channel and text; a channel is one of `channels.CHANNELS` or the name of a block
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
    """Return what the policy wrote of a response: itself, or what messages of the assistant say; None as in `said_in`."""
    said = said_in(value)
    return None if said is None else own_text(said)


def own_text(said: Conversation) -> str:
    """Return the text that the policy generated, without what it read."""
    return "\n".join(
        text for is_own, parts in said if is_own for channel, text in parts if text and channel != OBSERVATION
    )


def join(parts: Said) -> str:
    return "\n".join(text for _, text in parts)


def said_in(value: Any) -> Conversation | None:
    """Return each message of a response, which the policy wrote or read; None where there is no text, or several."""
    if isinstance(value, str):
        messages = parse_messages(value)
        if messages is None:
            return [(True, [(ANSWER, value)])]
        value = messages
    output = open_output(value)
    messages = output.messages if output else [value] if isinstance(value, dict) else value
    if not isinstance(messages, list) or (len(messages) > 1 and isinstance(messages[0], str)):
        return None
    said = [parts_of(message) for message in messages]
    if None in said:
        return None
    is_own = [role_of(message) in OWN_ROLES for message in messages]
    return [(own, parts or []) for own, parts in zip(is_own, said, strict=True)]


def parse_messages(text: str) -> list[Any] | None:
    """Return the messages in a JSON text, as tables of text hold them; None for any other text."""
    start = text[:64].lstrip()
    if not start.startswith("[") or not start[1:].lstrip().startswith("{") or not text.rstrip().endswith("]"):
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_chat = all(isinstance(value, dict) and MESSAGE & value.keys() for value in values)
    return values if is_chat and any(has_role(value) for value in values) else None


def role_of(message: Any) -> str:
    """Return the role of a message in lower case; "assistant" if it has none."""
    if not isinstance(message, dict):
        return "assistant"
    for name in ("role", "from", "type", "author", "sender"):
        value = message.get(name)
        value = value.get("role") if isinstance(value, dict) else value
        if isinstance(value, str) and (name in ("role", "from") or value.lower() in OWN_ROLES | READ_ROLES):
            return value.lower()
    return "assistant"


def has_role(message: Any) -> bool:
    """Return whether an object is a message with a role."""
    return isinstance(message, dict) and ("role" in message or "from" in message or role_of(message) != "assistant")


def split_chat(value: Any) -> tuple[Any, Any]:
    """Return the messages up to the last question, None if there is none, and those after it."""
    if isinstance(value, str):
        value = parse_messages(value) or value
    messages = value if isinstance(value, list) else []
    asks = [
        place for place, message in enumerate(messages, 1) if isinstance(message, dict) and role_of(message) in ASKS
    ]
    return (value[: asks[-1]], value[asks[-1] :] or None) if asks else (None, value)


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
    """Return the text of a message by channel, each text once if an engine repeats it; None for no message.

    Fields of an assistant message besides its text and reasoning are calls (`calls.list_calls`).
    """
    if isinstance(message, str):
        return [(ANSWER, message)]
    if not isinstance(message, dict) or not (MESSAGE & message.keys()):
        return None
    if set(message) <= {"role", "content"} and isinstance(message.get("content"), str):
        return [(ANSWER, message["content"])]
    found: Said = [(THINKING, text) for name in REASONING for text in texts_in(message.get(name))]
    content = next((message[name] for name in CONTENT if message.get(name) is not None), None)
    for part in listed(content):
        found.extend(read_part(part))
    if has_role(message) and role_of(message) in OWN_ROLES:
        found += [(TOOL_CALL, call) for call in list_calls(message, TEXT_FIELDS)]
        others = [value for name, value in message.items() if name not in TEXT_FIELDS]
        found += [(OBSERVATION, text) for value in others for text in list_returned(value)]
    elif calls := write_call(message.get("tool_calls")):
        found.append((TOOL_CALL, calls))
    said = "\n".join(text for channel, text in found if channel == ANSWER)
    channel_of: dict[str, str] = {text: channel for channel, text in reversed(found)}
    return [(one, text) for text, one in reversed(channel_of.items()) if one != THINKING or text not in said]


def read_part(part: Any) -> Said:
    """Return the texts in one part of a message with their channel; a part without a text is a call."""
    if not isinstance(part, dict):
        return [(ANSWER, text) for text in texts_in(part)]
    kind = str(part.get("type"))
    if NO_TEXT.search(kind) and "text" not in part:
        return []
    texts = texts_in(part)
    if part.get("thought") is True or THOUGHT.search(kind):
        return [(THINKING, text) for text in texts]
    if RESULT.search(kind):
        return [(OBSERVATION, text) for text in texts]
    if not texts and (call := write_call(part)):
        return [(TOOL_CALL, call)]
    return [(ANSWER, text) for text in texts]


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


def open_output(value: Any) -> Output | None:
    """Return the contents of a server's response: OpenAI's Responses, its items, or a chat completion of one choice.

    A line of a batch holds the same in `body`, or in `response.body`. Returns None for anything else.
    """
    value = {"output": value} if isinstance(value, list) else value if isinstance(value, dict) else {}
    for name in ("response", "body"):
        if isinstance(value.get(name), dict) and not {"output", "choices"} & value.keys():
            value = value[name]
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
