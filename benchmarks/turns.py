"""Four weighings of turns in the game of guess: accuracy, turns and tokens a turn after the same number of updates.

python benchmarks/turns.py                        five seeds of each, two at a time: some 12 minutes on two cores
python benchmarks/turns.py --seeds 2 --jobs 1
python benchmarks/turns.py --smoke                one update of each with one seed

Predicted on 2026-11-24, before the first run (tests/test_turn_forms.py has the closed forms):

1. `grpo+turns` ends with fewer turns a game than `grpo`: games lost by the limit have 12 turns, and weigh twelvefold.
2. `grpo+turn_mean` and `grpo` end with equal turns: both weigh trajectories alike, and differ within them alone.
3. `dapo_verl` ends with no more tokens a turn than `grpo+turn_mean`: a turn that writes the range is longer, and is pushed down
   more where the game was lost.
4. All four are within 10 points of accuracy: all see the same verdicts.

An interval is Student's t over seeds, paired with `grpo` by seed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from _checks import add_smoke, demand

from fairlen.distributions import student

sys.path.insert(0, str(Path(__file__).parents[1]))
from recipes.guess import MAX_RESPONSE_LENGTH, PATH

METHODS = ("grpo", "grpo+turns", "grpo+turn_mean", "dapo_verl")
LAST = 4
"""Rollout batches at the end over which turns and tokens are averaged."""
COLUMNS = ("accuracy, %", "turns", "turns if lost", "tokens a turn")


def train(method: str, seed: int, batches: int, folder: Path) -> tuple[float, ...]:
    """COLUMNS of one run."""
    out = folder / f"{method}-{seed}"
    task = folder / f"{method}-{seed}.py"  # a task of one's own has no seed of the run's
    task.write_text(f"from recipes.guess import Guess\n\n\ndef make(tokenizer):\n    return Guess(seed={seed})\n")
    given = (
        f"--task {task}:make --model {PATH} --max-response-length {MAX_RESPONSE_LENGTH} --method {method} --seed {seed} "
        f"--threads 1 --rollout-batches {batches} --eval-every {batches}"
    )
    command = [sys.executable, "-m", "fairlen", "train", *given.split(), "--out", str(out)]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    demand(ended.returncode == 0, f"{method}, seed {seed}, ended with {ended.returncode}: {ended.stderr[-2000:]}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    accuracy = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line][-1]
    told = [line for line in lines if "turns/mean" in line][-LAST:]
    means = (float(np.mean([line[name] for line in told])) for name in ("turns/mean", "turns/incorrect", "length/turn"))
    return 100 * accuracy, *means


def interval(values: np.ndarray) -> str:
    """The mean over seeds and its interval, of 95%."""
    mean, count = values.mean(), len(values)
    if count < 2:
        return f"{mean:7.2f}"
    half = student(0.975, count - 1) * values.std(ddof=1) / np.sqrt(count)
    return f"{mean:7.2f} [{mean - half:.2f}, {mean + half:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rollout-batches", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    add_smoke(parser)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.seeds = arguments.rollout_batches = 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.jobs) as pool:
        cells = list(product(METHODS, range(arguments.seeds)))
        found = pool.map(lambda cell: train(*cell, arguments.rollout_batches, Path(folder)), cells)
        table = np.array(list(found)).reshape(len(METHODS), arguments.seeds, len(COLUMNS))
    for place, column in enumerate(COLUMNS):
        print(f"\n{column:18}{'mean over seeds':28}minus {METHODS[0]}")
        for method, rows in zip(METHODS, table, strict=True):
            gap = "" if method == METHODS[0] else interval(rows[:, place] - table[0, :, place])
            print(f"{method:18}{interval(rows[:, place]):28}{gap}")
    demand(bool(np.isfinite(table).all()), "a number is not finite")


if __name__ == "__main__":
    main()
