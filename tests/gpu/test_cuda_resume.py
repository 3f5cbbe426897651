"""On a CUDA device: a run is resumed with the fused AdamW, and recovers within it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from on_cuda import ON_CUDA
from safetensors.torch import load_file

from fairlen.train import start
from fairlen.train.run.checkpoint import list_checkpoints
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

DEVICE = "cuda"
pytestmark = ON_CUDA
RUN = TrainConfig.of(
    method="fspo+balanced", overrides=("sampling.n=4",), device=DEVICE, prompts_per_batch=4, rollout_batches=4,
    updates_per_batch=2, eval_every=0, problems=8, samples=1, save_every_updates=1, keep_checkpoints=100,
)  # fmt: skip
"""8 updates, a checkpoint after each."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("cuda") / "whole"
    start_training(RUN.replace(out=str(folder)))
    return folder


def stop_at(whole: Path, place: int, to: Path) -> Path:
    """A copy that was stopped at one of its checkpoints."""
    shutil.copytree(whole, to)
    for path in list_checkpoints(to / "checkpoints")[place + 1 :]:
        shutil.rmtree(path)
    shutil.rmtree(to / "model")
    return to


def distance(first: Path, second: Path) -> float:
    """Of two models, the largest difference of a weight."""
    one, other = (load_file(folder / "model/model.safetensors") for folder in (first, second))
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def losses(folder: Path) -> list[float]:
    entries = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [entry["loss/total"] for entry in entries if "loss/total" in entry]


@pytest.mark.parametrize("place", [0, 3])
def test_a_resumed_run_makes_the_updates_of_an_uninterrupted_one(whole, tmp_path, place, monkeypatch):
    """The first update after the checkpoint to rounding; the model as far as samples are the same. All moments are in place."""
    built = []
    whole_build = start.build_trainer
    monkeypatch.setattr(start, "build_trainer", lambda *parts: built.append(whole_build(*parts)) or built[-1])
    folder = stop_at(whole, place, tmp_path / "run")
    start_training(RUN.replace(out=str(folder), resume=True))
    assert len(losses(folder)) == len(losses(whole)) == 8
    assert losses(folder)[place + 1] == pytest.approx(losses(whole)[place + 1], abs=1e-3)
    print(f"from update {place + 1}: largest difference of a weight {distance(whole, folder):.1e}")
    for parameter, moments in built[0].learner.optimizer.state.items():
        assert {(value.device, value.dtype) for value in moments.values()} == {(parameter.device, torch.float32)}
        assert float(moments["step"]) == 8


def test_a_deterministic_run_is_the_same_run_again(tmp_path):
    """Twice, and resumed within a rollout batch: the same weights, bit for bit."""
    for name in ("first", "second"):
        start_training(RUN.replace(deterministic=True, out=str(tmp_path / name)))
    assert distance(tmp_path / "first", tmp_path / "second") == 0.0
    folder = stop_at(tmp_path / "first", 2, tmp_path / "resumed")
    start_training(RUN.replace(deterministic=True, out=str(folder), resume=True))
    assert distance(tmp_path / "first", folder) == 0.0
    assert losses(folder) == losses(tmp_path / "first")
