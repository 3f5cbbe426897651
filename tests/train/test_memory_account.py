"""The account of memory against what tensors without contents hold, and the commands that are said to fit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from tracked import track_update
from transformers import Qwen3Config

from fairlen.cli import read_train_config
from fairlen.engine.cache import Rows
from fairlen.methods.compose import compose
from fairlen.train.requirements import GIB, Requirements, advise, estimate, keep_freed_memory
from fairlen.train.run.config import TrainConfig

DOCS = Path(__file__).parents[2] / "docs"
QWEN3 = dict(head_dim=128, vocab_size=151_936, tie_word_embeddings=True, num_key_value_heads=8)
SHAPES = {
    "Qwen3-0.6B": dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16),
    "Qwen3-1.7B": dict(hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16),
    "Qwen3-4B": dict(hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, num_attention_heads=32),
}
"""Of the public models."""
DEVICES = {24: 22.0, 80: 79.0, 141: 139.7}
"""GiB that torch reports of a device of so many GB: an A10 or L4, an A100 or H100, an H200."""


def shape_of(name: str, **changes: int) -> Qwen3Config:
    return Qwen3Config(**(QWEN3 | SHAPES[name] | changes))


def compare(shape: Qwen3Config, positions: int, **changes) -> dict[str, float]:
    """Account over tracker at the peak of an update and of a step; libraries and graphs are no tensors."""
    config = TrainConfig(
        dtype="bfloat16", engine="vllm", layout="rows", max_prompt_length=512, max_response_length=positions - 512,
        max_tokens_per_microbatch=positions, **changes,
    )  # fmt: skip
    totals = estimate(shape, config, device="cuda", longest_prompt=512, tracks=16)
    outside = totals.libraries + totals.graphs
    account = {"update": max(totals.totals["layers"], totals.totals["head"]), "step": totals.totals["step"]}
    tracked = track_update(shape, config, positions)
    found = {phase: (account[phase] - outside) / tracked[phase] for phase in tracked}
    described = ", ".join(f"{phase} {tracked[phase] / GIB:.2f} GiB, account {found[phase]:.3f}" for phase in tracked)
    print(f"hidden {shape.hidden_size}, {positions} positions, {changes}: {described}")
    return found


@pytest.mark.parametrize("changes", [dict(), dict(lora_rank=8, gradient_checkpointing=True)], ids=["all", "adapters"])
def test_the_account_of_four_layers(changes):
    found = compare(shape_of("Qwen3-0.6B", num_hidden_layers=4), 2048, **changes)
    assert all(0.9 < ratio < 1.1 for ratio in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("positions", [2048, 8192])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointing"])
@pytest.mark.parametrize("rank", [0, 32], ids=["all weights", "LoRA"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_account_is_within_a_tenth(name, rank, checkpointing, positions):
    found = compare(shape_of(name), positions, lora_rank=rank, gradient_checkpointing=checkpointing)
    assert all(0.9 < ratio < 1.1 for ratio in found.values())


ON_CUDA = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_memory_account import shape_of
from tracked import pretend_cuda, track_forward
from fairlen.train.run.config import TrainConfig
pretend_cuda(Path(sys.argv[2]))
for changes in (dict(), dict(lora_rank=32), dict(lora_rank=32, gradient_checkpointing=True)):
    config = TrainConfig(dtype="bfloat16", **changes)
    found = [track_forward(shape_of("Qwen3-1.7B"), config, 8192, device) for device in ("cpu", "cuda")]
    print(changes, found)
    assert found[0] == found[1] and found[0][0] > found[0][1] > 2**30, found
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.version.cuda is not None or not shutil.which("g++"), reason="for a torch built without CUDA")
def test_a_forward_pass_holds_the_same_bytes_on_a_device_cuda(tmp_path, request):
    """The tracker's tensors lie on a device cpu. On cuda, with its cast rules, a forward pass holds and leaves as much."""
    command = [sys.executable, "-c", ON_CUDA, str(request.path.parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr


def test_a_row_of_the_cache_is_what_the_engine_takes():
    """Keys and values of 8 heads of dimension 128, 28 layers, in bfloat16: 2 * 8 * 128 * 28 * 2 = 114,688 bytes a position."""
    config = TrainConfig(dtype="bfloat16", max_response_length=1536, max_num_seqs=12, engine="embedded")
    found = estimate(shape_of("Qwen3-0.6B"), config, device="cuda", longest_prompt=512, tracks=16)
    assert found.row == 2048 * 114_688
    with FakeTensorMode():
        state = torch.empty(1, 8, 1, 128, dtype=torch.bfloat16, device="cuda")
        rows = Rows([(state, state)] * 28, 24, 2048)  # 12 that run, and as many prefixes that are kept
        assert found.cache == sum(tensor.nbytes for tensor in rows.tensors)


def test_vllm_has_its_own_weights_and_leaves_memory_while_it_sleeps():
    given = dict(dtype="bfloat16", max_response_length=1536, max_num_seqs=12, lora_rank=8, layout="rows")
    shape = shape_of("Qwen3-0.6B", num_hidden_layers=4)
    asleep, awake, embedded = (
        estimate(shape, TrainConfig(**given, **some), device="cuda", longest_prompt=512, tracks=16)
        for some in (dict(engine="vllm"), dict(engine="vllm", sleep_level=0), dict(engine="embedded"))
    )
    # 151,936 x 1,024 embeddings, a norm, and 4 layers of 15,730,944: q, k, v, o, the MLP, four norms
    copy = 2 * (151_936 * 1_024 + 1_024 + 4 * 15_730_944)
    assert asleep.engine == asleep.push == copy and embedded.engine == embedded.push == embedded.graphs == 0
    assert asleep.totals["rollouts"] == awake.totals["rollouts"]
    for phase in ("layers", "head", "step"):
        assert awake.totals[phase] - asleep.totals[phase] == copy + 12 * 2048 * 114_688 // 7
    assert (
        embedded.cache == (12 + 32) * embedded.row
    )  # 2^30 / (2,048 * 16,384) kept prefixes; vLLM keeps them in what is free
    assert embedded.phases["head"].keys() >= {"cache", "gradients", "activations"}


def test_on_cuda_a_cache_that_is_too_large_is_no_reason_to_stop():
    """With 30 GiB, 20 of them taken otherwise: 10 of 40 rows of a GiB. On a CPU there is nobody who takes fewer."""
    none = dict.fromkeys((f for f in Requirements.__dataclass_fields__ if f != "engine_sleeps"), 0)
    needs = Requirements(**none | dict(weights=19 * GIB, head=GIB, cache=40 * GIB, row=GIB))
    assert needs.total == 60 * GIB and needs.count_rows(30 * GIB) == 10
    config = TrainConfig(max_num_seqs=40, lora_rank=8)
    assert advise(needs, 30 * GIB, config, "cuda") == (
        "needs about 60.0 GiB of memory, there are 30.0: keys and values of 10 responses at full length fit at a time; "
        "nothing needs to change"
    )
    assert advise(needs, 30 * GIB, config, "cpu").endswith("try --max-num-seqs 10")
    assert "try" in advise(needs, 21 * GIB, config, "cuda")


def test_segments_grow_unless_somebody_decided_otherwise(monkeypatch):
    for given, found in ((None, "expandable_segments:True"), ("max_split_size_mb:128", "max_split_size_mb:128")):
        monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
        if given:
            monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", given)
        keep_freed_memory()
        assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == found


def commands() -> dict[int, str]:
    """The three commands, by the GB of their device."""
    blocks = re.findall(r"(\d+) GB[^\n]*:\n\n((?:    .*\n)+)", (DOCS / "memory.md").read_text())
    blocks += re.findall(r"one GPU of (\d+) GB:\n\n((?:    .*\n)+)", (DOCS / "train.md").read_text())
    return {int(size): block.replace("\\\n", " ") for size, block in blocks}


def needs_of(command: str) -> Requirements:
    config = read_train_config(shlex.split(command)[2:])
    method = compose(config.method, config.overrides)
    return estimate(
        shape_of(config.model.removeprefix("Qwen/")), config, device="cuda", longest_prompt=config.max_prompt_length,
        tracks=method.sampling.num_tracks, needs_ref=method.needs_ref,
    )  # fmt: skip


def test_the_three_commands_fit_with_5_percent_to_spare():
    assert sorted(commands()) == sorted(DEVICES)
    shown = []
    for size, command in sorted(commands().items()):
        needs, there = needs_of(command), DEVICES[size]
        share = needs.total / GIB / there
        cells = [f"{size} GB", *(f"{needs.totals[phase] / GIB:.1f}" for phase in needs.phases), f"{share:.0%}"]
        shown.append(f"| {' | '.join(cells)} |")
        assert share <= 0.95, needs.describe()
        assert needs.row * int(re.findall(r"--max-num-seqs (\d+)", command)[0]) == needs.cache  # all at full length
    print("\n".join(shown))
    assert "\n".join(shown) in (DOCS / "memory.md").read_text()
