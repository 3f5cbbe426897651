"""Held-out evaluation: the same problems with the same seeds every time, so that two evaluations are comparable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fairlen.batch import Bools, Ints, Response, mean_or_nan
from fairlen.evaluate.estimators import Interval, mean_by_problem
from fairlen.sampling.extend import Extend, Sampling, gather
from fairlen.seeds import derive_seed
from fairlen.tasks.task import Problem


@dataclass(frozen=True)
class Evaluation:
    """What a policy does on held-out problems, [problems, samples]. A response without a verdict counts as not right."""

    right: Bools
    lengths: Ints
    """Generated tokens."""
    is_truncated: Bools
    """Stopped by the budget."""

    @property
    def num_problems(self) -> int:
        return self.right.shape[0]

    @property
    def num_samples(self) -> int:
        return self.right.shape[1]

    @cached_property
    def accuracy(self) -> Interval:
        return mean_by_problem(self.right.astype(np.float64))

    @property
    def length(self) -> float:
        """Mean generated tokens."""
        return float(self.lengths.mean())

    @property
    def length_correct(self) -> float:
        """Of right answers; nan where there are none."""
        return mean_or_nan(self.lengths[self.right])

    @property
    def length_incorrect(self) -> float:
        """Of all others; nan where there are none."""
        return mean_or_nan(self.lengths[~self.right])

    @property
    def truncated(self) -> float:
        """Share of responses that the budget stopped."""
        return float(self.is_truncated.mean())

    def metrics(self) -> dict[str, float]:
        """By the names of docs/metrics.md."""
        return {
            "eval/accuracy": self.accuracy.value,
            "eval/accuracy_low": self.accuracy.low,
            "eval/accuracy_high": self.accuracy.high,
            "eval/length": self.length,
            "eval/length_correct": self.length_correct,
            "eval/length_incorrect": self.length_incorrect,
            "eval/truncated": self.truncated,
        }


async def evaluate(
    extend: Extend,
    grade: Callable[[Problem, Response], Awaitable[Response]],
    problems: Sequence[Problem],
    num_samples: int,
    sampling: Sampling,
    seed: int,
) -> Evaluation:
    """Samples every problem `num_samples` times; seeds depend on the position of the problem and the sample alone."""

    async def run_one(position: int, problem: Problem, sample: int) -> Response:
        own = replace(sampling, seed=derive_seed(seed, position, sample))
        return await grade(problem, await respond(extend, problem, position, own))

    tracks = (run_one(i, problem, k) for i, problem in enumerate(problems) for k in range(num_samples))
    return summarize(await gather(tracks), len(problems), num_samples)


async def respond(extend: Extend, problem: Problem, position: int, sampling: Sampling) -> Response:
    """One response to a problem, not graded yet."""
    ended = (await extend(problem.token_ids, sampling)).check(sampling)
    return Response(
        prompt=position,
        token_ids=problem.token_ids + ended.token_ids,
        num_prompt=len(problem.token_ids),
        logprobs=ended.logprobs,
        finish=ended.finish,
        seed=sampling.seed,
        temperature=sampling.temperature,
    )


def show_length(value: float) -> str:
    """A mean length for people, a dash where there is none: of right answers where no answer is right."""
    return f"{value:.1f}" if value == value else "-"


def summarize(responses: Sequence[Response], num_problems: int, num_samples: int) -> Evaluation:
    """The evaluation of responses in order of problems and samples."""
    shape = num_problems, num_samples
    return Evaluation(
        right=np.array([r.status == "correct" for r in responses]).reshape(shape),
        lengths=np.array([r.length for r in responses], np.int64).reshape(shape),
        is_truncated=np.array([r.finish == "length" for r in responses]).reshape(shape),
    )
