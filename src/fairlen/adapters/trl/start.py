"""From the flags of `fairlen trl` to a finished run of TRL: problems to a data set, verifiers to a reward function."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoTokenizer, HfArgumentParser
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.model_config import ModelConfig
from trl.trainer.utils import get_peft_config, get_quantization_config

from fairlen import playground
from fairlen.adapters.trl.config import TrlConfig
from fairlen.adapters.trl.trainer import FairGRPOTrainer
from fairlen.describe import suggest
from fairlen.tasks.load import load_task
from fairlen.tasks.task import Problem, Task
from fairlen.train.judge import VERDICTS
from fairlen.train.rewards import load_rewards


class TaskTrainer(FairGRPOTrainer):
    """A FairGRPOTrainer whose prompts are token ids that a task has made."""

    def __init__(self, *args: Any, problems: Mapping[str, Problem], **kwargs: Any) -> None:
        self.problems = problems
        super().__init__(*args, **kwargs)

    def _tokenize_prompts(self, prompts: list[str]) -> tuple[list[list[int]], None, dict[str, Any]]:
        return [list(self.problems[text].token_ids) for text in prompts], None, {}


def start_trl(config: TrlConfig, arguments: Sequence[str]) -> None:
    """Runs the whole job; `arguments` are flags of GRPOConfig and ModelConfig. Raises ValueError for settings that do not fit."""
    trl_config, model_config = read_trl_arguments(arguments, config.seed)
    name = playground.PATH if config.model == "playground" else config.model
    sides = {"padding_side": "left", "truncation_side": "left", "revision": model_config.model_revision}
    tokenizer = AutoTokenizer.from_pretrained(name, **sides)
    with closing(load_task(config, tokenizer)) as task:
        for note in task.notes:
            print(note)
        trainer = build_trainer(config, trl_config, model_config, str(name), tokenizer, task)
        trainer.train(resume_from_checkpoint=trl_config.resume_from_checkpoint)
        trainer.save_model(trl_config.output_dir)


def read_trl_arguments(arguments: Sequence[str], seed: int) -> tuple[Any, Any]:
    """GRPOConfig and ModelConfig from flags. Raises ValueError naming the nearest flag for one that does not exist."""
    parser = HfArgumentParser([GRPOConfig, ModelConfig])  # pyright: ignore[reportArgumentType]
    alone = [] if torch.accelerator.is_available() else ["--use_cpu", "True"]  # before the user's, which count
    given = ["--seed", str(seed), *alone, *arguments]
    _, left = parser.parse_known_args(given)
    if left:
        known = [f.name for kind in (TrlConfig, GRPOConfig, ModelConfig) for f in fields(kind)]
        raise ValueError(f"unknown argument {left[0]!r}: {suggest(left[0].strip('-').replace('-', '_'), known)}")
    trl_config, model_config = parser.parse_args_into_dataclasses(given)
    return trl_config, model_config


def build_trainer(
    config: TrlConfig, trl_config: Any, model_config: Any, model: str, tokenizer: Any, task: Task
) -> TaskTrainer:
    """The parts of a run, put together."""
    train = [task.train(index) for index in range(config.problems)]
    held_out = list(task.held_out(config.eval_problems)) if config.eval_problems else []
    problems = {problem.text: problem for problem in (*train, *held_out)}
    rewards = load_rewards(config.rewards, train[0])
    if trl_config.reward_weights is not None:
        raise ValueError("--reward-weights: weights go with --verifier-weight and --rewards FILE.py:FUNCTION=WEIGHT")
    trl_config.reward_weights = [config.verifier_weight, *(reward.weight for reward in rewards)]
    trl_config.model_init_kwargs = {
        "revision": model_config.model_revision,
        "attn_implementation": model_config.attn_implementation,
        "dtype": model_config.dtype,
        **(trl_config.model_init_kwargs or {}),
    }
    return TaskTrainer(
        model=model,
        reward_funcs=[verifier_of(task, problems, config.without_verdict), *(reward.function for reward in rewards)],
        args=trl_config,
        train_dataset=data_of(train),
        eval_dataset=data_of(held_out) if held_out else None,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_config),
        quantization_config=get_quantization_config(model_config),
        problems=problems,
        method=config.method,
        settings=config.set,
        correct_threshold=config.correct_threshold,
        allow_truncated_sampling=config.allow_truncated_sampling,
        any_trl=config.any_trl,
    )


def data_of(problems: Sequence[Problem]) -> Dataset:
    """Problems as rows; reward functions get the columns."""
    return Dataset.from_list([{**p.columns, "prompt": p.text, "answer": p.answer} for p in problems])


def verifier_of(task: Task, problems: Mapping[str, Problem], without_verdict: str) -> Any:
    """The task's verifier as a reward function: verdicts of all answers at once, None where there is none."""

    async def verifier(prompts: list[str], completions: list[str], **_: Any) -> list[float | None]:
        pairs = zip(prompts, completions, strict=True)
        verdicts = await asyncio.gather(*(task.verify(problems[prompt], text) for prompt, text in pairs))
        counts = (verdict.status in VERDICTS or without_verdict == "wrong" for verdict in verdicts)
        return [verdict.outcome if has else None for verdict, has in zip(verdicts, counts, strict=True)]

    return verifier
