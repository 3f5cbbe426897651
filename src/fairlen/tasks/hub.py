"""Data sets of the Hugging Face hub, and folders that look like one: their data files, and the commit that they are of.

Only data files and the card are downloaded. The commit is looked up first and everything is taken from it, so that a run can
name what it was made with. With HF_HUB_OFFLINE=1 what was downloaded before is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlen.files.limits import name_special
from fairlen.tasks.files import choose_files, is_data_file
from fairlen.tasks.source import Source

CARD = "README.md"


@dataclass(frozen=True)
class Located:
    """Files of one source."""

    files: tuple[Path, ...]
    revision: str
    """Commit of a hub data set; empty for local files, which the fingerprint identifies."""


def locate(source: Source) -> Located:
    """The files of a source. Raises ValueError naming the place, the reason and what to do."""
    if not source.is_local:
        return locate_on_hub(source)
    path = Path(source.place)
    if special := name_special(path):
        raise ValueError(f"--data {source.text}: {special}")
    if path.is_file():
        if source.split:
            raise ValueError(f"--data {source.text}: a single file has no splits; leave :{source.split} out")
        if not is_data_file(path.name):
            raise ValueError(
                f"--data {source.text}: give a .parquet, .jsonl, .json or .csv file (the last three also .gz, .zst)"
            )
        return Located((path,), "")
    names = [str(p.relative_to(path)) for p in sorted(path.rglob("*")) if p.is_file()]
    card = (path / CARD).read_text(errors="replace") if (path / CARD).is_file() else ""
    chosen = choose_files(source.text, names, read_card(card), source.config, source.split)
    return Located(tuple(path / name for name in chosen), "")


def read_card(text: str) -> dict[str, Any]:
    """The settings at the top of a README; empty where there are none, or they are no YAML."""
    import yaml

    front = re.match(r"\s*---\r?\n(.*?)\r?\n---", text, re.DOTALL)
    try:
        card = yaml.safe_load(front[1]) if front else {}
    except yaml.YAMLError:
        card = {}
    return card if isinstance(card, dict) else {}


def locate_on_hub(source: Source) -> Located:
    """Downloads, or finds in the cache, the data files of a hub data set."""
    try:
        from huggingface_hub import constants
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
    except ImportError:
        raise ValueError(
            f"--data {source.text}: hub ids need the package huggingface_hub: pip install 'fairlen[train]', or give a local file"
        ) from None
    import httpx

    try:
        if constants.HF_HUB_OFFLINE:
            return locate_in_cache(source)
        return download(source)
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.HTTPError, OSError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"--data {source.text}: the hub gave no data set {source.place}: {reason} "
            "Check the id and the network, log in where its conditions have to be accepted, "
            "set HF_HUB_OFFLINE=1 to use what was downloaded before, or give a local copy of its files"
        ) from error


def download(source: Source) -> Located:
    """From the hub, at the newest commit of the revision."""
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi().dataset_info(source.place, revision=source.revision or None, timeout=30)
    names = [sibling.rfilename for sibling in info.siblings or ()]

    def get(name: str) -> Path:
        # by the revision's name, so that the cache knows it offline; its files are of one commit, or refused
        revision = source.revision or "main"
        path = Path(hf_hub_download(source.place, name, repo_type="dataset", revision=revision))
        if info.sha not in path.parts:
            raise ValueError(
                f"--data {source.text}: {revision} of {source.place} changed while it was read; start again"
            )
        return path

    card = read_card(get(CARD).read_text(errors="replace")) if CARD in names else {}
    chosen = choose_files(source.place, names, card, source.config, source.split)
    return Located(tuple(get(name) for name in chosen), info.sha or "")


def locate_in_cache(source: Source) -> Located:
    """What was downloaded before; its folder is named by the commit."""
    from huggingface_hub import snapshot_download

    revision = source.revision or None
    folder = Path(snapshot_download(source.place, repo_type="dataset", revision=revision, local_files_only=True))
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    card = read_card((folder / CARD).read_text(errors="replace")) if CARD in names else {}
    chosen = choose_files(source.place, names, card, source.config, source.split)
    return Located(tuple(folder / name for name in chosen), folder.name)
