"""Held-out evaluation in training: the same problems with the same seeds every time, so that two of them are comparable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fairlen.audit.statistics.intervals import Estimate
from fairlen.batch import Bools, Ints, mean_or_nan
from fairlen.evaluate.estimators import mean_by_problem
from fairlen.rollouts import Response
from fairlen.sampling.extend import Extend, Sampling, derive_seed, gather
from fairlen.sampling.independent import Request
from fairlen.tasks.environment import about
from fairlen.tasks.task import Problem


@dataclass(frozen=True)
class Evaluation:
    """Results of a policy on held-out problems, [problems, samples]. A response without a verdict counts as incorrect."""

    correct: Bools
    lengths: Ints
    is_truncated: Bools

    @property
    def num_problems(self) -> int:
        return self.correct.shape[0]

    @property
    def num_samples(self) -> int:
        return self.correct.shape[1]

    @cached_property
    def accuracy(self) -> Estimate:
        return mean_by_problem(self.correct.astype(np.float64))

    @property
    def length(self) -> float:
        return float(self.lengths.mean())

    @property
    def length_correct(self) -> float:
        """Mean generated tokens of correct responses; nan where there are none."""
        return mean_or_nan(self.lengths[self.correct])

    @property
    def length_incorrect(self) -> float:
        """Mean of all others, likewise."""
        return mean_or_nan(self.lengths[~self.correct])

    @property
    def truncated(self) -> float:
        """Share of responses that reached the max response length."""
        return float(self.is_truncated.mean())

    def metrics(self) -> dict[str, float]:
        found = {
            "accuracy": self.accuracy.value,
            "accuracy_low": self.accuracy.low,
            "accuracy_high": self.accuracy.high,
        }
        names = ("length", "length_correct", "length_incorrect", "truncated")
        return {f"eval/{name}": value for name, value in (found | {n: getattr(self, n) for n in names}).items()}


async def evaluate(
    extend: Extend,
    grade: Callable[[Problem, Response], Awaitable[Response]],
    problems: Sequence[Problem],
    num_samples: int,
    sampling: Sampling,
    seed: int,
) -> Evaluation:
    """Sample every problem `num_samples` times; seeds depend on the position of the problem and the sample alone."""

    async def run_one(position: int, problem: Problem, sample: int) -> Response:
        return await grade(problem, await respond(extend, problem, (seed, position, sample), sampling))

    responses = await gather(run_one(i, problem, k) for i, problem in enumerate(problems) for k in range(num_samples))
    shape = len(problems), num_samples
    return Evaluation(
        correct=np.array([r.status == "correct" for r in responses]).reshape(shape),
        lengths=np.array([r.length for r in responses], np.int64).reshape(shape),
        is_truncated=np.array([r.finish == "length" for r in responses]).reshape(shape),
    )


async def respond(extend: Extend, problem: Problem, place: tuple[int, int, int], sampling: Sampling) -> Response:
    """One response to a problem, ungraded, by a seed of its run, problem and sample."""
    own = replace(sampling, seed=derive_seed(*place))
    ended = (await about(extend, problem)(problem.token_ids, own)).check(own)
    return Request(place[1], problem.token_ids, own, policy_version=0, seed=place).respond(ended, own.seed)


def show_length(value: float) -> str:
    """A mean length for people, a dash where it is nan."""
    return f"{value:.1f}" if value == value else "-"
