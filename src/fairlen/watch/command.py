"""The command `fairlen watch`: alarms about rollouts that another program writes, while it writes them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fairlen.audit.command import parse_columns
from fairlen.audit.readers.rows import Options
from fairlen.checks import Positive
from fairlen.console import log, suggest, visible, warn
from fairlen.files.folders import write_file, write_json
from fairlen.settings import Positional
from fairlen.watch.follow import Follower
from fairlen.watch.thresholds import THRESHOLDS
from fairlen.watch.watch import EFFECT, Alarm, LengthWatch

KINDS = (EFFECT, *THRESHOLDS)
PAUSES = 3
"""Looks without a change after which the last step counts as complete."""


@dataclass(frozen=True)
class WatchConfig:
    """Watch rollouts that another program writes, and alarm when length and correctness begin to go together."""

    path: Annotated[str, Positional]
    """File or folder: TRL's completions, verl's rollout_data_dir, any jsonl of one response a line."""
    columns: str = ""
    """Columns of files of no known format, as for `fairlen audit`: prompt=question,reward=score,step=epoch."""
    unit: Literal["auto", "tokens", "words", "characters"] = "auto"
    """Of lengths, as for `fairlen audit`."""
    tokenizer: str = ""
    """Folder with a tokenizer.json, or hub id in the local cache: lengths are tokens of the text."""
    max_response_length: int = 0
    """Limit of generation in tokens, where the files do not say which responses were truncated."""
    method: str = ""
    """Method that trains, such as loss_type=dapo: what advice is about."""
    once: bool = False
    """Read what is there, and end."""
    every: Positive = 1.0
    """Seconds between looks."""
    fail_on: str = ""
    """Kinds of alarms, joined by commas, that end the watch with exit code 1: effect, truncation, length, signal, verdicts,
    staleness, weight."""
    state: str = ""
    """File that keeps the state, with which a watch that was killed goes on; by default in ~/.local/state, one for each path and
    way of reading it: a folder of rollouts cannot bring one of its own."""
    markdown: str = ""
    """File for the alarms as a table in Markdown, as for a pull request."""
    out: str = ""
    """Page with the alarms and the audit of all rollouts, when the watch ends."""

    def options(self) -> Options:
        """Return how to read. Raises ValueError for columns that cannot be."""
        unit = None if self.unit == "auto" else self.unit
        return Options(parse_columns(self.columns), unit, self.tokenizer, self.max_response_length)

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of `fail_on`. Raises ValueError for an unknown one."""
        found = tuple(one.strip() for one in self.fail_on.split(",") if one.strip())
        for one in found:
            if one not in KINDS:
                raise ValueError(f"--fail-on {one}: {suggest(one, KINDS)}; there are {', '.join(KINDS)}")
        return found

    def place(self) -> Path:
        """Return the file of the state."""
        if self.state:
            return Path(self.state)
        read = [str(Path(self.path).resolve()), self.columns, self.unit, self.tokenizer, self.max_response_length]
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
        return root / "fairlen/watch" / f"{hashlib.sha256(json.dumps(read).encode()).hexdigest()[:16]}.json"


def run(config: WatchConfig) -> int:
    """Watch until everything is read, an alarm of --fail-on, or an interruption. Return 1 where such an alarm was raised, and
    where nothing was read."""
    kinds, options, path = config.kinds(), config.options(), Path(config.path)
    if config.once and not path.exists():
        raise ValueError(f"{path}: there is no such file or folder")
    watch, follower = LengthWatch(method=config.method, keep=False), Follower(path, options)
    if config.place().exists():
        resume(watch, follower, config.place())
    log(f"watching {path}: {len(watch.steps):,} steps so far" + ("" if path.exists() else "; it is not there yet"))
    told, idle = 0, 0
    try:
        while not fails(watch.alarms, kinds):
            before = len(watch.steps)
            told = look(watch, follower, config, told, config.once or idle >= PAUSES)
            if config.once:
                break
            idle = 0 if len(watch.steps) > before else idle + 1
            time.sleep(config.every)
    except KeyboardInterrupt:
        log("interrupted; the same command goes on")
    finish(watch, follower, config)
    return int(not watch.steps or fails(watch.alarms, kinds))


def fails(alarms: Sequence[Alarm], kinds: Sequence[str]) -> bool:
    return any(one.kind in kinds for one in alarms)


def look(watch: LengthWatch, follower: Follower, config: WatchConfig, told: int, is_over: bool) -> int:
    """Take what is new, tell its notes and alarms, and keep the state; return how many notes were told."""
    is_new = False
    for batch in follower.read(is_over):
        truncated = batch.truncated
        for alarm in watch.add(
            batch.prompts.tolist(), batch.lengths, batch.outcomes, truncated=truncated, step=batch.step
        ):
            log(f"ALARM {visible(str(alarm))}")
        is_new = True
    for note in follower.notes[told:]:
        log(f"note: {visible(note)}")
    if is_new:
        write_json(config.place(), {"watch": watch.state(), "places": follower.places, "bar": follower.bar})
    return len(follower.notes)


def resume(watch: LengthWatch, follower: Follower, path: Path) -> None:
    """Go on from a state. Raises ValueError for a file that is none."""
    try:
        state = json.loads(path.read_text())
        watch.restore(state["watch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: no state of a watch ({error}); remove it to watch from the start") from error
    follower.places, follower.bar = state["places"], state["bar"]


def finish(watch: LengthWatch, follower: Follower, config: WatchConfig) -> None:
    """Tell how it ended, and write the table and the page."""
    if not watch.steps:
        warn(f"{config.path}: no rollouts were read; {'; '.join(follower.notes) or 'nothing is there yet'}")
        return
    size = sum(one.size for one in watch.steps)
    log(
        f"{size:,} responses in {len(watch.steps):,} steps; alarms: {', '.join(one.kind for one in watch.alarms) or 'none'}"
    )
    if config.markdown:
        write_file(Path(config.markdown), write_markdown(watch))
    if config.out:
        from fairlen.watch.page import write_files_page

        known = config.options(), watch.in_use, watch.evidence.margins
        log(f"page: {write_files_page(Path(config.out), watch.rows(), config.path, *known)}")


def write_markdown(watch: LengthWatch) -> str:
    """Return the alarms as a table in Markdown."""
    rows = [f"| {' | '.join(visible(cell) for cell in row)} |" for row in watch.rows()]
    head = ["| alarm | step | since | |", "|---|---|---|---|"]
    return "\n".join([*head, *rows] if rows else [f"No alarm about length in {len(watch.steps):,} steps."]) + "\n"
