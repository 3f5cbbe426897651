"""A random model that talks in a few whole sayings, so that games are played and tools are called; and words for a game."""

from pathlib import Path

import torch
from chat_tokenizers import make_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

TOOLS = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML, with tools."""
CALL = '<tool_call>\n{"name": "book_number", "arguments": {"name": "Ada"}}\n</tool_call>'
SAYINGS = (CALL, "[E]", "[A]", " well ")


def make_talker(template: str = TOOLS) -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each saying, whose turns end with <|im_end|>."""
    tokenizer = make_tokenizer(template)
    tokenizer.add_tokens(list(SAYINGS))
    tokenizer.eos_token = "<|im_end|>"
    return tokenizer


def make_talking_model(tokenizer: PreTrainedTokenizerFast, dtype: torch.dtype = torch.float64) -> GPT2LMHeadModel:
    """A random GPT-2 with 1024 positions that says nothing but sayings and the end of a turn.

    The first feature of the last hidden state is 30 by its bias, and the output weights of all other tokens have -1 there.
    """
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=1024, n_embd=32, n_layer=2, n_head=2, tie_word_embeddings=False,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        model.transformer.ln_f.weight[0], model.transformer.ln_f.bias[0] = 0.0, 30.0
        model.lm_head.weight[:, 0] = -1.0
        model.lm_head.weight[[*tokenizer.convert_tokens_to_ids(list(SAYINGS)), tokenizer.eos_token_id], 0] = 0.0
    return model.eval()


def write_words(folder: Path) -> None:
    """Write the corpus of words that games of TextArena read, as nltk keeps it, with three words."""
    words = folder / "corpora" / "words"
    words.mkdir(parents=True)
    for name in ("README", "en", "en-basic"):
        (words / name).write_text("eagle\nalley\nsteam\n")
