"""MFU as others publish it, by its arithmetic, and by a number that prime-rl published."""

import sys
from pathlib import Path

import pytest
import torch
from loops import over
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from fairlen.policy.lora import add_adapters
from fairlen.settings import PolicySettings

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from _speed import peak_flops, update_flops


def qwen3() -> PreTrainedModel:
    """The shape of Qwen3-0.6B, without contents."""
    shape = Qwen3Config(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
        head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(shape)


LAYER = 1024 * 2048 + 2 * 1024 * 1024 + 2048 * 1024 + 3 * 1024 * 3072  # queries, keys and values, output, MLP
N = 28 * LAYER + 151_936 * 1024


def test_flops_are_those_of_the_formula():
    expected = sum((6 * N + 12 * 28 * 1024 * length) * length for length in (100, 3000))
    assert update_flops(qwen3(), [100, 3000]) == expected


def test_published_tokens_a_second_are_the_published_share():
    """prime-rl, Qwen3-0.6B, one H100, sequences of 16,384: 11,896 tokens/s, 11.1% MFU."""
    peak = peak_flops("NVIDIA H100 80GB HBM3")
    share = update_flops(qwen3(), [16_384]) / 16_384 * 11_896 / (peak or 0.0)
    assert round(100 * share, 1) == 11.1


@pytest.mark.slow
def test_frozen_weights_need_no_gradient_of_their_own():
    model = qwen3()
    add_adapters(model, PolicySettings(lora_rank=8, lora_alpha=16.0))
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert update_flops(model, [10]) == 10 * (4 * N + 6 * adapters + 12 * 28 * 1024 * 10)


@over(
    "name, peak",
    [("NVIDIA H100 NVL", 835e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H200", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12),
     ("NVIDIA GeForce RTX 4090", 165e12), ("something else", None)],
)  # fmt: skip
def test_the_peak_goes_by_the_name_of_the_device(name, peak):
    assert peak_flops(name) == peak
