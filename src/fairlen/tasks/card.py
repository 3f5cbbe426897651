"""Cards of data sets: the YAML at the top of a README.md, of which fairlen uses `configs`, a list of configurations.

Anybody may have written a card. Aliases and merges, by which 500 bytes can stand for billions of values, are refused. Size and
depth are bounded, values stay texts, and the shape of each entry is checked before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairlen.console import warn
from fairlen.files.foreign import read_file_start
from fairlen.files.limits import MAX_DEPTH

MAX_CARD = 4 * 2**20
"""Maximum number of bytes of a README.md that are searched for the end of its YAML."""
MAX_PATTERN = 1024
"""Maximum length of a file pattern in characters."""
MAX_WILDCARDS = 1000
"""Maximum number of patterns with wildcards in one split: each of them is compared with the name of every file."""
CONFIGS = re.compile(r"^configs\s*:", re.MULTILINE)
WILDCARD = re.compile(r"[*?\[]")
NULLS = ("", "~", "null", "Null", "NULL")
TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")


class CardError(ValueError):
    """A card that cannot be used: the problem and the remedy."""


@dataclass(frozen=True)
class CardConfig:
    """One configuration of a data set, as its card describes it."""

    name: str
    is_default: bool = False
    data_files: Any = field(default=None, repr=False)
    """File patterns as the card has them, unchecked; None means that the card names no files."""

    @property
    def splits(self) -> dict[str, list[str]]:
        """File patterns of each split; empty if the card names no files.

        Raises:
            CardError: `data_files` does not have one of the forms that a card may have.
        """
        return read_splits(f"data_files of the configuration {self.name!r}", self.data_files)


def read_card(path: Path) -> tuple[CardConfig, ...]:
    """Read the configurations that a card lists.

    A card that is not valid YAML is ignored with a warning if it lists no configurations.

    Args:
        path: README.md of a data set, which need not exist.

    Returns:
        The configurations, in the order of the card; empty if there are none.

    Raises:
        CardError: The configurations cannot be read.
        Unreadable: The path is a pipe, a socket or a device.
    """
    if not path.exists() or path.is_dir():
        return ()
    return parse_card(read_file_start(path, MAX_CARD + 1).decode("utf-8-sig", errors="replace"), str(path))


def parse_card(text: str, name: str) -> tuple[CardConfig, ...]:
    """Parse the text of a README.md as `read_card` does; `name` is what messages call the card."""
    front, is_closed = split_front(text)
    has_configs = bool(CONFIGS.search(front))
    try:
        if not is_closed:
            if not has_configs:
                return ()  # a horizontal rule, and no YAML
            raise CardError(f"its YAML has no closing line --- in the first {MAX_CARD:,} bytes")
        card = parse_yaml(front)
        configs = card.get("configs") if isinstance(card, dict) else None
    except CardError as error:
        if has_configs:
            raise CardError(f"{name}: {error}; mend the card, or name the data files themselves") from None
        warn(f"{name}: {error}; the card is ignored, and data files are chosen by their names")
        return ()
    try:
        return tuple(read_configs(configs))
    except CardError as error:
        raise CardError(f"{name}: {error}; mend the card, or name the data files themselves") from None


def split_front(text: str) -> tuple[str, bool]:
    """Return the lines between the first line --- and the next one, and whether that second line exists.

    Both are empty and true if the text does not begin with ---.
    """
    lines = text.lstrip().splitlines()
    if not lines or lines[0].rstrip() != "---":
        return "", True
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == "---":
            return "\n".join(lines[1:number]), True
    return "\n".join(lines[1:]), False


def parse_yaml(text: str) -> Any:
    """Parse YAML without aliases and merges into dicts, lists, texts and None.

    Raises:
        CardError: The text is not YAML, has an alias or a merge, or is nested more than MAX_DEPTH deep.
    """
    import yaml

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        return build_value(yaml.parse(text, Loader=loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in its line {mark.line + 1}" if mark else ""
        raise CardError(
            f"its YAML cannot be read{place} ({getattr(error, 'problem', None) or 'invalid characters'})"
        ) from None


def build_value(events: Iterator[Any]) -> Any:
    """Build the value of a YAML document from the parser's events, which come lazily. No recursion, no constructor of YAML."""
    import yaml

    root: list[Any] = []
    containers: list[Any] = [root]
    keys: list[str | None] = [None]  # of each open container the key that waits for its value
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise CardError(f"its YAML has an alias (*{event.anchor}), which is not read: write the value out")
        if isinstance(event, yaml.CollectionEndEvent):
            containers.pop()
            keys.pop()
            continue
        if isinstance(event, yaml.ScalarEvent):
            is_null = event.style in (None, "") and event.value in NULLS
            value = None if is_null else event.value
        elif isinstance(event, yaml.CollectionStartEvent):
            value = {} if isinstance(event, yaml.MappingStartEvent) else []
        else:  # of the stream or the document
            continue
        parent = containers[-1]
        if isinstance(parent, list):
            parent.append(value)
        elif keys[-1] is None:
            keys[-1] = check_key(event, value)
            continue
        else:
            parent[keys[-1]] = value
            keys[-1] = None
        if isinstance(value, dict | list):
            containers.append(value)
            keys.append(None)
        if len(containers) > MAX_DEPTH:
            raise CardError(f"its YAML is nested more than {MAX_DEPTH} deep")
    if len(root) > 1:
        raise CardError("its YAML has several documents")
    return root[0] if root else None


def check_key(event: Any, value: Any) -> str:
    """Return the key of a mapping. Raises CardError for a merge, and for a key that is no text."""
    if isinstance(value, dict | list):
        raise CardError(f"its YAML has a list or a mapping as a key in its line {event.start_mark.line + 1}")
    if value == "<<":
        raise CardError("its YAML has a merge (<<), which is not read: write the values out")
    return event.value


def read_configs(configs: Any) -> Iterator[CardConfig]:
    """Yield the entries of `configs`. Raises CardError for another shape than a list of mappings with different names."""
    if configs is None:
        return
    if not isinstance(configs, list):
        raise CardError(f"configs is {name_kind(configs)}, and a list of configurations is expected")
    names: set[str] = set()
    for number, entry in enumerate(configs, 1):
        if not isinstance(entry, dict):
            raise CardError(f"configs, entry {number}: {name_kind(entry)}, and a mapping with config_name is expected")
        name = entry.get("config_name", "default")
        if not isinstance(name, str) or not name:
            raise CardError(f"configs, entry {number}: config_name is {name_kind(name)}, and a text is expected")
        if name in names:
            raise CardError(f"configs has two configurations {name!r}")
        names.add(name)
        yield CardConfig(
            name, read_flag(f"default of the configuration {name!r}", entry.get("default")), entry.get("data_files")
        )


def read_flag(name: str, value: Any) -> bool:
    """Return a truth value; None is false. Raises CardError for another value."""
    word = value.lower() if isinstance(value, str) else value
    if word not in (None, *TRUE, *FALSE):
        raise CardError(f"{name} is {name_kind(value)}, and true or false is expected")
    return word in TRUE


def read_splits(name: str, data_files: Any) -> dict[str, list[str]]:
    """Return the file patterns of each split.

    Args:
        name: What messages call the value.
        data_files: A pattern, a list of patterns or of mappings with `path` and perhaps `split`, one such mapping, or a
            mapping from splits to patterns. Patterns without a split are of the split "train". None has no splits.

    Raises:
        CardError: `data_files` has another form.
    """
    if data_files is None:
        return {}
    if isinstance(data_files, dict) and "path" not in data_files:
        pairs = list(data_files.items())
    else:
        entries = data_files if isinstance(data_files, list) else [data_files]
        plain = [entry for entry in entries if isinstance(entry, str)]
        pairs = [("train", plain)] if plain else []
        for entry in entries:
            if isinstance(entry, dict) and "path" in entry:
                pairs.append((entry.get("split", "train"), entry["path"]))
            elif not isinstance(entry, str):
                raise CardError(
                    f"{name}: {name_kind(entry)} in place of a file pattern or a mapping with split and path"
                )
    splits: dict[str, list[str]] = {}
    for split, patterns in pairs:
        if not isinstance(split, str) or not split:
            raise CardError(f"{name}: a split is {name_kind(split)}, and a text is expected")
        if split in splits:
            raise CardError(f"{name}: the split {split!r} is named twice")
        splits[split] = check_patterns(f"{name}, split {split!r}", patterns)
    if not splits:
        raise CardError(f"{name}: empty, and file patterns are expected")
    return splits


def check_patterns(name: str, patterns: Any) -> list[str]:
    """Return file patterns as a list. Raises CardError if they are not texts, are too long, or too many have wildcards."""
    listed = patterns if isinstance(patterns, list) else [patterns]
    for pattern in listed:
        if not isinstance(pattern, str) or not pattern:
            raise CardError(f"{name}: {name_kind(pattern)} in place of a file pattern")
        if len(pattern) > MAX_PATTERN:
            raise CardError(f"{name}: a file pattern of {len(pattern):,} characters, more than {MAX_PATTERN:,}")
    if not listed:
        raise CardError(f"{name}: no file pattern")
    num_wildcards = sum(bool(WILDCARD.search(pattern)) for pattern in listed)
    if num_wildcards > MAX_WILDCARDS:
        raise CardError(f"{name}: {num_wildcards:,} patterns with wildcards, more than {MAX_WILDCARDS:,}")
    return listed


def name_kind(value: Any) -> str:
    """Name a value of a card for a message: a text by its beginning, anything else by its kind."""
    if isinstance(value, str):
        return f"{value[:40]!r}" if value else "an empty text"
    kinds = {dict: "a mapping", list: "a list"}
    return kinds.get(type(value), "empty")
