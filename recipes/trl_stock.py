"""A stock script of TRL: docs/trl.md shows the four lines that give it a method of fairlen's.

    python recipes/trl_stock.py                                      the playground
    python recipes/trl_stock.py models/smollm2 models/words.jsonl    after `make smollm2` and recipes/word_problems.py

Two steps show that it runs; `max_steps` is for more.
"""

import json
import re
import sys
from pathlib import Path

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from fairlen import playground
from fairlen.tasks.playground import Playground

model, *data = sys.argv[1:] or [str(playground.PATH)]
problems = (Playground().train(index) for index in range(256))
rows = [{"prompt": problem.text, "answer": problem.answer} for problem in problems]
if data:
    rows = [json.loads(line) for line in Path(data[0]).read_text().splitlines()]
dataset = Dataset.from_list(rows)


def accuracy(completions, answer, **_):
    """1 where the last word of a response is the answer."""
    texts = [one if isinstance(one, str) else one[0]["content"] for one in completions]
    return [float(re.findall(r"\w+", text)[-1:] == [own]) for text, own in zip(texts, answer, strict=True)]


config = GRPOConfig(
    output_dir="trl-out", num_generations=8, per_device_train_batch_size=16, max_completion_length=60, max_steps=2,
    learning_rate=2e-5 if data else 3e-4, logging_steps=1, save_strategy="no",
    use_cpu=True, bf16=False, gradient_checkpointing=False,
)  # fmt: skip
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(model),
    processing_class=AutoTokenizer.from_pretrained(model),
    reward_funcs=accuracy,
    args=config,
    train_dataset=dataset,
)
trainer.train()
