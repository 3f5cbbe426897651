"""`--optim`: 8-bit and paged moments of bitsandbytes are resumed bit for bit, counted, and refused where they cannot be."""

import shutil
import sys

import pytest
import torch
from runs import digest_model, small, updates_of
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from fairlen.policy.head import Head
from fairlen.policy.model import Policy
from fairlen.train.memory import Trial, estimate_least, hold_moments
from fairlen.train.optimizer import build_optimizer, check_optimizer, count_moments, embedding_weights
from fairlen.train.run.checkpoint import (
    capture_moments,
    list_checkpoints,
)
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import find_reserved, start_training

LOW = TrainConfig.of(optim="adamw_8bit", learning_rate=1e-3)
SHAPE = Qwen3Config(
    vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, tie_word_embeddings=True,
)  # fmt: skip


@pytest.fixture
def library():
    return pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: make install")


def build(config: TrainConfig) -> tuple[Policy, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(SHAPE)
    policy = Policy(model, None, Head(model.get_output_embeddings()))
    return policy, build_optimizer(config, policy)


def make_steps(policy: Policy, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    """Along gradients that follow from the number of the step."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in policy.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * 0.01
        optimizer.step()
        optimizer.zero_grad()


def test_what_moments_take_is_counted(library):
    """Of a tensor of 64 x 96: 2 x 6,144 bytes and 2 x 24 scales of 4 bytes; embeddings and the small have 8 a weight."""
    policy, optimizer = build(LOW)
    weights, embeddings = list(policy.trained().values()), embedding_weights(policy.model)
    counted = count_moments("adamw_8bit", weights, embeddings, 4)
    assert 2 * 64 * 96 + 2 * 24 * 4 in counted and 8 * 300 * 64 in counted and 8 * 64 in counted
    assert hold_moments(optimizer, embeddings).nbytes == sum(counted)
    make_steps(policy, optimizer, 0, 1)
    moments = capture_moments(policy.model, optimizer)
    assert sum(counted) == sum(value.nbytes for name, value in moments.items() if not name.endswith("|step"))
    assert sum(counted) == find_reserved(LOW, policy, Trial(LOW))
    assert hold_moments(optimizer, embeddings).nbytes == 0


def test_the_account_of_qwen3_is_by_the_setting():
    """Of 596M weights the embedding has 156M, 65 k are of vectors: 8 bytes each; 440M have 2 + 8/256; pages are the host's."""
    shape = Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
    )  # fmt: skip
    found = {}
    for optim in ("adamw", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"):
        found[optim] = estimate_least(shape, TrainConfig.of(optim=optim, dtype="bfloat16"))["moments"]
    vectors, embedding = 28 * (2 * 1024 + 2 * 128) + 1024, 151_936 * 1024
    matrices = 28 * (2 * 1024 * 2048 + 2 * 1024 * 1024 + 3 * 1024 * 3072)
    assert found == {
        "adamw": 8 * (vectors + embedding + matrices),
        "adamw_8bit": 8 * (vectors + embedding) + 2 * matrices + 8 * matrices // 256,
        "paged_adamw_32bit": 8 * vectors,
        "paged_adamw_8bit": 8 * vectors + 8 * matrices // 256,
    }


@pytest.mark.slow
def test_a_run_on_8_bits_is_resumed_bit_for_bit(library, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    changes = dict(
        optim="adamw_8bit", save_every_updates=1, keep_checkpoints=10, eval_every=0, problems=1, rollout_batches=2,
        max_response_length=24,
    )  # fmt: skip
    start_training(small(whole, **changes))
    shutil.copytree(whole, folder)
    for path in list_checkpoints(folder / "checkpoints")[2:]:
        shutil.rmtree(path)
    start_training(small(folder, resume=True, **changes))
    assert updates_of(folder) == updates_of(whole) and len(updates_of(whole)) == 4
    assert digest_model(whole) == digest_model(folder)
    moments = load_file(list_checkpoints(whole / "checkpoints")[-1] / "optimizer.safetensors")
    assert any(value.dtype == torch.uint8 for value in moments.values())


def test_what_cannot_be_is_refused_before_anything_is_loaded(monkeypatch):
    paged = TrainConfig.of(optim="paged_adamw_32bit")
    with pytest.raises(
        ValueError, match=r"optim=paged_adamw_32bit pages for CUDA, and the run is on the CPU: leave --optim at adamw"
    ):
        check_optimizer(paged, "cpu")
    with pytest.raises(ValueError, match=r"optim=adamw_8bit computes in float32: give --dtype float32 or bfloat16"):
        check_optimizer(LOW.replace(dtype="float64"), "cpu")
    with pytest.raises(ValueError, match=r"optim='adam': give one of adamw, adamw_8bit"):
        TrainConfig.of(optim="adam")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        ValueError, match=r"optim=adamw_8bit needs bitsandbytes .*pip install 'fairlen\[bitsandbytes\]'"
    ):
        check_optimizer(LOW, "cpu")
    check_optimizer(TrainConfig(), "cpu")
