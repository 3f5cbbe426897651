"""Reward functions of the user's own: FILE.py:FUNCTION or the name of an entry point, with a weight; tried at start-up."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from typing import cast

from fairlen.hangs import DeadlineError, SideThread
from fairlen.methods.plugins import find_plugin, is_file_place
from fairlen.tasks.grader import VERIFIER, RewardFunction, WeightedReward, call_reward
from fairlen.tasks.task import Problem


def load_reward(text: str) -> WeightedReward:
    """The reward function that "path/to/file.py:function" or "path/to/file.py:function=0.5" names.

    Runs the file: give only files that you trust. Raises ValueError naming what is missing.
    """
    place, _, weight = text.partition("=")
    if not all(place.rpartition(":")[::2]) if ":" in place else not place:
        raise ValueError(f"--rewards {text}: write FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT")
    try:
        number = float(weight) if weight else 1.0
    except ValueError:
        raise ValueError(f"--rewards {text}: the weight {weight!r} is not a number; write {place}=0.5") from None
    if not math.isfinite(number):
        raise ValueError(f"--rewards {text}: the weight {weight!r} is not finite; write {place}=0.5")
    if ":" in place and not is_file_place(place):
        raise ValueError(f"--rewards {text}: {place.rpartition(':')[0]} is not a Python file; write FILE.py:FUNCTION")
    plugin = find_plugin("rewards", place)
    if not callable(plugin.value):
        raise ValueError(
            f"--rewards {text}: {plugin.name} is {plugin.value!r:.60}, which cannot be called; name a function"
        )
    return WeightedReward(plugin.name, cast(RewardFunction, plugin.value), number)


def load_rewards(texts: Sequence[str], problem: Problem, deadline: float = 0.0) -> list[WeightedReward]:
    """The reward functions of a run, each called twice for `problem`: for an empty answer and for the right one.

    Raises ValueError where one is named twice, raises itself, or returns something else than one finite number, or None.
    """
    rewards = [load_reward(text) for text in texts]
    names = [reward.name for reward in rewards]
    for text, name in zip(texts, names, strict=True):
        if name == VERIFIER:
            raise ValueError(
                f"--rewards {text}: records call the verdict's part of an outcome {name}; give the function another name"
            )
        if names.count(name) > 1:
            raise ValueError(
                f"--rewards {text}: {name} is named twice; leave one out, or give the functions other names"
            )
    for text, reward in zip(texts, rewards, strict=True):
        for answer in ("", problem.answer):
            try_reward(text, reward, problem, answer, deadline)
    return rewards


def try_reward(text: str, reward: WeightedReward, problem: Problem, answer: str, deadline: float = 0.0) -> None:
    """Raises ValueError, naming the flag and the problem, where a reward function does not grade an answer."""
    try:
        value = asyncio.run(call_reward(reward, problem, answer, (0,), SideThread("trial"), deadline))
    except (ValueError, DeadlineError) as error:
        wanted = ", ".join(inspect.signature(reward.function).parameters)
        raise ValueError(
            f"--rewards {text}, tried on problem {problem.id} and the answer {answer!r:.40}: {error}; it is called as "
            f"f(prompts, completions, completion_ids=, answer={columns_text(problem)}, …) and takes ({wanted})"
        ) from error
    if value is not None and not math.isfinite(value):
        raise ValueError(
            f"--rewards {text}, tried on problem {problem.id} and the answer {answer!r:.40}: it returned {value}; "
            "return a finite number, or None where it does not apply"
        )


def columns_text(problem: Problem) -> str:
    """The columns of a problem as arguments."""
    return "".join(f", {name}=" for name in problem.columns)
