"""Small runs of TRL on the shipped model and its task."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from fairlen import playground
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.sampling.extend import Continuation
from fairlen.tasks.playground import Playground


def problems(count: int = 64, families: tuple[str, ...] = ("sums", "cups")) -> Dataset:
    """The first problems of the training stream, as TRL wants them."""
    task = Playground(families)
    found = [task.train(index) for index in range(count)]
    return Dataset.from_dict({"prompt": [p.text for p in found], "answer": [p.answer for p in found]})


def right(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 where a text ends with # and the answer."""
    return [float(text.rpartition("#")[1:] == ("#", own)) for text, own in zip(completions, answer, strict=True)]


@contextmanager
def warnings() -> Iterator[list[str]]:
    """What this process's adapter says."""
    logger, found = logging.getLogger("fairlen.integrations.trl.trainer"), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())
    logger.addHandler(handler)
    try:
        yield found
    finally:
        logger.removeHandler(handler)


def config(out: Path | str, **changes: Any) -> GRPOConfig:
    """4 prompts of 4 answers for each rollout batch, in two micro-batches of one update; nothing is printed or saved."""
    settings = {
        "output_dir": str(out), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4,
        "max_completion_length": 60, "max_steps": 2, "learning_rate": 1e-4, "lr_scheduler_type": "constant", "use_cpu": True,
        "bf16": False, "gradient_checkpointing": False, "report_to": "none", "logging_steps": 1, "save_strategy": "no",
        "disable_tqdm": True, "seed": 1,
    }  # fmt: skip
    return GRPOConfig(**(settings | changes))


def parts(out: Path | str, **changes: Any) -> dict[str, Any]:
    """What a GRPOTrainer is made of."""
    return {
        "model": AutoModelForCausalLM.from_pretrained(playground.PATH),
        "processing_class": AutoTokenizer.from_pretrained(playground.PATH),
        "reward_funcs": right,
        "args": config(out, **changes),
        "train_dataset": problems(),
    }


class Scripted:
    """TRL's generation replaced by answers of random tokens and lengths, which depend on the prefix and on how often it came.

    Parity does not ask where answers come from, and so takes milliseconds.
    """

    first_occurrence = 0
    """How often earlier processes are asked for the same prompt, where a prompt's rows are shared by processes."""

    def _generate_single_turn(self: Any, prompt_ids: Any, *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        if not hasattr(self, "script"):
            self.script = Script(self.first_occurrence)
        limit = self.generation_config.max_new_tokens
        return [list(self.script.answer(tuple(ids), limit).token_ids) for ids in prompt_ids], None


class Script:
    """Answers by prefix and occurrence; a smaller limit gives the beginning of what a larger one gives."""

    def __init__(self, first: int = 0) -> None:
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.first = first

    def answer(self, prefix: tuple[int, ...], limit: int) -> Continuation:
        self.seen[prefix] += 1
        draw = Random(str((prefix, self.first + self.seen[prefix])))
        length = draw.choice((1, 2, 3, 5, 8, 13))
        tokens = (*(draw.choice(range(3, 21)) for _ in range(length - 1)), 1)
        return Continuation(tokens, (-1.0,) * length, "stop").first(limit)


class ScriptedStock(Scripted, GRPOTrainer):
    pass


class ScriptedFair(Scripted, FairGRPOTrainer):
    pass


def graded(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """An arbitrary verdict that depends on the text alone."""
    return [float(sum(ids) % 3 == 0) for ids in completion_ids]


def scripted(out: Path | str, **changes: Any) -> dict[str, Any]:
    """Parts of a trainer for parity: float64, plain SGD, no clipping of the gradient, answers of at most 10 tokens."""
    settings = {"max_completion_length": 10, "optim": "sgd", "learning_rate": 0.02, "max_grad_norm": 1e9}
    model = AutoModelForCausalLM.from_pretrained(playground.PATH, dtype=torch.float64)
    return parts(out, **(settings | changes)) | {"model": model, "reward_funcs": graded}


def weights_of(trainer: Any) -> torch.Tensor:
    """All trained parameters in one row."""
    return torch.cat([p.detach().flatten().double() for p in trainer.model.parameters() if p.requires_grad])
