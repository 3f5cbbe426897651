"""A stock script of TRL, on the playground: docs/trl.md shows the four lines that give it a method of fairlen's."""

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from fairlen import playground
from fairlen.tasks.playground import Playground

problems = [Playground().train(index) for index in range(256)]
dataset = Dataset.from_list([{"prompt": problem.text, "answer": problem.answer} for problem in problems])


def accuracy(completions, answer, **_):
    """1 where a text ends with # and the answer."""
    return [float(text.rpartition("#")[1:] == ("#", own)) for text, own in zip(completions, answer, strict=True)]


config = GRPOConfig(
    output_dir="trl-out", num_generations=8, per_device_train_batch_size=16, max_completion_length=60, max_steps=2,
    learning_rate=3e-4, logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False,
)  # fmt: skip
trainer = GRPOTrainer(
    model=AutoModelForCausalLM.from_pretrained(playground.PATH),
    processing_class=AutoTokenizer.from_pretrained(playground.PATH),
    reward_funcs=accuracy,
    args=config,
    train_dataset=dataset,
)
trainer.train()
