"""How long texts are, and what responses were spent on: text by channel, and from it a response's length by channel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairlen import channels
from fairlen.audit.log import Unit
from fairlen.audit.readers.messages import Conversation
from fairlen.batch import Ints
from fairlen.files.foreign import require_regular_file
from fairlen.files.formats import describe

MIN_SHARE = 0.01  # of responses with a channel, below which it is an answer: a tag that is only mentioned is none
Pieces = list[tuple[channels.Channel, str]]


@dataclass(frozen=True)
class Meter:
    """How long a response is where the file does not say."""

    unit: Unit
    count: Callable[[list[str]], Sequence[int]]


def make_meter(unit: Unit | None, tokenizer: str) -> Meter:
    """Return the meter asked for; words where none was. Raises ValueError for a tokenizer that cannot be loaded."""
    if tokenizer:
        return Meter("tokens", load_tokenizer(tokenizer))
    return Meter("characters", characters) if unit == "characters" else Meter("words", count_words)


def characters(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


def count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def load_tokenizer(name: str) -> Callable[[list[str]], list[int]]:
    """Return what counts tokens, special ones left out, as those were lost where the text was decoded."""
    path = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    try:
        if not path.is_file() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
            with suppress(ImportError):  # without the hub's client there is no cache
                from huggingface_hub import try_to_load_from_cache

                path = Path(str(try_to_load_from_cache(name, "tokenizer.json")))
        if not path.is_file():
            raise ValueError("no tokenizer.json there, nor in the cache of the hub here; give the folder of a model")
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(require_regular_file(path)))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"--tokenizer {name}: {describe(error)}") from None
    loaded.no_truncation()
    loaded.no_padding()
    return lambda texts: [len(encoded) for encoded in loaded.encode_batch_fast(texts, add_special_tokens=False)]


def split_all(said: Sequence[Conversation | None], prompts: Sequence[Any]) -> tuple[list[Pieces], int]:
    """Return the pieces of each response, [N], and of how many thinking was told by the others.

    A response without tags is thinking where most others close a thinking that they did not open: their template did.
    """
    pieces = [split(one or [], prompt) for one, prompt in zip(said, prompts, strict=True)]
    if 2 * sum(map(is_opened_before, pieces)) <= len(pieces):
        return pieces, 0
    inside = [len(one) == 1 and one[0][0] == channels.ANSWER for one in pieces]
    told = zip(inside, pieces, strict=True)
    return [[(channels.THINKING, one[0][1])] if is_in else one for is_in, one in told], sum(inside)


def add_up(pieces: Sequence[Pieces], sizes: Iterable[int]) -> Ints:
    """Return the sizes of all pieces, in order, by response and channel, [N, channels]."""
    left, counts = iter(sizes), np.zeros((len(pieces), len(channels.CHANNELS)), np.int64)
    for row, one in enumerate(pieces):
        for channel, _ in one:
            counts[row, channels.CHANNELS.index(channel)] += next(left)
    return counts


def split(said: Conversation, prompt: object) -> Pieces:
    """Return the pieces of a response: of contents by their tags, of what was read as one."""
    start = prompt[0] if isinstance(prompt, list) and prompt else prompt
    inside = isinstance(start, str) and channels.opens_thinking(start[-2 * channels.MAX_MARK :])
    found: Pieces = []
    for is_own, parts in said:
        for channel, text in parts:
            if channel == channels.ANSWER and is_own:
                found += channels.split_channels(text, inside)
            else:
                found.append((channel if is_own else channels.OBSERVATION, text))
            inside = False
    return found


def is_opened_before(pieces: Pieces) -> bool:
    """Return whether the thinking is closed and was not opened, but by the template."""
    if len(pieces) < 2 or pieces[0][0] != channels.THINKING or channels.MARKS.match(pieces[0][1].lstrip()):
        return False
    marks = channels.find_marks(pieces[0][1][-channels.MAX_MARK :])
    return any(mark.lastgroup == f"{channels.THINKING}_ends" for mark in marks)


def divide(length: Ints, text: Ints) -> dict[str, Ints]:
    """Return lengths by channel, [N] each, in proportion to their text, [N, channels]; none where there is one channel."""
    spent = text.astype(np.float64)
    for place, channel in enumerate(channels.CHANNELS):
        if channel != channels.ANSWER and (spent[:, place] > 0).mean() < MIN_SHARE:
            spent[:, 1] += spent[:, place] * (channel != channels.OBSERVATION)
            spent[:, place] = 0.0
    used = [place for place in range(len(channels.CHANNELS)) if np.count_nonzero(spent[:, place])]
    if len(used) < 2:
        return {}
    own = spent[:, :-1]
    own[:, 1] += own.sum(1) == 0
    total = own.sum(1, keepdims=True)
    edges = np.rint(length[:, None] * np.cumsum(own, 1) / total)
    read = np.rint(spent[:, -1] * (length.sum() / total.sum()))  # of its own tokens a response says nothing about these
    columns = np.column_stack([np.diff(edges, prepend=0.0), read])
    return {channels.CHANNELS[place]: columns[:, place].astype(np.int64) for place in used}
