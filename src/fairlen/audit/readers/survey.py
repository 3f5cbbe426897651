"""What the first rows of a log have in common, decided once for all of its files: blocks in texts, and messages of failures."""

from __future__ import annotations

from fairlen.audit.readers import messages
from fairlen.audit.readers.blocks import find_blocks
from fairlen.audit.readers.broken import find_cut_mark, find_messages
from fairlen.audit.readers.rows import Found, find_correct_rows, hashes, numbers, read_outcomes
from fairlen.files.formats import Chunk


def survey_rows(chunk: Chunk, found: Found) -> None:
    """Set what `read_rows` has to know before it reads any row: `found.forms`, `found.messages`, and whether texts may be cut.

    `chunk` has the first rows, with columns that are named as `read_rows` takes them.
    """
    texts = [messages.text_of(value) or "" for value in chunk.get("response")]
    found.chosen["may_be_cut"] = any(map(find_cut_mark, texts))
    found.chosen["forms"] = find_blocks([text for text in texts if text], found.meanings)
    dropped = numbers(chunk.get("dropped"))[0] > 0
    outcome, verdict, _ = read_outcomes(chunk, dropped, [""] * len(chunk))
    correct = find_correct_rows(outcome, verdict)
    found.chosen["messages"] = find_messages(texts, hashes(chunk.get("prompt")), correct)
