"""The terminal as every command writes to it."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console(width: int | None = None, file: IO[str] | None = None) -> Console:
    """A terminal on which text is text: paths, problems and errors may hold brackets, which are no styles here.

    `width` is used where nobody looks at a screen, so that tables in files are not broken.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, file=file)
    return (
        console
        if console.is_terminal or width is None
        else Console(highlight=False, markup=False, width=width, file=file)
    )
