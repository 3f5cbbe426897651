"""What a model must bring, and that its head is computed as the model itself does."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel

from fairlen.policy.model import CHUNK_LOGITS, body, make_head
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import find_max_length


def test_a_model_without_eos_says_where_to_set_it(policy):
    model = copy.deepcopy(policy.model)
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match=r"eos_token_id=None.*generation_config.json"):
        _ = replace(policy, model=model, tokenizer=NoEos()).eos_token_ids


class NoEos:
    eos_token_id = None


def test_a_budget_beyond_the_models_positions_is_refused(policy):
    with pytest.raises(ValueError, match="max_response_length=512: the model has 512 positions"):
        find_max_length(TrainConfig(max_response_length=512), policy, 28)
    assert find_max_length(TrainConfig(max_response_length=160), policy, 28) == 188  # 28 + 160


def test_the_head_of_a_model_with_a_soft_cap_is_the_models_own():
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        found = make_head(model)(body(model)(input_ids=ids)[0])
    assert torch.allclose(found, expected, atol=1e-6)
    assert expected.abs().max() < 0.5  # the cap acts


def test_a_head_that_is_not_linear_in_the_hidden_states_is_refused():
    class Scaled(GPT2LMHeadModel):
        def forward(self, *args, **kwargs):
            found = super().forward(*args, **kwargs)
            found.logits = 2 * found.logits + 1
            return found

    with pytest.raises(ValueError, match="Scaled: its logits are not"):
        make_head(Scaled(GPT2Config(vocab_size=21, n_embd=16, n_layer=1, n_head=2, n_positions=32)))


VOCABULARY = 151_936


def wide_head(length: int) -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]:
    """Hidden states [T, 8], targets [T] and an output layer of a large vocabulary."""
    torch.manual_seed(0)
    hidden, linear = torch.randn(length, 8, requires_grad=True), torch.nn.Linear(8, VOCABULARY, bias=False)
    return hidden, torch.randint(0, VOCABULARY, (length,)), linear


def test_chunks_of_a_large_vocabulary_change_no_gradient(policy, monkeypatch):
    monkeypatch.setattr("fairlen.policy.model.output_embeddings", lambda model: linear)
    hidden, target, linear = wide_head(50)
    own, found = replace(policy, head=linear), []
    for chunk in (1 << 30, 7 * VOCABULARY):  # all at once, and 7 positions at a time: 8 chunks
        monkeypatch.setattr("fairlen.policy.model.CHUNK_LOGITS", chunk)
        outputs = own.chunked(hidden, target, temperature=0.7, entropy_grad=True)
        (outputs.logprobs.sum() + 0.1 * outputs.entropy.sum()).backward()
        found.append((outputs.logprobs.detach(), outputs.entropy.detach(), hidden.grad, linear.weight.grad))
        hidden.grad = linear.weight.grad = None
    for whole, parts in zip(*found, strict=True):
        assert (whole - parts).abs().max() <= 1e-4 * whole.abs().max()


MEASURE = """
import sys, torch
from fairlen.policy.model import CHUNK_LOGITS, token_logprobs
import fairlen.policy.model as module
from fairlen import playground
torch.set_num_threads(1)
policy = module.load_policy(playground.PATH, "float32", "cpu", False)
linear = torch.nn.Linear(8, 151936, bias=False)
policy.head, module.output_embeddings = linear, lambda model: linear
module.CHUNK_LOGITS = int(sys.argv[1])
hidden, target = torch.randn(1200, 8, requires_grad=True), torch.arange(1200)
largest = lambda: int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])  # KiB
before = largest()
policy.chunked(hidden, target, 1.0, False).logprobs.sum().backward()
print((largest() - before) / 2**20)
"""


@pytest.mark.slow
def test_memory_of_a_large_vocabulary_is_that_of_a_chunk():
    """1200 x 151936 logits in float32 are 0.68 GiB, and a backward pass holds several such tensors; a chunk has 0.125 GiB.

    VmHWM counts this program alone; ru_maxrss begins at that of the process that started it, here the whole test run's.
    """
    found = []
    for chunk in (CHUNK_LOGITS, 1 << 40):
        done = subprocess.run([sys.executable, "-c", MEASURE, str(chunk)], capture_output=True, text=True, check=True)
        found.append(float(done.stdout.split()[-1]))
    assert found[0] < 0.75 < 2 * 0.68 < found[1]
