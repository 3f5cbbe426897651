"""Where problems come from, as it is written on the command line: PLACE[@REVISION][:SPLIT][?COLUMN=VALUE,…][=WEIGHT].

    math.jsonl                               a file: Parquet, JSON lines, JSON or CSV; the last three also as .gz or .zst
    data/math                                a folder of them; data/math/en is its configuration en
    open-r1/DAPO-Math-17k-Processed/en       a hub id, with a configuration after it
    MathArena/aime_2025@67ab0d4:train        a revision and a split
    qq8933/AIME_1983_2024?Year=..2023        rows whose column lies within bounds, both included
    a.jsonl=3                                a share of 3 in a mixture

A path that exists is a path, whatever characters are in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlen.tasks.files import is_data_file

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(/[\w.-]+)*")
GRAMMAR = "PLACE[@REVISION][:SPLIT][?COLUMN=VALUE,…][=WEIGHT]"


DATED = re.compile(r"\d{4}-\d{2}")
"""How dates begin; of them 2024-08 is every day of that month."""


@dataclass(frozen=True)
class Filter:
    """Rows whose column is a value, or lies within bounds."""

    column: str
    low: str
    """Empty is no bound."""
    high: str
    """A prefix counts as all that begins with it: 2024-08 as an upper bound includes 2024-08-31."""

    def accepts(self, value: Any) -> bool:
        """Numbers are compared as numbers, everything else (dates among it) as text; a missing value is never accepted."""
        if value is None:
            return False
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        if self.low == self.high and not DATED.match(text):
            return is_same(text, self.low)
        return compare(text, self.low, -1) and compare(text, self.high, 1)


def is_same(text: str, value: str) -> bool:
    """One value: as a number, or as text."""
    try:
        return float(text) == float(value)
    except ValueError:
        return text == value


def compare(text: str, bound: str, side: int) -> bool:
    """Whether a value is on the right side of a bound: at most it (side 1), or at least it (side -1)."""
    if not bound:
        return True
    try:
        return side * float(text) <= side * float(bound)
    except ValueError:
        return text[: len(bound)] <= bound if side > 0 else text >= bound


@dataclass(frozen=True)
class Source:
    """One place of problems."""

    text: str
    """As it was written."""
    place: str
    """A path, or a hub id owner/name without its configuration."""
    is_local: bool
    config: str = ""
    """Configuration of a hub id, or of a copy of one."""
    revision: str = ""
    """Commit, branch or tag of a hub id; empty is the newest."""
    split: str = ""
    filters: tuple[Filter, ...] = ()
    weight: float = 1.0
    """Share in a mixture, relative to the other sources."""

    @property
    def name(self) -> str:
        """What the set is called; fit for a file name."""
        path = Path(self.place)
        stem = re.split(r"\.(parquet|jsonl|json|csv)", path.name)[0] if path.is_file() else path.name
        parts = [stem or path.resolve().name, self.config.replace("/", "-"), self.split]
        return "-".join(part for part in parts if part)


def read_source(text: str) -> Source:
    """The source that a text names. Raises ValueError saying what is wrong with it."""
    if Path(text).exists() and text:
        return Source(text, text, is_local=True)
    body, filters, weight = split_query(text)
    if Path(body).exists() and body:
        return Source(text, body, True, filters=filters, weight=weight)
    rest, _, split = body.rpartition(":") if ":" in body else (body, "", "")
    if Path(rest).exists() and rest:
        return Source(text, rest, True, split=split, filters=filters, weight=weight)
    folder = Path(rest).parent
    if has_data(folder) and not is_data_file(rest):
        return Source(text, str(folder), True, Path(rest).name, "", split, filters, weight)
    hub_id, _, revision = rest.partition("@")
    if not HUB_ID.fullmatch(hub_id) or is_data_file(hub_id):
        raise ValueError(f"--data {text}: there is no file or folder {rest!r}; a source is {GRAMMAR}")
    owner, name, *config = hub_id.split("/")
    return Source(text, f"{owner}/{name}", False, "/".join(config), revision, split, filters, weight)


def has_data(folder: Path) -> bool:
    """Whether a folder is a copy of a data set, so that the name after it is a configuration of it.

    It has at least two names, as a hub id has: `owner/name/config` is of the hub even where there is a folder `owner`.
    """
    if len(folder.parts) < 2 or not folder.is_dir():
        return False
    return any(
        is_data_file(path.name) or path.name == "README.md" for pattern in ("*", "*/*") for path in folder.glob(pattern)
    )


def split_query(text: str) -> tuple[str, tuple[Filter, ...], float]:
    """The place, the filters and the weight."""
    body, mark, query = text.partition("?")
    if not mark:
        return split_weight(text, body)
    *items, last = query.split(",")
    if last.count("=") == 2:
        last, _, number = last.rpartition("=")
        weight = read_weight(text, number)
    else:
        weight = 1.0
    return body, tuple(read_filter(text, item) for item in (*items, last)), weight


def split_weight(text: str, body: str) -> tuple[str, tuple[Filter, ...], float]:
    """A place and the weight after it."""
    place, mark, number = body.rpartition("=")
    return (place, (), read_weight(text, number)) if mark else (body, (), 1.0)


def read_weight(text: str, number: str) -> float:
    """A weight above 0 with at most three decimals, so that a mixture holds its shares exactly."""
    if not re.fullmatch(r"\d{1,6}(\.\d{1,3})?", number) or float(number) == 0.0:
        raise ValueError(f"--data {text}: weight {number!r}: give a number above 0 with at most three decimals")
    return float(number)


def read_filter(text: str, item: str) -> Filter:
    """COLUMN=VALUE or COLUMN=LOW..HIGH, where either bound may be missing."""
    column, mark, value = item.partition("=")
    low, dots, high = value.partition("..")
    if not (column and mark and value) or (dots and not (low or high)):
        raise ValueError(f"--data {text}: filter {item!r}: write COLUMN=VALUE or COLUMN=LOW..HIGH")
    return Filter(column, low, high) if dots else Filter(column, value, value)
