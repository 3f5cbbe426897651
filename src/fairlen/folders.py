"""Folders for what a command leaves behind."""

from __future__ import annotations

import time
from pathlib import Path


def choose_folder(name: str, root: str = "runs") -> Path:
    """A new folder under `root` that says when and what."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    candidates = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in range(1, 1000))
    return next(path for path in candidates if not path.exists())
