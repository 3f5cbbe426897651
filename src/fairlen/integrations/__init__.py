"""fairlen inside the trainers that people already run: TRL and verl."""

from __future__ import annotations

import os
from collections.abc import Iterable

from packaging.specifiers import SpecifierSet

from fairlen.console import ManyProblems


def refuse_untested(package: str, version: str, tested: str) -> None:
    """Raise ImportError for a version outside of `tested` unless FAIRLEN_ANY_PACKAGE=1 is set."""
    variable = f"FAIRLEN_ANY_{package.upper()}"
    if os.environ.get(variable) == "1" or SpecifierSet(tested).contains(version, prereleases=True):
        return
    raise ImportError(
        f"{package} {version}: this adapter overrides private methods of {package} and was tested with {package}{tested}: "
        f"pip install '{package}{tested}', or go on at your own risk with {variable}=1"
    )


def raise_all(problems: Iterable[str]) -> None:
    """Raise a ValueError that names every problem of a configuration; do nothing if there are none."""
    found = list(dict.fromkeys(problems))
    if len(found) == 1:
        raise ValueError(found[0])
    if found:
        raise ManyProblems(found)
