"""How long `fairlen audit` takes for a million rollouts of a hundred words, and how much memory: of verl and of TRL.

python benchmarks/audit.py [ROWS]     the marks are 60 s and 2 GB, on two cores
python benchmarks/audit.py --smoke    a thousand rows
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _checks import add_smoke, demand, demand_positive

ROWS, PER_STEP, PER_PROMPT, WORDS = 1_000_000, 8192, 8, 100
SECONDS, GIGABYTES = 60.0, 2.0


def make_steps(rows: int, seed: int = 0):
    """Steps of rollouts, (step, prompts, answers, right): 50 to 150 words, incorrect responses a tenth longer."""
    rng = np.random.default_rng(seed)
    words = np.array(["".join(chr(97 + c) for c in rng.integers(0, 26, n)) for n in rng.integers(2, 9, 5000)])
    pool = rng.choice(words, 3_000_000)
    for step, start in enumerate(range(0, rows, PER_STEP)):
        size = min(PER_STEP, rows - start)
        right = rng.random(size) < 0.5
        length = (rng.integers(WORDS // 2, WORDS + WORDS // 2, size) * np.where(right, 0.95, 1.05)).astype(int)
        where = rng.integers(0, len(pool) - 2 * WORDS, size)
        answers = [" ".join(pool[a : a + n]) for a, n in zip(where.tolist(), length.tolist(), strict=True)]
        prompts = [f"What is the sum of {(start + row) // PER_PROMPT} and {step}?" for row in range(size)]
        yield step, prompts, answers, right.astype(float).tolist()


def write_verl(folder: Path, rows: int) -> None:
    for step, prompts, answers, right in make_steps(rows):
        with (folder / f"{step}.jsonl").open("w") as file:
            for prompt, answer, score in zip(prompts, answers, right, strict=True):
                row = {"input": prompt, "output": answer, "gts": "1", "score": score, "step": step, "acc": score > 0}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def trl_tables(rows: int):
    for step, prompts, answers, right in make_steps(rows):
        table = {
            "step": [step] * len(prompts), "prompt": prompts, "completion": answers, "accuracy_reward": right,
            "advantage": [score - 0.5 for score in right],
        }  # fmt: skip
        yield pa.table(table)


def write_trl(folder: Path, rows: int) -> None:
    for step, table in enumerate(trl_tables(rows)):
        pq.write_table(table, folder / f"completions_{step:05d}.parquet")


def write_one(folder: Path, rows: int) -> None:
    """As a data frame of all steps would be written: one file, one row group."""
    pq.write_table(pa.concat_tables(trl_tables(rows)), folder / "all.parquet")


def measure(folder: Path) -> tuple[float, float, str]:
    """Seconds, peak gigabytes and last line of an audit in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "fairlen", "audit", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    demand(process.returncode == 0, f"fairlen audit ended with {process.returncode}: {text[-300:]}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="?", type=int, default=ROWS)
    add_smoke(parser)
    options = parser.parse_args()
    rows = 1000 if options.smoke else options.rows
    kinds = {"verl, JSON lines": write_verl, "TRL, Parquet": write_trl, "TRL, one file": write_one}
    missed = []
    for name, write in kinds.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), rows)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            seconds, gigabytes, text = measure(Path(folder))
        print(f"{name:16} {rows:,} rollouts, {size:,.0f} MB: {seconds:.1f} s, {gigabytes:.2f} GB", flush=True)
        demand(f"{rows:,} responses" in text, f"{name}: the audit does not speak of {rows:,} responses")
        demand_positive(name, (seconds, gigabytes))
        missed += [name] if seconds > SECONDS or gigabytes > GIGABYTES else []
    demand(not missed or options.smoke, f"over {SECONDS:g} s or {GIGABYTES:g} GB: {', '.join(missed)}")


if __name__ == "__main__":
    main()
