"""The world of `make real`: SmolLM2 with its word problems, an engine, and what a measurement was made with."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fairlen.cli import read_train_config
from fairlen.engine.generation import SteppedEngine
from fairlen.files.folders import write_file
from fairlen.policy.engines import build_engine
from fairlen.policy.model import Policy, load_policy
from fairlen.settings import choose_device
from fairlen.tasks.load import load_task
from fairlen.tasks.task import Task
from fairlen.train.run.config import TrainConfig
from research.real.evidence import ABOUT

CONFIG = Path(__file__).parents[2] / "recipes" / "real.toml"


@dataclass(frozen=True)
class Sizes:
    """How much is drawn and differentiated."""

    prompts: int = 128
    responses: int = 16
    streams: int = 8
    chunk: int = 8
    """Prompts that are drawn together and kept as one file."""
    gradient_prompts: int = 32
    low: float = 0.2
    high: float = 0.8
    """Shares solved between which a problem is taken."""
    candidates: int = 1024
    """Problems that are tried at most."""


FULL = Sizes()
SMOKE = Sizes(prompts=4, responses=4, streams=2, chunk=2, gradient_prompts=2, low=0.0, high=1.0, candidates=4)
"""Every part of the way, with numbers that say nothing."""


@dataclass(frozen=True)
class World:
    """A model with its problems, and where evidence goes."""

    config: TrainConfig
    policy: Policy
    task: Task
    engine: SteppedEngine
    sizes: Sizes
    out: Path


def read_settings(model: str, data: str, dtype: str) -> TrainConfig:
    """Return the settings of recipes/real.toml: no warm-up, 64 responses at a time, and micro-batches that fit 24 GB."""
    config = read_train_config(["--config", str(CONFIG), "--model", model, "--data", data, "--dtype", dtype])
    sampling = replace(config.sampling, max_num_seqs=64)
    update = replace(config.update, warmup_updates=0, max_tokens_per_microbatch=4096)
    return replace(config, sampling=sampling, update=update)


def build_world(config: TrainConfig, sizes: Sizes, out: Path) -> World:
    """Load the model and its problems."""
    torch.manual_seed(0)
    policy = load_policy(config.model.name, config.model.dtype, choose_device(config.model), False)
    policy.model.eval()
    task = load_task(config, policy.tokenizer)
    engine = build_engine(config, policy, task.longest_prompt + config.sampling.max_response_length)
    return World(config, policy, task, engine, sizes, out)


def describe(config: TrainConfig, sizes: Sizes, commit: str) -> dict[str, Any]:
    """Return what numbers depend on."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    kinds = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "commit": commit, "cpu": kinds[0] if kinds else platform.processor(), "torch": torch.__version__,
        "model": config.model.name, "data": list(config.data.places), "dtype": config.model.dtype,
        "temperature": config.sampling.temperature, "max_response_length": config.sampling.max_response_length,
        "learning_rate": config.update.learning_rate, "sizes": asdict(sizes),
    }  # fmt: skip


def start(out: Path, about: dict[str, Any]) -> None:
    """Write what is measured with, or compare it. Raises ValueError where the folder was begun with something else."""
    path = out / ABOUT
    if not path.exists():
        write_file(path, json.dumps(about, indent=1) + "\n")
        return
    kept = json.loads(path.read_text(encoding="utf-8"))
    if changed := [name for name in about if kept.get(name) != about[name]]:
        name = changed[0]
        raise ValueError(f"{out}: begun with {name}={kept.get(name)!r}, not {about[name]!r}: give another --out")


def chunks(values: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return values in their order, so many together."""
    return [values[at : at + size] for at in range(0, len(values), size)]
