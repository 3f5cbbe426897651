"""A length watch inside TRL's own GRPOTrainer. It wraps one method of the trainer to read responses and rewards."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from fairlen.console import warn
from fairlen.files.folders import write_file
from fairlen.files.foreign import read_json_object
from fairlen.integrations.trl.rows import find_answer
from fairlen.integrations.trl.versions import WATCHED, refuse_changed
from fairlen.schema import number_text
from fairlen.watch.thresholds import Alarm
from fairlen.watch.watch import LengthWatch

STATE = "length_watch.json"
"""File of the watch's state, in each checkpoint."""
PAGE = "length_watch.html"
"""File of the watch's page, in the output folder."""
Row = tuple[int, int, bool]
"""Number of a response's prompt with its reference, its tokens, and whether the limit ended it."""


class WatchCallback(TrainerCallback):
    """Hands a trainer's rollout batches to a watch, once per step, on the first process."""

    def __init__(self, watch: LengthWatch, trainer: Any, verdict: str) -> None:
        self.watch = watch
        self.trainer = trainer
        self.verdict_column = trainer.reward_func_names.index(verdict)
        self.rows: list[tuple[Row, float]] = []
        """Responses generated since the last step, with their verdicts."""
        self.is_broken = False
        """Whether the watch failed; it then does nothing until the next run."""
        self.num_notes = 0
        """Number of the watch's notes that were printed."""
        self.checkpoint: str | None = None
        """Folder that training resumes from, as the trainer was told; None if it starts from nothing."""

    def read_batch(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]], rewards: Any) -> None:
        """Gather a rollout batch of all processes; TRL has gathered its rewards already."""
        own_rows: list[Row] = []
        self.guard(lambda: own_rows.extend(self.list_own_rows(inputs, completion_ids)))
        all_rows = gather_object(own_rows)  # also if this process failed: all processes have to take part
        verdicts = rewards[:, self.verdict_column].tolist()
        self.guard(lambda: self.rows.extend(zip(all_rows, verdicts, strict=True)))

    def list_own_rows(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]]) -> list[Row]:
        """Return the rows of this process's responses."""
        ends = {*self.trainer.eos_token_ids, self.trainer._tokenizer.pad_token_id}
        rows: list[Row] = []
        for prompt_row, token_ids in zip(inputs, completion_ids, strict=True):
            prompt = number_text(f"{prompt_row.get('prompt')}|{find_answer(prompt_row)}")
            is_truncated = not token_ids or token_ids[-1] not in ends
            rows.append((prompt, len(token_ids), is_truncated))
        return rows

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Continue from the state in the checkpoint that training resumes from; otherwise start a new watch."""
        self.rows = []
        self.is_broken = False
        checkpoint = self.checkpoint or Path(args.output_dir) / f"checkpoint-{state.global_step}"
        self.checkpoint = None  # the trainer loads nothing at the start of a run that does not resume
        path = Path(checkpoint) / STATE
        if state.global_step and path.exists():
            self.guard(lambda: self.watch.restore(read_json_object(path)))
        else:
            self.start_new_watch(path, state)
        self.num_notes = len(self.watch.notes)

    def start_new_watch(self, path: Path, state: Any) -> None:
        """Forget what an earlier run of this trainer left, and say so."""
        num_steps = len(self.watch.steps)
        self.watch.reset()
        if not state.is_world_process_zero:
            return
        if state.global_step:
            warn(f"length watch: {path} does not exist: a new watch starts after step {state.global_step}")
        elif num_steps:
            warn(
                f"length watch: a new run starts, and with it a new watch; {num_steps:,} steps of the run before are dropped"
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows, self.rows = self.rows, []
        if rows and state.is_world_process_zero:
            self.guard(lambda: self.add_step(rows, state.global_step))

    def add_step(self, rows: list[tuple[Row, float]], step: int) -> None:
        """Add a step to the watch. TRL keeps the responses to one prompt next to each other."""
        prompts, lengths, truncated = zip(*(row for row, _ in rows), strict=True)
        verdicts = [verdict for _, verdict in rows]
        group_size = self.trainer.num_generations
        first_of_group = np.arange(len(rows)) // group_size * group_size
        keys = [prompts[first] for first in first_of_group]
        for alarm in self.watch.add(keys, lengths, verdicts, truncated=truncated, step=step):
            warn(f"length watch: ALARM {alarm}")
            try:
                send_alert(alarm, self.trainer)
            except Exception as error:
                warn(f"length watch: no alert was sent: {type(error).__name__}: {error}")
        for note in self.watch.notes[self.num_notes :]:
            warn(f"length watch: note: {note}")
        self.num_notes = len(self.watch.notes)
        for side, name in enumerate(("longer", "shorter")):
            value = float(np.log10(self.watch.evidence.find_evalue(side)))
            self.trainer._metrics["train"][f"watch/log10_evalue_{name}"].append(value)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
        if path.parent.is_dir():
            self.guard(lambda: write_file(path, json.dumps(self.watch.state()).encode()))
        if self.watch.kept:
            self.guard(lambda: self.watch.page(Path(args.output_dir) / PAGE))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.watch.kept:
            self.guard(lambda: warn(f"length watch: {self.watch.page(Path(args.output_dir) / PAGE)}"))

    def guard(self, act: Callable[[], object]) -> None:
        """Run a function. At its first error the watch stops with a message; training continues in any case."""
        if self.is_broken:
            return
        try:
            act()
        except Exception as error:
            self.is_broken = True
            warn(f"length watch: {type(error).__name__}: {error}; the watch stops, and training continues")


def attach(watch: LengthWatch, trainer: Any, verdict: str = "") -> WatchCallback:
    """Let a watch look at every rollout batch of a trainer.

    Args:
        watch: The watch.
        trainer: TRL's GRPOTrainer, or a subclass.
        verdict: Name of the reward function that decides what is correct; needed if the trainer has several.

    Raises:
        ValueError: The trainer is another one, or it has several reward functions and `verdict` names none of them.
        ImportError: The installed TRL has changed the method that is wrapped.
    """
    kind: Any = type(trainer)
    if GRPOTrainer not in kind.__mro__:
        raise ValueError(f"{kind.__name__} is not a GRPOTrainer of TRL: record rollouts, and run `fairlen watch PATH`")
    refuse_changed(kind, names=WATCHED)
    names = trainer.reward_func_names
    if verdict not in names and (verdict or len(names) > 1):
        raise ValueError(f"verdict={verdict!r}: name the reward function of correctness, one of {', '.join(names)}")
    if not watch.method:
        with suppress(ValueError):  # a loss that the audit does not know has no advice
            watch.name_method(f"loss_type={trainer.args.loss_type}")
    callback = WatchCallback(watch, trainer, verdict or names[0])
    calculate = trainer._calculate_rewards

    @wraps(calculate)
    def calculate_and_read(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = calculate(inputs, prompts, completions, completion_ids_list)
        if trainer.model.training:
            callback.read_batch(inputs, completion_ids_list, rewards)
        return rewards

    load = trainer._load_optimizer_and_scheduler

    @wraps(load)
    def load_and_note(checkpoint: str | None) -> None:
        callback.checkpoint = checkpoint
        load(checkpoint)

    trainer._calculate_rewards = calculate_and_read
    trainer._load_optimizer_and_scheduler = load_and_note
    trainer.add_callback(callback)
    return callback


def send_alert(alarm: Alarm, trainer: Any) -> None:
    """Send an alert to each of wandb, trackio and TensorBoard that the trainer reports to."""
    title = f"{alarm.kind} at step {alarm.step}"
    for name in {"wandb", "trackio"} & set(trainer.args.report_to) & set(sys.modules):
        service = sys.modules[name]
        service.alert(title=title, text=alarm.text, level=service.AlertLevel.WARN)
    for callback in trainer.callback_handler.callbacks:
        writer = getattr(callback, "tb_writer", None)
        if writer is not None:
            writer.add_text(f"alerts/WARN/{title}", alarm.text, alarm.step)
