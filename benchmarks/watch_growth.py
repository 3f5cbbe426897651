"""Does `fairlen watch` keep up? It follows a folder that grows to a million responses, is killed halfway, and goes on.

    python benchmarks/watch_growth.py                  1,000,000 responses; exit code 1 where a mark is missed
    python benchmarks/watch_growth.py --responses N    fewer

A writer adds a step of 2,048 responses to 256 prompts, a line of jsonl each with a text of 100 words, one file per step, and
continues when the watch's state contains the step. The delay is the pause between looks plus the processor time until then. At
the end the state has to be that of a watch that reads all at once. Marks: 300 MB, and 2 seconds behind at the 99% quantile.

A second part watches twice as many responses inside a training loop and writes the page and the state, as at a checkpoint.
Marks: 5 seconds of processor time and 400 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from _checks import add_smoke, demand

from fairlen import LengthWatch

SIZE, PROMPTS, WORDS, PAUSE = 2048, 256, 100, 1.0
MOST_BYTES, MOST_SECONDS = 300e6, 2.0
MOST_PAGE_BYTES, MOST_PAGE_SECONDS = 400e6, 5.0


def write_step(folder: Path, step: int) -> None:
    """Write the file of a step, line by line, as a trainer that dumps its rollouts."""
    rng = np.random.default_rng(step)
    text = " ".join(["word"] * WORDS)
    correct, tokens = rng.random(SIZE) < 0.5, np.exp(rng.normal(5, 0.5, SIZE)).astype(int) + 1
    with (folder / f"{step}.jsonl").open("w") as file:
        for row in range(SIZE):
            line = {"step": step, "prompt": f"{step}: {row * PROMPTS // SIZE}", "response": f"{row} {text}"}
            line |= {"num_tokens": int(tokens[row]), "reward": float(correct[row]), "finish_reason": "stop"}
            file.write(json.dumps(line) + "\n")


class Watched:
    """A watch in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.log = folder.with_suffix(".log")
        command = [sys.executable, "-m", "fairlen", "watch", str(folder), *options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def peak(self) -> float:
        """Return the most memory that the process has held, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024.0 * int(re.findall(r"VmHWM:\s+(\d+)", status)[0])

    def seconds(self) -> float:
        """Return its processor time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        self.process.wait()


def read_last(state: Path) -> int:
    """Return the newest step that a state has counted."""
    found = re.findall(rb'"last": (\d+)', state.read_bytes()) if state.exists() else []
    return int(found[-1]) if found else -1


def read_watch(state: Path) -> dict[str, list]:
    return json.loads(state.read_text())["watch"]


def watch_loop(steps: int) -> tuple[float, float, float, float]:
    """Watch steps inside a loop.

    Returns:
        Seconds per step, seconds for state and page, bytes of the state, and most memory in bytes.
    """
    watch, rng = LengthWatch(method="dapo"), np.random.default_rng(0)
    prompt = np.repeat(np.arange(PROMPTS), SIZE // PROMPTS)
    start = time.process_time()
    for step in range(steps):
        lengths, correct = np.exp(rng.normal(5, 0.5, SIZE)).astype(int) + 1, rng.random(SIZE) < 0.5
        watch.add((prompt + PROMPTS * step).tolist(), lengths, correct, truncated=np.zeros(SIZE))
    added = time.process_time()
    state = len(json.dumps(watch.state()))
    with tempfile.TemporaryDirectory() as folder:
        watch.page(Path(folder) / "page.html")
    most = 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (added - start) / steps, time.process_time() - added, float(state), most


def measure_loop(steps: int) -> bool:
    """Print what the watch inside a loop costs, and return whether its marks are reached."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as worker:
        step, page, state, most = worker.submit(watch_loop, steps).result()
    print(
        f"in a loop, {steps * SIZE:,} responses: {1e3 * step:.1f} ms per step; page and state {page:.1f} s, {state / 1e6:.1f} MB"
    )
    print(f"memory {most / 1e6:.0f} MB")
    return page <= MOST_PAGE_SECONDS and most <= MOST_PAGE_BYTES


def main() -> None:
    """Write, watch, kill, continue, and compare the states."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=1_000_000)
    add_smoke(parser)
    args = parser.parse_args()
    steps = 6 if args.smoke else args.responses // SIZE
    with tempfile.TemporaryDirectory() as place:
        folder, state, whole = Path(place) / "rollouts", Path(place) / "state.json", Path(place) / "whole.json"
        folder.mkdir()
        write_step(folder, 0)
        options = ("--state", str(state), "--every", "0.1")
        one, behind, peaks = Watched(folder, *options), list[float](), list[float]()
        for step in range(1, steps):
            before = one.seconds() if step > 1 else 0.0
            write_step(folder, step)  # with which the step before it is complete
            begun = time.monotonic()
            while read_last(state) < step - 1:
                demand(time.monotonic() - begun < 600 and one.process.poll() is None, f"step {step - 1} was not read")
                time.sleep(0.05)
            behind.append(PAUSE + one.seconds() - before)
            if step == steps // 2:
                peaks.append(one.peak())
                one.end(signal.SIGKILL)
                one = Watched(folder, *options)
        peaks.append(one.peak())
        one.end(signal.SIGTERM)
        subprocess.run(
            [sys.executable, "-m", "fairlen", "watch", str(folder), "--once", "--state", str(state)], check=True
        )
        subprocess.run(
            [sys.executable, "-m", "fairlen", "watch", str(folder), "--once", "--state", str(whole)], check=True
        )
        is_same = all(read_watch(state)[name] == read_watch(whole)[name] for name in ("steps", "evidence"))
        late = float(np.quantile(behind, 0.99))
        print(
            f"{steps * SIZE:,} responses in {steps:,} steps; killed at step {steps // 2:,}; state as read at once: {is_same}"
        )
        print(f"behind: median {np.median(behind):.2f} s, 99% {late:.2f} s, most {max(behind):.2f} s")
        print(f"memory {max(peaks) / 1e6:.0f} MB; state {state.stat().st_size / 1e6:.1f} MB")
    is_cheap = measure_loop(2 * steps)
    demand(is_same, "the state of the killed watch is another one")
    demand(args.smoke or is_cheap, "the page of the watch inside a loop costs too much")
    demand(args.smoke or (max(peaks) <= MOST_BYTES and late <= MOST_SECONDS), "too much memory, or too far behind")


if __name__ == "__main__":
    main()
