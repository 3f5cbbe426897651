"""The plan of a rollout batch that any training loop has: from a few numbers a response to an advantage and a weight for each."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from fairlen.batch import Ints, build_responses, build_segments, number_keys
from fairlen.methods.conflicts import refuse_turns
from fairlen.methods.method import Method, Scored, spread

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class RowPlan:
    """What one update, or some rows of it, needs of the plan: columns of numpy arrays, or after `to` of tensors, [N]."""

    trains: Any
    """Bool: the response counts; where it is False the other columns are 0."""
    advantage: Any
    weight: Any
    """Of each trained token; the loss is the plain sum of weight * token loss over all rows of the update and all ranks."""
    term_weight: Any
    """The same for terms (KL, entropy)."""

    def __len__(self) -> int:
        return len(self.trains)

    def __getitem__(self, rows: Any) -> RowPlan:
        """Return chosen rows, by a slice, positions or a mask: those of a rank, of a micro-batch."""
        return RowPlan(*(getattr(self, column.name)[rows] for column in fields(self)))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> RowPlan:
        """Return the columns as tensors on a device, those of numbers in `dtype`: torch.float32 unless another is named."""
        import torch

        kind = dtype or torch.float32
        numbers = (
            torch.as_tensor(c, dtype=kind, device=device) for c in (self.advantage, self.weight, self.term_weight)
        )
        return RowPlan(torch.as_tensor(self.trains, device=device), *numbers)


def plan_rows(
    method: Method,
    *,
    groups: Any,
    lengths: Any,
    rewards: Any,
    max_response_length: int,
    correct: Any = None,
    truncated: Any = None,
    num_updates: int = 1,
) -> RowPlan:
    """Return an advantage and a weight for every response of a rollout batch, of all ranks together, [N] each.

    Arguments are lists, numpy arrays, or arrays and tensors that numpy reads, [N]. `groups`: responses with the same key are to
    the same prompt. `lengths`: generated tokens that train, EOS included; 0 for padding. `rewards`: what a response is worth.
    `correct`: the verifier's verdict, 0 or 1, nan where it has none; without it a response is correct where its reward is above
    0.5. `truncated`: stopped by the limit; without it those of `max_response_length` tokens. `num_updates`: the optimizer steps
    that the rollout batch is split into, each of about as many prompts.
    Warns where no response trains. Raises ValueError for columns of unequal length or another shape than [N], rewards that are
    not finite, lengths, verdicts and numbers out of range, methods that cut responses while they are generated (EqLen, Tree),
    and choices about turns.
    """
    if int(num_updates) != num_updates or num_updates < 1:
        raise ValueError(f"num_updates={num_updates}: give the optimizer steps of the rollout batch, 1 or more")
    if not method.sampling.is_whole:
        raise ValueError(
            f"{type(method.sampling).__name__.lower()} chooses what is generated, so that it cannot plan rollouts that exist: "
            "leave it out, or train with `fairlen train`, TRL or verl"
        )
    refuse_turns(method, "plan_rows")
    scored = score_rows(method, groups, lengths, rewards, correct, truncated, max_response_length)
    plan = spread(method.plan(scored), len(scored.segments))
    if len(plan["trains"]) and not plan["trains"].any():
        warnings.warn(
            f"no response trains: the filter {type(method.filter).__name__} keeps none of {len(scored.selected)} prompts; "
            "what is correct is what `correct` says, and without it rewards above 0.5",
            stacklevel=2,
        )
    return RowPlan(plan["trains"], plan["advantage"], num_updates * plan["weight"], num_updates * plan["term_weight"])


def score_rows(
    method: Method, groups: Any, lengths: Any, rewards: Any, correct: Any, truncated: Any, max_response_length: int
) -> Scored:
    """Return the rollout batch with rewards and advantages. Raises ValueError for columns that are none."""
    given = {"lengths": lengths, "rewards": rewards, "correct": correct, "truncated": truncated}
    columns = {name: to_numpy(values) for name, values in given.items() if values is not None}
    shapes = {"groups": (len(groups),)} | {name: column.shape for name, column in columns.items()}
    if len(set(shapes.values())) > 1 or len(shapes["rewards"]) != 1:
        raise ValueError(f"{shapes}: give each column one number for every response, [N]")
    length, reward = columns["lengths"], columns["rewards"]
    refuse(~np.isfinite(reward), reward, "rewards", "a finite number; what has no verdict has nan in `correct`")
    refuse(
        (length < 0) | (length > max_response_length),
        length,
        "lengths",
        f"0 to max_response_length={max_response_length}",
    )
    for name in columns.keys() & {"correct", "truncated"}:
        marks = columns[name].astype(np.float64)
        refuse(~(np.isin(marks, (0.0, 1.0)) | (np.isnan(marks) & (name == "correct"))), marks, name, "0 or 1")
    responses = build_responses(
        number_groups(groups),
        length,
        reward,
        columns.get("correct", reward),
        columns.get("truncated", length >= max_response_length),
        max_response_length,
    )
    return method.score_tables(responses, build_segments(responses, length))


def refuse(wrong: np.ndarray, values: np.ndarray, name: str, remedy: str) -> None:
    """Raise ValueError for the first value that is wrong."""
    if wrong.any():
        place = int(np.argmax(wrong))
        raise ValueError(f"{name}[{place}]={values[place]}: give {remedy}")


def number_groups(groups: Any) -> Ints:
    """Return numbers from 0 for equal keys, [N]."""
    keys = groups if isinstance(groups, list | tuple) else to_numpy(groups)
    if isinstance(keys, np.ndarray) and keys.ndim == 1 and keys.dtype.kind in "iu":
        return np.unique(keys, return_inverse=True)[1].astype(np.int64)
    hashable: Iterable[Hashable] = list(keys)
    return number_keys(hashable)


def to_numpy(values: Any) -> np.ndarray:
    """Return an array of numbers, a tensor of any device and type among them."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    return np.asarray(values)
