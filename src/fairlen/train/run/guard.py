"""Non-finite numbers: found before they do harm, dumped, counted, and fatal after three in a row.

Weights that an update has damaged cannot be undone but by a checkpoint: they are fatal at once, before anything is saved.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from fairlen.batch import Response, Rollouts
from fairlen.console import warn
from fairlen.files.folders import replacing
from fairlen.hangs import TrainingStopped
from fairlen.policy.model import are_finite

MAX_IN_A_ROW = 3
FATAL = ("weights",)

LOOK_AT = {
    "outcome": "a reward function returned it: look at the response's text in the dump",
    "rollout_logprobs": "the engine sampled from broken logits: the weights may be damaged, or the learning rate too high",
    "advantage": "a reward or advantage stage of the method divided by zero or overflowed: look at the outcomes in the dump",
    "logprobs": "the trainer's forward pass: the weights may be damaged, or the learning rate too high",
    "old_logprobs": "the trainer's forward pass before the first update: the weights may be damaged",
    "ref_logprobs": "the reference model's forward pass: its weights are those that the run started from",
    "loss": "the surrogate or a term overflowed: look at the log ratios; fewer updates per rollout batch keep them small",
    "gradient": "the backward pass overflowed: lower the learning rate, or train in float32",
    "weights": "the optimizer's step overflowed, or its moments were damaged: lower the learning rate, and go on from the last "
    "checkpoint with --resume",
}


class NonFiniteError(TrainingStopped):
    """Training was given up after several non-finite updates in a row, or after one that damaged the weights."""


@dataclass
class Guard:
    """Skips what is not finite and remembers how often in a row."""

    folder: Path
    """Where dumps go."""
    num_skipped: int = 0
    num_in_a_row: int = 0

    def allows(self, quantity: str, is_finite: bool, update: int, responses: Iterable[Response]) -> bool:
        """True if finite. Else dumps the responses, counts, and raises NonFiniteError at the third time in a row, or at once
        where the weights are damaged.
        """
        if is_finite:
            return True
        self.num_skipped += 1
        self.num_in_a_row += 1
        path = self.dump(quantity, update, responses)
        if self.num_in_a_row >= MAX_IN_A_ROW or quantity in FATAL:
            times = f"{self.num_in_a_row} updates in a row" if quantity not in FATAL else "one update"
            raise NonFiniteError(
                f"{quantity} was not finite in {times}, the last after update {update}: "
                f"{LOOK_AT[quantity]}. The responses are in {path}; nothing non-finite was saved"
            )
        return False

    def passed(self) -> None:
        """An update was made: the row of failures is broken."""
        self.num_in_a_row = 0

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within, a model that gives no numbers ends the run: there is nothing to skip."""
        try:
            yield
        except FloatingPointError as error:
            raise NonFiniteError(
                f"held-out evaluation: {error}; the weights may be damaged, or the learning rate too high: go on from the last "
                "checkpoint with --resume, if there is one. Nothing non-finite was saved"
            ) from error

    def dump(self, quantity: str, update: int, responses: Iterable[Response]) -> Path:
        """Writes the responses as JSON lines; numbers that are not finite as text. A full disk is said, and does not stop it."""
        path = self.folder / f"update-{update:06d}-{quantity}-{self.num_skipped}.jsonl"
        try:
            self.write(path, responses)
        except OSError as error:
            warn(f"{path}: {error}; the responses of a skipped update could not be written")
        return path

    def write(self, path: Path, responses: Iterable[Response]) -> None:
        """One line a response."""
        with replacing(path) as staging, staging.open("w") as file:
            for response in responses:
                row = asdict(response)
                row["outcome"] = response.outcome if math.isfinite(response.outcome) else str(response.outcome)
                row["logprobs"] = [x if math.isfinite(x) else str(x) for x in response.logprobs]
                file.write(json.dumps(row) + "\n")


def require_finite(parts: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Raises NonFiniteError where a tensor that is about to be saved has other numbers; the first two names lead to it."""
    for part, tensors in parts.items():
        if are_finite(tensor for tensor in tensors.values() if tensor.is_floating_point()):
            continue
        name = next(
            name for name, tensor in tensors.items() if tensor.is_floating_point() and not are_finite((tensor,))
        )
        raise NonFiniteError(
            f"{part} {name} is not finite and was not saved: lower the learning rate, and go on from the last checkpoint "
            "with --resume"
        )


def find_non_finite(rollouts: Rollouts) -> str | None:
    """Which quantity of a rollout batch is not finite, or None."""
    if any(r.active and not math.isfinite(r.outcome) for r in rollouts.responses):
        return "outcome"
    if not all(np.isfinite(r.logprobs).all() for r in rollouts.responses):
        return "rollout_logprobs"
    return None
