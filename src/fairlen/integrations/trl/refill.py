"""Dynamic sampling in TRL: prompts that the method's filter drops are replaced by further ones, in rounds of generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
import torch

from fairlen.checks import Checked, Natural
from fairlen.methods.method import Scored
from fairlen.methods.stages.filters import Everything


@dataclass
class Refill(Checked):
    """Which further prompts are drawn, a stream of their own over the training data, the same on all processes."""

    trainer: Any
    max_extra_batches: Natural
    """Times that dropped prompts are replaced; then the rollout batch trains with what it has."""
    drawn: int = 0
    """Prompts so far; a checkpoint has it."""
    costs: dict[str, float] = field(default_factory=dict)
    """Of the last rollout batch, for the run folder."""

    @property
    def drops(self) -> bool:
        """Return whether the method drops prompts."""
        return self.trainer.method.filter != Everything()

    @property
    def is_on(self) -> bool:
        """Return whether prompts that the method drops are replaced."""
        return self.drops and self.max_extra_batches > 0 and not self.obstacle

    @property
    def obstacle(self) -> str:
        """Return why no further prompts can be drawn; nothing where they can."""
        data, trainer = self.trainer.train_dataset, self.trainer
        if trainer.tools or trainer.rollout_func or trainer.environment_factories:
            return "tools, environments and rollout_func generate by themselves"
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            return "the data set can only be iterated over"
        if {"image", "images"} & set(getattr(data, "column_names", None) or ()):
            return "prompts have images"
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        obstacle = self.obstacle or "max_extra_batches=0"
        return (f"prompts that the method drops are not replaced: {obstacle}",) if self.drops and not self.is_on else ()

    def count_missing(self, scored: Scored, wanted: int, num_rounds: int) -> int:
        """Return how many prompts to draw next: as many as are missing, and what processes need to share them evenly."""
        if not self.is_on or num_rounds > self.max_extra_batches:
            return 0
        missing, processes = wanted - int(scored.selected.sum()), self.trainer.accelerator.num_processes
        even = processes // gcd(processes, self.trainer.num_generations)
        return max(-(-missing // even), 0) * even

    def draw(self, number: int) -> list[dict[str, Any]]:
        """Return this process's rows of so many further prompts, each there as often as it is answered."""
        data, accelerator = self.trainer.train_dataset, self.trainer.accelerator
        rows = []
        for place in range(self.drawn, self.drawn + number):
            epoch, row = divmod(place, len(data))
            order = np.random.default_rng((self.trainer.args.seed, epoch)).permutation(len(data))
            rows += [data[int(order[row])]] * self.trainer.num_generations
        self.drawn += number
        size = len(rows) // accelerator.num_processes
        return rows[accelerator.process_index * size :][:size]

    def report(self, scored: Scored, num_rounds: int) -> None:
        """Log what dynamic sampling costs: extra rounds, and the responses and tokens of prompts that do not train."""
        if not self.drops:
            return
        dropped = scored.responses.take(~scored.selected[scored.responses.prompt])
        self.costs = {
            "prompts/extra_batches": float(num_rounds - 1),
            "dropped/filtered_responses": float(len(dropped)),
            "dropped/filtered_tokens": float(dropped.length.sum()),
        }
        for name, value in self.costs.items():
            self.trainer._metrics["train"][name].append(value)


def share_passes(trainer: Any, rows: int, size: int) -> int:
    """Return the rows of a forward pass, at most `size`, so that all processes of a sharded model make as many passes."""
    return -(-rows // most_of(trainer, -(-rows // size)))


def most_of(trainer: Any, number: int) -> int:
    if trainer.accelerator.num_processes == 1:
        return number
    return int(trainer.accelerator.gather(torch.tensor([number], device=trainer.accelerator.device)).max())
