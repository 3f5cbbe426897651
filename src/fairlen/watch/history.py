"""Lengths and outcomes of all responses that a watch has seen, for its page."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fairlen.audit.log import Log
from fairlen.batch import Responses, build_responses, build_segments, number_keys

KINDS = {"length": np.int64, "outcome": np.float64, "correct": np.bool_, "truncated": np.bool_}


@dataclass
class History:
    """Columns of the responses so far, [N] each, as lists: JSON keeps them."""

    columns: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in ("step", "prompt", *KINDS)})
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of each prompt, by its key as text."""
    knows_limit: bool = True

    def add(self, step: int, prompts: Sequence[Hashable], table: Responses, knows_limit: bool) -> None:
        """Add a step; `prompts` are the keys of its rows."""
        self.columns["step"] += [step] * len(table)
        self.columns["prompt"] += [self.numbers.setdefault(str(key), len(self.numbers)) for key in prompts]
        for name in KINDS:
            self.columns[name] += getattr(table, name).tolist()
        self.knows_limit &= knows_limit

    def log(self) -> Log:
        """Return the log of the responses so far, as the audit reads it."""
        found = {name: np.array(self.columns[name], kind) for name, kind in KINDS.items()}
        step, problem = (np.array(self.columns[name], np.int64) for name in ("step", "prompt"))
        prompt, verdict = number_keys(np.column_stack([step, problem])), found.pop("correct") + 0.0 * found["outcome"]
        limit = int(found["length"].max(initial=1))
        table = build_responses(prompt, verdict=verdict, max_response_length=limit, **found)
        known = frozenset({"correct", "reward"} | ({"truncated"} if self.knows_limit else set()))
        return Log("watch", "tokens", table, step, build_segments(table, table.length), known=known, problem=problem)
