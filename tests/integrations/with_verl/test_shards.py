"""Shards of a checkpoint for other numbers of workers: no process group, tensors of a few entries."""

from __future__ import annotations

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


def test_what_is_no_shard_is_a_ranks_own():
    parts = [{"state": {0: {"step": torch.tensor(7.0)}}, "rng": [f"of rank {rank}"]} for rank in range(2)]
    one, other, third = (cut(parts, mesh_of(3, rank), rank) for rank in range(3))
    assert (one["rng"], other["rng"], third["rng"]) == (["of rank 0"], ["of rank 1"], ["of rank 0"])
    assert one["state"][0]["step"] == 7


def test_another_placement_is_refused():
    with pytest.raises(ValueError, match=r"not sharded once: only as many workers as wrote it can read it"):
        cut(shards_of(torch.zeros(4, 2), 2, Replicate()), mesh_of(1, 0), 0)


def test_files_that_are_there_stay(tmp_path):
    whole = torch.arange(6.0).reshape(3, 2)
    for rank, part in enumerate(shards_of(whole, 2)):
        for kind in ("model", "optim", "extra_state"):
            torch.save({"a": part, "kind": kind}, tmp_path / f"{kind}_world_size_2_rank_{rank}.pt")
    torch.save("own", tmp_path / "model_world_size_1_rank_0.pt")
    recut(tmp_path, mesh_of(1, 0), 0)
    assert torch.load(tmp_path / "model_world_size_1_rank_0.pt") == "own"
    found = torch.load(tmp_path / "optim_world_size_1_rank_0.pt", weights_only=False)
    assert found["kind"] == "optim" and torch.equal(found["a"].to_local(), whole)
    assert not list(tmp_path.glob("*.part"))
