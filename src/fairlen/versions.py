"""Which versions made a result: what a run folder and an evaluation record."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

NOT_INSTALLED = "not installed"


def find_version(package: str) -> str:
    """The installed version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed versions of packages, and Python's."""
    return {name: find_version(name) for name in packages} | {"python": platform.python_version()}
