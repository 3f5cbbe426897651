"""Does `fairlen watch` rely on nothing that files do not promise? Six situations, each with a watch in a process of its own.

    python benchmarks/watch_files.py               all of them, about five minutes; exit code 1 if one fails
    python benchmarks/watch_files.py backlog kills some of them

backlog: 16 MiB of finished steps, and a writer that adds a step every 0.25 s for 60 s
two-runs: a folder that a second run uses again, as Parquet and as JSON lines, with the effect in the first run or the second
sparse: a file of 50 GB of zeros beside the rollouts
unrelated: a log of 300 MB without rollouts beside them, which grows
late: 24 of 64 responses of a step come 60 s after the others
gzip: a compressed file that ends too early
kills: a watch that is killed 100 times while a run writes ends in the state of one that was not
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _checks import add_smoke, demand

MOST_BYTES = 300e6


def make_rows(step: int, size: int = 128, gap: float = 1.0, seed: int = 0) -> list[dict]:
    """Return the responses of a step, eight to a prompt; incorrect ones are `gap` times as long."""
    rng = np.random.default_rng([seed, step])
    rows = []
    for row in range(size):
        correct = bool(rng.random() < 0.5)
        tokens = int(np.exp(5 + rng.normal(0, 0.5)) * (1.0 if correct else gap)) + 1
        line = {"step": step, "prompt": f"{seed}-{step}-{row // 8}", "response": f"{row} {'word ' * tokens}"}
        rows.append(line | {"num_tokens": tokens, "reward": float(correct), "finish_reason": "stop"})
    return rows


def append(path: Path, rows: Sequence[dict]) -> None:
    """Append rows to a file of JSON lines."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


class Watch:
    """`fairlen watch` in a process of its own, with its output in a file."""

    def __init__(self, path: Path, *options: str) -> None:
        self.log = Path(f"{path}.log")
        command = [sys.executable, "-m", "fairlen", "watch", str(path), *options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def peak(self) -> float:
        """Return the most memory that the process has held, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024.0 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])

    def is_running(self) -> bool:
        return self.process.poll() is None

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait()


def run_once(path: Path, *options: str) -> int:
    """Run `fairlen watch --once`, and return its exit code."""
    command = [sys.executable, "-m", "fairlen", "watch", str(path), "--once", *options]
    return subprocess.run(command, capture_output=True, check=False).returncode


def wait_for(state: Path, step: int, watch: Watch, seconds: float = 300.0) -> None:
    """Wait until a state has a step."""
    deadline = time.monotonic() + seconds
    while read_last(state) < step:
        demand(watch.is_running(), f"the watch ended before step {step}: {watch.log.read_text()[-300:]}")
        demand(time.monotonic() < deadline, f"step {step} was not read within {seconds:g} s")
        time.sleep(0.05)


def read_last(state: Path) -> int:
    """Return the newest step that a state has counted."""
    return json.loads(state.read_text())["follower"]["last"] if state.exists() else -1


def read_counts(state: Path) -> tuple[list[tuple[int, int]], dict[str, int]]:
    """Return number and size of each counted step, and what was not counted."""
    found = json.loads(state.read_text())
    steps = [(step["number"], step["size"]) for step in found["watch"]["steps"]]
    return steps, found["follower"]["skipped"]


def try_backlog(folder: Path, is_smoke: bool) -> str:
    path, state = folder / "rollouts.jsonl", folder / "state.json"
    step = 0
    while not path.exists() or path.stat().st_size < (1 << 18 if is_smoke else 1 << 24):
        step += 1
        append(path, make_rows(step))
    watch = Watch(path, "--state", str(state), "--every", "0.1")
    behind = []
    end = time.monotonic() + (2.0 if is_smoke else 60.0)
    while time.monotonic() < end:
        step += 1
        append(path, make_rows(step))
        time.sleep(0.25)
        demand(watch.is_running(), f"the watch ended: {watch.log.read_text()[-300:]}")
        behind.append(step - 1 - read_last(state))
    wait_for(state, step - 1, watch)
    peak, code = watch.peak(), watch.end()
    steps, skipped = read_counts(state)
    demand(steps == [(number, 128) for number in range(1, step)] and not skipped, "steps are missing")
    demand(code == 0, f"exit code {code}")
    demand(peak < MOST_BYTES, f"{peak / 1e6:.0f} MB")
    return f"{step:,} steps, all counted; at the end {behind[-1]} behind; {peak / 1e6:.0f} MB; exit code 0"


def try_two_runs(folder: Path, is_smoke: bool) -> str:
    told = []
    for kind in ("parquet", "jsonl"):
        for gaps in ((1.6, 1.0), (1.0, 1.6)):
            place = folder / f"{kind}-{gaps[0]}"
            place.mkdir()
            codes = [write_and_watch(place, kind, run, gap) for run, gap in enumerate(gaps)]
            demand(codes == [int(gap > 1) for gap in gaps], f"{kind}, gaps {gaps}: exit codes {codes}")
            told.append(f"{kind} {gaps}: {codes}")
    return "exit codes with --fail-on effect: " + "; ".join(told)


def write_and_watch(place: Path, kind: str, run: int, gap: float) -> int:
    """Write a run into a folder, step by step, and return the exit code of a watch that keeps its state there."""
    path, state = place / "rollouts.jsonl", Path(f"{place}.json")
    for step in range(1, 41):
        rows = make_rows(step, gap=gap, seed=run)
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), place / f"completions_{step:05}.parquet")
        else:
            if step == 1:
                path.unlink(missing_ok=True)
            append(path, rows)
    return run_once(place, "--state", str(state), "--fail-on", "effect")


def try_sparse(folder: Path, is_smoke: bool) -> str:
    path, state = folder / "rollouts.jsonl", Path(f"{folder}.json")
    append(path, make_rows(1))
    with (folder / "hole.jsonl").open("wb") as file:
        file.truncate(50 * 10**9)
    watch = Watch(folder, "--state", str(state), "--every", "0.2")
    for step in range(2, 12):
        append(path, make_rows(step))
        time.sleep(0.2)
    wait_for(state, 10, watch)
    peak, code = watch.peak(), watch.end()
    demand(code == 1, f"exit code {code} although a file could not be read")
    demand(peak < MOST_BYTES, f"{peak / 1e6:.0f} MB")
    return f"10 steps counted, {peak / 1e6:.0f} MB; exit code 1, because the file was not read"


def try_unrelated(folder: Path, is_smoke: bool) -> str:
    path, other, state = folder / "rollouts.jsonl", folder / "server.jsonl", Path(f"{folder}.json")
    line = json.dumps({"time": 1.5, "level": "info", "message": "x" * 1000}) + "\n"
    size = 3_000_000 if is_smoke else 300_000_000
    with other.open("w") as file:
        for _ in range(size // len(line)):
            file.write(line)
    append(path, make_rows(1))
    watch = Watch(folder, "--state", str(state), "--every", "0.1")
    for step in range(2, 32):
        with other.open("a") as file:
            file.write(line)
        append(path, make_rows(step))
        time.sleep(0.1)
    wait_for(state, 30, watch)
    peak, code = watch.peak(), watch.end()
    demand(code == 0, f"exit code {code}")
    demand(peak < MOST_BYTES, f"{peak / 1e6:.0f} MB")
    return f"30 steps counted beside {other.stat().st_size / 1e6:.0f} MB, {peak / 1e6:.0f} MB; exit code 0"


def try_late(folder: Path, is_smoke: bool) -> str:
    path, state = folder / "rollouts.jsonl", folder / "state.json"
    rows = sorted(make_rows(1, size=64), key=lambda row: row["num_tokens"])
    append(path, rows[:40])
    watch = Watch(path, "--state", str(state), "--every", "0.2")
    time.sleep(1.0 if is_smoke else 60.0)
    append(path, rows[40:])
    append(path, make_rows(2, size=64))
    wait_for(state, 1, watch)
    code = watch.end()
    steps, skipped = read_counts(state)
    demand(steps == [(1, 64)] and not skipped and code == 0, f"{steps}, {skipped}, exit code {code}")
    return "64 of 64 responses counted; exit code 0"


def try_gzip(folder: Path, is_smoke: bool) -> str:
    for step in (1, 2, 3):
        append(folder / f"{step}.jsonl", make_rows(step))
    packed = gzip.compress((folder / "3.jsonl").read_bytes())
    (folder / "3.jsonl").unlink()
    (folder / "3.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    broken = run_once(folder)
    (folder / "3.jsonl.gz").write_bytes(packed)
    whole = run_once(folder)
    demand((broken, whole) == (1, 0), f"exit codes {broken} of the broken file, {whole} of the whole one")
    return "exit code 1 of the broken file, 0 of the whole one"


def try_kills(folder: Path, is_smoke: bool) -> str:
    path, state, whole = folder / "rollouts.jsonl", folder / "state.json", folder / "whole.json"
    kills, rng = 4 if is_smoke else 100, np.random.default_rng(7)
    append(path, make_rows(1))
    step, killed = 1, 0
    while killed < kills:
        watch = Watch(path, "--state", str(state), "--every", "0.02")
        end = time.monotonic() + 0.4 + rng.random() * 1.6
        while time.monotonic() < end:
            step += 1
            text = "".join(json.dumps(row) + "\n" for row in make_rows(step, gap=1.2))
            cut = int(rng.integers(len(text)))  # a writer's buffer ends anywhere in a line
            for part in (text[:cut], text[cut:]):
                with path.open("a") as file:
                    file.write(part)
                time.sleep(0.01)
        watch.end(signal.SIGKILL)
        killed += 1
    for place in (state, whole):
        run_once(path, "--state", str(place))
    states = [json.loads(place.read_text()) for place in (state, whole)]
    is_same = states[0] == states[1]
    demand(is_same, "the states differ")
    counted = len(states[0]["watch"]["steps"])
    demand(counted == step - 1, f"{counted} of {step - 1} steps")
    return f"{killed} kills, {counted:,} steps; the state is that of a watch that was never killed"


CASES = {
    "backlog": try_backlog,
    "two-runs": try_two_runs,
    "sparse": try_sparse,
    "unrelated": try_unrelated,
    "late": try_late,
    "gzip": try_gzip,
    "kills": try_kills,
}


def main() -> None:
    """Try the situations that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    add_smoke(parser)
    args = parser.parse_args()
    for name in args.cases or CASES:
        demand(name in CASES, f"{name}: choose among {', '.join(CASES)}")
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            folder.mkdir()
            os.environ["XDG_STATE_HOME"] = str(Path(place) / "state")
            print(f"{name}: {CASES[name](folder, args.smoke)}", flush=True)


if __name__ == "__main__":
    main()
