"""Which files of a folder belong to a configuration and split. Scripts are never run: a data set that needs one is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from fairlen.files.formats import natural

Raw = dict[str, Any]
FORMATS = (".parquet", ".jsonl", ".json", ".csv")
"""In order of preference where a folder has the same data twice."""
NOT_DATA = {"dataset_infos.json", "dataset_info.json", "state.json", "config.json", "package.json"}
SPLITS = ("train", "validation", "valid", "dev", "test")


def format_of(name: str) -> str:
    """The ending of a data file, without .gz or .zst; empty where it is none."""
    path = PurePosixPath(name)
    if path.suffix in (".gz", ".zst"):
        path = path.with_suffix("")
        return path.suffix if path.suffix in FORMATS[1:] else ""
    return path.suffix if path.suffix in FORMATS else ""


def is_data_file(name: str) -> bool:
    """Whether a file by its name can hold problems."""
    path = PurePosixPath(name)
    hidden = any(part.startswith((".", "_")) for part in path.parts)
    return bool(format_of(name)) and path.name not in NOT_DATA and not hidden


def choose_files(place: str, names: Sequence[str], card: dict[str, Any], config: str, split: str) -> list[str]:
    """The files of a configuration and split, by the card's `configs` where it has them, else by folders and names.

    Raises ValueError listing what there is where the choice is not clear.
    """
    data = sorted((name for name in names if is_data_file(name)), key=natural)
    numbered = [name for name in data if re.fullmatch(r"test\d*\.jsonl(\.gz|\.zst)?", name)]
    if len(numbered) > 1:
        return choose_release(place, numbered, config)
    listed = card.get("configs") or []
    if listed:
        return choose_listed(place, data, listed, config, split)
    if config:
        chosen = [n for n in data if config in PurePosixPath(n).parts[:-1] or is_named(n, config)]
        data = chosen or refuse(place, "configuration", config, sorted({n.split("/")[0] for n in data}))
    if not data:
        scripts = [name for name in names if name.endswith(".py")]
        why = f"; it has a loading script ({scripts[0]}), which is never run" if scripts else ""
        raise ValueError(
            f"--data {place}: no Parquet, JSON or CSV files there{why}; give a copy in one of these formats"
        )
    best = next(suffix for suffix in FORMATS if any(format_of(name) == suffix for name in data))
    return choose_split(place, [name for name in data if format_of(name) == best], split)


def choose_split(place: str, names: list[str], split: str) -> list[str]:
    """Files by the split in their names or folders; all of them where no name has one."""
    found = {known: [n for n in names if is_named(n, known)] for known in dict.fromkeys((*SPLITS, split)) if known}
    found = {known: some for known, some in found.items() if some}
    if split:
        return found.get(split) or refuse(place, "split", split, sorted(found) or names)
    if len(found) > 1:
        raise ValueError(f"--data {place}: it has the splits {', '.join(sorted(found))}; add :SPLIT")
    return next(iter(found.values()), names)


def choose_release(place: str, names: list[str], config: str) -> list[str]:
    """LiveCodeBench: release_v5 is test.jsonl to test5.jsonl, v5 is test5.jsonl alone, v3_v5 the third to the fifth."""
    bounds = re.fullmatch(r"(release_)?v(\d+)(?:_v(\d+))?", config)
    if not bounds or (bounds[1] and bounds[3]):
        raise ValueError(
            f"--data {place}: it is published in {len(names)} parts; name a release after the id: "
            f"{place}/release_v{len(names)} is all of them, {place}/v{len(names)} the newest alone"
        )
    first = 1 if bounds[1] else int(bounds[2])
    last = int(bounds[3] or bounds[2])
    if not 1 <= first <= last <= len(names):
        raise ValueError(f"--data {place}: configuration {config!r}: there are v1 to v{len(names)}")
    return names[first - 1 : last]


def choose_listed(place: str, data: list[str], listed: list[Raw], config: str, split: str) -> list[str]:
    """By the card of a hub data set."""
    by_name = {str(entry.get("config_name", "default")): entry for entry in listed}
    defaults = [name for name, entry in by_name.items() if entry.get("default")]
    names = list(by_name)
    chosen = config or (names[0] if len(names) == 1 else "default" if "default" in names else "".join(defaults[:1]))
    if chosen not in by_name:
        refuse(place, "configuration", config, names)
    files = by_name[chosen].get("data_files") or []
    entries = [{"split": "train", "path": files}] if isinstance(files, str) else files
    entries = [{"split": "train", "path": entry} if isinstance(entry, str) else entry for entry in entries]
    splits = {str(entry.get("split", "train")): as_list(entry.get("path")) for entry in entries}
    if not splits:
        return choose_split(place, [name for name in data if chosen in PurePosixPath(name).parts] or data, split)
    if not split and len(splits) > 1:
        raise ValueError(f"--data {place}: it has the splits {', '.join(sorted(splits))}; add :SPLIT")
    patterns = splits.get(split or next(iter(splits))) or refuse(place, "split", split, sorted(splits))
    matched = [name for name in data if any(fnmatch(name, pattern.removeprefix("./")) for pattern in patterns)]
    return matched or refuse(place, "split", split or next(iter(splits)), patterns)


def refuse(place: str, what: str, name: str, known: Sequence[str]) -> list[str]:
    """Raises ValueError for a configuration or split that is not there."""
    shown = f"no {what} {name!r} there" if name else f"it has several {what}s"
    raise ValueError(f"--data {place}: {shown}; give one of {', '.join(known[:20])}")


def is_named(name: str, part: str) -> bool:
    """Whether a name or a folder of it is that word: train in data/train-00000-of-00002.parquet."""
    return re.search(rf"(^|[/_.-]){re.escape(part)}([/_.-]|$)", name) is not None


def as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])
