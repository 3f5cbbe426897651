"""An evaluation of the shipped model, run once; a tiny model with random weights that reads text."""

from pathlib import Path

import pytest
import torch
from small_eval import small
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from fairlen.evaluate.start import start_evaluation

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"


@pytest.fixture(scope="session")
def finished(tmp_path_factory) -> Path:
    """12 problems x 4 samples of the playground."""
    folder = tmp_path_factory.mktemp("eval") / "first"
    start_evaluation(small(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A Qwen3 of one layer with random weights and one token a byte."""
    folder = tmp_path_factory.mktemp("model")
    words = {symbol: place for place, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    specials = ["<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE(vocab=words | {s: 256 + i for i, s in enumerate(specials)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>",
        additional_special_tokens=specials[:1], chat_template=TEMPLATE,
    )  # fmt: skip
    wrapped.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=258, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, max_position_embeddings=512, eos_token_id=257,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
