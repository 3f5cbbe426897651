"""A length watch beside TRL's own GRPOTrainer: one wrapped method, whose rewards and responses it reads."""

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

STATE, PAGE = "length_watch.json", "length_watch.html"
"""In each checkpoint, and in the output folder at each checkpoint and when training ends."""
Row = tuple[int, int, bool]
"""Number of a response's prompt with its reference, tokens, and whether the limit ended it."""


class WatchCallback(TrainerCallback):
    """Hands a trainer's rollout batches to a watch, once a step, on the first process."""

    def __init__(self, watch: LengthWatch, trainer: Any, verdict: str) -> None:
        self.watch, self.trainer = watch, trainer
        self.place = trainer.reward_func_names.index(verdict)
        self.rows: list[tuple[Row, float]] = []
        self.is_broken = False

    def look(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]], rewards: Any) -> None:
        """Gather a rollout batch of all processes, whose rewards TRL has gathered."""
        mine: list[Row] = []
        self.guard(lambda: mine.extend(self.list_own(inputs, completion_ids)))
        rows = gather_object(mine)  # where any process failed too, as all have to come here
        self.guard(lambda: self.rows.extend(zip(rows, rewards[:, self.place].tolist(), strict=True)))

    def list_own(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]]) -> list[Row]:
        ends = {*self.trainer.eos_token_ids, self.trainer._tokenizer.pad_token_id}
        return [
            (number_text(f"{row.get('prompt')}|{find_answer(row)}"), len(ids), not ids or ids[-1] not in ends)
            for row, ids in zip(inputs, completion_ids, strict=True)
        ]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from the state of the checkpoint that training goes on from."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
        if path.exists():
            self.guard(lambda: self.watch.restore(read_json_object(path)))
        elif state.global_step and state.is_world_process_zero:
            warn(f"length watch: {path} is not there: it begins anew at step {state.global_step}")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows, self.rows = self.rows, []
        if rows and state.is_world_process_zero:
            self.guard(lambda: self.add(rows, state.global_step))

    def add(self, rows: list[tuple[Row, float]], step: int) -> None:
        """Hand on a step, of which TRL has the responses to one prompt one after another."""
        prompts, lengths, truncated = zip(*(row for row, _ in rows), strict=True)
        group = np.arange(len(rows)) // self.trainer.num_generations * self.trainer.num_generations
        keys, verdicts = [prompts[first] for first in group], [verdict for _, verdict in rows]
        for alarm in self.watch.add(keys, lengths, verdicts, truncated=truncated, step=step):
            warn(f"length watch: ALARM {alarm}")
            try:
                send_alert(alarm, self.trainer)
            except Exception as error:
                warn(f"length watch: no alert was sent: {type(error).__name__}: {error}")
        for side, name in enumerate(("longer", "shorter")):
            value = float(np.log10(self.watch.evidence.measure(side)))
            self.trainer._metrics["train"][f"watch/log10_evalue_{name}"].append(value)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
        if state.is_world_process_zero and path.parent.is_dir():
            self.guard(lambda: write_file(path, json.dumps(self.watch.state()).encode()))
        if state.is_world_process_zero and self.watch.kept:
            self.guard(lambda: self.watch.page(Path(args.output_dir) / PAGE))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.watch.kept:
            self.guard(lambda: warn(f"length watch: {self.watch.page(Path(args.output_dir) / PAGE)}"))

    def guard(self, act: Callable[[], object]) -> None:
        """Act, and stop watching at the first error, with a message: training goes on in any case."""
        if self.is_broken:
            return
        try:
            act()
        except Exception as error:
            self.is_broken = True
            warn(f"length watch: {type(error).__name__}: {error}; it watches no more, and training goes on")


def attach(watch: LengthWatch, trainer: Any, verdict: str = "") -> WatchCallback:
    """Let a watch look at every rollout batch of a trainer; `verdict` names the reward function that tells correctness.

    Raises ValueError where several could be it and for another trainer, ImportError for a TRL whose method is not as it was.
    """
    kind: Any = type(trainer)
    if GRPOTrainer not in kind.__mro__:
        raise ValueError(f"{kind.__name__} is no GRPOTrainer of TRL: record rollouts, and run `fairlen watch PATH`")
    refuse_changed(kind, names=WATCHED)
    names = trainer.reward_func_names
    if verdict not in names and (verdict or len(names) > 1):
        raise ValueError(f"verdict={verdict!r}: name the reward function of correctness, one of {', '.join(names)}")
    if not watch.method:
        with suppress(ValueError):  # a loss that the audit does not know has no advice
            watch.name_method(f"loss_type={trainer.args.loss_type}")
    callback, calculate = WatchCallback(watch, trainer, verdict or names[0]), trainer._calculate_rewards

    @wraps(calculate)
    def calculate_and_look(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = calculate(inputs, prompts, completions, completion_ids_list)
        if trainer.model.training:
            callback.look(inputs, completion_ids_list, rewards)
        return rewards

    trainer._calculate_rewards = calculate_and_look
    trainer.add_callback(callback)
    return callback


def send_alert(alarm: Alarm, trainer: Any) -> None:
    """Alert in wandb, trackio and TensorBoard, where the trainer has a run of theirs open."""
    title = f"{alarm.kind} at step {alarm.step}"
    for name in {"wandb", "trackio"} & set(trainer.args.report_to) & set(sys.modules):
        service = sys.modules[name]
        service.alert(title=title, text=alarm.text, level=service.AlertLevel.WARN)
    for writer in (getattr(one, "tb_writer", None) for one in trainer.callback_handler.callbacks):
        if writer is not None:
            writer.add_text(f"alerts/WARN/{title}", alarm.text, alarm.step)
