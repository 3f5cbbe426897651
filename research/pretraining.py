"""Supervised pre-training of a small Qwen3 on traces of one character a token: what the shipped models are made with.

One thread, so that one machine makes the same weights twice: the order of a sum depends on the number of threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from fairlen.console import log
from fairlen.files.folders import write_file

PAD, EOS, BOS = 0, 1, 2
"""Token ids of <pad>, <eos> and <bos> in all tasks."""
IGNORED = -100
"""Label of a position that trains nothing."""
BATCH = 32
"""Traces in one step."""
MICRO = 8
"""Traces in one forward; a batch is cut in order of length, so that little is padding."""
SILENT_LOGPROB = -14.0
"""Ceiling for the log-probs of <pad> and <bos>, which no response contains: below one in a million tokens."""

Example = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids, and the label of each: itself, or IGNORED where nothing is learned."""


@dataclass(frozen=True)
class Shape:
    """What the models of the tasks differ in."""

    token_ids: Mapping[str, int]
    context: int
    """Positions of the model, prompt included."""
    intermediate_size: int
    mean_length: int
    """Trained tokens of a trace on average: the constant that a batch's loss is divided by, whatever its own lengths."""


def build_tokenizer(shape: Shape) -> PreTrainedTokenizerFast:
    """Build a tokenizer of one token a character, `<bos>` in front, that decodes without spaces."""
    tokenizer = Tokenizer(models.WordLevel(dict(shape.token_ids)))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=shape.context,
        clean_up_tokenization_spaces=False,
    )


def build_model(shape: Shape, seed: int) -> Qwen3ForCausalLM:
    """Build an untrained model, 4 layers of width 128."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(shape.token_ids),
        hidden_size=128,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
    )
    model = Qwen3ForCausalLM(config)
    # Sampling at temperature 1 from the whole vocabulary: what every ratio in training assumes.
    model.generation_config = GenerationConfig(
        pad_token_id=PAD, eos_token_id=EOS, bos_token_id=BOS, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model


def label(prompt: tuple[int, ...], response: tuple[int, ...]) -> Example:
    """Return a trace, of which the response is learned."""
    return prompt + response, (IGNORED,) * len(prompt) + response


def count_labels(example: Example) -> int:
    """Return how many tokens are learned."""
    return len(example[1]) - example[1].count(IGNORED)


def stack(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and labels [traces, longest], padded on the right."""
    token_ids, labels = ([torch.tensor(row) for row in rows] for rows in zip(*examples, strict=True))
    return pad_sequence(token_ids, True, PAD), pad_sequence(labels, True, IGNORED)


def sum_loss(model: PreTrainedModel, examples: Sequence[Example], silence: float) -> torch.Tensor:
    """Return the summed cross-entropy of responses, nats; plus `silence` times what <pad> and <bos> have over their ceiling."""
    token_ids, labels = stack(examples)
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    loss = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    if silence == 0:
        return loss
    logprobs = logits[targets != IGNORED].log_softmax(-1)[:, [PAD, BOS]]
    return loss + silence * (logprobs - SILENT_LOGPROB).relu().sum()


def optimize(
    model: PreTrainedModel,
    examples: Iterator[Example],
    steps: int,
    learning_rate: float,
    silence: float,
    mean_length: int,
) -> None:
    """Minimise the loss of responses, in place; the learning rate is at its peak after 5% of the steps, and falls to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01, betas=(0.9, 0.95))
    # The schedule divides by the length of its warm-up, so that very short runs take the start of a longer one.
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, max(steps, 40), pct_start=0.05)
    model.train()
    for step in range(steps):
        batch = sorted(islice(examples, BATCH), key=count_labels)
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, BATCH, MICRO):
            loss = sum_loss(model, batch[start : start + MICRO], silence)
            (loss / (BATCH * mean_length)).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            log(f"step {step}: {total / sum(map(count_labels, batch)):.3f} nats a token")


def save(model: Qwen3ForCausalLM, shape: Shape, out: Path) -> None:
    """Write model and tokenizer to a folder, in Hugging Face format."""
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner may read
    build_tokenizer(shape).save_pretrained(out)
    path = out / "tokenizer_config.json"  # a class name that transformers 4 knows too
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_file(path, json.dumps(settings, indent=2) + "\n")
