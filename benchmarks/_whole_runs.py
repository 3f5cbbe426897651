"""Whole runs on a device: one that is resumed beside one that never stopped, and the command of docs/train.md for 80 GB.

    python benchmarks/_whole_runs.py resume --device cuda --json found.json
    python benchmarks/_whole_runs.py command --device cuda --json found.json    # --engine embedded where there is no vLLM

The command runs as that page has it, but for: random weights of its model's shape, sums for problems, one rollout batch of 4
prompts instead of 32, one update, no checkpoints. 64 responses keep all slots of its engine busy, and its micro-batches are as
large. Random weights end no response, and truncated ones are never correct: the method is grpo, and what rewards them a function.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from _checks import demand

from fairlen.cli import read_train_config
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "recipes"))
CHANGES = {
    "--prompts-per-batch": "4", "--updates-per-batch": "1", "--rollout-batches": "1", "--max-extra-batches": "0",
    "--method": "grpo", "--problems": "1", "--samples": "1", "--save-every": "0", "--max-prompt-length": "1024",
}  # fmt: skip
TINY = {
    "--prompts-per-batch": "1", "--set": "sampling.n=4", "--max-response-length": "16", "--max-num-seqs": "4",
    "--max-prompt-length": "128", "--dtype": "float32", "--engine": "embedded", "--threads": "1",
}  # fmt: skip
INTERVAL = 0.05
"""Seconds between two looks at the memory of the device."""


def updates_of(folder: Path) -> list[dict[str, Any]]:
    """The logged updates of a run."""
    entries = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [entry for entry in entries if "loss/total" in entry]


def resume(device: str, folder: Path) -> dict[str, Any]:
    """Three rollout batches at once, and one and two of them with a resume between."""
    config = TrainConfig.of(
        method="grpo", device=device, dtype="bfloat16" if device == "cuda" else "float32", prompts_per_batch=4,
        max_response_length=60, problems=4, samples=1, save_every=1, max_num_seqs=64, rollout_batches=3, threads=1,
        deterministic=device == "cuda", out=str(folder / "whole"),
    )  # fmt: skip
    start_training(config)
    parted = config.replace(out=str(folder / "parted"))
    start_training(parted.replace(rollout_batches=1))
    start_training(parted.replace(resume=True))
    whole, found = updates_of(folder / "whole"), updates_of(folder / "parted")
    names = ("loss/total", "gradient/norm", "accuracy/mean")
    demand(len(found) == len(whole) > 1, f"the resumed run made {len(found)} updates, the other {len(whole)}")
    gaps = {name: abs(found[-1][name] - whole[-1][name]) for name in names}
    print(f"last update, resumed and not: {', '.join(f'{name} {gap:.2g} apart' for name, gap in gaps.items())}")
    return {"updates": len(found), "apart": gaps, "is_equal": not any(gaps.values())}


def find_command() -> list[str]:
    """The arguments of the page's command for one GPU of 80 GB."""
    text = (ROOT / "docs/train.md").read_text().split("On one GPU of 80 GB:")[1]
    found = re.search(r"fairlen train (.*?)\n\n", text, re.S)
    demand(found is not None, "docs/train.md has no command for one GPU of 80 GB")
    return shlex.split(found[1].replace("\\\n", " ")) if found else []


def changed(arguments: list[str], changes: dict[str, str], without: tuple[str, ...] = ()) -> list[str]:
    """The arguments with other values, and without some flags and their values."""
    rest, kept = list(arguments), []
    while rest:
        flag = rest.pop(0)
        value = [rest.pop(0)] if rest and not rest[0].startswith("--") else []
        kept += [] if flag in changes or flag in without else [flag, *value]
    return [*kept, *(part for pair in changes.items() for part in pair)]


def run_command(device: str, engine: str, size: str, folder: Path) -> dict[str, Any]:
    """One update of it, with the device's memory watched, beside the account that the run was started with."""
    import rehearse

    rehearse.write_model(folder / "model", size)
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rehearse.PROBLEMS))
    (folder / "low.py").write_text(rehearse.REWARD)
    changes = CHANGES | {
        "--model": str(folder / "model"), "--data": str(folder / "problems.jsonl"), "--rewards": f"{folder}/low.py:low",
        "--out": str(folder / "run"), "--device": device, "--engine": engine,
    } | (TINY if size == "tiny" else {})  # fmt: skip
    arguments = [*changed(find_command(), changes, ("--eval-data",)), "--random-init"]
    print("fairlen train " + shlex.join(arguments), flush=True)
    with watched(device) as seen:
        start_training(read_train_config(arguments))
    (update,) = updates_of(folder / "run")
    facts = json.loads((folder / "run/run.json").read_text())
    account = facts["memory"]
    peak = max(seen) if seen else None
    print(f"account {account}, device at its fullest {peak} bytes")
    return {"update": update, "account_bytes": account, "peak_bytes": peak, "responses": update["responses/verified"]}


@contextmanager
def watched(device: str) -> Iterator[list[int]]:
    """Within, note now and then how many bytes of the device are taken, by whomever."""
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            free, total = torch.cuda.mem_get_info()
            seen.append(total - free)
            time.sleep(INTERVAL)

    thread = threading.Thread(target=look, daemon=True)
    if device == "cuda":
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        if device == "cuda":
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=("resume", "command"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine", choices=("vllm", "embedded"), default="vllm")
    parser.add_argument("--size", choices=("1.7B", "0.6B", "tiny"), default="1.7B")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.run == "resume":
            found = resume(options.device, Path(folder))
        else:
            found = run_command(options.device, options.engine, options.size, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
