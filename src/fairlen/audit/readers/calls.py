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
ARGUMENTS = re.compile(r"^(input|inputs|kwargs|args|arguments|params|parameters|payload)$", re.I)
"""Fields of a call that the policy generated, whatever else such a name says elsewhere."""
RETURNED = re.compile(r"^(tool_?|call_?)?(outputs?|results?|returns?|returned|observations?|std_?out|std_?err)$", re.I)
"""Fields of a call that hold what the tool returned, beside fields that the policy generated."""
MIN_WORDS = 4  # words of a text from which on it does not describe a call, whatever the name of its field


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
    if len(value) > 1 and any(RETURNED.search(name) and contains_text(item) for name, item in value.items()):
        others = {name: item for name, item in value.items() if not RETURNED.search(name)}
        if any(is_generated(name, item) for name, item in others.items()):
            value = others
    if isinstance(value.get("function"), dict):  # a wrapper, whose other fields are an id and a type
        return strip_description(value["function"])
    return {name: keep_arguments(item) for name, item in value.items() if item is not None and is_generated(name, item)}


def is_generated(name: str, value: Any) -> bool:
    """Return whether the policy generated a field of a call: its name does not describe, or its value is too long for that."""
    if ARGUMENTS.search(name) or not DESCRIBES.search(name):
        return True
    return isinstance(value, str) and len(value.split()) >= MIN_WORDS and not ENCLOSES.search(name)


def list_returned(value: Any) -> list[str]:
    """Return the texts in a field that tools returned, in the calls that `strip_description` strips of them."""
    if isinstance(value, list):
        return [text for item in value for text in list_returned(item)]
    if not isinstance(value, dict) or not any(
        not RETURNED.search(name) and is_generated(name, item) for name, item in value.items()
    ):
        return []
    returned = [item for name, item in value.items() if RETURNED.search(name) and contains_text(item)]
    return [item if isinstance(item, str) else json.dumps(item, default=str, ensure_ascii=False) for item in returned]


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
