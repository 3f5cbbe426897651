"""Small real tokenizers with the chat templates that matter: ChatML with a switch, BOS in the template, opened thinking."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

LINES = [
    "Mara has 3 marbles and finds 4 more. How many has she?",
    "Reason step by step, and put your final answer within \\boxed{}.",
    "Write a Python program that reads its input from stdin and prints its output to stdout.",
    "<|im_start|>user system assistant <think> </think> begin of text 0123456789",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin|>", "<|head|>", "<|/head|>"]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""Like Qwen3: knows enable_thinking, and closes the thinking at once where it is off."""
WITH_BOS = (
    "{{ bos_token }}{% for message in messages %}<|head|>{{ message.role }}<|/head|>\n\n{{ message.content }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)
"""Like Llama 3: writes BOS itself."""
OPENED = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}"
    "{{ raise_exception('no system messages') }}{% endif %}{{ message.role }}: {{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: <think>\n{% endif %}"
)
"""Like the distilled reasoners: ends within the thinking; has no place for a system message."""


def make_tokenizer(template: str = "", bos: bool = False, eos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE; `bos` and `eos` are put around plain text by the tokenizer itself."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    core.train_from_iterator(LINES, trainer)
    around = f"{'<|begin|> ' if bos else ''}$A{' <|endoftext|>' if eos else ''}"
    specials = [(name, core.token_to_id(name)) for name in ("<|begin|>", "<|endoftext|>")]
    template_processor = processors.TemplateProcessing(single=around, special_tokens=specials)
    core.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template_processor])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|begin|>", eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    if template:
        tokenizer.chat_template = template
    return tokenizer


def write_shape(folder: Path, positions: int = 2048) -> str:
    """The shape of a language model of one layer, for random weights, and its tokenizer with ChatML."""
    tokenizer = make_tokenizer(CHATML)
    shape = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=positions, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    shape.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
