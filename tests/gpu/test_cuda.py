"""On a CUDA device: engine, trainer and whole runs give what they give on the CPU, to the arithmetic's precision."""

import math

import numpy as np
import pytest
import torch
from on_cuda import ON_CUDA
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, PreTrainedModel, Qwen3Config

from fairlen.batch import Plan
from fairlen.engine import Engine
from fairlen.engine.sampler import invert
from fairlen.policy.model import Policy, make_head
from fairlen.rollouts import Response, Rollouts, Segment, TokenIds
from fairlen.sampling.extend import Continuation, Sampling
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training
from fairlen.train.step import Learner

DEVICE = "cuda"
pytestmark = ON_CUDA

EOS, VOCABULARY, BUDGET = 1, 96, 40
SIZES = dict(
    vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=256, eos_token_id=EOS, bos_token_id=2, pad_token_id=0,
    initializer_range=0.2,
)  # fmt: skip
CONFIGS = {"qwen3": Qwen3Config, "llama": LlamaConfig}


def build(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same random weights on either device."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name](**SIZES), dtype=dtype).to(DEVICE).eval()


def prompts() -> list[TokenIds]:
    """24 prompts of 1 to 8 tokens, some of them prefixes of others."""
    drawn = np.random.default_rng(0).integers(3, VOCABULARY, (6, 8)).tolist()
    return [tuple(tokens[:length]) for tokens in drawn for length in (1, 3, 5, 8)]


def continue_all(model: PreTrainedModel, temperature: float, compile: bool = False) -> list[Continuation]:
    """Fewer slots than prompts, so that rows are refilled while others run."""
    engine = Engine(model, eos_token_id=EOS, max_length=8 + BUDGET, max_num_seqs=10, compile=compile)
    return engine.generate(prompts(), [Sampling(BUDGET, seed, temperature=temperature) for seed in range(24)])


def generate_alone(model: PreTrainedModel, prompt: TokenIds) -> TokenIds:
    """transformers' greedy continuation of one prompt."""
    config = GenerationConfig(do_sample=False, max_new_tokens=BUDGET, eos_token_id=EOS, pad_token_id=0)
    ids = torch.tensor([prompt], device=DEVICE)
    made = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return tuple(made[0, len(prompt) :].tolist())


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_continuations_are_those_of_generate(name):
    model = build(name)
    made = continue_all(model, temperature=0.0)
    assert [one.token_ids for one in made] == [generate_alone(model, prompt) for prompt in prompts()]
    assert len({one.token_ids for one in made}) > 6, "the prompts lead to different texts"


def test_a_compiled_engine_continues_as_an_eager_one():
    model = build("qwen3")
    eager, compiled = (continue_all(model, temperature=0.0, compile=compile) for compile in (False, True))
    assert [one.token_ids for one in compiled] == [one.token_ids for one in eager]


def test_a_large_vocabulary_is_searched_as_on_the_cpu():
    generator = torch.Generator().manual_seed(0)
    probabilities = torch.softmax(3 * torch.randn(64, 151_936, generator=generator), -1)
    uniforms = torch.rand(64, generator=generator, dtype=torch.float64)
    found = invert(probabilities.to(DEVICE), uniforms.to(DEVICE)).cpu()
    assert found.tolist() == invert(probabilities, uniforms).tolist()


def sampled() -> tuple[Rollouts, Plan]:
    """What the engine sampled from the qwen3 model, in groups of one prompt, with its log-probs."""
    made = continue_all(build("qwen3"), temperature=1.0)
    responses = tuple(
        Response(row // 4, (*prompt, *one.token_ids), len(prompt), one.logprobs, one.finish, row)
        for row, (prompt, one) in enumerate(zip(prompts(), made, strict=True))
    )
    segments = tuple(Segment(row, r.num_prompt, len(r.token_ids), row // 4) for row, r in enumerate(responses))
    length = np.array([response.length for response in responses])
    weight = 1 / (len(length) * length)
    plan = Plan(np.arange(len(length)), length, np.random.default_rng(1).normal(size=len(length)), weight, weight)
    return Rollouts(responses, segments, BUDGET), plan


def test_engine_and_trainer_agree_in_float32():
    model, (rollouts, plan) = build("qwen3"), sampled()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    by_row = Learner(Policy(model, None, make_head(model)), optimizer, schedule, math.inf, 1 << 12).old_logprobs(
        rollouts, plan
    )
    found = torch.cat([by_row[row] for row in range(len(plan))]).double().cpu().numpy()
    error = np.abs(found - np.concatenate([response.logprobs for response in rollouts.responses]))
    print(f"largest {error.max():.1e} nat, mean {error.mean():.1e}, {len(error)} tokens")
    assert error.max() <= 1e-4
    assert error.mean() <= 1e-5


RUN = TrainConfig.of(
    method="grpo", rollout_batches=16, device=DEVICE, eval_every=0, problems=128, samples=2, save_every=0,
    layout="rows",
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_playground_run_improves(tmp_path, dtype):
    summary = start_training(RUN.replace(dtype=dtype, out=str(tmp_path / "run")))
    before, after = summary.before.accuracy.value, summary.after.accuracy.value
    print(f"{dtype}: {before:.3f} -> {after:.3f} in {summary.training_seconds:.0f} s")
    assert after > before + 0.2  # from a half right
