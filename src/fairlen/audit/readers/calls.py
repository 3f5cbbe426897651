"""Parts of an assistant message besides its text: tool calls in any shape, without a list of their fields.

A message holds its text in a few fields that all engines share. Everything else that contains text was generated as well, unless
its name says that it describes the message: an id, a date, token counts. Not here: text and reasoning (messages.py).
"""

from __future__ import annotations

import json
import re
from typing import Any

DESCRIBES = re.compile(
    r"(^|_)(id|ids|uuid|role|type|from|index|idx|time|timestamp|date|created\w*|model|status|state|source|finish\w*|stop\w*"
    r"|reason|author|sender|speaker|recipient|channel|usage|tokens?|logprobs?|top_logprobs|version|hash|meta|metadata|kwargs"
    r"|extra\w*|info|raw|provider\w*|signature|annotations|cache\w*|latency|cost|weight|score|reward|object|system_fingerprint"
    r"|lc|is|has|image\w*|audio|encrypted\w*|summary|mask|advantages?|data)(_|$)",
    re.I,
)
"""Names of fields that describe a message or a call. The policy did not generate them as text."""
ENCLOSES = re.compile(r"(^|_)(kwargs|metadata|extra\w*|raw)$", re.I)
"""Fields in which libraries repeat a provider's message."""
CALLS = re.compile(r"call", re.I)


def list_calls(message: dict[str, Any], text_fields: frozenset[str]) -> list[str]:
    """Return what a message holds besides its text and reasoning, one JSON text per field."""
    names = [name for name in message if name not in text_fields and not DESCRIBES.search(name)]
    calls = [text for name in names if name != "name" if (text := write_call(message[name]))]
    if calls:
        return calls
    enclosed = [value for name, value in message.items() if ENCLOSES.search(name) and isinstance(value, dict)]
    inner = [(name, value) for fields in enclosed for name, value in fields.items() if CALLS.search(name)]
    return [text for _, value in inner if (text := write_call(value))]


def write_call(value: Any) -> str:
    """Return the generated part of a field as text; empty if the field contains no text."""
    if isinstance(value, str):
        return value if value.strip() else ""
    if not isinstance(value, (dict, list)):
        return ""
    kept = strip_description(value)
    return json.dumps(kept, default=str, ensure_ascii=False) if contains_text(kept) else ""


def strip_description(value: Any) -> Any:
    """Return a value without ids, types and empty fields; a table gives every call the arguments of all others, as nulls."""
    if isinstance(value, list):
        return [strip_description(item) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("function"), dict):  # a wrapper, whose other fields are an id and a type
        return strip_description(value["function"])
    return {
        name: keep_arguments(item)
        for name, item in value.items()
        if item is not None and (name == "input" or not DESCRIBES.search(name))
    }


def keep_arguments(value: Any) -> Any:
    """Return the arguments of a call, whose names are the tool's own: only nulls are removed."""
    if isinstance(value, dict):
        return {name: keep_arguments(item) for name, item in value.items() if item is not None}
    return [keep_arguments(item) for item in value] if isinstance(value, list) else value


def contains_text(value: Any) -> bool:
    """Return whether a value contains a text that is not empty."""
    if isinstance(value, dict):
        return any(contains_text(item) for item in value.values())
    if isinstance(value, list):
        return any(contains_text(item) for item in value)
    return isinstance(value, str) and bool(value)
