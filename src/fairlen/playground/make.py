"""Makes the checkpoint of the playground: `python -m fairlen.playground.make --out DIR [--steps N] [--seed S]`.

Supervised pre-training of a 0.8M-parameter Qwen3 on traces of every style (`traces`), about twenty minutes on one core.
One thread and one seed: the same machine makes the same weights twice. No held-out problem is ever seen.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from fairlen.console import log
from fairlen.files.folders import write_file
from fairlen.playground.traces import draw_style, write_trace
from fairlen.tasks.playground import MAX_MOVES, TOKEN_IDS, Playground, encode, read_chain

PAD, EOS, BOS = (TOKEN_IDS[token] for token in ("<pad>", "<eos>", "<bos>"))
IGNORED = -100
"""Label of a position that trains nothing."""
BATCH = 32
"""Traces in one step."""
MICRO = 8
"""Traces in one forward; a batch is cut in order of length, so that little is padding."""
MEAN_LENGTH = 40
"""Trained tokens of a trace on average: the constant that a batch's loss is divided by, whatever its own lengths."""
SILENT_LOGPROB = -14.0
"""Ceiling for the log-probs of <pad> and <bos>, which no response contains: below one in a million tokens."""
CONTEXT = 512
"""Positions of the model, prompt included."""

Example = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt and response, token ids."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training with one schedule."""

    steps: int
    learning_rate: float
    """At its peak, after 5% of the steps; falls to zero."""
    silence: float
    """Weight of the penalty on the log-probs of tokens that no response contains."""


def phases(steps: int) -> tuple[Phase, Phase]:
    """Learning to answer; then, shortly, never to write <pad> or <bos>, which cross-entropy alone leaves at 1e-5."""
    return Phase(steps, learning_rate=2e-3, silence=0.0), Phase(max(1, steps // 20), learning_rate=2e-4, silence=0.5)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, `<bos>` in front; decodes without spaces."""
    tokenizer = Tokenizer(models.WordLevel(TOKEN_IDS))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(out: Path) -> None:
    """Writes the tokenizer's files under a class name that transformers 4 knows too."""
    build_tokenizer().save_pretrained(out)
    path = out / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    write_file(path, json.dumps(settings, indent=2) + "\n")


def build_model(seed: int) -> Qwen3ForCausalLM:
    """An untrained model, 4 layers of width 128."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(TOKEN_IDS),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
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


def draw_examples(seed: int) -> Iterator[Example]:
    """An endless stream of traces, on training problems of every number of moves."""
    # Sums take longer to learn than cups, so they come more often.
    playground = Playground(families=("sums", "cups", "sums", "cups", "sums"), num_moves=(1, MAX_MOVES))
    rng = Random(seed)
    index = 0
    while True:
        problem = playground.train(index)
        trace = write_trace(rng, *read_chain(problem.text), draw_style(rng))
        yield problem.token_ids, encode(trace.text) + ((EOS,) if trace.ended else ())
        index += 1


def stack(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels [traces, longest], padded on the right; only responses have labels."""
    longest = max(len(prompt) + len(response) for prompt, response in examples)
    token_ids = torch.full((len(examples), longest), PAD)
    labels = torch.full((len(examples), longest), IGNORED)
    for row, (prompt, response) in enumerate(examples):
        end = len(prompt) + len(response)
        token_ids[row, :end] = torch.tensor(prompt + response)
        labels[row, len(prompt) : end] = torch.tensor(response)
    return token_ids, labels


def sum_loss(model: Qwen3ForCausalLM, examples: Sequence[Example], silence: float) -> torch.Tensor:
    """Summed cross-entropy of responses, nats; plus `silence` times what <pad> and <bos> have over their ceiling."""
    token_ids, labels = stack(examples)
    logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    loss = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    if silence == 0:
        return loss
    logprobs = logits[targets != IGNORED].log_softmax(-1)[:, [PAD, BOS]]
    return loss + silence * (logprobs - SILENT_LOGPROB).relu().sum()


def optimize(model: Qwen3ForCausalLM, examples: Iterator[Example], phase: Phase) -> None:
    """Minimises the loss of responses, in place."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=phase.learning_rate, weight_decay=0.01, betas=(0.9, 0.95))
    # The schedule divides by the length of its warm-up, so that very short runs take the start of a longer one.
    total_steps = max(phase.steps, 40)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, phase.learning_rate, total_steps, pct_start=0.05)
    model.train()
    started = time.perf_counter()
    for step in range(phase.steps):
        batch = sorted(islice(examples, BATCH), key=lambda example: len(example[1]))
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, BATCH, MICRO):
            loss = sum_loss(model, batch[start : start + MICRO], phase.silence)
            (loss / (BATCH * MEAN_LENGTH)).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            mean = total / sum(len(response) for _, response in batch)
            log(f"step {step}: {mean:.3f} nats a token, {time.perf_counter() - started:.0f} s")


def make(out: Path, steps: int, seed: int) -> None:
    """Writes the checkpoint to `out`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of a sum depends on the number of threads
    try:
        model = build_model(seed)
        examples = draw_examples(seed)
        for phase in phases(steps):
            optimize(model, examples, phase)
    finally:
        torch.set_num_threads(threads)
    model.save_pretrained(out)
    save_tokenizer(out)
    (out / "model.safetensors").chmod(0o644)  # safetensors writes files that only their owner may read


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the checkpoint of the playground.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=int, default=3000, help=f"optimizer steps of {BATCH} traces")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.out, arguments.steps, arguments.seed)


if __name__ == "__main__":
    main()
