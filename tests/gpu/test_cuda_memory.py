"""The least memory of a run against the peak of a CUDA device: weights of a shape, forward and backward, an optimizer step."""

import subprocess
import sys

import pytest
import torch
from on_cuda import ON_CUDA
from transformers import AutoModelForCausalLM, Qwen3Config

from fairlen.files.limits import GIB
from fairlen.policy.head import Head
from fairlen.policy.lora import add_adapters
from fairlen.policy.model import Policy, output_embeddings
from fairlen.policy.pack import ModelInput
from fairlen.train.memory import LIBRARIES, estimate_least
from fairlen.train.run.config import TrainConfig

DEVICE = "cuda"
pytestmark = ON_CUDA
SHAPE = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8,
    head_dim=128, vocab_size=151_936, tie_word_embeddings=True,
)  # fmt: skip


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "checkpointing"])
@pytest.mark.parametrize("rank", [0, 32], ids=["all weights", "LoRA"])
def test_an_update_takes_the_least_and_not_twice_as_much(rank, checkpointing):
    """Qwen3-0.6B, 4,096 positions: the second of two updates, with gradients and moments there."""
    config = TrainConfig.of(
        dtype="bfloat16", max_response_length=4096, layout="rows", lora_rank=rank, gradient_checkpointing=checkpointing
    )
    least = sum(estimate_least(SHAPE, config).values()) - LIBRARIES
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(SHAPE, dtype=torch.bfloat16 if rank else torch.float32).train()
        if rank:
            add_adapters(model, config.model)
        inputs = ModelInput(torch.zeros(1, 4096, dtype=torch.long), torch.arange(4096), torch.zeros(4096).long(), 1.0)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    policy = Policy(model, None, Head(output_embeddings(model)), autocast=True)
    optimizer = torch.optim.AdamW(policy.trained().values(), fused=True)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        policy.forward(inputs).logprobs.sum().backward()
        optimizer.step()
    peak = torch.cuda.max_memory_allocated() - before
    print(f"{peak / GIB:.2f} GiB, at least {least / GIB:.2f}")
    assert 0.5 < least / peak < 1.05


GROWS = """
import torch
from fairlen.engine.device import keep_freed_memory
keep_freed_memory()
kept = torch.zeros(1, device="cuda")
assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
"""


def test_segments_of_the_allocator_grow():
    """In a process whose device is untouched until a run sets the allocator."""
    done = subprocess.run([sys.executable, "-c", GROWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
