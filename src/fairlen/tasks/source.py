"""Sources of problems: PLACE[@REVISION][:SPLIT][?COLUMN=VALUE,…][=WEIGHT], of which docs/data.md has examples.

A path that exists is a path, with any characters. Of a hub set card and data files are downloaded; no script is run.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

from fairlen.files.foreign import Unreadable
from fairlen.files.formats import natural
from fairlen.files.limits import name_special
from fairlen.tasks.card import WILDCARD, CardConfig, CardError, read_card

GRAMMAR = "PLACE[@REVISION][:SPLIT][?COLUMN=VALUE,…][=WEIGHT]"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/[\w.-]+)*")
DATED = re.compile(r"\d{4}-\d{2}")  # start of a date; 2024-08 is every day of that month
FORMATS = (".parquet", ".jsonl", ".json", ".csv")  # in order of preference where a folder has the same data twice
NOT_DATA = {"dataset_infos.json", "dataset_info.json", "state.json", "config.json", "package.json"}
SPLITS = ("train", "validation", "valid", "dev", "test")
CARD = "README.md"


class DataError(ValueError):
    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"--data {place}: {problem}")


@dataclass(frozen=True)
class Filter:
    """Rows whose column is a value, or lies within bounds."""

    column: str
    low: str  # empty is no bound
    high: str  # a prefix counts as all that begins with it: 2024-08 as an upper bound includes 2024-08-31

    def accepts(self, value: Any) -> bool:
        """Compare numbers as numbers, everything else (dates among it) as text; a missing value is never accepted."""
        if value is None:
            return False
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        try:
            number = float(text)
            return float(self.low or "-inf") <= number <= float(self.high or "inf")
        except ValueError:
            is_range = self.low != self.high or DATED.match(text)
            return self.low <= text and (text[: len(self.high)] if is_range else text) <= (self.high or text)


@dataclass(frozen=True)
class DataSource:
    text: str
    place: str  # a path, or a hub id owner/name without its configuration
    is_local: bool
    config: str = ""  # configuration of a hub id, or of a copy of one
    revision: str = ""  # commit, branch or tag of a hub id; empty is the newest
    split: str = ""
    filters: tuple[Filter, ...] = ()
    weight: float = 1.0  # share in a mixture, relative to the other sources

    @property
    def name(self) -> str:
        path = Path(self.place)
        stem = re.split(r"\.(parquet|jsonl|json|csv)", path.name)[0] if path.is_file() else path.name
        parts = [stem or path.resolve().name, self.config.replace("/", "-"), self.split]
        return "-".join(part for part in parts if part)


def read_source(text: str) -> DataSource:
    """Raises DataError saying what is wrong with the text."""
    if text and Path(text).exists():
        return DataSource(text, text, is_local=True)
    if re.match("[a-z]+://", text):
        remedy = "download the file and name its path, or name a data set of the Hugging Face hub as OWNER/NAME"
        raise DataError(text, f"addresses are not read; {remedy}")
    place, filters, weight = split_query(text)
    split = ""
    if ":" in place and not Path(place).exists():
        place, _, split = place.rpartition(":")
    if place and Path(place).exists():
        return DataSource(text, place, True, split=split, filters=filters, weight=weight)
    folder = Path(place).parent
    if has_data(folder) and not format_of(place):
        return DataSource(text, str(folder), True, Path(place).name, "", split, filters, weight)
    hub_id, _, revision = place.partition("@")
    if not HUB_ID.fullmatch(hub_id) or format_of(hub_id):
        raise DataError(text, f"there is no file or folder {place!r}; a source is {GRAMMAR}")
    owner, name, *config = hub_id.split("/")
    return DataSource(text, f"{owner}/{name}", False, "/".join(config), revision, split, filters, weight)


def has_data(folder: Path) -> bool:
    """A folder of two names or more may be a copy of a data set, and the next name its configuration."""
    files = (path.name for depth in ("*", "*/*") for path in folder.glob(depth))
    return len(folder.parts) > 1 and any(format_of(name) or name == CARD for name in files)


def split_query(text: str) -> tuple[str, tuple[Filter, ...], float]:
    """The place, the filters and the weight. A weight has at most three decimals, so that a mixture's shares are exact."""
    place, mark, query = text.partition("?")
    *items, last = query.split(",") if mark else [text]
    number = "1"
    if last.count("=") == 2 if mark else "=" in last:
        last, _, number = last.rpartition("=")
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", number) or float(number) == 0.0:
        raise DataError(text, f"weight {number!r}: give a number above 0 with at most three decimals")
    filters = tuple(read_filter(text, item) for item in (*items, last)) if mark else ()
    return place if mark else last, filters, float(number)


def read_filter(text: str, item: str) -> Filter:
    column, mark, value = item.partition("=")
    low, dots, high = value.partition("..")
    if not (column and mark and value) or (dots and not (low or high)):
        raise DataError(text, f"filter {item!r}: write COLUMN=VALUE or COLUMN=LOW..HIGH")
    return Filter(column, low, high if dots else low)


def format_of(name: str) -> str:
    """Ending of a data file, without .gz or .zst; empty for other files, hidden ones, and those without problems."""
    path = PurePosixPath(name)
    is_packed = path.suffix in (".gz", ".zst")
    suffix = path.with_suffix("").suffix if is_packed else path.suffix
    is_hidden = any(part.startswith((".", "_")) for part in path.parts)
    return suffix if suffix in FORMATS[is_packed:] and path.name not in NOT_DATA and not is_hidden else ""


def choose_files(place: str, names: Sequence[str], configs: Sequence[CardConfig], config: str, split: str) -> list[str]:
    """Choose the data files of a source.

    Args:
        place: The source as the user wrote it, for messages.
        names: Names of all files of the data set.
        configs: Configurations that its card lists. If there are none, files are chosen by their names.
        config: The configuration that was asked for; empty for the only one or the default.
        split: The split that was asked for; empty for the only one.

    Raises:
        DataError: No files fit, or it is unclear which of several are meant.
    """
    data = sorted((name for name in names if format_of(name)), key=natural)
    numbered = [name for name in data if re.fullmatch(r"test\d*\.jsonl(\.gz|\.zst)?", name)]
    if len(numbered) > 1:
        return choose_release(place, numbered, config)
    if configs:
        return choose_listed(place, data, configs, config, split)
    if config:
        chosen = [n for n in data if config in PurePosixPath(n).parts[:-1] or is_named(n, config)]
        data = chosen or refuse(place, "configuration", config, sorted({n.split("/")[0] for n in data}))
    if not data:
        script = next((name for name in names if name.endswith(".py")), "")
        why = f"; it has a loading script ({script}), which is never run" if script else ""
        raise DataError(place, f"no Parquet, JSON or CSV files there{why}; give a copy in one of these formats")
    best = min(map(format_of, data), key=FORMATS.index)
    return choose_split(place, [name for name in data if format_of(name) == best], split)


def choose_split(place: str, names: list[str], split: str) -> list[str]:
    """By the file's name, else its nearest folder that names a split; all files where none does."""
    found: dict[str, list[str]] = {}
    for name in names:
        own = [split] if split not in ("", *SPLITS) and is_named(name, split) else []
        parts = ([one for one in SPLITS if is_named(part, one)] for part in reversed(PurePosixPath(name).parts))
        for one in own or next(filter(None, parts), []):
            found.setdefault(one, []).append(name)
    if split:
        return found.get(split) or refuse(place, "split", split, sorted(found) or names)
    if len(found) > 1:
        raise DataError(place, f"it has the splits {', '.join(sorted(found))}; add :SPLIT")
    return next(iter(found.values()), names)


def choose_release(place: str, names: list[str], config: str) -> list[str]:
    """Files of LiveCodeBench: release_v5 is test.jsonl to test5.jsonl, v5 the last alone."""
    newest, named = len(names), re.fullmatch(r"(release_)?v([1-9]\d*)", config)
    if not named or int(named[2]) > newest:
        what = f"it is published in {newest} parts; name a release after the id: /release_v{newest} is all of them"
        raise DataError(place, f"{what}, /v{newest} the newest alone")
    return names[: int(named[2])] if named[1] else [names[int(named[2]) - 1]]


def choose_listed(place: str, data: list[str], configs: Sequence[CardConfig], config: str, split: str) -> list[str]:
    """Choose data files by the patterns of a card, as `choose_files`."""
    by_name = {entry.name: entry for entry in configs}
    defaults = [entry.name for entry in configs if entry.is_default or entry.name == "default" or len(configs) == 1]
    chosen = config or next(iter(defaults), "")
    if chosen not in by_name:
        refuse(place, "configuration", config, list(by_name))
    try:
        splits = by_name[chosen].splits
    except CardError as error:
        raise DataError(place, f"{CARD}: {error}; mend the card, or name the data files themselves") from None
    if not splits:
        return choose_split(place, [name for name in data if chosen in PurePosixPath(name).parts] or data, split)
    if not split and len(splits) > 1:
        raise DataError(place, f"it has the splits {', '.join(sorted(splits))}; add :SPLIT")
    split = split or next(iter(splits))
    patterns = splits.get(split) or refuse(place, "split", split, sorted(splits))
    return match_patterns(data, patterns) or refuse(place, "split", split, patterns)


def match_patterns(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that equal one of the patterns, or match one with wildcards."""
    relative = [pattern.removeprefix("./") for pattern in patterns]
    exact = set(relative)
    wildcards = [pattern for pattern in relative if WILDCARD.search(pattern)]
    return [name for name in names if name in exact or any(fnmatch(name, pattern) for pattern in wildcards)]


def refuse(place: str, what: str, name: str, known: Sequence[str]) -> NoReturn:
    """Raise DataError for a configuration or split that is missing, or for a configuration that is required."""
    shown = f"no {what} {name!r} there" if name else f"it has several {what}s"
    raise DataError(place, f"{shown}; give one of {', '.join(known[:20])}")


def is_named(name: str, part: str) -> bool:
    """A name or a folder of it contains that word: train in data/train-00000-of-00002.parquet."""
    return re.search(rf"(^|[/_.-]){re.escape(part)}([/_.-]|$)", name) is not None


def locate(source: DataSource) -> tuple[tuple[Path, ...], str]:
    """Files of a source, downloaded from the hub, and its commit there, empty for local ones. Raises DataError."""
    if not source.is_local:
        return locate_on_hub(source)
    path = Path(source.place)
    if special := name_special(path):
        raise DataError(source.text, special)
    if path.is_dir():
        return choose_in(path, source, list_files(path)), ""
    if source.split:
        raise DataError(source.text, f"a single file has no splits; leave :{source.split} out")
    if not format_of(path.name):
        raise DataError(source.text, "give a .parquet, .jsonl, .json or .csv file (the last three also .gz, .zst)")
    return (path,), ""


def list_files(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]


def choose_in(folder: Path, source: DataSource, names: Sequence[str]) -> tuple[Path, ...]:
    place = source.text if source.is_local else source.place
    try:
        configs = read_card(folder / CARD)
    except (CardError, Unreadable) as error:
        raise DataError(place, str(error)) from None
    return tuple(folder / name for name in choose_files(place, names, configs, source.config, source.split))


def locate_on_hub(source: DataSource) -> tuple[tuple[Path, ...], str]:
    """Download the card of a hub data set, then its chosen files; or find them in the cache, with HF_HUB_OFFLINE=1."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    offline, revision = constants.HF_HUB_OFFLINE, source.revision or None
    # by the revision's name, so that the cache knows it offline
    fetch = partial(snapshot_download, source.place, repo_type="dataset", revision=revision, local_files_only=offline)
    try:
        siblings = [] if offline else HfApi().dataset_info(source.place, revision=revision, timeout=30).siblings
        folder = Path(fetch(allow_patterns=[CARD]))
        names = list_files(folder) if offline else [sibling.rfilename for sibling in siblings or ()]
        files = choose_in(folder, source, names)
        patterns = [glob.escape(path.relative_to(folder).as_posix()) for path in files]
        commit = Path(fetch(allow_patterns=patterns)).name  # another one, if the branch has moved: never a mixture
        return tuple(folder.with_name(commit) / path.relative_to(folder) for path in files), commit
    except (OSError, HTTPError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(
            source.text,
            f"the hub gave no data set {source.place}: {reason} Check the id and the network, log in where conditions have to "
            "be accepted, set HF_HUB_OFFLINE=1 to use what was downloaded before, or give a local copy of its files",
        ) from error
