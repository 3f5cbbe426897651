"""Channels: what the tokens of a response were spent on, told by the tags of chat templates and by masks.

Not here: fields of messages (audit/readers/messages.py), and what goes with correctness (audit/statistics/channels.py).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, get_args

Channel = Literal["thinking", "answer", "tool_call", "observation"]
Of = Literal["response", "thinking", "answer", "tool_call", "observation"]
"""Length that a stage goes by: that of the whole response, or of a channel."""
CHANNELS: tuple[Channel, ...] = get_args(Channel)
THINKING, ANSWER, TOOL_CALL, OBSERVATION = CHANNELS
"""All but observations, which tools and environments wrote, are generated and sum to the length of a response."""
MARKS = re.compile(
    r"(?P<thinking><(?:seed:)?think(?:ing)?>|<(?:thought|reasoning|\|begin_of_thought\||\|START_THINKING\|)>|\[THINK\]"
    r"|<\|channel\|>analysis)"
    r"|(?P<thinking_ends></(?:seed:)?think(?:ing)?>|<(?:/thought|/reasoning|\|end_of_thought\||\|END_THINKING\|)>|\[/THINK\])"
    r"|(?P<tool_call><(?:tool_call|function_call|\|tool_calls_section_begin\||｜tool▁calls▁begin｜|\|python_tag\|)>"
    r"|\[TOOL_CALLS\]|<\|channel\|>commentary)"
    r"|(?P<tool_call_ends></(?:tool_call|function_call)>|<(?:\|tool_calls_section_end\||｜tool▁calls▁end｜)>)"
    r"|(?P<ends><\|(?:end|call)\|>|<\|channel\|>final)"
)
"""Tags of Qwen, DeepSeek, Seed, Magistral, Mistral, Kimi, Command, Llama and gpt-oss, and those of common prompts."""
HINT = re.compile(r"[<\[]")
"""A mark begins so; looking for this first is faster by far."""
MAX_MARK = 40  # characters
TAIL = 8
"""Tokens before a turn in which its template may open the thinking."""


def find_marks(text: str) -> Iterator[re.Match[str]]:
    return (mark for hint in HINT.finditer(text) if (mark := MARKS.match(text, hint.start())))


def may_have_marks(text: str) -> bool:
    return "<" in text or "[" in text


KEPT_TOKENS = ("<|channel|>", "<|end|>")
"""Special tokens that are part of a mark, or end the thinking, without being a mark of thinking themselves."""


def is_thinking_token(token: str) -> bool:
    """Return whether a special token says where thinking begins or ends, such as `<think>` or `[/THINK]`."""
    mark = MARKS.fullmatch(token.strip())
    return token in KEPT_TOKENS or (mark is not None and mark.lastgroup in (THINKING, f"{THINKING}_ends"))


def list_hidden_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of a tokenizer's special tokens, except those that mark thinking."""
    added: dict[int, Any] = getattr(tokenizer, "added_tokens_decoder", None) or {}
    special = {token_id: str(token) for token_id, token in added.items() if getattr(token, "special", True)}
    special |= zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=False)
    return frozenset(token_id for token_id, token in special.items() if not is_thinking_token(token))


def decode_response(tokenizer: Any, token_ids: Sequence[int], hidden: Collection[int]) -> str:
    """Return the text of a response without special tokens, but with the marks around its thinking.

    `tokenizer.decode(..., skip_special_tokens=True)` also removes `</think>` if the tokenizer declares it special. Then nobody
    can tell the answer from the thinking.

    Args:
        tokenizer: A tokenizer of transformers.
        token_ids: Generated tokens.
        hidden: The ids that `list_hidden_ids` returns for this tokenizer.
    """
    return tokenizer.decode([token_id for token_id in map(int, token_ids) if token_id not in hidden])


def after_thinking(text: str, starts_inside: bool = False) -> str | None:
    """Return the text after the thinking, or None if thinking was opened and not closed.

    The last closing mark counts. `starts_inside`: the prompt opened the thinking.
    """
    is_open, end = starts_inside, 0
    for mark in find_marks(text) if may_have_marks(text) else ():
        if mark.lastgroup == THINKING:
            is_open = True
        elif mark.lastgroup == f"{THINKING}_ends" or (mark.lastgroup == "ends" and is_open):
            is_open, end = False, mark.end()
        elif mark.lastgroup == "ends" and mark.group().endswith("final"):
            end = mark.end()
    return None if is_open else text[end:]


def split_channels(text: str, starts_inside: bool = False) -> list[tuple[Channel, str]]:
    """Return a text in pieces, each with its channel and the tags around it; `starts_inside`: the prompt opened the thinking.

    What comes before the first closing tag of thinking is thinking, opened or not. A tag within another channel is text.
    """
    now: Channel = THINKING if starts_inside else ANSWER
    if not may_have_marks(text):
        return [(now, text)] if text else []
    found: list[tuple[Channel, str]] = []
    begin = 0

    def end(stop: int, channel: Channel) -> int:
        if stop > begin:
            found.append((channel, text[begin:stop]))
        return stop

    for mark in find_marks(text):
        kind = str(mark.lastgroup)
        if now == ANSWER and kind in CHANNELS:
            begin, now = end(mark.start(), ANSWER), kind
        elif kind == f"{now}_ends" or (kind == "ends" and now != ANSWER):
            begin, now = end(mark.end(), now), ANSWER
        elif now == ANSWER and kind == f"{THINKING}_ends" and THINKING not in dict(found):
            found, begin = [], 0
            begin = end(mark.end(), THINKING)
    end(len(text), now)
    return found


def name_channel(channel: str) -> str:
    """Return a channel as a text has it: answers, tool calls."""
    return channel.replace("_", " ") + ("" if channel == THINKING else "s")


def opens_thinking(text: str) -> bool:
    """Return whether a prompt ends within the thinking of the model, as templates of reasoning models have it."""
    tail = text.rstrip()[-MAX_MARK:]
    marks = find_marks(tail) if may_have_marks(tail) else ()
    return any(mark.lastgroup == THINKING and mark.end() == len(tail) for mark in marks)


def count_channels(
    token_ids: Sequence[int], spans: Sequence[tuple[int, int]], decode: Callable[[Sequence[int]], str]
) -> dict[str, int]:
    """Return the tokens of a response by channel, given where the policy wrote; none where all were an answer.

    `decode` keeps special tokens, since tags may be some. A token across a boundary belongs to the channel before it.
    """
    ids, counts = list(token_ids), Counter[str]()
    for start, stop in spans:
        own = ids[start:stop]
        pieces = split_channels(decode(own), opens_thinking(decode(ids[max(start - TAIL, 0) : start])))
        places, place, before, cut = [0], 0, 0, 0
        for _, text in pieces[:-1]:
            cut += len(text)
            place, before = find_place(own, place, before, cut, decode)
            places.append(place)
        for (channel, _), (first, last) in zip(pieces or [(ANSWER, "")], pairwise([*places, len(own)]), strict=True):
            counts[channel] += last - first
    counts[OBSERVATION] = sum(start - stop for (_, stop), (start, _) in pairwise(spans))
    found = {channel: counts[channel] for channel in CHANNELS if counts[channel]}
    return {} if found.keys() <= {ANSWER} else found


def find_place(
    ids: Sequence[int], place: int, before: int, cut: int, decode: Callable[[Sequence[int]], str]
) -> tuple[int, int]:
    """Return the first number of tokens, from `place` on, whose text has `cut` characters, and how many it has.

    `before` is how many the first `place` tokens have. Only what is near is decoded, or many tags would take quadratic time.
    """
    start = max(place - TAIL, 0)
    offset = before - len(decode(ids[start:place]))

    def measure(number: int) -> int:
        return offset + len(decode(ids[start:number]))

    step = 1
    while place + step < len(ids) and measure(place + step) < cut:
        step *= 2
    numbers = range(place, min(place + step, len(ids)) + 1)
    found = numbers[min(bisect_left(numbers, cut, key=measure), len(numbers) - 1)]
    return found, measure(found)
