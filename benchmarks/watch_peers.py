"""What run doctors say of runs whose truth is known, beside the watch: shares of logs with a finding about length.

    python benchmarks/watch_peers.py --rldoctor ENV/bin/python --rlprobe ENV/bin/python

Logs are those of watch_truth.py; in the last two kinds alone length goes with correctness within prompts. Each tool gets what its
own page asks for: rldoctor 0.2 (github.com/junglezke/rl-doctor) a jsonl of metrics by TRL's names, with a held-out accuracy every
20 steps; rlprobe 0.1 (github.com/Nick-2908/rlprobe) a recording of metrics, and every 50th step of samples, by its `Recorder`.
Each lives in an environment of its own, whose python runs the calls that its page shows; one that is not given is left out.
"Held-out flat": length and training accuracy rise for their own reasons, as where problems become easier, and the held-out one
stays.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _checks import add_smoke
from watch_truth import NULL, PLANTED, STEPS, Draw, draw_run, test_draw

FLAT = "both trends, held-out flat"
KINDS = (*NULL, FLAT, *PLANTED)
HEADS = ("fairlen", "rldoctor: info", "warning", "critical", "rlprobe: length")
RLDOCTOR = """
import sys
from rl_doctor import diagnose, load_run
for log in sys.argv[1:]:
    print(diagnose(load_run(log)).by_name("length_pathology").severity.name.lower())
"""
RLPROBE = """
import json, sys
from rlprobe.doctor import diagnose
from rlprobe.recorder import Recorder
for log in sys.argv[1:]:
    place = log + ".recording"
    with Recorder(place, algorithm="grpo", queue_size=1 << 20, flush_interval_s=3600) as recorder:
        for line in open(log):
            row = json.loads(line)
            step, samples = row.pop("step"), row.pop("samples")
            recorder.log_step(step, **row)
            if samples:
                recorder.log_samples(step, samples)
    print(" ".join(["none", *(one.signature_id for one in diagnose(place))]))
"""


def read_steps(run: Draw) -> Iterator[tuple[int, Draw]]:
    """Yield each step of a run."""
    ends = np.searchsorted(run.step, np.arange(1, STEPS + 2))
    for step in range(1, STEPS + 1):
        rows = slice(ends[step - 1], ends[step])
        yield step, Draw(*(column[rows] for column in vars(run).values()))


def write_metrics(path: Path, run: Draw, is_flat: bool, rng: np.random.Generator) -> None:
    """Write the log that rldoctor reads."""
    with path.open("w") as file:
        for step, rows in read_steps(run):
            prompt = np.unique(rows.prompt, return_inverse=True)[1]
            spread = np.array([rows.outcome[prompt == one].std() for one in range(prompt.max() + 1)])
            line: dict[str, Any] = {"step": step, "reward": rows.outcome.mean(), "reward_std": spread.mean()}
            line |= {"completions/mean_length": rows.length.mean(), "completions/clipped_ratio": rows.truncated.mean()}
            line |= {"frac_reward_zero_std": (spread == 0).mean()}
            if step % 20 == 0:
                truth = 0.5 if is_flat else (rows.outcome > 0.5).mean()
                line["eval/accuracy"] = float(np.clip(truth + rng.normal(0, 0.02), 0, 1))
            file.write(json.dumps(line) + "\n")


def write_recorded(path: Path, run: Draw) -> None:
    """Write what rlprobe's recorder is given."""
    with path.open("w") as file:
        for step, rows in read_steps(run):
            line: dict[str, Any] = {"step": step, "reward_mean": rows.outcome.mean(), "reward_std": rows.outcome.std()}
            line |= {"completion_len_mean": rows.length.mean(), "completion_len_max": float(rows.length.max())}
            line |= {"truncation_rate": rows.truncated.mean(), "samples": []}
            columns = zip(rows.prompt.tolist(), rows.length.tolist(), rows.outcome.tolist(), strict=True)
            for place, (prompt, length, outcome) in enumerate(columns if step % 50 == 0 else ()):
                names = {"step": step, "sample_id": f"{step}-{place}", "group_id": f"{step}-{prompt}"}
                line["samples"].append(names | {"completion_len": length, "reward_total": outcome})
            file.write(json.dumps(line) + "\n")


def ask(python: str, script: str, logs: list[Path]) -> list[str]:
    """Return a line for each log, by a script in a tool's own environment; none without one."""
    command = [python, "-c", script, *map(str, logs)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() if python else []


def ask_all(number: int, rldoctor: str, rlprobe: str, kind: str) -> list[str]:
    """Return the shares of a kind's logs by each head of the table."""
    seeds = [(12, KINDS.index(kind), one) for one in range(number)]
    drawn = "both trends" if kind == FLAT else kind
    runs = [draw_run(drawn, np.random.default_rng(seed)) for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        metrics, recorded = (
            [Path(folder) / f"{name}{one}.jsonl" for one in range(number)] for name in ("metrics", "recorded")
        )
        for one, run in enumerate(runs):
            write_metrics(metrics[one], run, kind == FLAT, np.random.default_rng(seeds[one]))
            write_recorded(recorded[one], run)
        severity, signatures = ask(rldoctor, RLDOCTOR, metrics), ask(rlprobe, RLPROBE, recorded)
    found = [[test_draw(run).effect > 0 for run in runs]]
    found += [[said == name for said in severity] for name in ("info", "warning", "critical")]
    found += [["REWARD_HACK_LENGTH" in said for said in signatures]]
    return [f"{sum(each) / len(each):.0%}" if each else "-" for each in found]


def main() -> None:
    """Print a line for each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--rldoctor", default="", help="the python of its environment")
    parser.add_argument("--rlprobe", default="", help="the python of its environment")
    add_smoke(parser)
    args = parser.parse_args()
    number = 1 if args.smoke else args.runs
    print(f"{number} runs of {STEPS} steps each; the last {len(PLANTED)} kinds have an effect from step 50 on")
    print(f"{'kind':28}" + "".join(f"{head:>16}" for head in HEADS))
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        asked = workers.map(partial(ask_all, number, args.rldoctor, args.rlprobe), KINDS)
        for kind, shares in zip(KINDS, asked, strict=True):
            print(f"{kind:28}" + "".join(f"{one:>16}" for one in shares), flush=True)


if __name__ == "__main__":
    main()
