"""How much of verl's training time is spent inside the adapter: the mark is 3%.

python benchmarks/verl_adapter.py                     two methods on the playground, a job of verl on Ray each
python benchmarks/verl_adapter.py fspo --steps 6      these methods
python benchmarks/verl_adapter.py --smoke             EqLen, two steps

Inside counts, in every process of the job, what fairlen adds to a step of verl: planning on the driver; streams of pairs in the
agent-loop worker; and the loss in training workers, of which the slower counts, though it takes the place of verl's. Rollout
servers, reward functions, forward and backward pass and all transport are verl's, or the rehearsal's. Streams are computed while
servers generate, and are counted as if the step waited for them. A step is the time from one plan to the next. The model is
tiny, so that the share is an upper bound for models that anyone trains. A job takes about a minute on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from _checks import add_smoke, demand
from _verl_clock import ADVANTAGE, PARTS

METHODS = {"dapo+balanced": ("sampling.n=8",), "eqlen+grpo": ("sampling.streams=4",)}
MARK = 0.03


@dataclass(frozen=True)
class Turn:
    """Some time inside the adapter."""

    part: str
    seconds: float
    when: float
    """Its end, seconds since the epoch."""
    process: str


@dataclass(frozen=True)
class Shares:
    """Milliseconds a step, by part, and of the whole step."""

    parts: dict[str, float]
    step: float

    @property
    def inside(self) -> float:
        """Of the step."""
        return sum(self.parts.values()) / self.step


def read_turns(folder: Path) -> list[Turn]:
    """Return the records of every process."""
    lines = ((path.name, line.split()) for path in folder.iterdir() for line in path.read_text().splitlines())
    return [Turn(part, float(seconds), float(when), process) for process, (part, seconds, when) in lines]


def share(turns: Iterable[Turn]) -> Shares:
    """From the first advantages to the last, once a rollout batch: the first one warms up."""
    turns = list(turns)
    marks = sorted(turn.when for turn in turns if turn.part == ADVANTAGE)
    if len(marks) < 2:
        raise ValueError(f"{len(marks)} rollout batches were seen: give at least --steps 2")
    steps = len(marks) - 1
    parts = {}
    for part in PARTS:
        by_process: dict[str, float] = {}
        for turn in turns:
            if turn.part == part and marks[0] < turn.when <= marks[-1]:
                by_process[turn.process] = by_process.get(turn.process, 0.0) + turn.seconds
        parts[part] = 1000 * max(by_process.values(), default=0.0) / steps
    return Shares(parts, 1000 * (marks[-1] - marks[0]) / steps)


def measure(method: str, steps: int) -> Shares:
    """A job of verl on this machine. Ends the program where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock"
        clock.mkdir()
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        env = os.environ | {
            "FAIRLEN_CLOCK": str(clock), "VERL_USE_EXTERNAL_MODULES": "_verl_clock", "PYTHONPATH": path
        }  # fmt: skip
        command = [sys.executable, "-m", "fairlen", "verl", "--method", method, "--cpu", "--out", f"{folder}/job"]
        command += [word for text in METHODS.get(method, ()) for word in ("--set", text)]
        command += ["--", f"trainer.total_training_steps={steps}"]
        job = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            printed, _ = job.communicate()
        finally:
            job.terminate()  # the launcher takes the job with it
            job.wait()
        print(printed[-3000:] if job.returncode else "", end="", file=sys.stderr)
        demand(job.returncode == 0, f"the job of {method} ended with {job.returncode}")
        return share(read_turns(clock))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS))
    parser.add_argument("--steps", type=int, default=6, help="rollout batches, of which the first warms up")
    add_smoke(parser)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.methods, arguments.steps = ["eqlen+grpo"], 2
    if arguments.steps < 2:
        parser.error(f"--steps {arguments.steps}: the first rollout batch warms up; give at least 2")
    heads = "".join(f"{part + ', ms':>15}" for part in PARTS)
    print(f"{'method':<18}{'step, ms':>10}{heads}{'share':>9}   the mark is {MARK:.0%}")
    missed = []
    for method in arguments.methods:
        found = measure(method, arguments.steps)
        parts = "".join(f"{found.parts[part]:>15.1f}" for part in PARTS)
        print(f"{method:<18}{found.step:>10.0f}{parts}{found.inside:>9.2%}", flush=True)
        demand(0 < found.inside < 1, f"{method}: {found.inside:.1%} of a step is inside the adapter")
        missed += [method] if found.inside > MARK else []
    demand(not missed or arguments.smoke, f"over {MARK:.0%} of a step: {', '.join(missed)}")


if __name__ == "__main__":
    main()
