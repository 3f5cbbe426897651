"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

    checkpoints/batch-000020-update-000041/  model.safetensors  optimizer.safetensors  streams.safetensors
                                             rollouts.safetensors (within a rollout batch)  state.json  MANIFEST.json

Every file is synced, MANIFEST.json with sizes and hashes is written last, and the folder gets its name by a
rename. Loading takes the newest one whose manifest verifies; newer ones are called damaged. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fairlen.console import warn

MANIFEST = "MANIFEST.json"
NAME = re.compile(r"batch-(\d+)(?:-update-(\d+))?(?:-again-(\d+))?")


@dataclass(frozen=True)
class Checkpoint:
    """What is needed to go on. The tensors are those of the run or of the files, never copies, which would double the memory
    of a run."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    """By file and name."""
    state: dict[str, Any]
    """What JSON takes."""


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


@dataclass
class Archive:
    """The checkpoints of a run. One that cannot be written stops nothing: the last good ones stay, and it is said."""

    folder: Path
    keep: int = 2
    """How many of the newest stay."""
    is_behind: bool = False
    """Whether the last checkpoint could not be written."""

    def save(self, batch: int, update: int, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint is there; then older ones than the newest `keep` are gone."""
        try:
            save_checkpoint(self.folder, f"batch-{batch:06d}-update-{update:06d}", checkpoint)
            self.is_behind = False
        except (OSError, SafetensorError) as error:
            self.is_behind = True
            for rest in self.folder.glob(".tmp-*"):
                shutil.rmtree(rest, ignore_errors=True)
            warn(
                f"no checkpoint was written after update {update}: {error}; {self.folder} has {free_space(self.folder)} free. "
                f"Make room; {describe_kept(self.folder)}, and the next one is tried when it is due"
            )
            return False
        keep_newest(self.folder, self.keep)
        return True


def save_checkpoint(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint under `folder`; a crash at any point leaves the earlier ones as they were.

    Raises OSError or SafetensorError where the disk takes no more.
    """
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".tmp-{name}-{os.getpid()}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    for part, tensors in checkpoint.tensors.items():
        save_file(dict(tensors), staging / f"{part}.safetensors")
    (staging / "state.json").write_text(json.dumps(checkpoint.state, sort_keys=True, default=to_number))
    files = sorted(path for path in staging.iterdir())
    for path in files:
        sync(path)
    (staging / MANIFEST).write_text(
        json.dumps({path.name: [path.stat().st_size, digest(path)] for path in files}, indent=1)
    )
    sync(staging / MANIFEST)
    sync(staging)
    final = find_free(folder, name)
    os.rename(staging, final)
    sync(folder)
    return final


def load_newest(folder: Path) -> tuple[Path, Checkpoint] | None:
    """The newest checkpoint that verifies, or None where there never was one; newer ones are renamed to damaged-….

    Raises FileNotFoundError where there are checkpoints and none verifies.
    """
    found = list_checkpoints(folder)
    for path in reversed(found):
        if verifies(path):
            for damaged in found[found.index(path) + 1 :]:
                shutil.rmtree(damaged.with_name(f"damaged-{damaged.name}"), ignore_errors=True)
                os.rename(damaged, damaged.with_name(f"damaged-{damaged.name}"))
            state = json.loads((path / "state.json").read_text())
            return path, Checkpoint({file.stem: StoredTensors(file) for file in path.glob("*.safetensors")}, state)
    if found:
        raise FileNotFoundError(
            f"{folder}: none of the checkpoints {', '.join(path.name for path in found)} is whole: "
            "restore one from a backup, or start the run anew in another folder (--out)"
        )
    return None


def keep_newest(folder: Path, number: int) -> None:
    """Removes all but the newest checkpoints of `number` places, and what crashes and damage left behind."""
    found = list_checkpoints(folder)
    newest = {place_of(path): path for path in found}  # of one place, the last to be made
    kept = list(newest.values())[-number:]
    old = [path for path in found if path not in kept]
    for path in [*old, *folder.glob(".tmp-*"), *folder.glob("damaged-*")]:
        shutil.rmtree(path, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first: by rollout batch, update, and how often that place was reached."""
    matches = ((NAME.fullmatch(path.name), path) for path in folder.glob("batch-*"))
    return [path for _, path in sorted((tuple(int(n or 0) for n in m.groups()), path) for m, path in matches if m)]


def find_free(folder: Path, name: str) -> Path:
    """A path of that name; where a whole checkpoint has it, one that sorts after it, so that no good one is removed first."""
    there = [one for one in list_checkpoints(folder) if place_of(one) == name]
    whole = [one for one in there if verifies(one)]
    for damaged in set(there) - set(whole):
        shutil.rmtree(damaged)
    if not whole:
        return folder / name
    number = whole[-1].name.removeprefix(name).removeprefix("-again-") or "1"
    return folder / f"{name}-again-{int(number) + 1}"


def place_of(path: Path) -> str:
    """Rollout batch and update of a checkpoint, as its first name there."""
    return path.name.partition("-again-")[0]


def verifies(path: Path) -> bool:
    """Whether the files are those of the manifest, each with its size and hash."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        return {MANIFEST, *manifest} == {file.name for file in path.iterdir()} and all(
            (path / name).stat().st_size == size and digest(path / name) == sha
            for name, (size, sha) in manifest.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
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


def to_number(value: Any) -> Any:
    """A number of numpy or torch as Python's own, which JSON takes."""
    return value.item()


def free_space(folder: Path) -> str:
    """What the disk of a folder still takes."""
    try:
        return f"{shutil.disk_usage(folder).free / 2**20:,.1f} MiB"
    except OSError:
        return "an unknown number of bytes"


def describe_kept(folder: Path) -> str:
    """Which checkpoint a run would go on from."""
    found = list_checkpoints(folder)
    return f"{found[-1].name} is kept" if found else "there is none yet"
