"""The least that a run needs, by hand; and settings that were left at 0, as a run chooses them and keeps them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from loops import first_quickly
from runs import small, updates_of
from shapes import CONFIGS, write_reward, write_shape
from transformers import Qwen3Config

from fairlen.cli import read_train_config
from fairlen.engine.device import keep_freed_memory
from fairlen.files.limits import GIB
from fairlen.methods.compose import compose
from fairlen.settings import flatten
from fairlen.train.memory import LIBRARIES, estimate_least, refuse_too_large
from fairlen.train.run.config import CHOSEN, TrainConfig
from fairlen.train.start import start_training

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
QWEN3 = dict(head_dim=128, vocab_size=151_936, tie_word_embeddings=True, num_key_value_heads=8)
SHAPES = {
    "Qwen3-0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    "Qwen3-1.7B": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16),
    "Qwen3-4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}
"""Of the public models."""
DEVICES = {24: 22.0, 80: 79.0, 141: 139.7}
"""GiB that torch reports of a device of so many GB: an A10 or L4, an A100 or H100, an H200."""


def shape_of(name: str) -> Qwen3Config:
    return Qwen3Config(**(QWEN3 | SHAPES[name]))


def test_the_least_by_hand():
    """596,049,920 parameters as the public model has them; 20 numbers of 1,024 a layer and position."""
    shape, count = shape_of("Qwen3-0.6B"), 4 * 596_049_920
    found = estimate_least(shape, TrainConfig.of(max_response_length=100), needs_ref=True)
    assert found == {
        "libraries": LIBRARIES, "weights": count, "gradients": count, "moments": 2 * count, "reference": count,
        "one sequence": 100 * 20 * 1024 * 28 * 4,
    }  # fmt: skip
    adapters = estimate_least(shape, TrainConfig.of(lora_rank=2, gradient_checkpointing=True, max_response_length=100))
    assert adapters["weights"] == count + adapters["gradients"] and adapters["moments"] == 2 * adapters["gradients"]
    assert adapters["gradients"] < count / 100 and adapters["one sequence"] == 100 * 1024 * 28 * 4


def test_a_model_that_cannot_fit_is_refused_and_one_that_cannot_be_read_is_passed_over(tmp_path):
    method, free = compose("grpo"), 9 * GIB
    tiny, large = write_shape(tmp_path, CONFIGS["qwen3"]()), write_shape(tmp_path / "large", shape_of("Qwen3-0.6B"))
    for name in ("playground", tiny, str(tmp_path / "nothing")):
        assert refuse_too_large(TrainConfig.of(model=name), method, 0) == ""
    with pytest.raises(ValueError, match=r"needs at least 9.6 GiB .*weights 2.2.*there are 9.0: try --lora-rank 32 or"):
        refuse_too_large(TrainConfig.of(model=large), method, free)  # 4 x 2.22 and 0.7
    assert "at least 3." in refuse_too_large(TrainConfig.of(model=large, lora_rank=8), method, free)


@pytest.mark.slow
def test_what_is_left_at_0_is_chosen_recorded_and_kept(tmp_path, capsys):
    changes = dict(rollout_batches=1, max_response_length=0, max_num_seqs=0, problems=2, samples=1, prompts_per_batch=2)
    start_training(small(tmp_path / "run", **changes))
    found = flatten(json.loads((tmp_path / "run/run.json").read_text())["config"])
    assert [found[name] for name in CHOSEN] == [3e-4, 160, 0, 16_384, 256]
    described = capsys.readouterr().out
    assert "chosen: learning rate 0.0003" in described and "responses up to 160 tokens" in described
    path = tmp_path / "run/run.json"
    path.write_text(path.read_text().replace(": 0.0003", ": 0.0002"))  # as another version would have chosen
    with pytest.raises(ValueError, match="checkpoint is of configuration"):  # which knows the choice
        start_training(small(tmp_path / "run", **changes | dict(rollout_batches=2, resume=True)))
    assert "as the run chose: learning rate 0.0002" in capsys.readouterr().out


def commands() -> dict[int, str]:
    """The three commands, by the GB of their device."""
    blocks = re.findall(r"(\d+) GB[^\n]*:\n\n((?:    .*\n)+)", (DOCS / "memory.md").read_text())
    blocks += re.findall(r"one GPU of (\d+) GB:\n\n((?:    .*\n)+)", (DOCS / "train.md").read_text())
    return {int(size): block.replace("\\\n", " ") for size, block in blocks}


def test_the_three_commands_leave_a_quarter_to_keys_and_values():
    assert sorted(commands()) == sorted(DEVICES)
    for size, command in sorted(commands().items()):
        config = read_train_config(shlex.split(command)[2:])
        least = estimate_least(shape_of(config.model.name.removeprefix("Qwen/")), config)
        print(size, {name: round(number / GIB, 1) for name, number in least.items()})
        assert sum(least.values()) / GIB <= 0.75 * DEVICES[size]


def test_segments_grow_unless_somebody_decided_otherwise(monkeypatch):
    for given, found in ((None, "expandable_segments:True"), ("max_split_size_mb:128", "max_split_size_mb:128")):
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
        if given:
            monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", given)
        keep_freed_memory()
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == found


# Of this program alone; ru_maxrss begins at that of the process that started it, here the whole test run's.
PRINT_LARGEST = """
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
RUN = """
import json, sys
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
settings = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[1]).items()}
start_training(TrainConfig.of(**settings))
"""
BIG = dict(
    hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
    head_dim=64, vocab_size=60_000,
)  # fmt: skip


CHANGES = {
    "all weights": {}, "adapters": {"lora_rank": 8, "gradient_checkpointing": True},
    "reference": {"overrides": ["sampling.n=8", "terms=ReferenceKL"]},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("changes", first_quickly(CHANGES.values(), 1, "nightly"), ids=list(CHANGES))
def test_a_run_takes_what_its_trial_says(tmp_path, changes):
    settings = dict(
        model=write_shape(tmp_path / "shape", Qwen3Config(**(QWEN3 | BIG))), random_init=True,
        rewards=[write_reward(tmp_path)], method="grpo", overrides=["sampling.n=8"], prompts_per_batch=4,
        max_response_length=90, rollout_batches=2, problems=4, samples=1, threads=1, compile="off", layout="rows",
        out=str(tmp_path / "run"),
    )  # fmt: skip
    command = [sys.executable, "-c", RUN + PRINT_LARGEST, json.dumps(settings | changes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    taken, needed = int(done.stdout.split()[-1]), json.loads((tmp_path / "run/run.json").read_text())["memory"]
    print(f"promised {needed / GIB:.2f} GiB, taken {taken / GIB:.2f}: {taken / needed:.2f}")
    assert needed > 1.5 * LIBRARIES and 0.75 < taken / needed < 1.15


@pytest.mark.nightly
def test_a_model_of_600_million_parameters_is_rehearsed_within_16_gib(tmp_path):
    """One update of all weights of the shape of Qwen3-0.6B: 4 x 2.2 GiB of weights, gradients and moments, and no second copy."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'recipes')!r}); import rehearse\n"
    code += f"rehearse.main('0.6B', {str(tmp_path)!r})\n"
    done = subprocess.run([sys.executable, "-c", code + PRINT_LARGEST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout.split()[-1])
    described = json.loads((tmp_path / "run-0.6B/run.json").read_text())
    assert described["model"]["parameters"] == 596_049_920 and described["config"]["model"]["random_init"]
    (update,) = updates_of(tmp_path / "run-0.6B")
    assert update["gradient/norm"] > 0 and update["mismatch/max"] <= 1e-3
    assert taken <= 16 * GIB and 0.75 < taken / described["memory"] < 1.25
