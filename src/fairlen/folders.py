"""Folders for what a command leaves behind."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def choose_folder(name: str, root: str = "runs") -> Path:
    """A new folder under `root` that says when and what."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    candidates = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """The folder with what `write` puts into it; until all of that is written, it is as it was."""
    staging = path.with_name(f".tmp-{path.name}")
    shutil.rmtree(staging, ignore_errors=True)
    try:
        write(staging)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Within, no other process writes to the folder. Raises ValueError where one does; the system unlocks for those that die."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out={folder}: another process trains in this folder; stop it, or wait for its end"
            ) from None
        yield


def write_whole(path: Path, text: str) -> None:
    """A file that is whole or as it was."""
    staging = path.with_name(f".tmp-{path.name}")
    staging.write_text(text)
    os.replace(staging, path)


@contextmanager
def going_on_in(folder: Path) -> Iterator[None]:
    """An interruption within says in which folder the same command goes on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.folder = str(folder)  # type: ignore[attr-defined]  # read where the command ends
        raise
