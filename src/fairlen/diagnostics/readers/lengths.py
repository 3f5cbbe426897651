"""How long a text is: in words, characters, or tokens of a tokenizer."""

from __future__ import annotations

from pathlib import Path

from fairlen.diagnostics.log import Unit
from fairlen.diagnostics.readers.chunk import Meter


def make_meter(unit: Unit | None, tokenizer: str) -> Meter:
    """The meter that was asked for; words where nothing was. Raises ValueError for a tokenizer that cannot be loaded."""
    if tokenizer:
        return Meter("tokens", load_tokenizer(tokenizer))
    if unit == "characters":
        return Meter("characters", lambda texts: [len(text) for text in texts])
    return Meter("words", lambda texts: [len(text.split()) for text in texts])


def load_tokenizer(folder: str):
    """Counts tokens, special ones left out, as those were lost where the text was decoded."""
    path = Path(folder) / "tokenizer.json" if Path(folder).is_dir() else Path(folder)
    if not path.is_file():
        raise ValueError(f"--tokenizer {folder}: no tokenizer.json there; give the folder of a model that has one")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError("--tokenizer needs the package tokenizers: pip install tokenizers") from None
    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"--tokenizer {folder}: {error}") from None
    loaded.no_truncation()
    loaded.no_padding()

    def count(texts: list[str]) -> list[int]:
        return [len(encoded) for encoded in loaded.encode_batch_fast(texts, add_special_tokens=False)]

    return count
