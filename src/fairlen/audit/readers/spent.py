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
from fairlen.audit.readers.blocks import TURN_NAME, BlockForms
from fairlen.audit.readers.messages import Conversation, Said
from fairlen.batch import Ints
from fairlen.files.foreign import require_regular_file
from fairlen.files.formats import describe

MIN_SHARE = 0.01  # of responses with a channel, below which it is an answer: a tag that is only mentioned is none
Pieces = list[tuple[str, str]]  # channel, or the name of a block, and text


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


def split_all(
    said: Sequence[Conversation | None], prompts: Sequence[Any], forms: BlockForms
) -> tuple[list[Conversation | None], list[Pieces], int]:
    """Return the messages of each response with their blocks separated, their pieces by channel, and a number of responses.

    A response without tags is thinking if most others close a thinking that they did not open, as their template did; the
    number is of those responses.
    """
    if forms:
        said = [messages and separate_blocks(messages, forms) for messages in said]
    pieces = [split_pieces(messages or [], prompt, bool(forms)) for messages, prompt in zip(said, prompts, strict=True)]
    if 2 * sum(map(is_opened_before, pieces)) <= len(pieces):
        return list(said), pieces, 0
    is_inside = [len(row) == 1 and row[0][0] == channels.ANSWER for row in pieces]
    rows = zip(is_inside, pieces, strict=True)
    return list(said), [[(channels.THINKING, row[0][1])] if inside else row for inside, row in rows], sum(is_inside)


def separate_blocks(messages: Conversation, forms: BlockForms) -> Conversation:
    """Return messages in which every block of the policy's text is a part of its own, and text that it read another message."""
    separated: Conversation = []
    for is_own, parts in messages:
        own: Said = []
        for channel, text in parts:
            if not is_own or channel != channels.ANSWER:
                own.append((channel, text))
                continue
            for name, piece in forms.split_text(text):
                is_read = name == TURN_NAME or forms.origins.get(name) == "read"
                if is_read and any(words.strip() for _, words in own):
                    separated.append((True, own))
                    own = []
                if is_read:
                    separated.append((False, [(channels.ANSWER, piece)]))
                else:
                    own.append((name or channels.ANSWER, piece))
        if not is_own or any(words.strip() for _, words in own):
            separated.append((is_own, own))
    return separated


def add_up(pieces: Sequence[Pieces], sizes: Iterable[int], names: Sequence[str]) -> Ints:
    """Return the sizes of all pieces, in order, by response and channel, [N, channels]."""
    remaining, counts = iter(sizes), np.zeros((len(pieces), len(names)), np.int64)
    place = {name: column for column, name in enumerate(names)}
    for row, pieces_of_row in enumerate(pieces):
        for channel, _ in pieces_of_row:
            counts[row, place[channel]] += next(remaining)
    return counts


def split_pieces(said: Conversation, prompt: object, continues: bool = False) -> Pieces:
    """Return the pieces of a response: contents are split by their tags, text that was read is one piece.

    `continues`: blocks were separated, so that thinking may continue after one.
    """
    start = prompt[0] if isinstance(prompt, list) and prompt else prompt
    inside = isinstance(start, str) and channels.opens_thinking(start[-2 * channels.MAX_MARK :])
    found: Pieces = []
    for is_own, parts in said:
        for channel, text in parts:
            if not is_own:
                found.append((channels.OBSERVATION, text))
            elif channel == channels.ANSWER:
                pieces: Pieces = [*channels.split_channels(text, inside)]
                found += pieces
                inside = is_unclosed(pieces)
            else:
                found.append((channel, text))
                inside = inside and channel not in channels.CHANNELS
            inside = inside and continues
    return found


def is_unclosed(pieces: Pieces) -> bool:
    """Return whether a text ends within thinking that continues after a block."""
    if not pieces or pieces[-1][0] != channels.THINKING:
        return False
    marks = list(channels.find_marks(pieces[-1][1]))
    return not (marks and str(marks[-1].lastgroup).endswith("ends"))


def is_opened_before(pieces: Pieces) -> bool:
    """Return whether the thinking is closed and was not opened, but by the template."""
    if len(pieces) < 2 or pieces[0][0] != channels.THINKING or channels.MARKS.match(pieces[0][1].lstrip()):
        return False
    marks = channels.find_marks(pieces[0][1][-channels.MAX_MARK :])
    return any(mark.lastgroup == f"{channels.THINKING}_ends" for mark in marks)


def divide(length: Ints, text: Ints, blocks: Sequence[str] = ()) -> dict[str, Ints]:
    """Return lengths by channel, [N] each, in proportion to their text, [N, channels + blocks]; none if there is one channel.

    `blocks`: names of the blocks of unknown origin, which count as generated.
    """
    names = [*channels.CHANNELS[:-1], *blocks, channels.OBSERVATION]
    spent = text.astype(np.float64)
    for place, name in enumerate(names):
        if name != channels.ANSWER and (spent[:, place] > 0).mean() < MIN_SHARE:
            spent[:, 1] += spent[:, place] * (name != channels.OBSERVATION)
            spent[:, place] = 0.0
    used = [place for place in range(len(names)) if np.count_nonzero(spent[:, place])]
    if len(used) < 2:
        return {}
    own = spent[:, :-1]
    own[:, 1] += own.sum(1) == 0
    total = own.sum(1, keepdims=True)
    edges = np.rint(length[:, None] * np.cumsum(own, 1) / total)
    read = np.rint(spent[:, -1] * (length.sum() / total.sum()))  # of its own tokens a response says nothing about these
    columns = np.column_stack([np.diff(edges, prepend=0.0), read])
    return {names[place]: columns[:, place].astype(np.int64) for place in used}
