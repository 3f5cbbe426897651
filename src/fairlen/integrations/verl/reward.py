"""fairlen's verifiers as verl's `custom_reward_function`: file fairlen/integrations/verl/reward.py, function `compute_score`.

For parquet files that `fairlen verl` has written (data.py): `extra_info.fairlen_problem` has the problem. Returns the score,
`acc`, whether the answer is right, and `verdict`, whether the verifier came to one (it did not where it timed out or failed).
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

from fairlen.integrations.verl.data import PLAYGROUND, read_problem
from fairlen.tasks.grader import Verifier
from fairlen.tasks.playground import Playground
from fairlen.tasks.row import Row
from fairlen.tasks.task import Problem, Verdict

WITH_VERDICT = ("correct", "incorrect", "no_answer")
LIMIT = 120.0
"""Seconds for one response, whatever the verifier's own deadlines are."""


@cache
def verifier_of(kind: str) -> Verifier:
    """One verifier of each kind in a process; its workers stay."""
    return Verifier({kind})


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """The verdict on a finished response. Raises ValueError for a row that `fairlen verl` did not write."""
    stored = (extra_info or {}).get("fairlen_problem")
    if not stored:
        raise ValueError(
            f"data_source={data_source!r}: the row has no extra_info.fairlen_problem, which this reward function reads; "
            "convert the data with `fairlen verl --data`, or set reward.custom_reward_function.path to a function of your own"
        )
    try:
        verdict = await asyncio.wait_for(grade(json.loads(stored), ground_truth, solution_str), LIMIT)
    except TimeoutError:
        verdict = Verdict("timeout", 0.0)
    return {
        "score": verdict.outcome,
        "acc": float(verdict.status == "correct"),
        "verdict": float(verdict.status in WITH_VERDICT),
    }


async def grade(stored: dict[str, Any], answer: str, text: str) -> Verdict:
    """The verdict by the verifier of the problem's kind."""
    if stored["kind"] == PLAYGROUND:
        return await Playground().verify(Problem("", "", (0,), answer), text)
    row: Row = read_problem(stored)
    return await verifier_of(row.kind)(row, text, bool(stored.get("starts_inside")))
