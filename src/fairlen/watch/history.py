"""Lengths and outcomes of all responses that a watch has seen, for its page."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairlen.audit.log import Log
from fairlen.batch import Responses, build_segments


@dataclass
class History:
    """Columns of the responses so far, a part for each step."""

    numbers: dict[Hashable, int] = field(default_factory=dict)
    """Number of each prompt, by its key."""
    parts: list[np.ndarray] = field(default_factory=list)
    """Step, number of the prompt, tokens, outcome, correct, truncated; [N] records each."""
    knows_limit: bool = True

    def add(self, step: int, prompts: Sequence[Hashable], table: Responses, knows_limit: bool) -> None:
        """Add a step; `prompts` are the keys of its rows."""
        part = np.zeros(len(table), ROW)
        part["step"], part["prompt"] = step, [self.numbers.setdefault(key, len(self.numbers)) for key in prompts]
        for name in ("length", "outcome", "correct", "truncated"):
            part[name] = getattr(table, name)
        self.parts.append(part)
        self.knows_limit &= knows_limit

    def log(self) -> Log:
        """Return the log of the responses so far, as the audit reads it."""
        rows = np.concatenate([np.zeros(0, ROW), *self.parts])
        prompt = np.unique(rows["step"].astype(np.int64) << 32 | rows["prompt"], return_inverse=True)[1]
        limit = int(rows["length"].max(initial=1))
        table = Responses(
            prompt.astype(np.int64), rows["length"], rows["outcome"], rows["correct"], rows["truncated"],
            ~np.isnan(rows["outcome"]), np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64), limit,
        )  # fmt: skip
        known = {"correct", "reward"} | ({"truncated"} if self.knows_limit else set())
        return Log(
            "watch", "tokens", table, rows["step"].astype(np.int64), build_segments(table, table.length),
            known=frozenset(known), problem=rows["prompt"].astype(np.int64),
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs."""
        return {
            "prompts": list(self.numbers),
            "rows": np.concatenate([np.zeros(0, ROW), *self.parts]),
            "limit": self.knows_limit,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.numbers = {key: number for number, key in enumerate(state["prompts"])}
        self.parts, self.knows_limit = [state["rows"]], bool(state["limit"])


ROW = np.dtype(
    [("step", "i4"), ("prompt", "i4"), ("length", "i4"), ("outcome", "f8"), ("correct", "?"), ("truncated", "?")]
)
