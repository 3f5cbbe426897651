"""A run of a large model rehearsed without its weights: the whole of `fairlen train` at full size, and what the real run needs.

python recipes/rehearse.py          the shape of Qwen3-0.6B, random weights, one update on a CPU: 12 GiB, some minutes
python recipes/rehearse.py 1.7B     the same of Qwen3-1.7B: 30 GiB
python recipes/rehearse.py tiny     the same layers, each of them tiny: seconds

Weights and checkpoints that the run writes, three times its size and more, are removed at its end; its logs stay.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from fairlen.methods.compose import compose
from fairlen.train.memory import refuse_too_large
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

WIDTHS = {"0.6B": (1024, 3072), "1.7B": (2048, 6144), "tiny": (16, 32)}
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REWARD = "def low(prompts, completions, completion_ids, **_):\n    return [ids[0] / 151936 for ids in completion_ids]\n"
"""Random weights are never right: this differs between responses, so that the update has a gradient."""
PROBLEMS = [{"prompt": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(2, 12) for b in range(a, 12)]


def write_model(folder: Path, size: str) -> Qwen3Config:
    """config.json in the public shape of Qwen3, and a byte-level tokenizer with a chat template made on the spot."""
    hidden, intermediate = WIDTHS[size]
    shape = Qwen3Config(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, max_position_embeddings=40960, eos_token_id=2,
        bos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    shape.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([row["prompt"] for row in PROBLEMS], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=special[2], pad_token=special[0])
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    return shape


def main(size: str = "0.6B", folder: str = "runs/rehearsal") -> None:
    place = Path(folder) / f"Qwen3-{size}"
    write_model(place, size)
    (Path(folder) / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    (Path(folder) / "low.py").write_text(REWARD)
    for name, settings in {"all weights": {}, "adapters": {"lora_rank": 32}}.items():
        real = TrainConfig.of(model=str(place), dtype="bfloat16", max_response_length=4096, max_num_seqs=32,
        max_tokens_per_microbatch=8192,
                           gradient_checkpointing=True, **settings)  # fmt: skip
        least = refuse_too_large(real, compose("dapo"), 1 << 62)
        print(f"Qwen3-{size} on one GPU, budget 4096, {name}:\n{least or 'a model so small needs no account'}\n")
    small = TrainConfig.of(
        model=str(place), random_init=True, data=(f"{folder}/sums.jsonl",), rewards=(f"{folder}/low.py:low",), method="grpo",
        overrides=("sampling.n=4",), max_response_length=16, prompts_per_batch=1, rollout_batches=1, max_extra_batches=0,
        problems=1, samples=1,
        max_num_seqs=4, max_prompt_length=128, out=str(Path(folder) / f"run-{size}"),
    )  # fmt: skip
    try:
        start_training(small)
    finally:
        for heavy in ("checkpoints", "model", "best"):
            shutil.rmtree(Path(small.run.out) / heavy, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
