"""From settings to a finished run: builds every part, trains, evaluates before and after, saves the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils.logging import disable_progress_bar

from fairlen.audit.audit import Audit
from fairlen.console import warn
from fairlen.engine.device import free_memory, keep_freed_memory
from fairlen.engine.generation import SteppedEngine
from fairlen.files.folders import locked
from fairlen.hangs import TrainingStopped, Watchdog, run_async
from fairlen.methods.compose import Composition, explain
from fairlen.methods.method import Method
from fairlen.plugins import plugins_of
from fairlen.policy.engines import (
    build_engine,
    choose_sizes,
    find_max_length,
    has_copy,
    is_exact,
    refuse_missing_engine,
    settle_engine,
)
from fairlen.policy.layout import ROWS, Layout, choose_layout
from fairlen.policy.lora import adapted_layers
from fairlen.policy.model import Policy, Unadapted, load_policy
from fairlen.report.page import FILE, audit_run, write_page
from fairlen.report.run import read_run
from fairlen.sampling.extend import Sampling
from fairlen.sampling.independent import Sampler
from fairlen.settings import LARGE, choose_device
from fairlen.tasks.environment import Interactive, choose_extend
from fairlen.tasks.grader import Grader, describe_verdict, load_rewards
from fairlen.tasks.load import load_task
from fairlen.tasks.playground import place_model
from fairlen.tasks.task import Problem, Task, find_problem_faults
from fairlen.train.collect import Collector, refuse_unread
from fairlen.train.loop import Trainer
from fairlen.train.memory import MAX_MICROBATCH, Trial, count_moments, refuse_too_large, try_memory
from fairlen.train.run.checkpoint import Archive, seed_streams
from fairlen.train.run.config import TrainConfig, refuse_too_many
from fairlen.train.run.display import Display, RunSummary, describe_choices, write_model_card
from fairlen.train.run.faults import Guard, Interruption, ending
from fairlen.train.run.folder import Run, keep_choices, open_run
from fairlen.train.run.trackers import Trackers, check_trackers, choose_trackers
from fairlen.train.step import Learner, naming_shortage, prepare_determinism


def start_training(config: TrainConfig) -> RunSummary:
    """Run the whole job. Raises ValueError for settings that do not fit together, before anything is trained or written."""
    composition = explain(config.method, config.overrides)
    check_trackers(config.run.tracker)
    refuse_missing_engine(config)
    kept = keep_choices(config)
    disable_progress_bar()
    keep_freed_memory()
    if config.update.deterministic:
        prepare_determinism()
    if config.model.threads:
        torch.set_num_threads(config.model.threads)
    device = choose_device(config.model)
    refuse_too_many(config, composition.method.sampling.num_tracks)
    free = free_memory(device)
    refuse_too_large(config, composition.method, free)
    seed_streams(config.run.seed)
    policy = load_policy(
        place_model(config.model.name, config.model.revision, config.model.random_init),
        config.model.dtype,
        device,
        config.model.gradient_checkpointing,
        revision=config.model.revision,
        random_init=config.model.random_init,
        adapters=config.model if config.model.lora_rank else None,
    )
    config = settle_engine(config, policy)
    with closing(load_task(kept, policy.tokenizer, config.run.seed)) as task:
        return train_on(task, config, composition, policy, free)


def train_on(task: Task, config: TrainConfig, composition: Composition, policy: Policy, free: int) -> RunSummary:
    """Run the whole job on the problems of a task; `free` bytes of memory were there before the weights."""
    refuse_forks(task, composition.method.sampling)
    asked, config = config, choose_settings(keep_choices(config), policy, task, free)
    graded = config.verifier
    rewards = load_rewards(graded.rewards, task.train(0), graded.reward_deadline)
    refuse_unread(composition.method, task, config)
    watchdog = Watchdog(config.run.stall_seconds)
    grader = Grader(task, policy.decode, rewards, graded, watchdog, policy.decode_whole)
    max_length = find_max_length(policy, task.longest_prompt, config.sampling.max_response_length)
    held_out = hold_out(task, config.run.problems)
    layout = choose_layout(config.update.layout, policy, max_length)
    display = Display(config, composition)
    for note in (describe_verdict(task.name, rewards, graded), *task.notes, f"layout: {layout}"):
        display.log(note)
    learner = build_learner(config, policy, composition.method, layout)
    with display.showing("memory: the largest micro-batch is tried"):
        trial = try_memory(config, learner, composition.method, task.longest_prompt)
    config = trial.config
    for note in filter(None, (describe_choices(asked, config, policy.has_adapters), trial.note)):
        display.log(note)
    with naming_shortage("the engine"):
        engine = build_engine(config, policy, max_length, find_reserved(config, policy, trial))
    facts = describe_model(config, policy, engine, trial)
    run = open_run(config, composition, layout, task.describe(), facts)
    watchdog.folder = run.folder / "debug"
    trackers = Trackers(choose_trackers(config.run.tracker, run), watchdog)
    with closing(watchdog), locked(run.folder), trackers, Interruption() as interruption:
        for note in notes_on(policy, engine):
            display.log(note)
        trainer = build_trainer(run, learner, engine, grader, held_out, display.show)
        trainer.interruption, trainer.trackers, trainer.showing = interruption, trackers, display.showing
        trainer.learner.pause = interruption.check
        if config.run.resume:
            trainer.resume(display.log)
            trainer.first = run.read_first_evaluation()
        with ending(run.folder):
            summary = run_async(run_to_end(trainer))
        with run.journal.attempt(Path("stdout")):
            display.finish(summary, describe_end(run, summary))
    return summary


def hold_out(task: Task, number: int) -> tuple[Problem, ...]:
    """Return the held-out problems of a task. Raises ValueError for one that cannot be asked."""
    found = tuple(task.held_out(number))
    for place, problem in enumerate(found):
        for fault in find_problem_faults(f"held_out({number})[{place}]", problem, task.longest_prompt):
            raise ValueError(fault)
    return found


def describe_end(run: Run, summary: RunSummary) -> Audit | None:
    """Write the model's card and the report, and return the audit: what goes wrong is a warning, and loses nothing of the run."""
    found = None
    try:
        report = read_run(run.folder)
        found = audit_run(report)
        write_model_card(run.folder / "model", run, summary, found)
        write_page(report, found, run.folder / FILE)
    except Exception as error:
        warn(f"{type(error).__name__}: {error}; the run is whole: fairlen report {run.folder} writes its report again")
    run.journal.close()
    return found


def build_trainer(
    run: Run,
    learner: Learner,
    engine: SteppedEngine,
    grader: Grader,
    held_out: tuple[Problem, ...],
    show: Callable[[dict[str, Any]], None],
) -> Trainer:
    """Put the parts of a run together."""
    config, method, policy = run.config, run.composition.method, learner.policy
    trainer = Trainer(
        config=config,
        run=run,
        method=method,
        learner=learner,
        engine=engine,
        collector=Collector(
            choose_extend(grader.task, engine.extend, policy.decode, config.verifier.environment_deadline),
            grader,
            grader.task.train,
            sampling_of(config),
            config.sampling.prompts_per_batch,
            config.sampling.max_extra_batches,
            config.run.seed,
        ),
        grader=grader,
        held_out=held_out,
        guard=Guard(folder=run.folder / "debug"),
        engine_is_exact=is_exact(config, policy),
        show=show,
        archive=Archive(run.checkpoints, config.run.keep_checkpoints),
    )
    trainer.signal.name_method(run.composition.name, method)
    return trainer


def refuse_forks(task: Task, sampling: Sampler) -> None:
    """Raise ValueError for a task in turns with a sampler that forks responses."""
    if isinstance(task, Interactive) and not sampling.is_whole:
        raise ValueError(
            f"task={task.name} with {type(sampling).__name__}: it is solved in turns, and its environment cannot be copied "
            f"where a track is forked; choose a method without {type(sampling).__name__.lower()}"
        )


def notes_on(policy: Policy, engine: SteppedEngine) -> tuple[str, ...]:
    """Return what is not as usual about how the model is run."""
    notes = [f"engine: {engine.reason}"] if engine.reason else []
    if policy.has_adapters:
        layers = len(adapted_layers(policy.model))
        notes.append(f"adapters: {policy.num_trained / 1e6:.2g}M parameters in {layers} layers are trained")
    return tuple(notes)


def describe_model(config: TrainConfig, policy: Policy, engine: SteppedEngine, trial: Trial) -> dict[str, Any]:
    """Return what run.json has of the model besides the settings, and of the user's own files and packages."""
    model = policy.model
    return {
        "model": {"class": type(model).__name__, "parameters": model.num_parameters(), "trained": policy.num_trained},
        "engine": {"class": type(engine).__name__, "notes": notes_on(policy, engine)},
        "memory": trial.needed or None,
        "plugins": plugins_of(config.method, config.data.task, config.verifier.rewards),
    }


def sampling_of(config: TrainConfig) -> Sampling:
    """Return how responses are drawn; each has a seed of its own."""
    asked = config.sampling
    limits = asked.top_p, asked.top_k, asked.min_p
    return Sampling(asked.max_response_length, 0, asked.temperature, *limits, asked.engine == "embedded")


def build_learner(config: TrainConfig, policy: Policy, method: Method, layout: Layout = ROWS) -> Learner:
    """Return AdamW with a linear warm-up over what is trained, and the model as it now is where a term needs a reference."""
    optimizer = torch.optim.AdamW(
        policy.trained().values(),
        lr=config.update.learning_rate or choose_learning_rate(policy),
        betas=(0.9, 0.95),
        weight_decay=config.update.weight_decay,
        fused=policy.device.type == "cuda" or None,  # without a second copy of what it works on
    )
    warmup = config.update.warmup_updates + 1
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / warmup))
    reference: Policy | Unadapted | None = None
    if method.needs_ref and policy.has_adapters:
        reference = Unadapted(policy)
    elif method.needs_ref:
        reference = policy.with_model(copy.deepcopy(policy.model).requires_grad_(False).eval())
    return Learner(
        policy, optimizer, schedule, config.update.max_gradient_norm,
        config.update.max_tokens_per_microbatch or MAX_MICROBATCH, reference, layout, config.update.deterministic,
    )  # fmt: skip


def choose_learning_rate(policy: Policy) -> float:
    """Return a learning rate by the number of parameters: of the playground, of small pretrained ones, of all others.

    1e-6 is the default of TRL and verl; adapters take ten times as much ("LoRA Without Regret", Thinking Machines, 2025).
    """
    size = policy.model.num_parameters()
    return 3e-4 if size < LARGE else 1e-4 if policy.has_adapters else 1e-5 if size < 1e9 else 1e-6


def find_reserved(config: TrainConfig, policy: Policy, trial: Trial) -> int:
    """Return the bytes that training takes later and that an engine cannot have: AdamW's moments.

    All that an update takes, as it was measured, where the engine does not sleep meanwhile.
    """
    moments = count_moments(policy.trained().values())
    sleeps = has_copy(config, policy) and config.sampling.sleep_level > 0
    return moments if sleeps else max(trial.taken, moments)


def choose_settings(config: TrainConfig, policy: Policy, task: Task, free: int) -> TrainConfig:
    """Return settings in which what was left at 0 follows from model, problems and free memory, but for micro-batches."""
    longest = task.longest_prompt
    return config.replace(
        learning_rate=config.update.learning_rate or choose_learning_rate(policy),
        max_prompt_length=config.data.max_prompt_length or (longest if config.data.places else 0),
        **choose_sizes(config, policy, longest, free),
    )


async def run_to_end(trainer: Trainer) -> RunSummary:
    """Evaluate, train, evaluate, save."""
    run, progress = trainer.run, trainer.progress
    is_whole = progress.batch == 0 and trainer.started is None  # what came before a resume, the signal has not seen
    after = await trainer.train()
    trainer.guard.conclude(progress.update)
    before = trainer.first or after
    is_saved = not trainer.archive.is_behind or trainer.save()
    warning = trainer.signal.conclude() if is_whole else ""
    messages = warning, trainer.grader.failures.explain()
    summary = RunSummary(run.folder, before, after, progress.update, progress.seconds, *messages)
    try:
        trainer.save_model("model")
    except (OSError, SafetensorError) as error:
        state = "is in the last checkpoint" if is_saved else "not in a checkpoint either, which failed too"
        what = f"{run.folder}/model: {error}; the trained model was not saved, and {state}"
        raise TrainingStopped(f"{what}: make room, then go on from the last checkpoint with --resume") from error
    if not is_saved:
        raise TrainingStopped(
            f"{run.checkpoints}: the last checkpoint could not be written, so that the run cannot be made longer; "
            "the trained model is in model/"
        )
    return summary
