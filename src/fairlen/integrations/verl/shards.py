"""Checkpoints of FSDP2 read by more or fewer workers than wrote them: a worker cuts its own files out of all of theirs.

verl imports this where it builds a model (`model.external_lib`). Files of every worker have to be where every worker reads.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

from fairlen.files.folders import replacing

KINDS = ("model", "optim", "extra_state")
STOCK = FSDPCheckpointManager.load_checkpoint


def cut(parts: Sequence[Any], mesh: DeviceMesh, rank: int) -> Any:
    """Return what `rank` of `mesh` holds of what all ranks of another mesh held; what is not sharded is the first one's.

    Raises ValueError for tensors that were not sharded along one dimension.
    """
    first = parts[0]
    if isinstance(first, dict):
        return {key: cut([part[key] for part in parts], mesh, rank) for key in first}
    if isinstance(first, list | tuple):
        return type(first)(cut(each, mesh, rank) for each in zip(*parts, strict=True))
    if not isinstance(first, DTensor):
        return first
    placements = first.placements
    if len(placements) != 1 or not isinstance(placements[0], Shard):
        raise ValueError(
            f"a tensor placed as {placements}, not sharded once: only as many workers as wrote it can read it"
        )
    whole = torch.cat([part.to_local() for part in parts], placements[0].dim)
    chunks = whole.chunk(mesh.size(), placements[0].dim)
    own = chunks[rank] if rank < len(chunks) else whole.narrow(placements[0].dim, 0, 0)  # no part for the last ranks
    return DTensor.from_local(own.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def recut(folder: Path, mesh: DeviceMesh, rank: int) -> None:
    """Write the files of a checkpoint that `rank` of `mesh` reads, where another number of workers wrote them last.

    They are as old as what they were cut from: other ranks, which look later, still see who wrote.
    """
    for kind in KINDS:
        ours = f"{kind}_world_size_{mesh.size()}_rank_"
        own = folder / f"{ours}{rank}.pt"
        others = [file for file in folder.glob(f"{kind}_world_size_*_rank_0.pt") if not file.name.startswith(ours)]
        written = max(others, key=age, default=own)
        if age(own) > age(written) or written == own:
            continue
        files = sorted(
            folder.glob(written.name.replace("_rank_0", "_rank_*")), key=lambda file: int(file.stem.split("_")[-1])
        )
        with replacing(own) as staging:
            if kind == KINDS[-1]:  # random states, and the schedule, which is all ranks'
                shutil.copy(files[rank % len(files)], staging)
            else:
                parts = [torch.load(file, "cpu", weights_only=True, mmap=True) for file in files]
                torch.save(cut(parts, mesh, rank), staging)
            shutil.copystat(written, staging)


def age(file: Path) -> int:
    """Return when a file was written, in nanoseconds; 0 for one that is not there."""
    return file.stat().st_mtime_ns if file.exists() else 0


@wraps(STOCK)
def load_checkpoint(self: Any, local_path: str, *args: Any, **kwargs: Any) -> None:
    found = next((one.device_mesh for one in self.model.parameters() if isinstance(one, DTensor)), None)
    if local_path and found is not None and found.ndim == 1:
        recut(Path(local_path), found, self.rank)
    STOCK(self, local_path, *args, **kwargs)


FSDPCheckpointManager.load_checkpoint = load_checkpoint
