"""The first hour on a GPU: every check and measurement that waits for a device, in 40 minutes of it, on one page.

    python benchmarks/first_hour.py                       # writes first_hour.md; --minutes 20 for less
    python benchmarks/first_hour.py --only update trees   # some sections
    python benchmarks/first_hour.py --device cpu          # tiny shapes: what runs without a device, and what each section needs
    python benchmarks/first_hour.py --smoke               # the same with the smallest arguments

Each section is a process with a deadline. One that fails or is late leaves its output on the page, and the next one starts; the
page is written anew after each. What asks for vLLM is run by .venv-vllm-cuda (`make install-vllm-cuda`) or, where this Python
has vLLM, by this one. Numbers stand beside those that others published.
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
from typing import Literal

import torch
from _checks import add_smoke, demand
from _hour_page import Outcome, write_page

ROOT = Path(__file__).parents[1]
GPU, RUNS = "benchmarks/gpu.py", "benchmarks/_whole_runs.py"
VLLM_PYTHON = ROOT / ".venv-vllm-cuda/bin/python"
PRINTED = 4000
"""Characters of a section's output that the page has."""
GRACE = 10.0
"""Seconds in which a section that is late may end by itself."""
Needs = Literal["", "cuda", "vllm"]
PYTEST = ("-m", "pytest", "-q", "-rs", "-m", "gpu", "--must-pass")


@dataclass(frozen=True)
class Section:
    """A process and what it may take."""

    seconds: float
    arguments: tuple[str, ...]
    needs: Needs = ""
    smoke: tuple[str, ...] | None = None
    """Arguments in their place on a CPU; the same and `--smoke` if not given."""
    writes: bool = True
    """Whether it takes --json."""


SECTIONS = {
    "tests": Section(
        420, (*PYTEST, "tests/gpu", "--ignore=tests/gpu/test_cuda_memory.py", "--ignore=tests/gpu/test_cuda_vllm.py"), "cuda",
        writes=False,
    ),
    "resume": Section(150, (RUNS, "resume"), smoke=(RUNS, "resume", "--device", "cpu")),
    "memory against the account": Section(150, (*PYTEST, "-s", "tests/gpu/test_cuda_memory.py"), "cuda", writes=False),
    "80 GB command": Section(
        480, (RUNS, "command"), smoke=(RUNS, "command", "--device", "cpu", "--engine", "embedded", "--size", "tiny")
    ),
    "vLLM": Section(150, (GPU, "--part", "generation", "--side", "vllm"), "vllm"),
    "vLLM alone": Section(120, (GPU, "--part", "generation", "--side", "plain"), "vllm"),
    "tests of vLLM": Section(120, (*PYTEST, "tests/gpu/test_cuda_vllm.py"), "vllm", writes=False),
    "embedded engine": Section(150, (GPU, "--part", "generation")),
    "update": Section(180, (GPU, "--part", "updates")),
    "update at 16,384 positions": Section(100, (GPU, "--part", "long")),
    "trees": Section(
        100,
        (GPU, "--part", "updates", "--prompt", "1000", "--max-response-length", "300", "--sequences", "32", "--repeats", "2"),
        smoke=(GPU, "--part", "updates", "--smoke"),
    ),
    "profile": Section(100, (GPU, "--part", "profile")),
    "decoding": Section(180, (GPU, "--part", "decoding")),
}  # fmt: skip


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


def run_section(name: str, device: str, limit: float) -> Outcome:
    """Run it to its end or for `limit` seconds at most."""
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
        printed, is_late = read_until(process, limit)
        seconds = time.perf_counter() - start
        numbers = json.loads(found.read_text()) if found.exists() else {}
    state = f"late: stopped after {limit:.0f} s" if is_late else "failed" if process.returncode else "passed"
    return Outcome(name, state, seconds, numbers, printed[-PRINTED:])


def read_until(process: subprocess.Popen[str], limit: float) -> tuple[str, bool]:
    """Return its output, and whether it had to be stopped, with everything that it started."""
    try:
        return process.communicate(timeout=limit)[0], False
    except subprocess.TimeoutExpired:
        stop(process, signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE)[0], True
    except subprocess.TimeoutExpired:
        stop(process, signal.SIGKILL)
        return process.communicate()[0], True


def stop(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the process and its children, which are a session of their own."""
    if process.poll() is None:
        os.killpg(process.pid, number)


def run_all(names: list[str], device: str, minutes: float, write: Callable[[list[Outcome]], object]) -> list[Outcome]:
    """One section after another while there is time; `write` is called after each."""
    end, outcomes = time.monotonic() + 60 * minutes, []
    for name in names:
        left = end - time.monotonic()
        if left < 1:
            outcomes.append(Outcome(name, f"not started: {minutes:g} minutes were over", 0.0, {}, ""))
        else:
            outcomes.append(run_section(name, device, min(SECTIONS[name].seconds, left)))
        print(f"{outcomes[-1].seconds:6.1f} s  {name}: {outcomes[-1].state}", flush=True)
        write(outcomes)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--minutes", type=float, default=40.0, help="for everything; what has not begun by then is left out"
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
    outcomes = run_all(names, device, options.minutes, lambda found: options.out.write_text(write_page(title, found)))
    failed = [one.name for one in outcomes if one.state.startswith(("failed", "late", "not started"))]
    print(f"{len(outcomes) - len(failed)} of {len(outcomes)} sections passed or say what they need; {options.out}")
    for one in outcomes:
        demand(one.name not in failed, f"{', '.join(failed)}; outputs are in {options.out}")


if __name__ == "__main__":
    main()
