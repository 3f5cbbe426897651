"""Folders of models without weights, for `random_init`: small ones of several architectures, and their tasks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import (
    AutoTokenizer,
    Gemma2Config,
    LlamaConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from fairlen import playground

TOKENIZER = AutoTokenizer.from_pretrained(playground.PATH)
SHAPE: dict[str, Any] = dict(
    vocab_size=len(TOKENIZER), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, eos_token_id=TOKENIZER.eos_token_id,
    bos_token_id=TOKENIZER.bos_token_id, pad_token_id=TOKENIZER.pad_token_id, initializer_range=0.2,
)  # fmt: skip
EXPERTS: dict[str, Any] = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
LINEAR: dict[str, Any] = dict(
    linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
    shared_expert_intermediate_size=16, layer_types=["linear_attention", "full_attention"],
)  # fmt: skip
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "qwen3": lambda: Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "llama": lambda: LlamaConfig(**SHAPE),
    "gemma2": lambda: Gemma2Config(
        **SHAPE, sliding_window=24, query_pre_attn_scalar=8, attn_logit_softcapping=20.0, final_logit_softcapping=5.0
    ),
    "qwen3_moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS),
    "qwen3_next": lambda: Qwen3NextConfig(**SHAPE, **EXPERTS, **LINEAR),
}


def write_shape(folder: Path, config: PreTrainedConfig) -> str:
    """A folder with a config.json and the playground's tokenizer, and no weights."""
    config.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def write_reward(folder: Path) -> str:
    """A reward that random models differ in: the share of the budget that a response leaves."""
    path = folder / "brevity.py"
    path.write_text(
        "def brevity(prompts, completions, completion_ids, **columns):\n"
        "    return [1.0 / (1 + sum(ids) % 7) for ids in completion_ids]\n"
    )
    return f"{path}:brevity"
