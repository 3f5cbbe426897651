"""What a person sees of a run: a live view or plain lines, a short summary at the end, and the README.md of the saved model."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fairlen.console import make_console, plural
from fairlen.evaluate.run import Evaluation, show_length
from fairlen.files.folders import write_file
from fairlen.methods.compose import Composition
from fairlen.methods.describe import hash_method, short
from fairlen.methods.learning_signal import NOTHING
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.folder import Run

COLUMNS = (
    ("batch", "rollout_batch", "{:.0f}"),
    ("update", "update", "{:.0f}"),
    ("correct", "accuracy/mean", "{:.0%}"),
    ("length", "length/mean", "{:.0f}"),
    ("if correct", "length/correct", "{:.0f}"),
    ("if incorrect", "length/incorrect", "{:.0f}"),
    ("truncated", "length/truncated", "{:.0%}"),
    ("selected", "prompts/selected", "{:.0f}"),
    ("clipped", "ratio/clipped", "{:.1%}"),
    ("entropy", "entropy/mean", "{:.2f}"),
    ("gradient", "gradient/norm", "{:.2f}"),
)
"""(heading, metric, format) of the live view and of plain lines."""
ROWS = 12


@dataclass(frozen=True)
class Summary:
    """What a finished run came to."""

    folder: Path
    before: Evaluation
    after: Evaluation
    best_accuracy: float
    num_updates: int
    training_seconds: float
    warning: str = ""
    """Why the run as a whole had nothing to learn from, where that is so."""


class Display:
    """Shows a run while it goes; a context manager."""

    def __init__(self, config: TrainConfig, composition: Composition, console: Console | None = None) -> None:
        self.config, self.composition = config, composition
        self.console = console or make_console()
        self.rows: deque[dict[str, Any]] = deque(maxlen=ROWS)
        self.evaluations: deque[dict[str, Any]] = deque(maxlen=1)
        self.start = time.perf_counter()
        is_limited = config.max_updates or config.max_generated or config.max_seconds
        self.total = f"{'up to ' if is_limited else ''}{config.rollout_batches}"
        self.live = Live(console=self.console, refresh_per_second=4) if self.console.is_terminal else None

    def __enter__(self) -> Display:
        stages = ", ".join(
            f"{path.partition('.')[0]} {short(stage)}" for path, stage in self.composition.method.stages()
        )
        self.console.print(f"fairlen train: {self.composition.name}", style="bold")
        self.console.print(stages, soft_wrap=True, style="dim")
        for note in self.composition.notes:
            self.console.print(f"note: {note}", soft_wrap=True)
        if self.config.prompts_per_batch < self.config.updates_per_batch:
            self.console.print(
                f"note: prompts_per_batch={self.config.prompts_per_batch} make at most "
                f"{self.config.prompts_per_batch} updates of a rollout batch, not "
                f"{self.config.updates_per_batch}: a prompt is never split over updates",
                style="dim",
            )
        if self.live:
            self.live.start()
        return self

    def log(self, note: str) -> None:
        """Show a line that stays."""
        self.console.print(f"note: {note}", soft_wrap=True, style="dim")

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, entry: dict[str, Any]) -> None:
        """Show one logged object."""
        if "eval/accuracy" in entry:
            self.evaluations.append(entry)
        else:
            self.rows.append(entry)
        if self.live:
            self.live.update(self.draw())
        else:
            self.console.print(describe_entry(entry, self.total), soft_wrap=True)

    def draw(self) -> Group:
        """Return the live view: a bar, the last updates, the last evaluation."""
        table = Table(box=None, pad_edge=False)
        for heading, _, _ in COLUMNS:
            table.add_column(heading, justify="right")
        for row in self.rows:
            table.add_row(*(format_value(row, key, form) for _, key, form in COLUMNS))
        done = (self.rows[-1]["rollout_batch"] + 1) if self.rows else 0
        elapsed = time.perf_counter() - self.start
        bar = ProgressBar(total=self.config.rollout_batches, completed=done, width=40)
        lines: list[Any] = [
            Text(f"{done} of {self.total} rollout batches, {elapsed:.0f} s"),
            bar,
            table,
        ]
        if self.evaluations:
            lines.append(Text(describe_entry(self.evaluations[-1], self.total), style="bold"))
        return Group(*lines)

    def finish(self, summary: Summary) -> None:
        """Show the short summary."""
        if self.live:
            self.live.stop()
            self.live = None
        table = Table(title="held-out problems", title_justify="left", box=None, pad_edge=False, title_style="bold")
        for heading in ("", "before", "after"):
            table.add_column(heading, justify="left")
        before, after = summary.before, summary.after
        table.add_row("accuracy, 95% interval", str(before.accuracy), str(after.accuracy))
        for name, values in zip(
            ("length, all", "length, correct", "length, incorrect"), zip(lengths(before), lengths(after), strict=True),
            strict=True,
        ):  # fmt: skip
            table.add_row(name + " (tokens)", *map(show_length, values))
        table.add_row("truncated", f"{before.truncated:.1%}", f"{after.truncated:.1%}")
        self.console.print(table)
        self.console.print(
            f"{describe_gain(summary)}{summary.training_seconds:.0f} s of training; {after.num_problems} "
            f"{plural('problem', after.num_problems)} x {after.num_samples} {plural('sample', after.num_samples)}"
        )
        if summary.warning:
            self.console.print(summary.warning, style="bold", soft_wrap=True)
        elif summary.num_updates == 0:
            self.console.print(
                "no update was made: every one was skipped; metrics.jsonl says why (update/skipped)", style="bold"
            )
        self.console.print(f"run folder: {summary.folder}; the picture of it: report.html", soft_wrap=True)


def describe_gain(summary: Summary) -> str:
    """Return points in updates; nothing where nothing was trained, so that a difference is chance."""
    if summary.num_updates == 0 or summary.warning.startswith(NOTHING):
        return ""
    gain, updates = 100 * (summary.after.accuracy.value - summary.before.accuracy.value), summary.num_updates
    return f"{gain:+.1f} points in {updates} {plural('update', updates)}, "


def lengths(evaluation: Evaluation) -> tuple[float, float, float]:
    """Return the mean lengths of all, correct and incorrect responses."""
    return evaluation.length, evaluation.length_correct, evaluation.length_incorrect


def describe_entry(entry: dict[str, Any], total: str) -> str:
    """Return one logged object as a plain line."""
    if "eval/accuracy" in entry:
        low, high = entry["eval/accuracy_low"], entry["eval/accuracy_high"]
        return (
            f"held out after update {entry['update']}: {entry['eval/accuracy']:.1%} correct [{low:.1%}, {high:.1%}], "
            f"length {entry['eval/length']:.1f}"
        )
    batch = f"rollout batch {entry['rollout_batch'] + 1}{'/' if total.isdecimal() else ' of '}{total}"
    if "update/skipped" in entry:
        return f"{batch}: update skipped: {entry['update/skipped']}"
    shown = (f"{heading} {format_value(entry, key, form)}" for heading, key, form in COLUMNS[2:])
    return f"{batch} update {entry['update']}: " + ", ".join(shown)


def format_value(entry: dict[str, Any], key: str, form: str) -> str:
    """Return a metric as text, a dash where it is absent or not a number."""
    value = entry.get(key)
    return form.format(value) if value is not None and value == value else "-"


CARD = """---
library_name: transformers
tags: [fairlen, reinforcement-learning, verifiable-rewards]
---

# {name}

Trained with fairlen {version} from `{model}` on `{task}`.

| | before | after |
|---|---|---|
| held-out accuracy, 95% interval | {before.accuracy} | {after.accuracy} |
{lengths}
| truncated | {before.truncated:.1%} | {after.truncated:.1%} |

{after.num_problems} held-out problems, {after.num_samples} samples each, temperature {temperature}, at most
{max_response_length} tokens; intervals resample problems. Method `{method}` (hash {hash}), {updates} updates,
seed {seed}. Everything else is in the
run's `run.json`.
"""


def write_lengths(before: Evaluation, after: Evaluation) -> str:
    """Return the lines of the table that are about lengths."""
    names = {
        "length": "mean length, tokens",
        "length_correct": "of correct responses",
        "length_incorrect": "of incorrect responses",
    }
    pairs = ((label, getattr(before, name), getattr(after, name)) for name, label in names.items())
    return "\n".join(f"| {label} | {show_length(one)} | {show_length(other)} |" for label, one, other in pairs)


def write_model_card(folder: Path, run: Run, summary: Summary) -> None:
    """Write the card into the model's folder."""
    config = run.config
    card = CARD.format(
        name=run.folder.name,
        version=run.describe()["versions"]["fairlen"],
        model=config.model,
        task=config.task,
        before=summary.before,
        after=summary.after,
        lengths=write_lengths(summary.before, summary.after),
        temperature=config.temperature,
        max_response_length=config.max_response_length,
        method=run.composition.name,
        hash=hash_method(run.composition.method),
        updates=summary.num_updates,
        seed=config.seed,
    )
    write_file(folder / "README.md", card)
