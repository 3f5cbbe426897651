"""A length watch beside TRL's own GRPOTrainer: one wrapped method, whose rewards and responses it reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from accelerate.utils import gather_object
from transformers import TrainerCallback

from fairlen.console import warn
from fairlen.files.folders import write_json
from fairlen.integrations.trl.recording import find_answer
from fairlen.integrations.trl.versions import WATCHED, refuse_changed
from fairlen.watch.watch import Alarm, LengthWatch

STATE, PAGE = "length_watch.json", "length_watch.html"
"""In each checkpoint, and in the output folder when training ends."""


class WatchCallback(TrainerCallback):
    """Hands a trainer's rollout batches to a watch, once a step, on the first process."""

    def __init__(self, watch: LengthWatch, trainer: Any, verdict: str) -> None:
        self.watch, self.trainer = watch, trainer
        self.place = trainer.reward_func_names.index(verdict)
        self.rows: list[tuple[str, int, bool, float]] = []
        self.is_broken = False

    def look(self, inputs: list[dict[str, Any]], completion_ids: list[list[int]], rewards: Any) -> None:
        """Gather a rollout batch of all processes: prompt with its reference, tokens, whether the limit ended it, verdict."""
        trainer = self.trainer
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        mine = [
            (f"{row.get('prompt')}|{find_answer(row)}", len(ids), not ids or ids[-1] not in ends)
            for row, ids in zip(inputs, completion_ids, strict=True)
        ]
        graded = rewards[:, self.place].tolist()
        self.rows += [(*one, grade) for one, grade in zip(gather_object(mine), graded, strict=True)]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from the state of the checkpoint that training goes on from."""
        path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
        if state.global_step and path.exists():
            self.guard(lambda: self.watch.restore(json.loads(path.read_text())))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rows, self.rows = self.rows, []
        if rows and state.is_world_process_zero:
            self.guard(lambda: self.add(rows, state.global_step, args.report_to))

    def add(self, rows: list[tuple[str, int, bool, float]], step: int, services: list[str]) -> None:
        prompts, lengths, truncated, verdicts = zip(*rows, strict=True)
        for alarm in self.watch.add(prompts, lengths, verdicts, truncated=truncated, step=step):
            warn(f"length watch: {alarm}")
            send_alert(alarm, services)
        values = {
            f"watch/evalue_{name}": self.watch.evidence.measure(side) for side, name in enumerate(("longer", "shorter"))
        }
        for name, value in values.items():
            self.trainer._metrics["train"][name].append(float(np.log10(value)))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            self.guard(lambda: write_json(folder / STATE, self.watch.state()))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero and self.watch.keep and self.watch.steps:
            self.guard(lambda: warn(f"length watch: {self.watch.page(Path(args.output_dir) / PAGE)}"))

    def guard(self, act: Any) -> None:
        """Act, and stop watching at the first error, which is told: training goes on in any case."""
        if self.is_broken:
            return
        try:
            act()
        except Exception as error:
            self.is_broken = True
            warn(f"length watch: {type(error).__name__}: {error}; it watches no more, and training goes on")


def attach(watch: LengthWatch, trainer: Any, verdict: str = "") -> WatchCallback:
    """Let a watch look at every rollout batch of a trainer; `verdict` names the reward function that tells correctness.

    Raises ValueError where several could be it, ImportError for a TRL whose method is not as it was.
    """
    refuse_changed(type(trainer), names=WATCHED)
    names = trainer.reward_func_names
    if verdict not in names and (verdict or len(names) > 1):
        raise ValueError(
            f"verdict={verdict!r}: name the reward function that tells correctness, one of {', '.join(names)}"
        )
    if not watch.method:
        watch.name_method(f"loss_type={trainer.args.loss_type}")
    callback = WatchCallback(watch, trainer, verdict or names[0])
    calculate = trainer._calculate_rewards

    @wraps(calculate)
    def look_and_calculate(inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        rewards = calculate(inputs, prompts, completions, completion_ids_list)
        if trainer.model.training:
            callback.guard(lambda: callback.look(inputs, completion_ids_list, rewards))
        return rewards

    trainer._calculate_rewards = look_and_calculate
    trainer.add_callback(callback)
    return callback


def send_alert(alarm: Alarm, services: Iterable[str]) -> None:
    """Alert in wandb and trackio, where a run of theirs is open in this process."""
    title = f"{alarm.kind} at step {alarm.step}"
    for name in ("wandb", "trackio"):
        service = sys.modules.get(name)
        if name in services and service is not None and (name == "trackio" or service.run is not None):
            service.alert(title=title, text=alarm.text, level=service.AlertLevel.WARN)
