"""Whole runs for tests, small, and what is read of them."""

import hashlib
import json
from pathlib import Path

from fairlen.metrics import index_metrics
from fairlen.train.run.config import TrainConfig

DOCUMENTED = set(index_metrics())


def small(out: Path, **changes) -> TrainConfig:
    """3 rollout batches of 4 prompts, two updates each, evaluated and saved between them."""
    settings = {
        "method": "fspo+balanced", "overrides": ("sampling.n=6",), "prompts_per_batch": 4, "rollout_batches": 3,
        "updates_per_batch": 2, "max_response_length": 60, "problems": 8, "samples": 2,
        "save_every": 1, "eval_every": 2, "threads": 1, "max_num_seqs": 24,
        "out": str(out),
    }  # fmt: skip
    return TrainConfig.of(**(settings | changes))


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(entries: list[dict], *more: str) -> list[dict]:
    """Entries without what two equal runs may differ in: times, and `more`."""
    return [{k: v for k, v in entry.items() if not k.startswith("time/") and k not in more} for entry in entries]


def updates_of(folder: Path) -> list[dict]:
    """Updates, as a resumed run has them too: occupancy is a mean over the life of a process."""
    return [entry for entry in without_times(metrics(folder), "engine/occupancy") if "loss/total" in entry]


def digest_model(folder: Path) -> str:
    """Equal for models of the same bits."""
    return hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest()
