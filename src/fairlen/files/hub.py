"""Where a model is read from: its folder, the hub, or the cache where the hub cannot be reached."""

from __future__ import annotations

from pathlib import Path

import httpx
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

PATIENCE = 10
"""Seconds for the hub's first answer."""


def find_model(place: str, revision: str = "") -> str:
    """The place itself, or its folder in the cache if the hub does not answer: transformers would go on asking for a minute.

    Raises OSError where there is neither. A name that the hub does not know is left to transformers, which says so.
    """
    if Path(place).exists() or constants.HF_HUB_OFFLINE:
        return place
    try:
        HfApi().model_info(place, revision=revision or None, timeout=PATIENCE)
    except httpx.TransportError as error:
        return find_in_cache(place, revision, error)
    except (HfHubHTTPError, ValueError):
        pass
    return place


def find_in_cache(place: str, revision: str, reason: Exception) -> str:
    """The folder that was downloaded before."""
    try:
        return snapshot_download(place, revision=revision or None, local_files_only=True)
    except (LocalEntryNotFoundError, ValueError):
        raise OSError(
            f"there is no such folder, and the hub cannot be asked: {reason}; nothing was downloaded before"
        ) from reason
