"""The command `fairlen watch`: alarms about rollouts that another program writes, while it writes them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

from fairlen.audit.audit import audit_source
from fairlen.audit.command import make_options, parse_groups
from fairlen.audit.readers import find_files, read_places
from fairlen.audit.readers.rows import Options
from fairlen.audit.readers.spent import make_meter
from fairlen.checks import Checked, Positive
from fairlen.console import log, suggest, visible, warn
from fairlen.files.folders import refuse_foreign, write_file
from fairlen.files.foreign import Unreadable, read_json_object
from fairlen.files.limits import name_special
from fairlen.settings import Positional
from fairlen.watch.follow import Follower, LateRows, NewRun, StepRows
from fairlen.watch.page import write_page
from fairlen.watch.thresholds import THRESHOLDS, Alarm
from fairlen.watch.watch import EFFECT, LengthWatch

KINDS = (EFFECT, *THRESHOLDS)
ENDS = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end the watch as Ctrl-C does."""
UNTESTED = "an effect is not tested"
PAUSE = 4.0
"""Pause after a look at a step that is not complete, in units of the time that the look took."""


@dataclass(frozen=True)
class WatchConfig(Checked):
    """Watch rollouts that another program writes, and alarm when length and correctness begin to go together.

    Exit codes: 0 if every row was counted and no alarm of --fail-on was raised; 1 if one was raised, if nothing was read, or
    if rows could not be counted because they were damaged, came too late or exceeded a limit; 2 for settings that are wrong.
    """

    path: Annotated[str, Positional]
    """File, folder or pattern: TRL's completions, verl's rollout_data_dir, any jsonl of one response per line with its step."""
    columns: str = ""
    """Columns of files of no known format, as for `fairlen audit`: prompt=question,reward=score,step=epoch."""
    unit: Literal["auto", "tokens", "words", "characters"] = "auto"
    """Unit of lengths, as for `fairlen audit`."""
    tokenizer: str = ""
    """Folder with a tokenizer.json, or hub id in the local cache: lengths are tokens of the text."""
    means: str = ""
    """Meaning of names in the files, as for `fairlen audit`: interpreter=read for blocks that the policy did not write."""
    max_response_length: int = 0
    """Limit of generation in tokens, if the files do not record which responses were truncated."""
    group_by: str = ""
    """Columns that were fixed before a response was sampled, as for `fairlen audit`."""
    ignore_columns: str = ""
    """Columns that follow from a response, as for `fairlen audit`."""
    method: str = ""
    """Method that trains, such as loss_type=dapo: advice depends on it."""
    exchangeable: bool = True
    """Test for an effect; not if the sampler selects responses by length: first come first served, late ones dropped."""
    once: bool = False
    """Read the files as they are, print all alarms, and end. Nothing is kept unless --state names a file."""
    every: Positive = 1.0
    """Seconds between looks."""
    fail_on: str = ""
    """Kinds of alarms, joined by commas, that end the watch with exit code 1: effect, truncation, verdicts, staleness, length,
    signal, weight."""
    state: str = ""
    """File that keeps the state, with which a watch that was killed continues; by default in ~/.local/state, a file for each
    path and way of reading it. A run that begins in the same files starts a new watch."""
    markdown: str = ""
    """File for the alarms as a table in Markdown, as for a pull request."""
    out: str = ""
    """Page with the alarms and the audit of all rollouts, when the watch ends."""

    def options(self) -> Options:
        """Return how to read. Raises ValueError for settings that are wrong."""
        limit, means = self.max_response_length, self.means
        options = make_options(self.columns, self.unit, self.tokenizer, limit, means=means)
        return replace(options, groups=parse_groups(self.group_by, self.ignore_columns))

    def fatal(self) -> tuple[str, ...]:
        """Return the kinds of `fail_on`. Raises ValueError for an unknown one."""
        kinds = tuple(kind.strip() for kind in self.fail_on.split(",") if kind.strip())
        for kind in kinds:
            if kind not in KINDS:
                raise ValueError(f"--fail-on {kind}: {suggest(kind, KINDS)}")
        return kinds

    def find_state(self) -> Path | None:
        """Return the file of the state; None if none is kept. Raises ValueError without a home folder."""
        if self.state:
            return Path(self.state)
        if self.once:
            return None
        how = [self.columns, self.unit, self.tokenizer, self.max_response_length, self.group_by, self.ignore_columns]
        how.append(self.means)
        key = json.dumps([str(Path(self.path).resolve()), *how])
        name = f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        return find_state_folder() / "fairlen/watch" / name


def find_state_folder() -> Path:
    """Return the folder for states of programs. Raises ValueError if the user has no home folder."""
    given = os.environ.get("XDG_STATE_HOME")
    if given:
        return Path(given)
    try:
        return Path.home() / ".local/state"
    except RuntimeError:
        raise ValueError(
            "there is no home folder to keep the state in (HOME is not set): name a file with --state FILE"
        ) from None


def check_path(text: str, once: bool) -> None:
    """Raise ValueError for a path at which no rollouts can appear."""
    if not text:
        raise ValueError("the path is empty: name a file, a folder or a pattern ('.' is the current folder)")
    path = Path(text)
    special = name_special(path)
    if special:
        raise ValueError(f"{text}: {special}")
    if once:
        check_files(text)
        return
    root = path
    if not path.exists() and glob.has_magic(text):
        parts = path.parts
        fixed = next(place for place, part in enumerate(parts) if glob.has_magic(part))
        root = Path(*parts[:fixed])
    if not root.exists():
        names = [entry.name for entry in root.parent.iterdir()] if root.parent.is_dir() else []
        similar = suggest(root.name, names) if names else ""
        raise ValueError(
            f"{text}: there is no such file or folder"
            f"{f' ({similar})' if similar else ''}; start the run first, or create the folder"
        )


def check_files(text: str) -> None:
    """Raise ValueError if no file exists yet that could be read."""
    try:
        find_files([text])
    except Unreadable as error:
        is_folder = Path(text).is_dir()
        hint = "; without --once the watch waits for rollouts" if is_folder else ""
        raise ValueError(f"{error}{hint}") from None


class FileWatch:
    """A watch that follows files: the follower, the alarms, and the state on disk."""

    def __init__(self, config: WatchConfig) -> None:
        """Continue from the state, if there is one. Raises ValueError if it is not this path's."""
        self.config, self.options = config, config.options()
        self.place = config.find_state()
        self.path = str(Path(config.path).resolve())
        self.num_told = 0
        self.new_kinds: set[str] = set()
        self.restored_kinds: set[str] = set()
        self.is_state_broken = False
        self.watch = self.make_watch()
        self.follower = Follower(Path(config.path).absolute(), self.options)
        if self.place and self.place.exists():
            self.restore(self.place)

    def make_watch(self) -> LengthWatch:
        config = self.config
        return LengthWatch(method=config.method, exchangeable=config.exchangeable, keep=False)

    def restore(self, place: Path) -> None:
        """Continue from a state file. Raises ValueError if it is not a state of this path."""
        try:
            state = read_json_object(place)
            owner = state.get("path", self.path)
            if owner != self.path:
                raise ValueError(f"it belongs to {owner}")
            self.watch.restore(state["watch"])
            self.follower = Follower(self.follower.path, self.options, **state["follower"])
            if any(reason.startswith(UNTESTED) for reason in self.follower.skipped):
                self.watch.exchangeable = False
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{place}: not a state of this watch ({error}); name another --state, or remove it"
            ) from error

    def look(self) -> bool:
        """Count the steps that are complete, log notes and alarms, and save the state. Returns whether there were any."""
        has_new = self.take(is_over=False)
        if has_new:
            self.save()
        return has_new

    def take(self, is_over: bool) -> bool:
        """Count steps; at the end the newest one too. Returns whether there were any."""
        has_new = False
        for event in self.follower.read(is_over):
            has_new = True
            if isinstance(event, NewRun):
                self.begin_run(event)
            elif isinstance(event, LateRows):
                self.log_alarms(self.watch.count_late(event.number, event.tokens))
            else:
                self.add(event)
        self.log_notes()
        return has_new

    def add(self, step: StepRows) -> None:
        """Hand a step to the watch, and log its alarms. No effect is tested once a question is open."""
        if step.question:
            self.watch.exchangeable = False
            self.follower.skip(f"{UNTESTED}: {step.question}")
        alarms = self.watch.look(step.number, step.table, age=step.age, knows_limit=step.knows_limit)
        self.log_alarms(alarms)

    def log_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Log alarms as they are raised."""
        for alarm in alarms:
            self.new_kinds.add(alarm.kind)
            log(f"ALARM {visible(str(alarm))}")

    def begin_run(self, event: NewRun) -> None:
        """Start a new watch for a run that begins in the same files."""
        if self.watch.steps:
            kinds = ", ".join(alarm.kind for alarm in self.watch.alarms) or "none"
            log(
                f"{visible(event.reason)}: another run begins, and with it a new watch; "
                f"the run before had {len(self.watch.steps):,} steps, alarms: {kinds}"
            )
        self.watch, self.restored_kinds = self.make_watch(), set()

    def log_notes(self) -> None:
        """Log the notes about the files that are new."""
        for note in self.follower.notes[self.num_told :]:
            log(f"note: {visible(note)}")
        self.num_told = len(self.follower.notes)

    def log_restored(self) -> None:
        """Log what a state brought: the number of steps, and alarms, which the watch does not raise again."""
        if not self.watch.steps:
            return
        log(f"continuing after {len(self.watch.steps):,} steps")
        for alarm in self.watch.alarms:
            self.restored_kinds.add(alarm.kind)
            log(f"ALARM {visible(str(alarm))}")

    def save(self) -> None:
        """Save the state. A full disk is reported once, and the watch continues."""
        if self.place is None:
            return
        state = {"path": self.path, "watch": self.watch.state(), "follower": self.follower.state()}
        try:
            write_file(self.place, json.dumps(state).encode())
            self.is_state_broken = False
        except OSError as error:
            if not self.is_state_broken:
                warn(f"the state was not saved ({error}); a restart would begin earlier")
            self.is_state_broken = True

    def fails(self, kinds: Sequence[str]) -> bool:
        """Return whether an alarm of some kinds was raised: by this command, or before it about the same run."""
        return not (self.new_kinds | self.restored_kinds).isdisjoint(kinds)

    def finish(self) -> None:
        """Log how the watch ended, and write the table and the page.

        With --once the newest step counts as complete; the state keeps it open, because a program may still write it.
        """
        if self.config.once:
            self.take(is_over=True)
        config, watch = self.config, self.watch
        if not watch.steps:
            notes = "; ".join(self.follower.notes) or "there is nothing yet"
            warn(f"{config.path}: no rollouts were read; {visible(notes)}")
        else:
            size = sum(step.size for step in watch.steps)
            kinds = ", ".join(alarm.kind for alarm in watch.alarms) or "none"
            tested = "" if watch.exchangeable else "; no effect was tested"
            log(f"{size:,} responses in {len(watch.steps):,} steps; alarms: {kinds}{tested}")
        for reason, rows in self.follower.skipped.items():
            warn(f"not counted: {visible(reason)}{f': {rows:,}' if rows else ''}")
        if config.markdown and watch.steps:
            write_file(Path(config.markdown), write_markdown(watch))
        if config.out and watch.steps:
            log(f"page: {self.write_page(Path(config.out))}")

    def write_page(self, path: Path) -> Path:
        """Write the alarms and the audit of the run's rollouts as a page."""
        places, spans = self.follower.list_run()
        meter = make_meter(self.options.unit, self.options.tokenizer)
        reading = read_places(places, self.options, meter, spans)
        watch = self.watch
        audits = [audit_source(source, watch.in_use, watch.evidence.margins) for source in reading.sources]
        return write_page(path, watch.alarms, audits, reading, watch.steps)

    def ends_well(self, kinds: Sequence[str]) -> bool:
        """Return whether rollouts were read, all of them were counted, and no alarm of some kinds was raised."""
        return bool(self.watch.steps) and not self.follower.skipped and not self.fails(kinds)


@contextmanager
def end_by_signal() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP within, but not at a signal that nohup ignores."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    for number in ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(config: WatchConfig) -> int:
    """Watch until an alarm of --fail-on or an interruption.

    Returns:
        The exit code: see WatchConfig.
    """
    refuse_foreign("out", config.out)
    refuse_foreign("markdown", config.markdown, "| alarm", "no alarm")
    kinds = config.fatal()
    config.options()
    check_path(config.path, config.once)
    watched = FileWatch(config)
    with end_by_signal():
        try:
            log(f"watching {config.path}")
            watched.log_restored()
            while True:
                began = time.monotonic()
                has_new = watched.look()
                if config.once or watched.fails(kinds):
                    break
                took = time.monotonic() - began
                time.sleep(config.every if has_new else max(config.every, PAUSE * took))
        except KeyboardInterrupt:
            log("interrupted; the same command continues")
    watched.finish()
    return int(not watched.ends_well(kinds))


def write_markdown(watch: LengthWatch) -> str:
    """Return the alarms as a table in Markdown."""
    rows = [f"| {alarm.kind} | {alarm.step} | {alarm.since} | {visible(alarm.text)} |" for alarm in watch.alarms]
    head = ["| alarm | step | since | |", "|---|---|---|---|"]
    lines = [*head, *rows] if rows else [f"No alarm about length in {len(watch.steps):,} steps."]
    return "\n".join(lines) + "\n"
