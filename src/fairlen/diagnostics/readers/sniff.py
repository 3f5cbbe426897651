"""Which format a file has, by the names of its columns and not by its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlen.diagnostics.readers import fairlen_records, generic, lm_eval, prime_rl, trl, verl
from fairlen.files import formats
from fairlen.files.formats import Unreadable

FORMATS: tuple[Any, ...] = (fairlen_records, trl, verl, prime_rl, lm_eval, generic)
"""In the order in which they are tried."""
ENOUGH = 10
"""Rows whose names are taken."""


class NoRollouts(Unreadable):
    """A file that can be read but holds no rollouts."""


def columns_of(path: Path, container: str) -> set[str]:
    """Return the names of the columns. Raises Unreadable, NoRollouts where not one of the rows is an object."""
    problems: list[str] = []
    try:
        return set(
            formats.columns_of(path, container, lambda line, why: problems.append(f"line {line}: {why}"), ENOUGH)
        )
    except Unreadable:
        if problems:
            raise NoRollouts(f"{path}: no object in its first lines: {problems[0]}") from None
        raise


def sniff(path: Path, container: str, given: dict[str, str]) -> Any:
    """The module that reads the file.

    Raises Unreadable for a file that --columns does not fit, NoRollouts for one with other things in it.
    """
    columns = columns_of(path, container)
    if given and not fairlen_records.fits(columns):
        wrong = generic.check_given(given, columns)
        if wrong:
            raise NoRollouts(f"{path}: {wrong}")
        modules: tuple[Any, ...] = (generic,)
    else:
        modules = FORMATS
    for module in modules:
        if module.fits(columns, given) if module is generic else module.fits(columns):
            return module
    if not columns:
        raise NoRollouts(f"{path}: no object in its first lines: give one JSON object a line")
    names = ", ".join(sorted(columns)[:12])
    raise NoRollouts(
        f"{path}: no column of answers and rewards among {names}: name them: --columns response=NAME,reward=NAME"
    )
