"""What a person sees of an evaluation: progress, and one table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Table

from fairlen.console import make_console, visible

FEW = 100
"""Problems below which intervals of the mean are a little too narrow; estimators.py has the numbers."""


class Display:
    """Shows an evaluation while it goes; a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()
        self.progress = Progress(console=self.console, transient=True)
        self.task: TaskID | None = None

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def tell(self, line: str) -> None:
        """Shows a line that stays."""
        self.console.print(f"eval: {visible(line)}", soft_wrap=True)

    def begin(self, name: str, total: int) -> None:
        """Starts a bar."""
        if self.task is not None:
            self.progress.remove_task(self.task)
        self.task = self.progress.add_task(escape(name), total=total)

    def advance(self, done: int = 1) -> None:
        """Moves the bar."""
        if self.task is not None:
            self.progress.advance(self.task, done)


def show_summary(console: Console, summary: Mapping[str, Any], folder: str) -> None:
    """One line a set."""
    wide = make_console(200, console.file)
    table = Table(title="held-out problems", title_justify="left", box=None, pad_edge=False, title_style="bold")
    headings = ("set", "problems", "accuracy, 95% interval", "pass@n", "best@n", "maj@n", "length", "right", "wrong", "cut off",
                "no verdict")  # fmt: skip
    for place, heading in enumerate(headings):
        table.add_column(heading, no_wrap=place == 0, justify="left" if place in (0, 2) else "right")
    for name, found in summary["sets"].items():
        table.add_row(*cells_of(name, found["scores"]))
    wide.print(table)
    for name, estimate in (summary["overall"] or {}).items():
        if name.startswith("avg@"):
            console.print(f"mean over sets, {name}: {shown(estimate)}")
    for note in notes_of(summary):
        console.print(f"note: {note}", soft_wrap=True)
    console.print(f"folder: {folder}; all numbers: summary.json", soft_wrap=True)


def cells_of(name: str, scores: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the table; pass, best and maj are of all n samples."""
    average = next((key for key in scores if key.startswith("avg@")), "")
    most = average.partition("@")[2]
    length, missing = scores["length"], scores["without_verdict"]["share"]
    return (
        visible(name),
        f"{scores['problems']} x {most}" if most else str(scores["problems"]),
        shown(scores.get(average)),
        *(percent(scores.get(f"{rule}@{most}")) for rule in ("pass", "best", "maj")),
        *(number(length[side]) for side in ("all", "right", "wrong")),
        percent(scores["truncated"]),
        percent(missing),
    )


def shown(estimate: Mapping[str, Any] | None) -> str:
    """An accuracy with its interval."""
    if not estimate or estimate["value"] is None:
        return "-"
    interval = "" if estimate["low"] is None else f" [{estimate['low']:.1%}, {estimate['high']:.1%}]"
    return f"{estimate['value']:.1%}{interval}"


def percent(estimate: Mapping[str, Any] | None) -> str:
    """A share, or a dash for what does not exist."""
    return "-" if not estimate or estimate["value"] is None else f"{estimate['value']:.1%}"


def number(estimate: Mapping[str, Any]) -> str:
    return "-" if estimate["value"] is None else f"{estimate['value']:.1f}"


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know."""
    notes = []
    few = [name for name, found in summary["sets"].items() if found["scores"]["problems"] < FEW]
    if few:
        notes.append(
            f"fewer than {FEW} problems in {', '.join(few)}: intervals of that few are a little too narrow (docs/evaluation.md)"
        )
    words = [name for name, found in summary["sets"].items() if found["scores"]["unit"] != "tokens"]
    if words:
        notes.append(f"lengths of {', '.join(words)} are words: the samples do not hold their tokens")
    for name, found in summary["sets"].items():
        missing = found["scores"]["without_verdict"]
        if missing["kinds"]:
            kinds = ", ".join(f"{count} {kind}" for kind, count in missing["kinds"].items())
            low, high = (f"{missing[bound]:.1%}" for bound in ("if_incorrect", "if_correct"))
            how = "counted as wrong" if missing["counted"] == "wrong" else "left out"
            notes.append(
                f"{name}: no verdict on {kinds}, {how}; the accuracy is {low} if all are wrong, {high} if right"
            )
    return notes
