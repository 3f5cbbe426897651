"""Small random models, and the ways to ask an engine that the tests share."""

from collections.abc import Callable, Sequence

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from fairlen.engine import Engine
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Continuation, Sampling

EOS, VOCAB = 1, 32
SHAPE = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=128, eos_token_id=EOS, bos_token_id=2, pad_token_id=0,
    initializer_range=0.3,
)  # fmt: skip
WINDOWS = dict(sliding_window=5, query_pre_attn_scalar=8)
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3": lambda: Qwen3Config(**SHAPE),
    "llama": lambda: LlamaConfig(**SHAPE),
    "gemma2": lambda: Gemma2Config(**SHAPE, **WINDOWS),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE, **WINDOWS, layer_types=["sliding_attention", "full_attention"]),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model whose greedy continuations vary and end: weights are large, so that it is sure of something."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=dtype).eval()


def prompts(count: int, seed: int = 0) -> list[TokenIds]:
    """Prompts of 1 to 12 tokens that begin with BOS."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (count,), generator=generator).tolist()
    return [(2, *torch.randint(3, VOCAB, (length,), generator=generator).tolist()) for length in lengths]


def ask(count: int, max_new_tokens: int = 24, **how: float) -> list[Sampling]:
    """Requests with seeds 0, 1, …"""
    return [Sampling(max_new_tokens, seed=seed, **how) for seed in range(count)]


def reference_logprobs(
    model: PreTrainedModel, prefix: TokenIds, made: Continuation, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of the generated tokens by one plain forward without a cache, float64 [length]."""
    tokens = torch.tensor([prefix + made.token_ids])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0, len(prefix) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(-1, torch.tensor(made.token_ids)[:, None])[:, 0].double()


def differences(
    model: PreTrainedModel, prefixes: Sequence[TokenIds], made: Sequence[Continuation], temperature: float = 1.0
) -> torch.Tensor:
    """|engine - full forward| of every generated token, nats."""
    return torch.cat(
        [
            (
                reference_logprobs(model, prefix, one, temperature) - torch.tensor(one.logprobs, dtype=torch.float64)
            ).abs()
            for prefix, one in zip(prefixes, made, strict=True)
        ]
    )


def engine_of(model: PreTrainedModel, **options: int) -> Engine:
    return Engine(model, **{"eos_token_id": EOS, "max_length": 64, "max_num_seqs": 8, "compile": False, **options})
