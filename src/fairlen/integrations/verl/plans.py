"""Plans and sums on verl's driver, without anything of verl: what its estimator and our trainer share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fairlen.batch import CORRECT_THRESHOLD, Floats, Ints, Responses, build_responses, build_segments
from fairlen.console import warn
from fairlen.integrations.padded import RowPlan, plan_rows
from fairlen.integrations.verl.choice import ACTOR
from fairlen.methods.learning_signal import Counts, LearningSignal, Remedies
from fairlen.methods.method import Method
from fairlen.methods.micro import Sums
from fairlen.sampling.eqlen import EqLen

REMEDIES = Remedies(
    length="raise data.max_response_length",
    verdict="set +algorithm.fairlen.correct_threshold between them",
    updates=f"give {ACTOR}.ppo_epochs=2 or a smaller {ACTOR}.ppo_mini_batch_size",
)
SIGNAL = LearningSignal(REMEDIES)
"""Of the job: a driver has one."""
PLANNED: ContextVar[RowPlan | None] = ContextVar("PLANNED", default=None)
"""The plan that the trainer has already made of the rows that verl asks about."""


def plan_scores(
    method: Method, outcome: Floats, length: Ints, index: list[Any], settings: Mapping[str, Any]
) -> RowPlan:
    """The plan of rows that are whole responses, [N]; rows of length 0 are padding. Raises ValueError for streams."""
    if isinstance(method.sampling, EqLen):
        raise ValueError(
            "EqLen in verl's own trainer: its rows are pieces of streams; set trainer.v1.trainer_mode=fairlen_sync, or start the "
            "job with `fairlen verl --method …`"
        )
    max_response_length = int(settings.get("max_response_length") or 0)
    if max_response_length < 1 or len(index) != len(length):
        raise ValueError(
            f"algorithm.fairlen.max_response_length={max_response_length} for {len(length)} rows of {len(index)} prompts: set "
            "+algorithm.fairlen.budget=${data.max_response_length}; verl hands the prompts over by itself"
        )
    threshold = float(settings.get("correct_threshold", CORRECT_THRESHOLD))
    responses = build_responses(
        index,
        length,
        outcome,
        verdict=outcome,
        truncated=length >= max_response_length,
        max_response_length=max_response_length,
        correct_threshold=threshold,
    )
    segments = build_segments(responses, length)
    num_updates = count_updates(len(length), settings)
    plan = plan_rows(method, method.score_tables(responses, segments), num_updates=num_updates)
    num_ratios = math.inf if settings.get("bypass_mode") else num_updates * int(settings.get("epochs") or 1)
    look_for_signal(responses.active_rows(), plan, method, num_ratios)
    return plan


def is_bypassed(algorithm: Mapping[str, Any]) -> bool:
    """Whether verl takes the servers' log-probs for those of the old policy, so that the first update has ratios too."""
    return bool((algorithm.get("rollout_correction") or {}).get("bypass_mode"))


def look_for_signal(responses: Responses, plan: RowPlan, method: Method, num_updates: float) -> None:
    """Warns where rollout batches in a row have nothing to learn from."""
    if warning := SIGNAL.look(Counts.of(responses, plan.folded, method, num_updates)):
        warn(warning)


def count_updates(num_rows: int, settings: Mapping[str, Any]) -> int:
    """Updates that verl makes of so many rows."""
    size = int(settings.get("prompts_per_update") or 0) * int(settings.get("rows_per_prompt") or 0)
    return max(1, round(num_rows / size)) if size else 1


@contextmanager
def planned(plan: RowPlan) -> Iterator[None]:
    """Within it, the estimator returns this plan."""
    token = PLANNED.set(plan)
    try:
        yield
    finally:
        PLANNED.reset(token)


def read_sums(metrics: dict[str, Any]) -> Sums:
    """What a method's state learns from, from the means over micro-batches; their common factor cancels in `Method.update`."""
    return {
        f"surrogate.{name}": float(metrics.get(f"actor/fairlen/moved/{name}", 0.0))
        for name in ("sequences", "tokens", "log_ratio", "squared_log_ratio")
    }
