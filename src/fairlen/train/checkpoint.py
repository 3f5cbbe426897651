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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

MANIFEST = "MANIFEST.json"


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on: trained weights, the optimizer's moments, and counters. The tensors are those of the run or
    of the file, never copies, which would double the memory of a run."""

    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    state: dict[str, Any]


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self.file = safe_open(path, "pt")
        self.names = tuple(self.file.keys())

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def capture_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's tensors by "parameter name|key"; they change with the next update."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": value.detach().contiguous()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Puts back what `capture_moments` took."""
    parameters = dict(model.named_parameters())
    for name, value in moments.items():
        parameter, key = name.rsplit("|", 1)
        kept = value if key == "step" else value.to(parameters[parameter])
        optimizer.state[parameters[parameter]][key] = kept.clone()  # a file's tensor may be mapped memory


def capture_weights(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters by name, tied ones once; they change with the next update."""
    return {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}


def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies the weights in place, so that whoever holds the module sees them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint under `folder`; a crash at any point leaves the earlier ones as they were."""
    folder.mkdir(parents=True, exist_ok=True)
    staging, final = folder / f".tmp-{name}-{os.getpid()}", folder / name
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    save_file(dict(checkpoint.weights), staging / "model.safetensors")
    save_file(dict(checkpoint.moments), staging / "optimizer.safetensors")
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
            weights, moments = (StoredTensors(path / f"{part}.safetensors") for part in ("model", "optimizer"))
            return path, Checkpoint(weights, moments, state)
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
