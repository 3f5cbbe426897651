"""One rollout batch: prompts to responses to verdicts, verified as soon as they end, until enough prompts are kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from fairlen.methods.method import Method
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.extend import Extend, Sampling, gather
from fairlen.sampling.independent import Request
from fairlen.tasks.environment import about
from fairlen.tasks.task import Problem
from fairlen.train.run.faults import find_non_finite

GradeProblem = Callable[[Problem, Response], Awaitable[Response]]
"""Fills in outcome and status of a finished response to a problem."""


@dataclass(frozen=True)
class Collected:
    """One rollout batch and the problems it asked."""

    rollouts: Rollouts
    problems: tuple[Problem, ...]
    """By position in the rollout batch, rejected ones included."""
    num_selected: int
    num_extra_batches: int


@dataclass(frozen=True)
class Collector:
    """What stays the same from one rollout batch to the next."""

    extend: Extend
    grade: GradeProblem
    problem_at: Callable[[int], Problem]
    """The training stream by position."""
    sampling: Sampling
    num_prompts: int
    """Kept prompts wanted in a rollout batch."""
    max_extra_batches: int
    """Times that rejected prompts are replaced by new ones; then the batch trains with what it has."""
    seed: int

    async def __call__(self, method: Method, batch: int, first_problem: int, policy_version: int) -> Collected:
        """Collects rollout batch number `batch`, taking problems from position `first_problem` on."""
        problems: list[Problem] = []
        responses: list[Response] = []
        rollouts = Rollouts((), (), self.sampling.max_new_tokens)
        num_selected = refill = 0
        while num_selected < self.num_prompts and refill <= self.max_extra_batches:
            wanted = self.num_prompts - num_selected
            asked = [self.problem_at(first_problem + len(problems) + i) for i in range(wanted)]
            requests = [
                Request(
                    prompt=len(problems) + i,
                    token_ids=problem.token_ids,
                    sampling=self.sampling,
                    policy_version=policy_version,
                    seed=(self.seed, batch, len(problems) + i, refill),
                )
                for i, problem in enumerate(asked)
            ]
            problems += asked
            ended = await gather(self.ask(method, problems[r.prompt], r) for r in requests)
            responses += [response for track in ended for response in track]
            rollouts = replace(rollouts, responses=tuple(responses), segments=method.sampling.cut(tuple(responses)))
            refill += 1
            if find_non_finite(rollouts):
                break  # the guard's business; no filter can select from it
            num_selected = int(method.score(rollouts).selected.sum())
        return Collected(rollouts, tuple(problems), num_selected, refill - 1)

    async def ask(self, method: Method, problem: Problem, request: Request) -> tuple[Response, ...]:
        """All tracks of one prompt, graded."""
        return await method.sampling(
            about(self.extend, problem), lambda response: self.grade(problem, response), request
        )
