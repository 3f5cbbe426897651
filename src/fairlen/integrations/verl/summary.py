"""Console summary of a verl job: a line a node, a step and a death; everything else is in verl.log."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fairlen.console import log, plural

NODE, DEATH = "fairlen: node ", "fairlen: died: "
"""Prefixes of the job's lines on a node's versions, and on a process that died."""
DIED = 75
"""Exit code of a job that lost a process (EX_TEMPFAIL)."""
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
STEP = re.compile(r"\bstep:(\d+)\b")
METRIC = re.compile(r" - ([^\s:]+):(?:np\.\w+\()?([-+.\deinfa]+)\)?(?=$|\s)")
SHOWN = (
    ("accuracy/mean", "accuracy {:.3f}"), ("reward/mean", "reward {:.3f}"), ("length/mean", "length {:.1f}"),
    ("timing_s/step", "{:.1f} s"),
)  # fmt: skip
VALIDATED = re.compile(r"val-core/.*/mean@\d+$")
LAST_LINES = 12
"""Of the log, where a job fails."""


class Summary:
    """Shows what matters of a job's lines, and keeps what its end needs."""

    def __init__(self) -> None:
        self.death, self.steps, self.shown = "", 0, -1
        self.validated: dict[int, float] = {}
        """Accuracy by step."""

    def read(self, line: str) -> None:
        """Take a line of the job."""
        text = COLOURS.sub("", line).rstrip()
        if DEATH in text:
            self.death = self.death or text.partition(DEATH)[2]
        elif NODE in text:
            log(NODE.removeprefix("fairlen: ") + text.partition(NODE)[2])
        elif (found := STEP.search(text)) and (values := dict(METRIC.findall(text))):
            self.read_step(int(found.group(1)), {name: float(value) for name, value in values.items()})

    def read_step(self, step: int, values: dict[str, float]) -> None:
        """Show a step once: raylets of one machine each pass its line on. Data sets that it was validated on are averaged."""
        if step <= self.shown:
            return
        self.shown = step
        held_out = [value for name, value in values.items() if VALIDATED.match(name)]
        shown = [form.format(values[name]) for name, form in SHOWN if name in values]
        if held_out:
            self.validated[step] = sum(held_out) / len(held_out)
            shown.append(f"held out {self.validated[step]:.3f}")
        self.steps = max(self.steps, step)
        log(f"step {step}: {', '.join(shown)}")

    def finish(self, folder: Path, code: int) -> None:
        """Show how the job has ended, and what to run next; of one that failed by itself the end of its log."""
        if len(self.validated) > 1:
            (first, before), (last, after) = min(self.validated.items()), max(self.validated.items())
            log(f"accuracy on held-out problems: {before:.1%} at step {first}, {after:.1%} at step {last}")
        path = folder / "verl.log"
        if self.death:
            log(f"fairlen verl: died: {self.death}; the job has ended with it", sys.stderr)
        if code and not self.death and path.is_file():
            log("\n".join(path.read_text(errors="replace").splitlines()[-LAST_LINES:]))
        log(f"{self.steps} {plural('step', self.steps)}; run folder: {folder}; all that verl said: {path}")
