"""Output of a run: a line for each update, a short summary at the end, and the README.md of the saved model."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from fairlen.audit.audit import Audit
from fairlen.console import make_console, plural, print_table, show_time, showing
from fairlen.evaluate.estimators import difference_by_problem
from fairlen.evaluate.run import Evaluation, show_length
from fairlen.files.folders import write_file
from fairlen.loop.learning_signal import NOTHING
from fairlen.methods.compose import Composition
from fairlen.methods.description import hash_method, list_stages
from fairlen.settings import flatten
from fairlen.train.run.config import CHOSEN, TrainConfig, find_undoing
from fairlen.train.run.folder import Run

COLUMNS = (
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
"""(heading, metric, format) of the line of an update."""


@dataclass(frozen=True)
class RunSummary:
    folder: Path
    before: Evaluation
    after: Evaluation
    num_updates: int
    training_seconds: float
    warning: str = ""  # why the run as a whole had nothing to learn from, where that is so
    reasons: str = ""  # why hardly any held-out response is correct after it, where that is so


class Display:
    def __init__(self, config: TrainConfig, composition: Composition, console: Console | None = None) -> None:
        self.console = console or make_console()
        self.showing = partial(showing, self.console)
        is_limited = config.run.max_updates or config.run.max_generated or config.run.max_seconds
        self.clock = Clock(config)
        self.total = f"{'up to ' if is_limited else ''}{config.run.rollout_batches}"
        self.console.print(f"fairlen train: {composition.name}", style="bold")
        self.console.print(list_stages(composition.method), soft_wrap=True, style="dim")
        for note in composition.notes:
            self.log(note)
        for wrong, remedy in find_undoing(config, composition.method):
            self.console.print(f"warning: {wrong}: {remedy}", soft_wrap=True, style="bold")
        prompts, updates = config.sampling.prompts_per_batch, config.update.updates_per_batch
        if prompts < updates:
            self.log(
                f"prompts_per_batch={prompts} make at most {prompts} updates of a rollout batch, not {updates}: "
                "a prompt is never split over updates"
            )

    def log(self, note: str) -> None:
        self.console.print(f"note: {note}", soft_wrap=True, style="dim")

    def show(self, entry: dict[str, Any]) -> None:
        style = "bold" if "eval/accuracy" in entry else None
        self.console.print(f"{describe_entry(entry, self.total)}{self.clock.read(entry)}", soft_wrap=True, style=style)

    def finish(self, summary: RunSummary, found: Audit | None = None) -> None:
        """Show what was gained, and what the audit of the run's rollouts found."""
        after, before = summary.after, summary.before
        problems, samples = plural("problem", after.num_problems), plural("sample", after.num_samples)
        title = f"{after.num_problems} held-out {problems} x {after.num_samples} {samples}"
        print_table(self.console, title, ("", "before", "after"), compare(before, after))
        self.console.print(f"{describe_gain(summary)}{summary.training_seconds:.0f} s of training")
        if summary.warning:
            self.console.print(summary.warning, style="bold", soft_wrap=True)
        elif summary.reasons:
            self.console.print(f"held out: {summary.reasons}", style="bold", soft_wrap=True)
        if found:
            self.console.print(f"audit: {found.conclusion.status}: {found.conclusion.sentence}", soft_wrap=True)
        self.console.print(f"run folder: {summary.folder}; the picture of it: report.html", soft_wrap=True)


@dataclass
class Clock:
    """Times of a run, by its entries: of each, and what is left by the share of the run that was done since the first."""

    config: TrainConfig
    start: float = field(default_factory=time.monotonic)
    first: float = -1.0
    place: tuple[int, int] = (-1, 0)  # a rollout batch, and the entries that it had
    generated: int = 0  # tokens, since the first entry

    def __post_init__(self) -> None:
        run, update, prompts = self.config.run, self.config.update, self.config.sampling.prompts_per_batch
        self.step = 1 / (min(update.updates_per_batch, prompts) * update.epochs_per_batch)  # of a rollout batch
        self.num_batches = min(run.rollout_batches, math.ceil(run.max_updates * self.step) or run.rollout_batches)

    def read(self, entry: dict[str, Any]) -> str:
        """Return seconds, tokens a second, and the time that is left, as the end of a line on an entry."""
        batch, is_update = entry["rollout_batch"], "eval/accuracy" not in entry
        before = self.place[1] if batch == self.place[0] else 0
        self.generated += entry.get("tokens/generated", 0) * (is_update and not before)
        self.place = batch, is_update + before
        done = (batch + min(self.place[1] * self.step, 1)) / self.num_batches
        done = max(done, self.generated / (self.config.run.max_generated or math.inf))
        if self.first < 0:
            self.first = done - is_update * self.step / self.num_batches
        updating = sum(entry.get(f"time/{name}", 0.0) for name in ("pack", "forward", "backward"))
        spent = (
            ("evaluated", entry.get("time/evaluation"), None),
            ("generated", entry.get("time/rollout"), entry.get("tokens/generated")),
            ("trained", updating, entry.get("tokens/trained")),
        )
        parts = [
            f"{name} in {seconds:.1f} s" + (f" ({number / seconds:,.0f} tokens/s)" if number else "")
            for name, seconds, number in spent
            if seconds
        ]
        if 0 <= self.first < done < 1:
            spent_seconds = time.monotonic() - self.start
            left, limit = spent_seconds * (1 - done) / (done - self.first), self.config.run.max_seconds or math.inf
            parts.append(f"{show_time(min(left, max(limit - spent_seconds, 0)))} left")
        return "".join(f", {part}" for part in parts)


def describe_choices(asked: TrainConfig, config: TrainConfig, has_adapters: bool) -> str:
    """Return the settings that were left at 0, as they were chosen; "" where none was."""
    given, found = flatten(asdict(asked)), flatten(asdict(config))
    which = "adapters" if has_adapters else "all weights"
    texts = {
        "learning_rate": f"learning rate {found['learning_rate']:g} ({which})",
        "max_response_length": f"responses up to {found['max_response_length']:,} tokens",
        "max_prompt_length": f"prompts up to {found['max_prompt_length']:,} (the longest of the data)",
        "max_tokens_per_microbatch": f"{found['max_tokens_per_microbatch']:,} positions a micro-batch",
        "max_num_seqs": f"{found['max_num_seqs']} responses at a time",
    }
    chosen = [texts[name] for name in CHOSEN if not given[name] and found[name]]
    how = "as the run chose" if asked.run.resume else "chosen"
    return f"{how}: {', '.join(chosen)}; each has a flag" if chosen else ""


def compare(before: Evaluation, after: Evaluation) -> list[tuple[str, str, str]]:
    lengths = (
        (f"length, {name} (tokens)", show_length(getattr(before, key)), show_length(getattr(after, key)))
        for name, key in (("all", "length"), ("correct", "length_correct"), ("incorrect", "length_incorrect"))
    )
    return [
        ("accuracy, 95% interval", f"{before.accuracy:.1%}", f"{after.accuracy:.1%}"),
        *lengths,
        ("truncated", f"{before.truncated:.1%}", f"{after.truncated:.1%}"),
    ]


def describe_gain(summary: RunSummary) -> str:
    """Points and their interval; "" where nothing was trained, so that a difference is chance."""
    if summary.num_updates == 0 or summary.warning.startswith(NOTHING):
        return ""
    updates = summary.num_updates
    before, after = (one.correct.astype(float) for one in (summary.before, summary.after))
    gain = difference_by_problem(after, before)
    value, low, high = (f"{100 * points:+.1f}" for points in gain)
    return f"{value} points [{low}, {high}] in {updates} {plural('update', updates)}, "


def describe_entry(entry: dict[str, Any], total: str) -> str:
    if "eval/accuracy" in entry:
        low, high = entry["eval/accuracy_low"], entry["eval/accuracy_high"]
        return (
            f"held out after update {entry['update']}: {entry['eval/accuracy']:.1%} correct [{low:.1%}, {high:.1%}], "
            f"length {entry['eval/length']:.1f}"
        )
    batch = f"rollout batch {entry['rollout_batch'] + 1}{'/' if total.isdecimal() else ' of '}{total}"
    if "update/skipped" in entry:
        return f"{batch}: update skipped: {entry['update/skipped']}"
    shown = (f"{heading} {format_value(entry, key, form)}" for heading, key, form in COLUMNS)
    return f"{batch} update {entry['update']}: " + ", ".join(shown)


def format_value(entry: dict[str, Any], key: str, form: str) -> str:
    """A metric as text, a dash where it is absent or not a number."""
    value = entry.get(key)
    return form.format(value) if value is not None and value == value else "-"


def write_model_card(folder: Path, run: Run, summary: RunSummary, found: Audit | None) -> None:
    """Write the card into the model's folder; `found` is the audit of the run's rollouts."""
    name, data = run.config.model.name, ", ".join(run.config.data.places or (run.config.data.task,))
    is_of_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists()
    base = f"base_model: {name}\n" if is_of_hub else ""
    rows = ("held-out problems", "before", "after"), ("---",) * 3, *compare(summary.before, summary.after)
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    card = f"""---
library_name: transformers
pipeline_tag: text-generation
tags: [fairlen, reinforcement-learning, verifiable-rewards]
{base}---

# {run.folder.name}

Trained with fairlen {run.describe()["versions"]["fairlen"]} from `{name}` on `{data}`; all settings are in the run's `run.json`.

{table}

{describe_gain(summary)}{summary.after.num_problems} problems x {summary.after.num_samples} samples; intervals resample problems.

{describe_training(run.composition, found)}"""
    write_file(folder / "README.md", card)


def describe_training(composition: Composition, found: Audit | None) -> str:
    """The card's sections on the method with its papers, and on the conclusion of the audit."""
    method = composition.method
    papers = [f" [arXiv:{one}](https://arxiv.org/abs/{one})" for one in composition.papers]
    verdict = f"{found.conclusion.status}: {found.conclusion.sentence}" if found else "not made: the run has not ended"
    name = composition.name or "of its own"
    return (
        f"## Method\n\n`{name}` (hash {hash_method(method)}): `{list_stages(method)}`.{','.join(papers)}"
        f"\n\n## Length\n\nThe audit of the run's own rollouts (`fairlen audit`):\n\n> {verdict}\n"
    )
