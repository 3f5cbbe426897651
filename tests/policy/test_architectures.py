"""Whole runs of random models of several architectures: exact log-probs, weights that move, and a model that loads."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from shapes import CONFIGS, write_reward, write_shape
from train.runs import updates_of
from transformers import AutoModelForCausalLM

from fairlen.policy.engines import settle_engine
from fairlen.policy.model import load_policy
from fairlen.settings import RolloutConfig
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training


def run_of(folder: Path, name: str, **changes) -> Path:
    """One update of a random model; the run folder."""
    settings = dict(
        model=write_shape(folder / "shape", CONFIGS[name]()), random_init=True, rewards=(write_reward(folder),),
        method="grpo", overrides=("sampling.n=6",), prompts_per_batch=2, rollout_batches=1, max_response_length=24,
        problems=2, samples=1,
        threads=1, max_num_seqs=8, compile="off", learning_rate=0.01, warmup_updates=0, out=str(folder / "run"),
    )  # fmt: skip
    start_training(TrainConfig.of(**(settings | changes)))
    return folder / "run"


@pytest.fixture(scope="module")
def run_folders(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a run of each architecture, made once."""
    return cache(lambda name: run_of(tmp_path_factory.mktemp(name), name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "qwen3_next"])
def test_a_run_trains_and_saves_it(name, run_folders):
    run = run_folders(name)
    (update,) = updates_of(run)
    assert update["mismatch/max"] <= 1e-4  # engine and trainer agree
    assert update["gradient/norm"] > 0
    torch.manual_seed(0)
    before = load_policy(run.parent / "shape", "float32", "cpu", False, random_init=True).model
    after = AutoModelForCausalLM.from_pretrained(run / "model", dtype=torch.float32)
    first, last = dict(before.named_parameters()), dict(after.named_parameters())
    assert first.keys() == last.keys()
    moved = [name for name in first if not torch.equal(first[name], last[name])]
    assert len(moved) > len(first) / 2  # the same seed drew the weights that the run started from
    step = max(float((first[name] - last[name]).detach().abs().max()) for name in moved)
    assert step == pytest.approx(0.01, rel=0.01)  # the first step of Adam moves by the learning rate


def test_what_cannot_be_forked_is_refused_at_the_start(tmp_path):
    with pytest.raises(
        ValueError, match=r"Qwen3NextForCausalLM has layers of type linear_attention.*--engine vllm .*TRL"
    ):
        run_of(tmp_path, "qwen3_next")
    assert not (tmp_path / "run").exists()
    policy = load_policy(tmp_path / "shape", "float32", "cpu", False, random_init=True)
    assert settle_engine(RolloutConfig.of(engine="vllm"), policy).sampling.engine == "vllm"


def test_a_run_says_how_its_model_is_run(run_folders):
    described = json.loads((run_folders("qwen3") / "run.json").read_text())
    assert described["engine"] == {"class": "Engine", "notes": []} and described["layout"]["kind"] == "trees"
    assert described["config"]["model"]["random_init"] is True


def test_a_folder_without_weights_is_named_and_what_can_be_done_with_it(tmp_path):
    (tmp_path / "config.json").write_text(CONFIGS["qwen3"]().to_json_string())
    with pytest.raises(ValueError, match=r"neither a model folder nor a hub id .*--random-init"):
        load_policy(tmp_path, "float32", "cpu", False)


def test_the_folder_of_a_run_leads_to_the_model_in_it(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    with pytest.raises(ValueError, match=f"the folder of a run: give {tmp_path / 'model'}"):
        load_policy(tmp_path, "float32", "cpu", False)
