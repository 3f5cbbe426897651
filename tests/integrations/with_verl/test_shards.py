"""Shards of a checkpoint for other numbers of workers: no process group, tensors of a few entries."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from fairlen.integrations.verl.shards import cut, recut

ROWS = Shard(0)


def mesh_of(ranks: int, rank: int) -> DeviceMesh:
    return DeviceMesh("cpu", torch.arange(ranks), _init_backend=False, _rank=rank)


def shards_of(whole: torch.Tensor, ranks: int, placement=ROWS) -> list[DTensor]:
    """What each rank holds of it, as FSDP2 cuts: chunks of equal length but for the last ones."""
    chunks = [part.clone() for part in (*whole.chunk(ranks), *ranks * [whole[:0]])]
    return [
        DTensor.from_local(chunks[r], mesh_of(ranks, r), [placement], run_check=False, shape=whole.shape, stride=whole.stride())
        for r in range(ranks)
    ]  # fmt: skip


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "after, rows", [(1, [5]), (2, [3, 2]), (3, [2, 2, 1]), (4, [2, 2, 1, 0]), (8, [1, 1, 1, 1, 1, 0, 0, 0])]
)
def test_every_rank_gets_its_chunk(before, after, rows):
    """5 rows over 4 ranks are chunks of 2, 2, 1 and none."""
    whole = torch.arange(15.0).reshape(5, 3)
    parts = shards_of(whole, before)
    found = [cut(parts, mesh_of(after, rank), rank) for rank in range(after)]
    assert [len(one.to_local()) for one in found] == rows
    assert torch.equal(torch.cat([one.to_local() for one in found]), whole)
    assert {(one.shape, one.stride()) for one in found} == {(whole.shape, whole.stride())}


def test_what_is_no_shard_is_every_ranks():
    parts = [
        {"state": {0: {"step": torch.tensor(7.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]} for _ in range(2)
    ]
    assert cut(parts, mesh_of(3, 2), 2) == parts[0]


def test_another_placement_is_refused():
    with pytest.raises(ValueError, match=r"not sharded once: only as many workers as wrote it can read it"):
        cut(shards_of(torch.zeros(4, 2), 2, Replicate()), mesh_of(1, 0), 0)


def write(folder, whole: torch.Tensor, ranks: int, when: int) -> None:
    """A checkpoint of so many ranks, written at a time."""
    for rank, part in enumerate(shards_of(whole, ranks)):
        for kind, value in (("model", {"a": part}), ("optim", {"a": part}), ("extra_state", f"rank {rank} of {ranks}")):
            path = folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt"
            torch.save(value, path)
            os.utime(path, (when, when))


def read(folder, kind: str, ranks: int) -> list:
    found = [torch.load(folder / f"{kind}_world_size_{ranks}_rank_{rank}.pt") for rank in range(ranks)]
    return [one["a"].to_local().tolist() for one in found] if kind != "extra_state" else found


def test_the_last_who_wrote_are_read(tmp_path):
    """Two ranks wrote rows 0, 1 and row 2; three read them. Then one writes others, and two read those, not what they had."""
    first, second = torch.arange(3.0)[:, None], torch.arange(3.0)[:, None] + 10
    write(tmp_path, first, 2, when=100)
    for rank in range(3):  # one after another: the first one's files are there when the last one looks
        recut(tmp_path, mesh_of(3, rank), rank)
    assert read(tmp_path, "optim", 3) == [[[0.0]], [[1.0]], [[2.0]]]
    assert read(tmp_path, "extra_state", 3) == ["rank 0 of 2", "rank 1 of 2", "rank 0 of 2"]
    write(tmp_path, second, 1, when=200)
    for rank in range(2):
        recut(tmp_path, mesh_of(2, rank), rank)
    assert read(tmp_path, "model", 2) == [[[10.0], [11.0]], [[12.0]]]
    recut(tmp_path, mesh_of(1, 0), 0)
    assert read(tmp_path, "model", 1) == [[[10.0], [11.0], [12.0]]]
    assert not list(tmp_path.glob(".tmp*"))


def test_nothing_is_cut_where_nobody_else_wrote(tmp_path):
    recut(tmp_path, mesh_of(2, 0), 0)
    assert not list(tmp_path.iterdir())
    write(tmp_path, torch.zeros(2, 1), 2, when=100)
    before = sorted(path.name for path in tmp_path.iterdir())
    recut(tmp_path, mesh_of(2, 0), 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
