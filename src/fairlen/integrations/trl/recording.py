"""Records of a run of TRL for `fairlen report`, `audit` and `compare`: its output folder is a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor
from transformers import TrainerCallback

from fairlen.batch import Ints, Plan
from fairlen.console import warn
from fairlen.files.folders import write_file
from fairlen.files.foreign import read_file_text
from fairlen.integrations.run_folder import NOWHERE, ROWS, HomeRun, build_evaluation
from fairlen.integrations.trl.rows import Graded
from fairlen.methods.compose import Composition
from fairlen.methods.method import Scored, spread
from fairlen.report.page import audit_run
from fairlen.report.run import read_run
from fairlen.rollouts import Response, Rollouts
from fairlen.train.run.display import describe_training

NOTHING = torch.zeros(0, dtype=torch.int64), torch.zeros(3, 0)


class Recorder(TrainerCallback):
    """Gathers what is recorded, on all processes, and hands it to the run folder on the first one."""

    def __init__(self, trainer: Any, is_on: bool, composition: Composition, overrides: Sequence[str]) -> None:
        self.trainer, self.is_on, self.num_batches, self.run = trainer, is_on, 0, None
        self.measured: list[tuple[Tensor, Tensor]] = []
        """Rows and `measure_sequences` of the micro-batches since the last update, on this process."""
        self.held_out: list[Response] = []
        """Of the batches of an evaluation, of all processes."""
        if is_on:
            trainer.add_callback(self)
        self.composition = composition
        if is_on and trainer.is_world_process_zero():
            self.run = HomeRun(Path(trainer.args.output_dir), self.decode)
            limits = {"max_response_length": trainer.max_completion_length, "overrides": list(overrides)}
            self.run.describe(self.composition, trainer.args.to_dict() | limits, "trl")

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.trainer._tokenizer.decode(token_ids, skip_special_tokens=True)

    def number_rows(self, size: int) -> Ints:
        return self.num_batches * ROWS + np.arange(size)

    def add(self, rollouts: Rollouts, scored: Scored, plan: Plan, rows: Sequence[Graded]) -> None:
        """Record a rollout batch."""
        if self.run is not None:
            weight = spread(plan, len(scored.segments))["weight"]
            self.run.add_batch(
                self.num_batches, rollouts, scored, weight, self.trainer.method, [row.answer for row in rows]
            )

    def add_update(self, metrics: dict[str, Any], scale: float) -> None:
        """Record an update: what was measured over all processes, its metrics, what weights were multiplied by."""
        rows, values = zip(*(self.measured or [NOTHING]), strict=True)
        self.measured.clear()
        if not self.is_on:
            return
        parts = gather_object([(torch.cat(rows).cpu().numpy(), torch.cat(values, 1).cpu().numpy())])
        if self.run is not None:
            rows, values = zip(*parts, strict=True)
            if self.trainer.optimizer:
                metrics = metrics | {"learning_rate": float(self.trainer.optimizer.param_groups[0]["lr"])}
            update = self.trainer.state.global_step + 1
            metrics = metrics | self.trainer.refill.costs
            self.run.add_update(update, np.concatenate(rows), np.concatenate(values, 1), metrics, scale)

    def extend_card(self) -> None:
        """Add to TRL's model card what our own has; the audit reads rollouts once the run has ended, since it takes its time."""
        state, path, found = self.trainer.state, Path(self.trainer.args.output_dir) / "README.md", None
        try:
            if self.run is not None and state.global_step >= state.max_steps > 0:
                self.run.write()
                found = audit_run(read_run(self.run.folder))
        except Exception as error:
            warn(f"{path}: {type(error).__name__}: {error}; the card is written without its audit")
        write_file(path, f"{read_file_text(path)}\n{describe_training(self.composition, found)}")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the run folder, where a checkpoint has not: newer transformers load none then."""
        if self.run is not None and not self.run.is_open:
            self.run.start(NOWHERE)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        of_batch = args.steps_per_generation * self.trainer.num_iterations
        if self.run is not None and state.global_step * args.gradient_accumulation_steps % of_batch == 0:
            self.run.write()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        dataset, sets = kwargs["eval_dataloader"].dataset, self.trainer.eval_dataset
        first = next(iter(sets.values())) if isinstance(sets, dict) else sets
        is_wrapped = not hasattr(dataset, "__len__") or (args.remove_unused_columns and first is sets)
        is_first = dataset is first or is_wrapped  # other sets are no point of its curve
        if self.run is not None and self.held_out and is_first:
            per_prompt = self.trainer.num_generations_eval
            # processes may share a few rows more
            rows = self.held_out[: len(dataset) * per_prompt] if hasattr(dataset, "__len__") else self.held_out
            groups = [rows[first : first + per_prompt] for first in range(0, len(rows), per_prompt)]
            self.run.add_evaluation(state.global_step, build_evaluation(groups))
        self.held_out.clear()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
        self.held_out.clear()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None:
            self.run.write()
            self.run.journal.close()
            self.run.is_open = False
