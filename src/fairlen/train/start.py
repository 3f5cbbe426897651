"""From settings to a finished run: builds every part, trains, evaluates before and after, saves the model."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from fairlen import playground
from fairlen.compose import Composition, explain
from fairlen.diagnostics.report import write_report
from fairlen.engine import Engine
from fairlen.evaluate.run import Evaluation
from fairlen.extend import Sampling
from fairlen.method import Method
from fairlen.tasks.playground import FAMILIES, Playground
from fairlen.tasks.task import Problem, Task
from fairlen.train.checkpoint import load_newest
from fairlen.train.collect import Collector
from fairlen.train.config import TrainConfig
from fairlen.train.display import Display
from fairlen.train.guard import Guard
from fairlen.train.judge import Judge, load_reward
from fairlen.train.layout import ROWS, Layout, choose_layout
from fairlen.train.loop import Trainer
from fairlen.train.memory import keep_freed_memory
from fairlen.train.model_card import write_model_card
from fairlen.train.policy import Policy, load_policy
from fairlen.train.run import Run, open_run
from fairlen.train.step import Learner

LONGEST_PROMPT = 512
"""Prompt tokens that the engine makes room for, besides the budget."""


@dataclass(frozen=True)
class Summary:
    """What a finished run came to."""

    folder: Path
    before: Evaluation
    after: Evaluation
    best_accuracy: float
    num_updates: int
    training_seconds: float


def start_training(config: TrainConfig) -> Summary:
    """Runs the whole job. Raises ValueError for settings that do not fit together, before anything is trained or written."""
    composition = explain(config.method, config.set)
    disable_progress_bar()
    keep_freed_memory()
    torch.manual_seed(config.seed)
    if config.threads:
        torch.set_num_threads(config.threads)
    policy = load_policy(
        playground.PATH if config.model == "playground" else config.model,
        config.dtype,
        choose_device(config),
        config.gradient_checkpointing,
    )
    task = load_task(config, policy)
    judge = Judge(task, policy.decode, [load_reward(text) for text in config.rewards], config.verifier_weight)
    max_length = find_max_length(config, policy)
    held_out = check_prompts(task.held_out(config.eval_problems), max_length - config.budget)
    layout = choose_layout(config.layout, policy, max_length)
    run = open_run(config, composition, layout)
    with Display(config, composition) as display:
        display.tell(f"layout: {layout}")
        trainer = build_trainer(config, run, composition, policy, judge, held_out, display, layout)
        if config.resume:
            trainer.restore(load_newest(run.checkpoints)[1])
        summary = asyncio.run(run_to_end(trainer))
        write_report(summary.folder)
        display.finish(summary)
    return summary


def build_trainer(
    config: TrainConfig,
    run: Run,
    composition: Composition,
    policy: Policy,
    judge: Judge,
    held_out: tuple[Problem, ...],
    display: Display,
    layout: Layout = ROWS,
) -> Trainer:
    """The parts of a run, put together."""
    engine = Engine(
        policy.model,
        eos_token_id=policy.eos_token_ids,
        max_length=find_max_length(config, policy),
        slots=config.slots,
        compile={"on": True, "off": False, "auto": "auto"}[config.compile],
    )
    collector = Collector(
        engine.extend, judge, judge.task.train, sampling_of(config), config.prompts, config.max_refills, config.seed
    )
    return Trainer(
        config=config,
        run=run,
        method=composition.method,
        learner=build_learner(config, policy, composition.method, layout),
        engine=engine,
        collector=collector,
        judge=judge,
        held_out=held_out,
        guard=Guard(run.folder / "debug"),
        engine_is_exact=not policy.autocast,
        show=display.show,
    )


def sampling_of(config: TrainConfig) -> Sampling:
    """How responses are drawn; each has a seed of its own."""
    return Sampling(
        config.budget,
        seed=0,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
    )


def find_max_length(config: TrainConfig, policy: Policy) -> int:
    """Positions that the engine makes room for. Raises ValueError where the model has fewer than the budget takes."""
    positions = getattr(policy.model.config, "max_position_embeddings", None) or math.inf
    if config.budget >= positions:
        raise ValueError(f"budget={config.budget}: the model has {positions} positions, prompt included; give less")
    return int(min(LONGEST_PROMPT + config.budget, positions))


def build_learner(config: TrainConfig, policy: Policy, method: Method, layout: Layout = ROWS) -> Learner:
    """AdamW with a linear warm-up, and a frozen copy of the model where a term asks for a reference."""
    optimizer = torch.optim.AdamW(
        policy.model.parameters(), lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, Warmup(config.warmup_updates))
    reference = None
    if method.needs_ref:
        frozen = copy.deepcopy(policy.model).requires_grad_(False).eval()
        reference = policy.with_model(frozen)
    return Learner(policy, optimizer, schedule, config.max_gradient_norm, config.micro_tokens, reference, layout)


@dataclass(frozen=True)
class Warmup:
    """Factor on the learning rate: rises to 1 over the first updates."""

    num_updates: int

    def __call__(self, update: int) -> float:
        return min(1.0, (update + 1) / (self.num_updates + 1))


async def run_to_end(trainer: Trainer) -> Summary:
    """Evaluates, trains, evaluates, saves."""
    before = trainer.run.first_evaluation() if trainer.progress.batch else None
    before = before or await trainer.evaluate()
    await trainer.train()
    seconds = trainer.progress.seconds
    after = await trainer.evaluate()
    trainer.save()
    folder = trainer.run.folder
    summary = Summary(folder, before, after, trainer.progress.best_accuracy, trainer.progress.update, seconds)
    trainer.save_model(folder / "model")
    write_model_card(folder / "model", trainer.run, summary)
    return summary


def choose_device(config: TrainConfig) -> str:
    """The device, checked against the arithmetic asked for."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device != "cpu" and not device.startswith("cuda"):
        raise ValueError(f"device={config.device!r}: give auto, cpu, cuda or cuda:0")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(
            f"device={config.device}: this torch sees no CUDA device; use device=cpu, or a CUDA build of torch"
        )
    if config.dtype == "bfloat16" and not device.startswith("cuda"):
        raise ValueError("dtype=bfloat16 on the CPU: log-probs would be wrong by up to half a nat; use float32")
    return device


def load_task(config: TrainConfig, policy: Policy) -> Task:
    """The task by name. Raises ValueError for an unknown one, or a model that does not read its prompts."""
    name, _, family = config.task.partition(":")
    if name != "playground" or (family and family not in FAMILIES):
        known = ", ".join(["playground", *(f"playground:{known}" for known in FAMILIES)])
        raise ValueError(f"task={config.task!r}: there are {known}")
    task = Playground((family,)) if family else Playground()
    problem = task.train(0)
    if tuple(policy.tokenizer(problem.text, add_special_tokens=False)["input_ids"]) != problem.token_ids[1:]:
        raise ValueError(
            f"model={config.model}: its tokenizer does not read the playground's prompts; "
            "give the shipped model or one trained from it"
        )
    return task


def check_prompts(problems: Sequence[Problem], longest: int) -> tuple[Problem, ...]:
    """The problems, or ValueError naming the one whose prompt is empty or too long."""
    for problem in problems:
        if not 0 < len(problem.token_ids) <= longest:
            raise ValueError(
                f"problem {problem.id}: its prompt has {len(problem.token_ids)} tokens; give 1 to {longest}"
            )
    return tuple(problems)
