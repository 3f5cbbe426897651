"""The console as every command writes to it: text is shown and does nothing, with any control characters shown as text."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from fairlen.secrets import hide

if TYPE_CHECKING:
    from rich.console import Console

LAYOUT = re.compile(r"([\n\t\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]+)")
"""Characters that only move what follows: line breaks, tabs and spaces of any width."""


def visible(text: str) -> str:
    """Return text in one line: control characters and those that reorder are written as escapes, so that they do nothing."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def visible_lines(text: str) -> str:
    """Return the same, line breaks, tabs and spaces left as they are."""
    return "".join(part if LAYOUT.match(part) else visible(part) for part in LAYOUT.split(text))


def plural(word: str, number: int, many: str = "") -> str:
    """Return the singular or plural of a noun, with its count."""
    return word if number == 1 else many or f"{word}s"


def first_of(texts: Sequence[str], most: int) -> list[str]:
    """Return the first of some texts, and how many more there are."""
    more = len(texts) - most
    return [*texts[:most], *([f"and {more:,} more"] if more > 0 else [])]


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name, two where they are equally near, or all of them."""
    near = difflib.get_close_matches(name, list(known), 2)
    likeness = [difflib.SequenceMatcher(None, one, name).ratio() for one in near]
    best = " or ".join(repr(one) for one, ratio in zip(near, likeness, strict=True) if ratio == likeness[0])
    return f"did you mean {best}?" if near else f"there are {', '.join(known) or 'none'}"


def log(message: object = "", file: IO[str] | None = None, end: str = "\n") -> None:
    """Print a message without secrets to stdout, or to `file`."""
    print(visible_lines(hide(str(message))), file=file, end=end, flush=True)


def warn(text: str, who: str = "fairlen: ") -> None:
    """Print a line to stderr beside a command's output; a stderr that cannot be written to stops nothing."""
    with contextlib.suppress(OSError, ValueError):
        log(f"{who}{text}", sys.stderr)


def tell(text: str) -> None:
    """Print a line to stderr for a person who waits at a terminal."""
    if sys.stderr.isatty():
        warn(text)


class ManyProblems(ValueError):
    """Several problems of one configuration, each with its remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.header = f"{len(problems)} settings cannot be taken:"
        self.problems = tuple(f"{number}. {problem}" for number, problem in enumerate(problems, 1))
        super().__init__("\n  ".join((self.header, *self.problems)))


def complain(command: str, error: object) -> None:
    """Print what is wrong to stderr: in one line, or in one line for each of several problems."""
    parts = (error.header, *error.problems) if isinstance(error, ManyProblems) else (str(error),)
    warn("\n  ".join(" ".join(part.split()) for part in parts), f"fairlen {command}: ")


def show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error, as `sys.excepthook` does."""
    log("".join(traceback.format_exception(kind, error, trace)), sys.stderr, end="")


def make_console(width: int | None = None, file: IO[str] | None = None) -> Console:
    """Return a console on which text is text: paths, problems and errors may hold brackets, which are no styles here.

    `width` is used where the output is no terminal and COLUMNS does not say another, so that tables in files are not broken.
    """
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        """Writes out control characters: before it measures strings, and in all else that is rendered."""

        def render_str(self, text: str, **options: Any) -> Any:
            return super().render_str(visible(hide(text)), **options)

        def render(self, *what: Any, **options: Any) -> Iterable[Segment]:
            for text, style, control in super().render(*what, **options):
                yield Segment(text if control else visible_lines(text), style, control)

        def on_broken_pipe(self) -> None:
            raise  # where the command ends, as of all else that is printed; rich would end with exit code 1

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            text = super()._render_buffer(buffer)
            return text if self.is_terminal else re.sub(r" +$", "", text, flags=re.M)

    colours = None if os.environ.get("NO_COLOR") else "auto"
    console = SafeConsole(highlight=False, markup=False, file=file, color_system=colours)
    if not console.is_terminal and width is not None and "COLUMNS" not in os.environ:
        console.width = width
    console.width = console.width or 80  # COLUMNS=0
    return console


def print_table(
    console: Console,
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Container[int] = range(100),
) -> None:
    """Print a table; its first column is never broken, and columns that are not among `left` hold numbers.

    Where it is too wide for the console and turned it is not, columns are printed as rows.
    """
    from rich.table import Table

    def build(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Container[int]) -> Table:
        table = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for place, heading in enumerate(headings):
            table.add_column(heading, no_wrap=place == 0, justify="left" if place in left else "right")
        for row in rows:
            table.add_row(*row)
        return table

    def fits(table: Table) -> bool:
        return console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width

    kept = list(rows)
    table, turned = build(headings, kept, left), build(*turn(headings, kept), left=(0,))
    console.print(turned if not fits(table) and fits(turned) else table)


def turn(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Return a table's headings and rows with columns for rows."""
    first, *others = zip(headings, *rows, strict=True)
    return first, others


PAUSE = 30.0
"""Seconds between two lines where the output is no terminal."""


@dataclass
class Pace:
    """A count on its way to a total, since it was made."""

    name: str
    total: int
    count: Callable[[], int]
    unit: str = "responses"
    num_tokens: Callable[[], int] | None = None
    start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.before = self.count(), self.num_tokens() if self.num_tokens else 0

    def __str__(self) -> str:
        done, seconds = self.count() - self.before[0], time.monotonic() - self.start
        speed = f", {(self.num_tokens() - self.before[1]) / seconds:,.0f} tokens/s" if self.num_tokens else ""
        is_telling = 0 < done <= self.total <= 4 * done  # many end at once: the first of them say little
        left = f", {show_time(seconds * (self.total / done - 1))} left" if is_telling else ""
        total = f" of {self.total:,}" if done <= self.total else ""  # forks and refills are more
        return f"{self.name}: {done:,}{total} {self.unit}{speed}{left}"


def show_time(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    return str(timedelta(seconds=round(seconds)))


@contextlib.contextmanager
def showing(console: Console, work: object, pause: float = PAUSE) -> Iterator[None]:
    """Show the text of `work` within: live on a terminal, elsewhere as a line every `pause` seconds."""
    if console.is_terminal:
        from rich.live import Live
        from rich.text import Text

        with Live(console=console, get_renderable=lambda: Text(str(work), "dim"), refresh_per_second=2, transient=True):
            yield
        return
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(pause):
            console.print(str(work), style="dim", soft_wrap=True)

    thread = threading.Thread(target=repeat, name="fairlen-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
