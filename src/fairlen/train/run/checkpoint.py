"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

    checkpoints/batch-000020-update-000041/  model.safetensors  optimizer.safetensors  state.json  MANIFEST.json
      within a rollout batch, …-2 and more:    responses.parquet  segments.parquet  old_logprobs.safetensors

Every file is synced, the manifest with sizes and hashes is written last, and the folder gets its name by a rename. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fairlen.console import warn
from fairlen.files.folders import sync
from fairlen.files.foreign import open_regular_file, read_json_object, require_regular_file

MANIFEST = "MANIFEST.json"
NAME = re.compile(r"batch-(\d+)(?:-update-(\d+))?(?:-(\d+))?")


@dataclass(frozen=True)
class Checkpoint:
    """Tensors are those of the run, or memory mapped from files: copies would double its memory."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    tables: Mapping[str, pa.Table] = field(default_factory=dict)  # the started rollout batch, as in records/


@dataclass
class Archive:
    """The checkpoints of a run. A failed one stops nothing: the last good ones stay, with a warning."""

    folder: Path
    keep: int = 2
    is_behind: bool = False

    def save(self, batch: int, update: int, checkpoint: Checkpoint, done: int = 0) -> bool:
        """Write a checkpoint, then remove older ones than the newest `keep`; False where it could not be written.

        `done`: of what comes after that many rollout batches and updates, 1 for an evaluation, 2 and more within a batch.
        """
        try:
            save_checkpoint(self.folder, f"batch-{batch:06d}-update-{update:06d}" + f"-{done}" * (done > 0), checkpoint)
            self.is_behind = False
        except (OSError, SafetensorError) as error:
            self.is_behind = True
            for rest in self.folder.glob(".tmp-*"):
                shutil.rmtree(rest, ignore_errors=True)
            there = list_checkpoints(self.folder)
            warn(
                f"no checkpoint was written after update {update}: {error}; {self.folder} has "
                f"{shutil.disk_usage(self.folder.parent).free / 2**20:,.1f} MiB free. Make room; "
                f"{f'{there[-1].name} is kept' if there else 'there is none yet'}, and the next one is tried when it is due"
            )
            return False
        keep_newest(self.folder, self.keep)
        return True


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; a crash leaves earlier ones as they were. Raises OSError or SafetensorError on a full disk.

    A whole one of the same name is of the same place in the run, and stays.
    """
    final = folder / name
    if verifies(final):
        return final
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".tmp-{name}-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for part, tensors in checkpoint.tensors.items():
        save_file(dict(tensors), staging / f"{part}.safetensors")
    for part, table in checkpoint.tables.items():
        pq.write_table(table, staging / f"{part}.parquet", compression="zstd")
    state = json.dumps(checkpoint.state, sort_keys=True, default=lambda number: number.item())
    (staging / "state.json").write_text(state)
    files = sorted(staging.iterdir())
    for path in files:
        sync(path)
    manifest = {path.name: [path.stat().st_size, digest(path)] for path in files}
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=1))
    sync(staging / MANIFEST)
    sync(staging)
    shutil.rmtree(final, ignore_errors=True)  # which is damaged
    os.rename(staging, final)
    sync(folder)
    return final


def load_newest(folder: Path) -> tuple[Path, Checkpoint] | None:
    """The newest whole checkpoint, None without any; newer ones become damaged-…. Raises FileNotFoundError if none is whole."""
    found = list_checkpoints(folder)
    for path in reversed(found):
        if verifies(path):
            for damaged in found[found.index(path) + 1 :]:
                shutil.rmtree(damaged.with_name(f"damaged-{damaged.name}"), ignore_errors=True)
                os.rename(damaged, damaged.with_name(f"damaged-{damaged.name}"))
            state = read_json_object(path / "state.json")
            tensors = {file.stem: load_file(require_regular_file(file)) for file in path.glob("*.safetensors")}
            tables = {file.stem: pq.read_table(require_regular_file(file)) for file in path.glob("*.parquet")}
            return path, Checkpoint(tensors, state, tables)
    if found:
        raise FileNotFoundError(
            f"{folder}: none of the checkpoints {', '.join(path.name for path in found)} is whole: "
            "restore one from a backup, or start the run again in another folder (--out)"
        )
    return None


def keep_newest(folder: Path, number: int) -> None:
    """Remove all but the newest `number` checkpoints, and the remains of crashes and damage."""
    for path in [*list_checkpoints(folder)[:-number], *folder.glob(".tmp-*"), *folder.glob("damaged-*")]:
        shutil.rmtree(path, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints, oldest first: by rollout batch and update."""
    matches = ((NAME.fullmatch(path.name), path) for path in folder.glob("batch-*"))
    return [path for _, path in sorted((tuple(int(n or 0) for n in m.groups()), path) for m, path in matches if m)]


def verifies(path: Path) -> bool:
    """True where the files are those of the manifest, each with its size and hash."""
    try:
        manifest = read_json_object(path / MANIFEST)
        return {MANIFEST, *manifest} == {file.name for file in path.iterdir()} and all(
            (path / name).stat().st_size == size and digest(path / name) == sha
            for name, (size, sha) in manifest.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def digest(path: Path) -> str:
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def capture_weights(model: nn.Module) -> dict[str, Tensor]:
    """Trained parameters by name, tied ones once; the next update changes them."""
    return {name: p.detach().contiguous() for name, p in model.named_parameters() if p.requires_grad}


def restore_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy the weights in place, so that every holder of the module sees them."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(weights[name])


def capture_moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's numbers by "parameter name|key"; the next update changes them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}|{key}": torch.as_tensor(value).detach().contiguous()
        for parameter, moments in optimizer.state.items()
        for key, value in moments.items()
    }


def restore_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Put back the result of `capture_moments`, each tensor on the device and with the dtype of the optimizer's steps.

    These are torch's own rules: a fused AdamW has its step counts on the device, another one on the CPU.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in moments.items():
        parameter, key = name.rsplit("|", 1)
        state.setdefault(trained.index(parameter), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    for restored in optimizer.state.values():
        restored.update({key: value.clone() for key, value in restored.items()})  # a file's tensor may be mapped memory


def seed_streams(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def capture_streams() -> dict[str, Any]:
    """Positions of the random streams of torch, numpy and Python, as JSON has them."""
    numpy: Any = np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": [part.tolist() if isinstance(part, np.ndarray) else part for part in numpy],
        "torch": torch.get_rng_state().tolist(),
        "cuda": [state.tolist() for state in devices],
    }


def restore_streams(streams: Mapping[str, Any]) -> None:
    """Put back the result of `capture_streams`, except for devices that are not there."""
    version, words, gauss = streams["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(streams["numpy"]))
    torch.set_rng_state(torch.tensor(streams["torch"], dtype=torch.uint8))
    for index, state in enumerate(streams["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.tensor(state, dtype=torch.uint8), index)
