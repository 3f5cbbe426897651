"""The files that paths, folders and patterns name."""

from __future__ import annotations

import glob
from pathlib import Path

from fairlen.files.formats import Unreadable, natural
from fairlen.files.limits import name_special


def find_files(paths: list[str]) -> list[tuple[Path, bool]]:
    """Return the files of the paths, and whether each was named itself; folders are searched, patterns expanded.

    Raises Unreadable for a path where nothing is, or a pipe.
    """
    found: dict[Path, bool] = {}
    for text in paths:
        if not text:
            raise Unreadable("an empty path: name a file, a folder or a pattern ('.' is the folder that you are in)")
        matches = (
            [Path(text)] if Path(text).exists() else [Path(match) for match in sorted(glob.glob(text, recursive=True))]
        )
        if not matches:
            raise Unreadable(f"{text}: there is no such file or folder, and no file matches it as a pattern")
        inside = [(path, match) for match in matches for path in (files_of(match) if match.is_dir() else [match])]
        if not inside:
            raise Unreadable(f"{matches[0].resolve()}: no file in this folder: name one with rollouts")
        for path, match in inside:
            if special := name_special(path):
                raise Unreadable(f"{path}: {special}")
            found[path] = path == match or found.get(path, False)
    return list(found.items())


def files_of(folder: Path) -> list[Path]:
    """Return all files within a folder but hidden ones."""
    found = sorted(folder.rglob("*"), key=lambda path: natural(str(path)))
    return [path for path in found if path.is_file() and not path.name.startswith(".")]
