"""What a run is said to need: by hand, against what runs took, and what is said where it is not there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import over
from runs import small, updates_of
from shapes import CONFIGS, SHAPE, write_reward, write_shape
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen3Config

from fairlen.cli import read_train_config
from fairlen.engine.device import keep_freed_memory
from fairlen.engine.sampler import SAMPLING_BYTES
from fairlen.files.limits import GIB
from fairlen.methods.compose import compose
from fairlen.policy.engines import KINDS
from fairlen.policy.head import CHUNK_LOGITS
from fairlen.policy.model import body
from fairlen.train import start
from fairlen.train.memory import LIBRARIES, Memory, advise, estimate, estimate_memory
from fairlen.train.run.config import TrainConfig

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


def needs_of(shape: PreTrainedConfig, device: str = "cpu", **changes: Any) -> Memory:
    settings = dict(prompts_per_batch=2, max_response_length=56, max_num_seqs=4, problems=1, samples=1) | changes
    return estimate(shape, TrainConfig.of(**settings), device=device, longest_prompt=8, tracks=4)


def parts(**given: int) -> Memory:
    """Of what is not given nothing is needed."""
    return Memory(**{field.name: 0 for field in fields(Memory)} | given)


def test_parts_by_hand():
    """The small Qwen3: hidden 32, 2 layers, 4 heads and 2 of keys of dimension 8, 48 wide in between, tied embeddings."""
    # q, k and v, o, the MLP, norms, norms of heads
    block = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32 + 2 * 8
    parameters = SHAPE["vocab_size"] * 32 + 2 * block + 32
    found = needs_of(CONFIGS["qwen3"]())
    assert (found.num_parameters, found.weights, found.gradients) == (parameters, 4 * parameters, 4 * parameters)
    assert found.moments == 8 * parameters and found.reference == found.engine == 0
    assert found.row == 64 * 2 * 2 * 2 * 8 * 4  # positions, keys and values, layers, heads, dimension, bytes
    # 4 run, 8 and 2 prompts are kept
    assert found.cache - (4 + 8 + 2) * found.row == SAMPLING_BYTES * 4 * SHAPE["vocab_size"]
    layer = 4 * (4 * 48 + 3.3 * (4 * 8 + 2 * 2 * 8)) + 20 * 32
    assert found.work == 512 * 2 * int(layer) + 2 * 4 * min(2 * 512 * SHAPE["vocab_size"], CHUNK_LOGITS)  # 8 rows of 64


@over("name", ["qwen3", "llama"])
@over("dtype", ["float32", "bfloat16"])
def test_what_autograd_keeps_of_a_layer_is_as_the_estimate_says(name, dtype):
    """Two layers of a model of four, 320 positions, wide enough that nothing but matrices matters."""
    wide = dict(hidden_size=256, intermediate_size=768, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
    kept, counted = [], []
    for layers in (2, 4):
        shape = type(CONFIGS[name]())(**(SHAPE | wide | {"num_hidden_layers": layers}))
        model = AutoModelForCausalLM.from_config(shape, attn_implementation="sdpa").train()
        counted.append(count_saved(model, dtype == "bfloat16"))
        config = TrainConfig.of(dtype=dtype, max_response_length=256, prompts_per_batch=1)
        kept.append(estimate(shape, config, device="cpu", longest_prompt=64, tracks=1).work)
    ratio = (kept[1] - kept[0]) / (counted[1] - counted[0])
    print(f"{name}, {dtype}: {ratio:.2f}")
    assert 0.8 < ratio < 1.25


def count_saved(model: PreTrainedModel, is_low: bool) -> int:
    """Bytes that a forward pass over 320 positions keeps for the backward pass, the parameters' own and their casts left out."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(sorted(parameter.shape)) for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own and tuple(sorted(tensor.shape)) not in shapes:
            saved[storage.data_ptr()] = tensor
        return tensor

    with (
        torch.autocast("cpu", torch.bfloat16, enabled=is_low),
        torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
    ):
        body(model)(input_ids=torch.zeros(1, 320, dtype=torch.long), use_cache=False)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def test_what_changes_with_settings():
    deep = Qwen3Config(**(SHAPE | {"num_hidden_layers": 24}))
    stored, again = (needs_of(deep, gradient_checkpointing=some).work for some in (False, True))
    assert again < stored / 2
    plain = needs_of(deep)
    assert needs_of(deep, max_tokens_per_microbatch=128).work < plain.work
    assert needs_of(deep, dtype="float64").weights == 2 * plain.weights
    adapters = needs_of(deep, lora_rank=2)
    assert adapters.gradients < plain.gradients / 2 and adapters.moments == 2 * adapters.gradients
    assert adapters.weights == plain.weights + adapters.gradients
    given = dict(device="cpu", longest_prompt=8, tracks=4)
    assert estimate(deep, TrainConfig(), needs_ref=True, **given).reference == plain.weights


def test_vllm_has_its_own_weights_and_leaves_memory_while_it_sleeps():
    shape, given = shape_of("Qwen3-0.6B"), dict(dtype="bfloat16", max_response_length=1536, max_num_seqs=12)
    asleep, awake, embedded = (
        estimate(shape, TrainConfig.of(**given, **some), device="cuda", longest_prompt=512, tracks=16)
        for some in (dict(engine="vllm"), dict(engine="vllm", sleep_level=0), dict(engine="embedded"))
    )
    assert asleep.num_parameters == 596_049_920  # as the public model
    assert asleep.row == 2048 * 114_688  # 2 * 8 * 128 * 28 * 2 bytes a position
    assert asleep.engine == awake.engine == 2 * 596_049_920 + KINDS["vllm"].asleep and embedded.engine == 0
    assert awake.total > asleep.total and asleep.beside_cache == asleep.moments
    assert embedded.beside_cache == embedded.moments + embedded.gradients + embedded.work
    # 2^30 / (2,048 * 114,688) kept prefixes are fewer than the slots
    assert embedded.cache - 24 * embedded.row == asleep.cache - 12 * asleep.row


def commands() -> dict[int, str]:
    """The three commands, by the GB of their device."""
    blocks = re.findall(r"(\d+) GB[^\n]*:\n\n((?:    .*\n)+)", (DOCS / "memory.md").read_text())
    blocks += re.findall(r"one GPU of (\d+) GB:\n\n((?:    .*\n)+)", (DOCS / "train.md").read_text())
    return {int(size): block.replace("\\\n", " ") for size, block in blocks}


def test_the_three_commands_fit_with_5_percent_to_spare():
    assert sorted(commands()) == sorted(DEVICES)
    for size, command in sorted(commands().items()):
        config = read_train_config(shlex.split(command)[2:])
        method = compose(config.method, config.overrides)
        needs = estimate(
            shape_of(config.model.name.removeprefix("Qwen/")), config, device="cuda",
            longest_prompt=config.data.max_prompt_length, tracks=method.sampling.num_tracks, needs_ref=method.needs_ref,
        )  # fmt: skip
        print(size, needs.describe(), f"{needs.total / GIB / DEVICES[size]:.0%}")
        assert needs.total / GIB <= 0.95 * DEVICES[size]


def test_on_cuda_a_cache_that_is_too_large_is_no_reason_to_stop():
    """Of 60 GiB 40 are keys and values: with 30 there, 10 of 40 rows of a GiB have room. On a CPU nobody takes fewer."""
    needs = parts(weights=20 * GIB - LIBRARIES, cache=40 * GIB, row=GIB)
    config = TrainConfig.of(max_num_seqs=40, lora_rank=8)
    assert "keys and values of 10 responses at full length fit" in advise(needs, 30 * GIB, config, "cuda")
    assert advise(needs, 30 * GIB, config, "cpu").endswith("try --max-num-seqs 10")
    assert "try" in advise(needs, 21 * GIB, config, "cuda")


def test_segments_grow_unless_somebody_decided_otherwise(monkeypatch):
    for given, found in ((None, "expandable_segments:True"), ("max_split_size_mb:128", "max_split_size_mb:128")):
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
        if given:
            monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", given)
        keep_freed_memory()
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == found


def test_it_says_what_to_try():
    model = dict(weights=2 * GIB, gradients=2 * GIB, moments=4 * GIB)
    needs = parts(**model, cache=13 * GIB - LIBRARIES, row=GIB, work=10 * GIB)
    config = TrainConfig.of(max_num_seqs=256)
    assert advise(needs, 32 * GIB, config) == ""
    assert advise(needs, 23 * GIB, config).endswith(
        "there are 23.0: try --lora-rank 32, --gradient-checkpointing, --max-tokens-per-microbatch 4096, --max-num-seqs 64"
    )
    with pytest.raises(ValueError, match=r"there are 7.0; its weights and their optimizer alone need 8.0: try "):
        advise(needs, 7 * GIB, config)


def test_small_models_and_what_cannot_be_read_are_passed_over(tmp_path):
    method = compose("grpo")
    assert estimate_memory(TrainConfig(), method, "cpu") is None
    place = write_shape(tmp_path, CONFIGS["qwen3"]())
    assert estimate_memory(TrainConfig.of(model=place), method, "cpu") is None
    large = write_shape(tmp_path / "large", shape_of("Qwen3-0.6B"))
    found = estimate_memory(TrainConfig.of(model=large), method, "cpu")
    assert found is not None and found.num_parameters == 596_049_920
    assert estimate_memory(TrainConfig.of(model=str(tmp_path / "nothing")), method, "cpu") is None


def test_advice_is_from_before_the_weights_are_there(tmp_path, monkeypatch):
    """10 GiB of 12 are needed, 8 of them by the model and its optimizer; with the weights read, 5 are left of the 12."""
    model = dict(weights=2 * GIB, gradients=2 * GIB, moments=4 * GIB)
    needs, free = parts(**model, cache=GIB, row=GIB, work=GIB), [12 * GIB]
    load, notes = start.load_policy, []

    def load_policy(*given, **named):
        free[0] = 5 * GIB
        return load(*given, **named)

    monkeypatch.setattr(start, "estimate_memory", lambda *_: needs)
    monkeypatch.setattr(start, "free_memory", lambda _: free[0])
    monkeypatch.setattr(start, "load_policy", load_policy)
    monkeypatch.setattr(start, "train_on", lambda *given: notes.append(given[-1]))
    start.start_training(small(tmp_path / "run"))
    assert notes == [(needs.describe(),)]
    with pytest.raises(ValueError, match=r"there are 5\.0; its weights and their optimizer alone need 8.0"):
        start.start_training(small(tmp_path / "other"))
    assert len(notes) == 1


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
    hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, head_dim=64
)  # fmt: skip


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
        rollout_batches=2, problems=4, samples=1, threads=1, max_num_seqs=32, compile="off", layout="rows",
        max_prompt_length=20, out=str(tmp_path / "run"),
    )  # fmt: skip
    command = [sys.executable, "-c", RUN + PRINT_LARGEST, json.dumps(settings | changes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    taken = int(done.stdout.split()[-1])
    parts = json.loads((tmp_path / "run/run.json").read_text())["memory"]
    foreseen = Memory(**parts).total
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
    assert described["model"]["parameters"] == 596_049_920 and described["config"]["model"]["random_init"]
    (update,) = updates_of(tmp_path / "run-0.6B")
    assert update["gradient/norm"] > 0 and update["mismatch/max"] <= 1e-3
    assert taken <= 16 * GIB and 0.75 < taken / Memory(**described["memory"]).total < 1.25
