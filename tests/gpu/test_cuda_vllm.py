"""vLLM on a CUDA device beside the policy that is trained: log-probs, sleep that frees memory, weights that are pushed.

Skipped where this environment has no vLLM; `make install-vllm-cuda` makes one that has, and `make test-gpu` then uses it.
"""

from pathlib import Path

import pytest
import torch
from on_cuda import ON_CUDA
from transformers import AutoModelForCausalLM, Qwen3Config

from fairlen.policy.engines import build_engine, probe
from fairlen.policy.model import Policy, make_head
from fairlen.sampling.extend import Sampling
from fairlen.settings import RolloutConfig

DEVICE = "cuda"
pytest.importorskip("vllm", reason="no vLLM in this environment: make install-vllm-cuda", exc_type=ImportError)
pytestmark = ON_CUDA
SHAPE = Qwen3Config(
    vocab_size=32_768, hidden_size=1024, intermediate_size=3072, num_hidden_layers=8, num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, max_position_embeddings=4096, eos_token_id=1, bos_token_id=None, pad_token_id=0,
    tie_word_embeddings=True,
)  # fmt: skip
ROWS, LENGTH = 32, 128


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> tuple[Policy, Path]:
    """Random weights that are trained in bfloat16 arithmetic, and the folder of their config."""
    folder = tmp_path_factory.mktemp("model")
    SHAPE.save_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(SHAPE, dtype=torch.float32)
    return Policy(model, None, make_head(model), autocast=True), folder


def test_it_samples_sleeps_wakes_with_the_weights_of_the_update_and_frees_memory(policy):
    """One engine: a second one in a process would find the groups of processes of the first."""
    trained, folder = policy
    settings = RolloutConfig.of(
        model=str(folder), engine="vllm", dtype="bfloat16", max_num_seqs=ROWS, gpu_memory_utilization=0.3
    )
    engine = build_engine(settings, trained, max_length=2 * LENGTH)
    prompts = [tuple(range(row + 2, row + 2 + LENGTH // 2)) for row in range(ROWS)]
    samplings = [Sampling(LENGTH, seed=row) for row in range(ROWS)]
    first = engine.generate(prompts, samplings)
    awake = torch.cuda.mem_get_info()[0]
    engine.sleep()
    freed = torch.cuda.mem_get_info()[0] - awake
    print(f"sleep freed {freed / 2**30:.2f} GiB")
    assert freed > 0.15 * torch.cuda.get_device_properties(0).total_memory  # half of its share, at least
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter.mul_(1.0 + 0.1 * torch.rand_like(parameter))
    engine.refresh(1)
    second = engine.generate(prompts, samplings)
    assert [one.token_ids for one in second] != [one.token_ids for one in first]
    error = probe(engine, trained)
    print(f"log-probs of new weights: {error:.2g} nat apart at most")
    assert error < 0.5
    stats = engine.stats
    print(
        f"pushed {stats.pushed_bytes / 2**20:.0f} MiB in {stats.push_seconds:.3f} s; sleep {stats.sleep_seconds:.3f} s"
    )
    assert stats.pushed_bytes > 0 and stats.push_seconds > 0.0
