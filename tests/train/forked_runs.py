"""Runs in processes that can be killed, forked from one that has imported everything: each starts in a fraction of a second.

As a program it is the process that forks. A request is a JSON object a line on its stdin; it answers with the run's pid, and with
how the run ended: its exit code, or minus the signal that killed it.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

import pyarrow.parquet as pq

from fairlen.train.run.checkpoint import list_checkpoints

SMALL = {
    "method": "fspo+balanced", "overrides": ["sampling.n=4"], "prompts_per_batch": 3, "rollout_batches": 2,
    "updates_per_batch": 2, "epochs_per_batch": 2, "max_response_length": 40, "problems": 4, "samples": 1,
    "eval_every": 1, "save_every": 1,
    "save_every_updates": 1, "keep_checkpoints": 3, "threads": 1, "max_num_seqs": 12, "warmup_updates": 4, "learning_rate": 1e-3,
}  # fmt: skip
"""8 updates in 2 rollout batches of 2 epochs; a checkpoint after each."""

METHODS = {
    "fspo": {},
    "eqlen": {"method": "eqlen+grpo", "overrides": ["sampling.streams=4"], "prompts_per_batch": 4, "max_num_seqs": 16},
}
NUM_UPDATES = 8

REWARDS = """
import random
import numpy as np
import torch
def noisy(prompts, completions, **columns):
    return [0.1 * (random.random() + np.random.rand() + torch.rand(1).item()) for _ in completions]
"""


class Forks:
    """The process that forks runs, from the side of a test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )  # fmt: skip
        assert self.answer() == {"ready": True}

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        assert line, "the process that forks has ended"
        return json.loads(line)

    def start(self, log: Path, **request) -> int:
        """Starts a run and returns its pid."""
        self.process.stdin.write(json.dumps(request | {"log": str(log)}) + "\n")
        return self.answer()["pid"]

    def wait(self) -> int:
        """How the run that was started last has ended."""
        return self.answer()["ended"]

    def run(self, folder: Path, patch: str = "", **changes) -> int:
        """A whole run, from its newest checkpoint where there is one."""
        self.start(folder.with_suffix(".log"), config=settings(folder, **changes), patch=patch)
        return self.wait()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


class Whole:
    """An uninterrupted run, its checkpoints all kept; made when it is first asked for."""

    def __init__(self, forks: Forks, rewards: str, root: Path) -> None:
        self.forks, self.rewards, self.root = forks, rewards, root

    def make(self, name: str) -> Path:
        folder = self.root / name
        if not folder.exists():
            assert self.forks.run(folder, **self.changes(name)) == 0
            assert len(list_checkpoints(folder / "checkpoints")) >= NUM_UPDATES - 1
        return folder

    def changes(self, name: str) -> dict:
        return METHODS[name] | {"rewards": [self.rewards], "keep_checkpoints": 1000}

    def stopped_at(self, name: str, place: int, to: Path) -> Path:
        """A copy that was stopped at one of its checkpoints, with all that came later still in its logs."""
        shutil.copytree(self.make(name), to)
        for path in list_checkpoints(to / "checkpoints")[place + 1 :]:
            shutil.rmtree(path)
        shutil.rmtree(to / "model")
        return to

    def differences(self, name: str, place: int, to: Path, patch: str = "") -> list[str]:
        """What is not the same after going on from there."""
        folder = self.stopped_at(name, place, to)
        assert self.forks.run(folder, patch, **self.changes(name)) == 0
        assert "resumed from" in folder.with_suffix(".log").read_text()
        return differences(essence(self.make(name)), essence(folder))


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def settings(folder: Path, **changes) -> dict:
    """Of a small run in `folder`, resumed if it was begun."""
    return SMALL | {"out": str(folder), "resume": (folder / "run.json").exists()} | changes


def essence(folder: Path) -> dict[str, object]:
    """Everything that two equal runs have in common: all but times."""
    names = [*(folder / "records").glob("*.parquet")]
    return {
        "metrics": [
            {name: value for name, value in json.loads(line).items() if not name.startswith("time/")}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ],
        "evaluations": (folder / "evaluations.jsonl").read_text(),
        "records": {p.name: pq.read_table(p).drop_columns(untimed(p)).to_pydict() for p in sorted(names)},
        "model": digest(folder / "model/model.safetensors"),
        "best": digest(folder / "best/model.safetensors"),
    }


def untimed(path: Path) -> list[str]:
    return ["verify_seconds"] if path.name.startswith("responses") else []


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(first: dict[str, object], second: dict[str, object]) -> list[str]:
    """Names of what is not the same."""
    return [name for name, value in first.items() if repr(value) != repr(second[name])]  # nan is not equal to itself


def serve() -> None:
    """Forks a run a line."""
    import torch

    from fairlen import playground
    from fairlen.engine import Engine
    from fairlen.policy.layout import choose_layout
    from fairlen.policy.model import load_policy
    from fairlen.train.start import start_training  # noqa: F401

    torch.set_num_threads(1)
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    with torch.no_grad():  # what is compiled once in a process
        Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=64)
        choose_layout("auto", policy, 64)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            become(request)
        print(json.dumps({"pid": pid}), flush=True)
        status = os.waitpid(pid, 0)[1]
        print(json.dumps({"ended": os.waitstatus_to_exitcode(status)}), flush=True)


def become(request: dict) -> None:
    """The run, in the forked process; never returns."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        import patches

        patches.apply(request.get("patch", ""))
        code = go(request)
    except BaseException as error:
        traceback.print_exc()
        code = getattr(error, "exit_code", 1)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def go(request: dict) -> int:
    """By the command line, or by its function."""
    if "arguments" in request:
        from fairlen.cli import main

        return main(request["arguments"])
    from fairlen.train.run.config import TrainConfig
    from fairlen.train.start import start_training

    config = request["config"]
    start_training(TrainConfig.of(**{k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}))
    return 0


def wait_until(condition, seconds: float = 60.0) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


if __name__ == "__main__":
    serve()
