"""From a finished response to its outcome: the task's verdict and the user's own reward functions, weighted.

    outcome = verifier_weight * verdict + sum of weight * reward function

A reward function is called as TRL calls one, with lists of one: `f(prompts, completions, completion_ids=…, answer=…, **columns)`
returns one number, or None where it does not apply. It may be async.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

from fairlen.batch import Response
from fairlen.tasks.task import Problem, Task

VERDICTS = ("correct", "incorrect", "no_answer")
RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]


@dataclass(frozen=True)
class WeightedReward:
    """A reward function of the user's own."""

    name: str
    function: RewardFunction
    weight: float = 1.0


@dataclass(frozen=True)
class Finding:
    """How one outcome came about."""

    parts: dict[str, float]
    """What the verifier and each reward function said."""
    seconds: float | None
    """Of the verifier."""
    answer: str | None
    """What the verifier took as the answer."""


@dataclass
class Judge:
    """Judges responses; keeps how every outcome came about until it is recorded."""

    task: Task
    decode: Callable[[Sequence[int]], str]
    """Generated token ids to text, special tokens left out."""
    rewards: Sequence[WeightedReward] = ()
    verifier_weight: float = 1.0
    without_verdict: Literal["inactive", "wrong"] = "inactive"
    """What a response is worth where the verifier came to no verdict: nothing counts it, or it is a wrong answer."""
    findings: dict[int, Finding] = field(default_factory=dict)
    """By seed of the response."""
    seconds: float = 0.0
    """Time spent in the verifier so far."""

    async def __call__(self, problem: Problem, response: Response) -> Response:
        token_ids = response.token_ids[response.num_prompt :]
        text = self.decode(token_ids)
        start = time.perf_counter()
        verdict = await self.task.verify(problem, text)
        seconds = time.perf_counter() - start
        outcome = self.verifier_weight * verdict.outcome
        parts = {"verifier": verdict.outcome}
        for reward in self.rewards:
            value = await call_reward(reward, problem, text, token_ids)
            if value is not None:
                outcome += reward.weight * value
                parts[reward.name] = value
        self.seconds += seconds
        self.findings[response.seed] = Finding(parts, seconds, verdict.answer)
        counts = verdict.status in VERDICTS or self.without_verdict == "wrong"
        return replace(response, outcome=outcome, status=verdict.status, active=counts)


async def call_reward(reward: WeightedReward, problem: Problem, text: str, token_ids: Sequence[int]) -> float | None:
    """One number, or None where the function does not apply. Raises ValueError where it returned something else."""
    columns = {name: [value] for name, value in problem.columns.items()}
    try:
        values: Any = reward.function(
            [problem.text], [text], completion_ids=[list(token_ids)], answer=[problem.answer], **columns
        )
        if inspect.isawaitable(values):
            values = await values
    except Exception as error:
        raise ValueError(f"reward {reward.name} raised {type(error).__name__}: {error}") from error
    found = list(values) if isinstance(values, Iterable) else []
    if len(found) != 1 or not isinstance(found[0], Real | None):
        raise ValueError(
            f"reward {reward.name} returned {values!r} for one response: return a list with one number, or None, for each"
        )
    return None if found[0] is None else float(found[0])


def load_reward(text: str) -> WeightedReward:
    """The reward function that "path/to/file.py:function" or "path/to/file.py:function=0.5" names.

    Runs the file: give only files that you trust. Raises ValueError naming what is missing.
    """
    place, _, weight = text.partition("=")
    path, _, name = place.rpartition(":")
    if not path or not name:
        raise ValueError(f"--rewards {text}: write FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT")
    if not Path(path).is_file():
        raise ValueError(f"--rewards {text}: there is no file {path}")
    try:
        number = float(weight) if weight else 1.0
    except ValueError:
        raise ValueError(f"--rewards {text}: the weight {weight!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"--rewards {text}: the weight {weight!r} is not finite")
    spec = importlib.util.spec_from_file_location(f"fairlen_reward_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--rewards {text}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"--rewards {text}: {path} does not load: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise ValueError(f"--rewards {text}: {path} has no function {name}; it has {', '.join(functions) or 'none'}")
    return WeightedReward(name, cast(RewardFunction, function), number)
