"""What a run is said to need: by hand, against what runs took, and what is said where it is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from runs import small
from shapes import CONFIGS, SHAPE, write_reward, write_shape
from transformers import Qwen3Config

from fairlen.methods.compose import compose
from fairlen.train import start
from fairlen.train.model_sizes import count_parameters, measure
from fairlen.train.requirements import (
    GIB,
    LIBRARIES,
    Requirements,
    advise,
    estimate,
    estimate_memory,
    free_memory,
)
from fairlen.train.run.config import TrainConfig

ROOT = Path(__file__).parents[2]


def needs_of(name: str = "qwen3", device: str = "cpu", **changes) -> Requirements:
    settings = (
        dict(prompts_per_batch=2, max_response_length=56, max_num_seqs=4, eval_problems=1, eval_samples=1) | changes
    )
    return estimate(CONFIGS[name](), TrainConfig(**settings), device=device, longest_prompt=8, tracks=4)


def parts(**given: int) -> Requirements:
    """Of what is not given nothing is needed."""
    return Requirements(**{field.name: 0 for field in fields(Requirements)} | given)


def test_parts_by_hand():
    """The small Qwen3: hidden 32, 2 layers, 4 heads and 2 of keys of dimension 8, 48 wide in between, tied embeddings."""
    vocabulary = SHAPE["vocab_size"]
    block = (
        32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32 + 2 * 8
    )  # q, k and v, o, the MLP, norms, norms of heads
    parameters = vocabulary * 32 + 2 * block + 32
    found = needs_of(device="cuda")
    assert (found.num_parameters, found.weights, found.gradients) == (parameters, 4 * parameters, 4 * parameters)
    assert found.moments == 8 * parameters and found.reference == found.engine == found.graphs == 0
    position = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, dimension, bytes
    kept = 8 * 4  # a gibibyte holds more than 8 for each slot, which is the most
    assert found.cache == (4 + kept) * 64 * position
    assert needs_of().cache == (4 + 8 + 2) * 64 * position  # on the CPU: 4 run, 8 responses and 2 prompts are kept


@pytest.mark.slow
def test_what_changes_with_settings():
    plain = needs_of()
    deep = Qwen3Config(**(SHAPE | {"num_hidden_layers": 24}))
    stored, again = (
        estimate(deep, TrainConfig(gradient_checkpointing=some), device="cpu", longest_prompt=8, tracks=4).work
        for some in (False, True)
    )
    assert again < stored / 2
    assert needs_of(max_tokens_per_microbatch=128).work < plain.work
    assert needs_of(dtype="float64").weights == 2 * plain.weights
    adapters = needs_of(lora_rank=2)
    assert adapters.gradients < plain.gradients / 2 and adapters.moments == 2 * adapters.gradients
    assert adapters.weights == plain.weights + adapters.gradients
    with_reference = estimate(
        CONFIGS["qwen3"](), TrainConfig(), device="cpu", longest_prompt=8, tracks=4, needs_ref=True
    )
    assert with_reference.reference == with_reference.weights == plain.weights


@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_is_measured(name):
    found = measure(CONFIGS[name](), TrainConfig(), 64)
    assert found.num_parameters == count_parameters(CONFIGS[name]()) and found.activation > 32 * 4 * 2
    assert (found.fixed_state > 0) == (name == "qwen3_next")
    assert found.position == 2 * 2 * 8 * 4 * (1 if name == "qwen3_next" else 2)  # of the layers with attention


def test_public_shapes():
    """Qwen3-0.6B has 596M parameters with tied embeddings, 28 layers x 2 x 8 heads x 128 numbers a position."""
    shape = Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
    )  # fmt: skip
    found = measure(shape, TrainConfig(), 1024)
    assert (found.num_parameters, found.position) == (596_049_920, 28 * 2 * 8 * 128 * 4)


def test_it_says_what_to_try():
    model = dict(weights=2 * GIB, gradients=2 * GIB, moments=4 * GIB)
    needs = parts(**model, cache=13 * GIB, row=GIB, activations=9 * GIB, head=GIB)
    config = TrainConfig(max_num_seqs=256)
    assert advise(needs, 32 * GIB, config) == ""
    assert advise(needs, 23 * GIB, config) == (
        "needs about 31.0 GiB of memory, there are 23.0: try --lora-rank 32, --gradient-checkpointing, "
        "--max-tokens-per-microbatch 4096, "
        "--max-num-seqs 64"
    )
    with pytest.raises(ValueError, match=r"there are 7.0; its weights and their optimizer alone need 8.0: try "):
        advise(needs, 7 * GIB, config)


def test_small_models_and_what_cannot_be_read_are_passed_over(tmp_path):
    method = compose("grpo")
    assert estimate_memory(TrainConfig(), method, "cpu") is None
    place = write_shape(tmp_path, CONFIGS["qwen3"]())
    assert estimate_memory(TrainConfig(model=place), method, "cpu") is None
    assert estimate_memory(TrainConfig(model=str(tmp_path / "nothing")), method, "cpu") is None


def test_advice_is_from_before_the_weights_are_there(tmp_path, monkeypatch, capsys):
    """10 GiB of 12 are needed, 8 of them by the model and its optimizer; with the weights read, 5 are left of the 12."""
    model = dict(weights=2 * GIB, gradients=2 * GIB, moments=4 * GIB)
    needs, free = parts(**model, cache=GIB, row=GIB, head=GIB), [12 * GIB]
    load = start.load_policy

    def load_policy(*given, **named):
        free[0] = 5 * GIB
        return load(*given, **named)

    monkeypatch.setattr(start, "estimate_memory", lambda *_: needs)
    monkeypatch.setattr(start, "free_memory", lambda _: free[0])
    monkeypatch.setattr(start, "load_policy", load_policy)
    changes = dict(rollout_batches=1, eval_every=0, eval_problems=1, eval_samples=1, try_memory="off")
    start.start_training(small(tmp_path / "run", **changes))
    assert "there are" not in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"there are 5\.0; its weights and their optimizer alone need 8.0"):
        start.start_training(small(tmp_path / "other", **changes))
    assert not (tmp_path / "other").exists()


def test_free_memory_is_a_part_of_the_machine():
    assert 0 < free_memory("cpu") < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# Of this program alone; ru_maxrss begins at that of the process that started it, here the whole test run's.
PRINT_LARGEST = """
print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
RUN = """
import json, sys
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
settings = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[1]).items()}
start_training(TrainConfig(**settings))
"""
BIG = dict(
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "shape"),
    [
        (dict(), dict(vocab_size=60_000)),
        (dict(gradient_checkpointing=True, lora_rank=8), dict(vocab_size=60_000)),
        (
            dict(max_tokens_per_microbatch=1024, method="grpo", overrides=["sampling.n=8", "terms=ReferenceKL"]),
            dict(num_hidden_layers=24),
        ),
    ],
    ids=["all weights", "adapters", "reference"],
)
def test_a_run_takes_what_was_foreseen(tmp_path, changes, shape):
    settings = dict(
        model=write_shape(tmp_path / "shape", Qwen3Config(**(SHAPE | BIG | shape), tie_word_embeddings=True)),
        random_init=True, rewards=[write_reward(tmp_path)], method="grpo", overrides=["sampling.n=8"], prompts_per_batch=4,
        max_response_length=90,
        rollout_batches=2, eval_problems=4, eval_samples=1, threads=1, max_num_seqs=32, compile="off", layout="rows",
        max_prompt_length=20, out=str(tmp_path / "run"),
    )  # fmt: skip
    command = [sys.executable, "-c", RUN + PRINT_LARGEST, json.dumps(settings | changes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout.split()[-1])
    parts = json.loads((tmp_path / "run/run.json").read_text())["memory"]
    foreseen = Requirements(**parts).total
    print(f"foreseen {foreseen / GIB:.2f} GiB, taken {taken / GIB:.2f}: {taken / foreseen:.2f}")
    assert foreseen > 1.5 * LIBRARIES and 0.75 < taken / foreseen < 1.25


@pytest.mark.nightly
def test_a_model_of_600_million_parameters_is_rehearsed_within_16_gib(tmp_path):
    """One update of all weights of the shape of Qwen3-0.6B: 4 x 2.2 GiB of weights, gradients and moments, and no second copy."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'recipes')!r}); import rehearse\n"
    code += f"rehearse.main('0.6B', {str(tmp_path)!r})\n"
    done = subprocess.run([sys.executable, "-c", code + PRINT_LARGEST], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout.split()[-1])
    described = json.loads((tmp_path / "run-0.6B/run.json").read_text())
    assert described["model"]["parameters"] == 596_049_920 and described["config"]["random_init"]
    (update,) = [
        entry
        for entry in map(json.loads, (tmp_path / "run-0.6B/metrics.jsonl").read_text().splitlines())
        if "loss/total" in entry
    ]
    assert update["gradient/norm"] > 0 and update["mismatch/max"] <= 1e-3
    assert taken <= 16 * GIB and 0.75 < taken / Requirements(**described["memory"]).total < 1.25
