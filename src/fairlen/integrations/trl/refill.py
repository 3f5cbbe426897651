"""Dynamic sampling in TRL: prompts that the method's filter drops are replaced by further ones, in rounds of generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairlen.batch import Bools, Ints
from fairlen.checks import check_not_negative
from fairlen.methods.method import Scored
from fairlen.methods.stages.filters import Everything

FROM_LEFT = ("prompt_ids", "prompt_mask")
"""Columns of TRL's batch that are padded on the left, all others on the right."""
TOKENS = ("prompt_ids", "completion_ids")
WHERE = ("row", "length")
"""Columns of a plan that say where a row's tokens belong, also of one that fills up."""


@dataclass(frozen=True)
class Round:
    """Result of one call of TRL's generation and scoring."""

    output: dict[str, Any]
    """Of this process."""
    inputs: Sequence[dict[str, Any]]
    turns: Sequence[tuple[int, ...]]
    """Tokens of each turn of the responses of all processes, and the others are of these too."""
    truncated: Bools
    rewards: Tensor


@dataclass
class Refill:
    """Which further prompts are drawn, a stream of their own over the training data, the same on all processes."""

    trainer: Any
    max_extra_batches: int
    """Times that dropped prompts are replaced; then the rollout batch trains with what it has."""
    drawn: int = 0
    """Prompts so far; a checkpoint has it."""
    costs: dict[str, float] = field(default_factory=dict)
    """Of the last rollout batch, for the run folder."""

    def __post_init__(self) -> None:
        check_not_negative(self, "max_extra_batches")

    @property
    def obstacle(self) -> str:
        """Return why prompts that the method drops are not replaced; nothing where they are, or where it drops none."""
        if self.trainer.method.filter == Everything() or not self.max_extra_batches:
            return ""
        data = self.trainer.train_dataset
        if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            return "the data set can only be iterated over"
        if {"image", "images"} & set(getattr(data, "column_names", None) or ()):
            return "prompts have images"
        return ""

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"prompts that the method drops are not replaced: {self.obstacle}",) if self.obstacle else ()

    def count_missing(self, scored: Scored, wanted: int, num_rounds: int) -> int:
        """Return how many prompts to draw next: as many as are missing, and what processes need to share them evenly."""
        if self.trainer.method.filter == Everything() or self.obstacle or num_rounds > self.max_extra_batches:
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

    def arrange(
        self, rounds: Sequence[Round], columns: dict[str, np.ndarray]
    ) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return TRL's batch of this process and the plan's columns of its rows; after further rounds, of those that train."""
        trainer = self.trainer
        own = own_rows(rounds, trainer.accelerator.process_index)
        if len(rounds) == 1:
            return rounds[0].output, {name: column[own] for name, column in columns.items()}
        trains = np.asarray(columns["trains"].reshape(sum(len(one.turns) for one in rounds), -1).any(1))
        most = most_of(trainer, int(trains[own].sum()))
        kept, is_trained = choose_rows(trains, own, most, trainer.args.steps_per_generation)
        is_kept = {name: is_trained | (name in WHERE) for name in columns}
        chosen = {name: (column[own[kept]].T * is_kept[name]).T for name, column in columns.items()}
        return join_outputs(rounds, kept, trainer._tokenizer.pad_token_id), chosen

    def report(self, scored: Scored, num_rounds: int) -> None:
        """Log what dynamic sampling costs: extra rounds, and the responses and tokens of prompts that do not train."""
        if self.trainer.method.filter == Everything():
            return
        dropped = scored.responses.take(~scored.selected[scored.responses.prompt])
        self.costs = {
            "prompts/extra_batches": float(num_rounds - 1),
            "dropped/filtered_responses": float(len(dropped)),
            "dropped/filtered_tokens": float(dropped.length.sum()),
        }
        for name, value in self.costs.items():
            self.trainer._metrics["train"][name].append(value)


def own_rows(rounds: Sequence[Round], process: int) -> Ints:
    """Return which rows of all rounds and processes, round after round, are this process's."""
    first, found = 0, []
    for one in rounds:
        size = len(one.output["completion_ids"])
        found.append(np.arange(size) + first + process * size)
        first += len(one.turns)
    return np.concatenate(found)


def choose_rows(trains: Bools, own: Ints, most: int, parts: int) -> tuple[Ints, Bools]:
    """Return which of this process's rows to keep, as positions in `own`, and which of these train.

    Those that train, then others that fill up to `most`, the largest number of any process, in a multiple of `parts`.
    """
    kept = np.flatnonzero(trains[own])
    size = -(-max(most, 1) // parts) * parts
    spare = np.resize(
        np.flatnonzero(~trains[own]) if not trains[own].all() else np.zeros(1, np.int64), size - len(kept)
    )
    return np.concatenate([kept, spare]), np.arange(size) < len(kept)


def join_outputs(rounds: Sequence[Round], chosen: Ints, pad_token_id: int) -> dict[str, Any]:
    """Return TRL's batch of chosen rows of all rounds; what is one number is that of the first."""
    first = rounds[0].output
    found: dict[str, Any] = {}
    for name, value in first.items():
        if not isinstance(value, Tensor) or not value.ndim:
            found[name] = value
            continue
        columns = [one.output[name] for one in rounds]
        width = max(column.shape[1] for column in columns) if value.ndim > 1 else 0
        filled = [widen(column, width, name in FROM_LEFT, pad_token_id if name in TOKENS else 0) for column in columns]
        found[name] = torch.cat(filled)[torch.from_numpy(chosen).to(value.device)]
    return found


def widen(column: Tensor, width: int, from_left: bool, value: float) -> Tensor:
    if column.ndim < 2:
        return column
    missing = width - column.shape[1]
    return pad(column, (missing, 0) if from_left else (0, missing), value=value)


def most_of(trainer: Any, number: int) -> int:
    if trainer.accelerator.num_processes == 1:
        return number
    return int(trainer.accelerator.gather(torch.tensor([number], device=trainer.accelerator.device)).max())
