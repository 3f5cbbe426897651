"""What measures read, whoever wrote the rollouts: answers, the pieces of them that train, and what updates did to those.

Index sets as in batch.py, over all rollout batches of a log: **R** responses, **B** segments, **P** prompts, and **U** sequences
of updates (a segment once for each update that it was part of). Prompts and groups have their own numbers in every rollout batch.
Not here: files, formats, text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fairlen.batch import Bools, Columns, Floats, Ints, Responses, Segments

Unit = Literal["tokens", "words", "characters"]


@dataclass(frozen=True)
class Trained(Columns):
    """Sequences of updates, [U]."""

    segment: Ints
    """Row among the log's segments."""
    update: Ints
    """Number of the update in the run."""
    weight: Floats
    """Per trained token."""
    log_ratio: Floats
    """S, nats: sum of current minus old log-probs. Exactly 0 where the update was on-policy."""
    clipped: Floats
    """Share of tokens whose gradient the bound made zero."""
    inside: Floats
    """Share of tokens within the two-sided bound."""


@dataclass(frozen=True)
class Malformed:
    """A row that could not be read."""

    file: str
    line: int
    """From 1; of a table its row."""
    reason: str


@dataclass(frozen=True)
class Log:
    """All rollouts of some files."""

    format: str
    """Name of the format they were read from."""
    unit: Unit
    """Of every length; words or characters where the files hold no tokens."""
    responses: Responses
    """`prompt` is unique over rollout batches; `truncated`, `stream`, `round` are false or 0 where not `known`."""
    batch: Ints
    """Rollout batch of each response, [R]."""
    segments: Segments
    """Whole responses unless pieces were recorded; `group` is unique over rollout batches."""
    advantage: Floats | None = None
    """As recorded, [B]."""
    value: Floats | None = None
    """What each segment was worth, as recorded, [B]."""
    trained: Trained | None = None
    known: frozenset[str] = frozenset()
    """Columns that the files had: of "correct", "truncated", "advantage", "reward", "trained", "streams"."""
    columns: dict[str, Floats] = field(default_factory=dict)
    """Further numbers a response, [R]: "reward", "entropy", "mismatch", and whatever else the files had."""
    malformed: tuple[Malformed, ...] = ()
    num_files: int = 1

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def right(self) -> Bools:
        """Whether each response counts as right, [R]: the verifier's word, or an outcome in the upper half of their range.

        The range is that of all but the lowest and highest hundredth, so that one large reward does not make all others wrong.
        """
        if "correct" in self.known:
            return self.responses.correct
        outcome = self.responses.outcome
        low, high = np.quantile(outcome, [0.01, 0.99]) if len(outcome) else (0.0, 0.0)
        if low == high and len(outcome):
            low, high = outcome.min(), outcome.max()
        return outcome > (low + high) / 2 if high > low else outcome > 0
