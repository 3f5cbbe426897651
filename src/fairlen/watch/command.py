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

from fairlen.audit.audit import audit
from fairlen.audit.command import make_options
from fairlen.audit.readers.rows import Options
from fairlen.checks import Checked, Positive
from fairlen.console import log, suggest, visible, warn
from fairlen.files.folders import refuse_foreign, write_file
from fairlen.settings import Positional
from fairlen.watch.follow import Follower
from fairlen.watch.page import write_page
from fairlen.watch.thresholds import THRESHOLDS
from fairlen.watch.watch import EFFECT, LengthWatch

KINDS = (EFFECT, *THRESHOLDS)


@dataclass(frozen=True)
class WatchConfig(Checked):
    """Watch rollouts that another program writes, and alarm when length and correctness begin to go together."""

    path: Annotated[str, Positional]
    """File, folder or pattern: TRL's completions, verl's rollout_data_dir, any jsonl of one response a line with its step."""
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
    exchangeable: bool = True
    """Test for an effect; not where the sampler selects responses by length: first come first served, late ones dropped."""
    once: bool = False
    """Read what is there, and end."""
    every: Positive = 1.0
    """Seconds between looks."""
    fail_on: str = ""
    """Kinds of alarms, joined by commas, that end the watch with exit code 1: effect, truncation, verdicts, staleness, length,
    signal, weight."""
    state: str = ""
    """File that keeps the state, with which a watch that was killed goes on; by default in ~/.local/state, one for each path and
    way of reading it: a folder of rollouts cannot bring one of its own."""
    markdown: str = ""
    """File for the alarms as a table in Markdown, as for a pull request."""
    out: str = ""
    """Page with the alarms and the audit of all rollouts, when the watch ends."""

    def options(self) -> Options:
        """Return how to read. Raises ValueError for what cannot be."""
        return make_options(self.columns, self.unit, self.tokenizer, self.max_response_length)

    def fatal(self) -> tuple[str, ...]:
        """Return the kinds of `fail_on`. Raises ValueError for an unknown one."""
        found = tuple(one.strip() for one in self.fail_on.split(",") if one.strip())
        for one in found:
            if one not in KINDS:
                raise ValueError(f"--fail-on {one}: {suggest(one, KINDS)}")
        return found

    def place(self) -> Path:
        """Return the file of the state."""
        read = [str(Path(self.path).resolve()), self.columns, self.unit, self.tokenizer, self.max_response_length]
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
        name = f"{hashlib.sha256(json.dumps(read).encode()).hexdigest()[:16]}.json"
        return Path(self.state) if self.state else root / "fairlen/watch" / name


class FileWatch:
    """A watch after files: their reader, what it has told, and its state on disk."""

    def __init__(self, config: WatchConfig) -> None:
        """Go on from the state, where there is one. Raises ValueError for a file that is none, and as `options`."""
        self.config, self.place, self.num_told, options = config, config.place(), 0, config.options()
        self.path = str(Path(config.path).resolve())
        self.watch = LengthWatch(method=config.method, exchangeable=config.exchangeable, keep=False)
        try:
            state = json.loads(self.place.read_text()) if self.place.exists() else {"watch": {}, "follower": {}}
            if (of := state.get("path", self.path)) != self.path:
                raise ValueError(f"it is of {of}")
            self.watch.restore(state["watch"])
            self.follower = Follower(Path(config.path).absolute(), options, **state["follower"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.place}: not its state ({error}); name another --state, or remove it") from error

    def look(self, is_over: bool) -> None:
        """Take what is new, log its notes and alarms, and keep the state."""
        before = len(self.watch.steps)
        for step, table, knows_limit, age in self.follower.read(is_over):
            for alarm in self.watch.look(step, table, age=age, knows_limit=knows_limit):
                log(f"ALARM {visible(str(alarm))}")
        for note in self.follower.notes[self.num_told :]:
            log(f"note: {visible(note)}")
        self.num_told = len(self.follower.notes)
        if len(self.watch.steps) > before:
            state = {"path": self.path, "watch": self.watch.state(), "follower": self.follower.state()}
            write_file(self.place, json.dumps(state).encode())

    def fails(self, kinds: Sequence[str]) -> bool:
        return any(one.kind in kinds for one in self.watch.alarms)

    def finish(self) -> None:
        """Log how it ended, and write the table and the page."""
        config, watch = self.config, self.watch
        if not watch.steps:
            warn(f"{config.path}: no rollouts were read; {'; '.join(self.follower.notes) or 'nothing is there yet'}")
            return
        size, kinds = sum(one.size for one in watch.steps), ", ".join(one.kind for one in watch.alarms)
        tested = "" if watch.exchangeable else "; no effect was tested (--no-exchangeable)"
        log(f"{size:,} responses in {len(watch.steps):,} steps; alarms: {kinds or 'none'}{tested}")
        if config.markdown:
            write_file(Path(config.markdown), write_markdown(watch))
        if config.out:
            audits = audit([config.path], config.options(), watch.in_use, watch.evidence.margins)
            log(f"page: {write_page(Path(config.out), watch.alarms, *audits)}")


def run(config: WatchConfig) -> int:
    """Watch until an alarm of --fail-on, or an interruption. Return 1 after such an alarm, and where nothing was read."""
    refuse_foreign("out", config.out)
    refuse_foreign("markdown", config.markdown, "| alarm", "no alarm")
    kinds, one = config.fatal(), FileWatch(config)
    if config.once and not one.follower.sizes():
        what = "no rollouts are there yet; without --once they are waited for"
        raise ValueError(f"{config.path}: {what if Path(config.path).exists() else 'there is no such file or folder'}")
    before = f", going on after {len(one.watch.steps):,} steps" if one.watch.steps else ""
    log(f"watching {config.path}{before}")
    try:
        while not one.fails(kinds):
            one.look(config.once)
            if config.once:
                break
            time.sleep(config.every)
    except KeyboardInterrupt:
        log("interrupted; the same command goes on")
    one.finish()
    return int(not one.watch.steps or one.fails(kinds))


def write_markdown(watch: LengthWatch) -> str:
    """Return the alarms as a table in Markdown."""
    rows = [f"| {one.kind} | {one.step} | {one.since} | {visible(one.text)} |" for one in watch.alarms]
    head = ["| alarm | step | since | |", "|---|---|---|---|"]
    return "\n".join([*head, *rows] if rows else [f"No alarm about length in {len(watch.steps):,} steps."]) + "\n"
