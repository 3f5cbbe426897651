"""Messages of a data set's prompts: lists of messages, their contents as text or in parts, and both as JSON in a text."""

from __future__ import annotations

import re
from typing import Any

from fairlen.files.limits import NotJSONError, parse_json
from fairlen.tasks.data_row import UnusableRow

TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of a message's parts that are text, in OpenAI's two APIs; Anthropic's and transformers' are called text too."""
LIKE_MESSAGES = re.compile(r"""\s*[\[{]\s*(?:\{\s*)?["'](?:role|content|type|messages)["']\s*:""")
"""The start of a text that is messages or parts, as JSON or as Python writes them."""
PLACEHOLDER = re.compile(r"<image>|<\|image_pad\|>|<\|vision_start\|>")
"""Text that a multimodal model replaces by a picture; a language model would read the placeholder itself."""


def read_messages(value: Any) -> list[tuple[str, str]]:
    """Return the (role, text) pairs of a prompt that consists of messages; an empty list if it is a plain text.

    Args:
        value: The cell of a data set: a text, a list of messages, one message, a list of parts, or any of them as JSON.

    Raises:
        UnusableRow: If a message has a part that is not text, or if a text looks like messages and is not JSON.
    """
    value = parse_text(value)
    if isinstance(value, dict) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, list) or not value or not all(isinstance(message, dict) for message in value):
        return []
    if all(message.get("role") is None and "type" in message for message in value):
        return [("user", join_parts(value))]
    return [(str(message.get("role") or ""), read_content(message)) for message in value]


def parse_text(value: Any) -> Any:
    """Return what a text that looks like messages holds; other values and texts as they are."""
    if not isinstance(value, str) or not LIKE_MESSAGES.match(value) or value.rstrip()[-1] not in "]}":
        return value
    try:
        return parse_json(value)
    except NotJSONError:
        raise UnusableRow("a prompt that looks like messages, but is not JSON") from None


def read_content(message: dict[str, Any]) -> str:
    """Return the text of a message. Raises UnusableRow if it holds more than text."""
    if message.get("tool_calls"):
        raise UnusableRow("a message with tool calls, which a prompt cannot show")
    content = parse_text(message.get("content"))
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list):
        raise UnusableRow(f"a message whose content is {type(content).__name__}, not text")
    return join_parts(parts)


def join_parts(parts: list[Any]) -> str:
    """Return the texts of a message's parts, a line each. Raises UnusableRow for an image, audio or any other part."""
    texts: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(text, str) or (kind is not None and kind not in TEXT_PARTS):
            raise UnusableRow(f"a message with a part that is not text ({kind or type(part).__name__})")
        texts.append(text)
    return "\n".join(texts)


def refuse_placeholders(text: str) -> None:
    """Raise UnusableRow if a text refers to a picture."""
    if found := PLACEHOLDER.search(text):
        raise UnusableRow(f"a question with {found.group()}, in place of which a picture would be shown")
