"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

    checkpoints/batch-000020/  model.safetensors  optimizer.safetensors  state.json  MANIFEST.json

Every file is synced, MANIFEST.json with sizes and hashes is written last, and the folder gets its name by a
rename. Loading takes the newest one whose manifest verifies. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on: weights, the optimizer's moments, and counters."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    state: dict[str, Any]


def capture_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by "parameter name|key"."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": value.detach().clone().contiguous()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: dict[str, Tensor]) -> None:
    """Puts back what `capture_moments` took."""
    parameters = dict(model.named_parameters())
    for name, value in moments.items():
        parameter, key = name.rsplit("|", 1)
        kept = value if key == "step" else value.to(parameters[parameter])
        optimizer.state[parameters[parameter]][key] = kept.clone()


def capture_weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, tied ones once."""
    return {name: parameter.detach().clone().contiguous() for name, parameter in model.named_parameters()}


def restore_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copies the weights in place, so that whoever holds the module sees them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint under `folder`; a crash at any point leaves the earlier ones as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    staging, final = folder / f".tmp-{name}-{os.getpid()}", folder / name
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    save_file(checkpoint.weights, staging / "model.safetensors")
    save_file(checkpoint.moments, staging / "optimizer.safetensors")
    (staging / "state.json").write_text(json.dumps(checkpoint.state, indent=1, sort_keys=True))
    files = sorted(path for path in staging.iterdir())
    for path in files:
        sync(path)
    (staging / MANIFEST).write_text(
        json.dumps({path.name: [path.stat().st_size, digest(path)] for path in files}, indent=1)
    )
    sync(staging / MANIFEST)
    sync(staging)
    shutil.rmtree(final, ignore_errors=True)
    os.rename(staging, final)
    sync(folder)
    return final


def load_newest(folder: Path) -> tuple[Path, Checkpoint]:
    """The newest checkpoint that verifies. Raises FileNotFoundError where there is none."""
    for path in sorted(folder.glob("batch-*"), reverse=True):
        if verifies(path):
            state = json.loads((path / "state.json").read_text())
            return path, Checkpoint(
                load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors"), state
            )
    raise FileNotFoundError(f"no whole checkpoint in {folder}: start the run anew in another folder (--out)")


def keep_newest(folder: Path, number: int) -> None:
    """Removes all but the newest `number` checkpoints, and what crashes left behind."""
    for path in [*sorted(folder.glob("batch-*"))[:-number], *folder.glob(".tmp-*")]:
        shutil.rmtree(path, ignore_errors=True)


def verifies(path: Path) -> bool:
    """Whether every file has the size and hash of the manifest."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        return all(
            (path / name).stat().st_size == size and digest(path / name) == sha
            for name, (size, sha) in manifest.items()
        )
    except (OSError, ValueError):
        return False


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Waits until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
