"""One rollout batch: prompts, responses, verdicts as soon as each response ends, until enough prompts are selected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from math import isfinite

from fairlen.methods.conflicts import refuse_missing
from fairlen.methods.method import Method, Scored
from fairlen.methods.stages.reward import NUM_READ
from fairlen.rollouts import Response, Rollouts
from fairlen.sampling.extend import Extend, Sampling, gather
from fairlen.sampling.independent import Request
from fairlen.tasks.environment import about
from fairlen.tasks.grader import VERIFIER, load_reward
from fairlen.tasks.task import Problem, Task
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.faults import find_non_finite

GradeProblem = Callable[[Problem, Response], Awaitable[Response]]
"""Fills in outcome and status of a response to a problem."""


@dataclass(frozen=True)
class Collected:
    """One rollout batch with its problems and the method that trains on it."""

    rollouts: Rollouts
    problems: tuple[Problem, ...]  # by position in the rollout batch, rejected ones included
    method: Method  # as of the collection
    num_extra_batches: int = 0

    @cached_property
    def scored(self) -> Scored:
        """Of a rollout batch of finite numbers."""
        silent = dict.fromkeys(self.method.reads.keys() - {NUM_READ})  # a reward may apply to none of a rollout batch
        columns = [silent | problem.columns | {"prompt": problem.text} for problem in self.problems]
        return self.method.score(self.rollouts, columns)

    def explain_outcome(self) -> str:
        """Return which part of an outcome is not finite, and of which problem; nothing where only their sum is."""
        parts = ((one, *part) for one in self.rollouts.responses for part in one.outcomes.items() if one.active)
        found = ((self.problems[one.prompt].id, name, value) for one, name, value in parts if not isfinite(value))
        return next((f"{name} gave {value} for problem {problem}" for problem, name, value in found), "")

    @property
    def num_selected(self) -> int:
        return int(self.scored.selected.sum())

    def join(self, further: Collected) -> Collected:
        rollouts, number = self.rollouts.join(further.rollouts), self.num_extra_batches + 1
        return Collected(rollouts, self.problems + further.problems, self.method, number)


@dataclass(frozen=True)
class Collector:
    extend: Extend
    grade: GradeProblem
    problem_at: Callable[[int], Problem]  # the training stream by position
    sampling: Sampling
    num_prompts: int  # selected prompts wanted in a rollout batch
    max_extra_batches: int  # times that rejected prompts are replaced; after that the batch trains with fewer
    seed: int

    async def __call__(self, method: Method, batch: int, first_problem: int, policy_version: int) -> Collected:
        """Collect rollout batch number `batch`, with problems from position `first_problem` on."""
        max_response_length = self.sampling.max_new_tokens
        found = Collected(Rollouts((), (), max_response_length), (), method)
        wanted, refill = self.num_prompts, 0

        async def ask(prompt: int, problem: Problem) -> tuple[Response, ...]:
            seed = self.seed, batch, prompt, refill
            request = Request(prompt, problem.token_ids, self.sampling, policy_version, seed)
            return await method.sampling(about(self.extend, problem), partial(self.grade, problem), request)

        while wanted > 0 and refill <= self.max_extra_batches:
            position = len(found.problems)
            problems = tuple(self.problem_at(first_problem + position + i) for i in range(wanted))
            ended = await gather(ask(prompt, problem) for prompt, problem in enumerate(problems, position))
            responses = tuple(chain.from_iterable(ended))
            rollouts = Rollouts(responses, method.sampling.cut(responses), max_response_length)
            part = Collected(rollouts, problems, method)
            found = found.join(part) if refill else part
            if find_non_finite(part.rollouts):
                break  # the guard's business; no filter can select from it
            wanted, refill = self.num_prompts - found.num_selected, refill + 1
        return found


def refuse_unread(method: Method, task: Task, config: TrainConfig) -> None:
    """Raise ValueError for a column that a stage reads and that neither rewards nor the first rollout batch's problems give."""
    problems = map(task.train, range(config.sampling.prompts_per_batch if method.reads else 0))
    rewards = [load_reward(text).name for text in config.verifier.rewards]
    columns = chain.from_iterable(problem.columns for problem in problems)
    refuse_missing(method, [NUM_READ, *columns, "prompt", VERIFIER, *rewards])
