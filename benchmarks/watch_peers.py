"""What run doctors say of runs whose truth is known, beside the watch: shares of logs with a finding about length.

    python benchmarks/watch_peers.py --rldoctor ENV/bin/rl-doctor --rlprobe ENV/bin/rlprobe

Logs are those of watch_truth.py; in the last two kinds alone length goes with correctness within prompts. Each tool gets what its
own page asks for: rldoctor 0.2 (github.com/junglezke/rl-doctor) a jsonl of metrics by TRL's names, with a held-out accuracy every
20 steps; rlprobe 0.1 (github.com/Nick-2908/rlprobe) a recording of metrics and samples by its `Recorder`. Their packages live in
environments of their own and are run as commands; one whose path is not given is left out. "Held-out flat": length and training
accuracy rise for their own reasons, as where problems become easier, and the held-out accuracy stays.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from _checks import add_smoke
from watch_truth import NULL, PLANTED, SIZE, STEPS, Draw, draw_run

from fairlen import LengthWatch
from fairlen.watch.watch import EFFECT

FLAT = "both trends, held-out flat"
KINDS = (*NULL, FLAT, *PLANTED)
RECORD = """
import json, sys
from rlprobe.recorder import Recorder
with Recorder(sys.argv[1], algorithm="grpo", queue_size=1 << 20, flush_interval_s=3600) as recorder:
    for line in sys.stdin:
        row = json.loads(line)
        samples = row.pop("samples")
        recorder.log_step(row.pop("step"), **row)
        recorder.log_samples(samples[0]["step"], samples)
"""


def read_steps(run: Draw) -> Iterator[tuple[int, Draw]]:
    """Yield each step of a run."""
    for step in range(1, STEPS + 1):
        rows = run.step == step
        yield step, Draw(*(column[rows] for column in vars(run).values()))


def watch(run: Draw) -> bool:
    """Return whether the watch raises an alarm about length and correctness."""
    one = LengthWatch(keep=False)
    for step, rows in read_steps(run):
        one.add(rows.prompt.tolist(), rows.length, rows.outcome, truncated=rows.truncated, step=step)
    return any(alarm.kind == EFFECT for alarm in one.alarms)


def ask_rldoctor(command: str, run: Draw, kind: str, folder: Path, rng: np.random.Generator) -> str:
    """Return the severity of rldoctor's finding about length."""
    log = folder / "log.jsonl"
    with log.open("w") as file:
        for step, rows in read_steps(run):
            prompts = np.unique(rows.prompt, return_inverse=True)[1]
            spread = [rows.outcome[prompts == one].std() for one in range(prompts.max() + 1)]
            line = {"step": step, "reward": rows.outcome.mean(), "reward_std": float(np.mean(spread))}
            line |= {"completions/mean_length": rows.length.mean(), "completions/clipped_ratio": rows.truncated.mean()}
            line |= {"frac_reward_zero_std": float(np.mean(np.array(spread) == 0)), "num_generations": SIZE}
            if step % 20 == 0:
                truth = 0.5 if kind == FLAT else (rows.outcome > 0.5).mean()
                line["eval/accuracy"] = float(np.clip(truth + rng.normal(0, 0.02), 0, 1))
            file.write(json.dumps(line) + "\n")
    done = subprocess.run([command, "diagnose", str(log), "-f", "json"], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)["findings"]
    return next(str(one["severity"]).lower() for one in found if one["detector"] == "length_pathology")


def ask_rlprobe(command: str, run: Draw, folder: Path) -> list[str]:
    """Return the signatures that rlprobe finds."""
    lines = []
    for step, rows in read_steps(run):
        row = {"step": step, "reward_mean": rows.outcome.mean(), "reward_std": rows.outcome.std()}
        row |= {"completion_len_mean": rows.length.mean(), "completion_len_p95": np.quantile(rows.length, 0.95)}
        row |= {"completion_len_max": float(rows.length.max()), "truncation_rate": rows.truncated.mean()}
        columns = zip(rows.prompt.tolist(), rows.length.tolist(), rows.outcome.tolist(), strict=True)
        samples = [
            {"step": step, "sample_id": f"{step}-{place}", "group_id": f"{step}-{prompt}", "prompt_id": str(prompt),
             "completion_len": length, "reward_total": outcome}
            for place, (prompt, length, outcome) in enumerate(columns)
        ]  # fmt: skip
        lines.append(json.dumps(row | {"samples": samples}))
    python, place = str(Path(command).parent / "python"), str(folder / "recording")
    subprocess.run([python, "-c", RECORD, place], input="\n".join(lines), text=True, check=True)
    done = subprocess.run([command, "doctor", place, "--json"], capture_output=True, text=True, check=False)
    return [one["signature_id"] for one in json.loads(done.stdout)]


def main() -> None:
    """Print a line for each kind of run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="of each kind")
    parser.add_argument("--rldoctor", default="", help="its command rl-doctor")
    parser.add_argument("--rlprobe", default="", help="its command rlprobe, beside the python of its environment")
    add_smoke(parser)
    args = parser.parse_args()
    number = 1 if args.smoke else args.runs
    heads = ("fairlen", "rldoctor: info", "warning", "critical", "rlprobe: length")
    print(f"{number} runs of {STEPS} steps each; the last {len(PLANTED)} kinds have an effect from step 50 on")
    print(f"{'kind':28}" + "".join(f"{head:>16}" for head in heads))
    for place, kind in enumerate(KINDS):
        counts = dict.fromkeys(heads, 0)
        for one in range(number):
            rng = np.random.default_rng((12, place, one))
            run = draw_run("both trends" if kind == FLAT else kind, rng)
            counts["fairlen"] += watch(run)
            with tempfile.TemporaryDirectory() as folder:
                if args.rldoctor:
                    said = ask_rldoctor(args.rldoctor, run, kind, Path(folder), rng)
                    counts |= {head: counts[head] + (said in head) for head in heads[1:4]}
                if args.rlprobe:
                    counts["rlprobe: length"] += "REWARD_HACK_LENGTH" in ask_rlprobe(args.rlprobe, run, Path(folder))
        asked = [True, *[bool(args.rldoctor)] * 3, bool(args.rlprobe)]
        shown = (
            f"{counts[head] / number:.0%}" if is_asked else "-" for head, is_asked in zip(heads, asked, strict=True)
        )
        print(f"{kind:28}" + "".join(f"{one:>16}" for one in shown), flush=True)


if __name__ == "__main__":
    main()
