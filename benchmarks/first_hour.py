"""The first 12 minutes on a GPU: every check and measurement that waits for a device, the most valuable ones first, on one page.

    python benchmarks/first_hour.py                       # writes first_hour.md and first_hour.json; --minutes 40 for more
    python benchmarks/first_hour.py --only update trees   # some sections
    python benchmarks/first_hour.py --device cpu          # tiny shapes: what runs without a device, and what each section needs
    python benchmarks/first_hour.py --smoke               # the same with the smallest arguments

First parity with the CPU, then rollouts against vLLM and updates against TRL; these fit into 12 minutes even if each takes all
of its time. Then the other sections, as long as there is time for them. Each section is a process with a deadline. One that
fails or is late leaves its output on the page, and the next one starts. Page and numbers are written after each section, and
when the program is stopped by SIGTERM or Ctrl-C. Sections for vLLM are run by .venv-vllm-cuda (`make install-vllm-cuda`) or, if
this Python has vLLM, by this one. Numbers stand next to those that others published.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from _checks import add_smoke, demand
from _hour_page import Outcome, write_page

ROOT = Path(__file__).parents[1]
GPU, RUNS = "benchmarks/gpu.py", "benchmarks/_whole_runs.py"
VLLM_PYTHON = ROOT / ".venv-vllm-cuda/bin/python"
PRINTED = 4000
"""Characters of a section's output that the page has."""
STOPPED = "stopped by a signal"
GRACE = 10.0
"""Seconds in which a section that is late may end by itself."""
Needs = Literal["", "cuda", "vllm"]
PYTEST = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "--must-pass")


MINUTES = 12.0
"""Length of the whole, for which the limits of the sections are made; with more minutes each of them grows."""
MARGIN = 5.0
"""Seconds for starting a process, and for writing the page."""


@dataclass(frozen=True)
class Section:
    """A process and its time."""

    seconds: float
    """Limit, if the whole takes MINUTES."""
    arguments: tuple[str, ...]
    needs: Needs = ""
    smoke: tuple[str, ...] | None = None
    """Arguments in their place on a CPU; the same and `--smoke` if not given."""
    writes: bool = True
    """Whether it takes --json."""
    is_first: bool = False
    """Whether it belongs to the sections that are always started."""

    @property
    def least(self) -> float:
        """Seconds without which it is not started: with less it would end without a number."""
        return self.seconds / 2


PARITY = (
    "tests/gpu/test_cuda_updates.py", "tests/gpu/test_cuda_trees.py", "tests/gpu/test_cuda_head.py", "tests/gpu/test_cuda.py",
    "--deselect=tests/gpu/test_cuda.py::test_a_playground_run_improves",
)  # fmt: skip
OTHERS = ("tests/gpu/test_cuda.py::test_a_playground_run_improves", "tests/gpu/test_cuda_resume.py")
SECTIONS = {
    "parity": Section(130, (*PYTEST, "-v", *PARITY), "cuda", writes=False, is_first=True),
    "vLLM": Section(110, (GPU, "--part", "generation", "--side", "vllm"), "vllm", is_first=True),
    "vLLM alone": Section(90, (GPU, "--part", "generation", "--side", "plain"), "vllm", is_first=True),
    "embedded engine": Section(90, (GPU, "--part", "generation"), is_first=True),
    "update": Section(130, (GPU, "--part", "updates", "--repeats", "2"), is_first=True),
    "update at 16,384 positions": Section(70, (GPU, "--part", "long", "--repeats", "2")),
    "80 GB command": Section(
        150, (RUNS, "command"), smoke=(RUNS, "command", "--device", "cpu", "--engine", "embedded", "--size", "tiny")
    ),
    "trees": Section(
        70,
        (GPU, "--part", "updates", "--prompt", "1000", "--max-response-length", "300", "--sequences", "32", "--repeats", "2"),
        smoke=(GPU, "--part", "updates", "--smoke"),
    ),
    "decoding": Section(90, (GPU, "--part", "decoding", "--repeats", "2")),
    "memory against the account": Section(80, (*PYTEST, "-s", "tests/gpu/test_cuda_memory.py"), "cuda", writes=False),
    "resume": Section(90, (RUNS, "resume"), smoke=(RUNS, "resume", "--device", "cpu")),
    "tests of vLLM": Section(80, (*PYTEST, "-v", "tests/gpu/test_cuda_vllm.py"), "vllm", writes=False),
    "profile": Section(70, (GPU, "--part", "profile")),
    "other tests": Section(150, (*PYTEST, "-v", *OTHERS), "cuda", writes=False),
}  # fmt: skip
"""In the order in which they run."""


def find_python(needs: Needs) -> str:
    """The Python that runs a section; nothing where there is none that has what it needs."""
    if needs != "vllm":
        return sys.executable
    if VLLM_PYTHON.exists():
        return str(VLLM_PYTHON)
    return sys.executable if find_spec("vllm") else ""


def find_lack(needs: Needs, device: str) -> str:
    """Return the need of a section that is not here; empty where all is."""
    if needs and device != "cuda":
        return "needs a CUDA device" + (", and vLLM: make install-vllm-cuda" if needs == "vllm" else "")
    return "" if find_python(needs) else "needs vLLM: make install-vllm-cuda"


def arguments_of(section: Section, device: str, found: Path) -> list[str]:
    """Its command line, after Python."""
    arguments = list(section.arguments)
    if device == "cpu":
        arguments = list(section.smoke or (*arguments, "--smoke"))
    elif section.arguments[:2] == (RUNS, "command") and not find_python("vllm"):
        arguments += ["--engine", "embedded"]
    return [*arguments, "--json", str(found)] if section.writes else arguments


def choose_limit(section: Section, minutes: float, left: float) -> float:
    """Return the seconds that a section may take; 0 if too few are left to start it.

    Args:
        section: The section.
        minutes: Length of the whole.
        left: Seconds until its end.
    """
    available = left - GRACE - MARGIN
    needed = 1.0 if section.is_first else section.least
    return min(section.seconds * max(1.0, minutes / MINUTES), available) if available >= needed else 0.0


def run_section(name: str, device: str, limit: float) -> Outcome:
    """Run it to its end or for `limit` seconds at most. The state begins with STOPPED if a signal ended it."""
    section = SECTIONS[name]
    if lack := find_lack(section.needs, device):
        return Outcome(name, lack, 0.0, {}, "")
    python = find_python("vllm") if name == "80 GB command" and find_python("vllm") else find_python(section.needs)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        own = {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "HF_HUB_OFFLINE": "1", "TMPDIR": folder}
        start = time.perf_counter()
        process = subprocess.Popen(
            [python, *arguments_of(section, device, found)], cwd=ROOT, env=os.environ | own, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
        printed, reason = read_until(process, limit)
        seconds = time.perf_counter() - start
        numbers = read_numbers(found)
    state = reason or ("failed" if process.returncode else "passed")
    return Outcome(name, state, seconds, numbers, printed[-PRINTED:])


def read_numbers(path: Path) -> dict[str, Any]:
    """Return the numbers that a section wrote; empty if it wrote none, or was ended while it wrote."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def read_until(process: subprocess.Popen[str], limit: float) -> tuple[str, str]:
    """Return the output of a process, and why it had to be stopped with everything that it started; empty if it ended itself."""
    try:
        return process.communicate(timeout=limit)[0], ""
    except subprocess.TimeoutExpired:
        reason = f"late: stopped after {limit:.0f} s"
    except KeyboardInterrupt:
        reason = STOPPED
    stop(process, signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE)[0], reason
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        stop(process, signal.SIGKILL)
        return process.communicate()[0], reason


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the process and its children, which are a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def run_all(
    names: list[str],
    minutes: float,
    run: Callable[[str, float], Outcome],
    write: Callable[[list[Outcome]], object],
    clock: Callable[[], float] = time.monotonic,
) -> list[Outcome]:
    """Run one section after another while there is time.

    Args:
        names: Sections, in their order.
        minutes: Length of the whole, from now on.
        run: Runs a section for a number of seconds at most, GRACE and MARGIN aside.
        write: Called with all outcomes after each section.
        clock: Seconds that go on.
    """
    end, outcomes = clock() + 60 * minutes, []
    for name in names:
        limit = choose_limit(SECTIONS[name], minutes, end - clock())
        if limit:
            outcomes.append(run(name, limit))
        else:
            outcomes.append(Outcome(name, f"not started: too little was left of {minutes:g} minutes", 0.0, {}, ""))
        write(outcomes)
        print(f"{outcomes[-1].seconds:6.1f} s  {name}: {outcomes[-1].state}", flush=True)
        if outcomes[-1].state == STOPPED:
            break
    return outcomes


def write_results(out: Path, title: str, outcomes: list[Outcome]) -> None:
    """Write the page, and all numbers as JSON next to it; each file is whole or as it was."""
    numbers = {one.name: {"state": one.state, "seconds": one.seconds, "found": one.found} for one in outcomes}
    for path, text in ((out, write_page(title, outcomes)), (out.with_suffix(".json"), json.dumps(numbers, indent=1))):
        staging = path.with_name(f".{path.name}.tmp")
        staging.write_text(text)
        os.replace(staging, path)


def seconds_since_start() -> float:
    """Return the age of this process, imports included."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def interrupt(*_: object) -> None:
    """Handle SIGTERM as Ctrl-C."""
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="for everything; what has no time is not started"
    )
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), help="these sections")
    parser.add_argument("--out", type=Path, default=Path("first_hour.md"))
    add_smoke(parser)
    options = parser.parse_args()
    device = "cpu" if options.smoke else options.device
    if device == "cuda" and not torch.cuda.is_available():
        print("nothing measured: this needs a CUDA device and a CUDA build of torch; --device cpu runs tiny shapes")
        return
    name = torch.cuda.get_device_name() if device == "cuda" else "a CPU, tiny shapes"
    title = f"The first hour on {name}, torch {torch.__version__}"
    names = [one for one in SECTIONS if one in (options.only or SECTIONS)]
    signal.signal(signal.SIGTERM, interrupt)
    outcomes = run_all(
        names,
        options.minutes - seconds_since_start() / 60,
        lambda name, limit: run_section(name, device, limit),
        lambda outcomes: write_results(options.out, title, outcomes),
    )
    failed = [one.name for one in outcomes if one.state.startswith(("failed", "late", "not started", STOPPED))]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} sections passed or say what they need; {options.out}")
    for one in outcomes:
        demand(one.name not in failed, f"{', '.join(failed)}; outputs are in {options.out}")


if __name__ == "__main__":
    main()
