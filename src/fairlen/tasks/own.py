"""A task of the user's own: FILE.py:NAME or the name of an entry point, called with the tokenizer, tried before it is used.

class Cards:                                   # tasks/task.py says what a task has
    def __init__(self, tokenizer): ...
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from typing import Any, get_args

from fairlen.batch import Status
from fairlen.methods.plugins import find_plugin, installed, is_file_place
from fairlen.tasks.task import Problem, Task, Verdict

PARTS = ("name", "longest_prompt", "notes", "train", "held_out", "verify", "describe", "close")
TRIED = 8
"""Problems of each side that are looked at."""


def is_own_task(place: str) -> bool:
    """Whether `--task` names something of the user's own."""
    return is_file_place(place) or any(point.name == place for point in installed("task"))


def load_own_task(place: str, tokenizer: Any) -> Task:
    """The task, made and tried. Raises ValueError naming the place, the part and what is wrong with it."""
    make: Any = find_plugin("task", place).value
    if not callable(make):
        raise ValueError(f"--task {place}: it is {make!r:.60}; give a class or a function that takes the tokenizer")
    try:
        task: Any = make(tokenizer)
    except Exception as error:
        raise ValueError(
            f"--task {place}: called with the tokenizer it raised {type(error).__name__}: {error}; it takes "
            f"({', '.join(inspect.signature(make).parameters)})"
        ) from error
    try:
        try_task(task)
    except Exception as error:
        what = str(error) if isinstance(error, TaskError) else f"it raised {type(error).__name__}: {error}"
        raise ValueError(f"--task {place}: {what}") from error
    return task


class TaskError(ValueError):
    """What is wrong with a task."""


def try_task(task: Any) -> None:
    """Raises TaskError where a task is not what tasks/task.py says; its own errors pass."""
    missing = [part for part in PARTS if not hasattr(task, part)]
    if missing:
        raise TaskError(f"{type(task).__name__} has no {', '.join(missing)}; a task has {', '.join(PARTS)}")
    longest = task.longest_prompt
    if not isinstance(longest, int) or longest < 1:
        raise TaskError(f"longest_prompt={longest!r}: give the tokens of the longest prompt, a whole number above 0")
    trained = [check_problem(f"train({index})", task.train(index), longest) for index in range(TRIED)]
    if task.train(0) != trained[0]:
        raise TaskError(
            "train(0) gives another problem each time; let it depend on the index alone, so that runs resume"
        )
    held_out = task.held_out(TRIED)
    if not held_out or len(held_out) > TRIED:
        raise TaskError(f"held_out({TRIED}) gives {len(held_out)} problems; give 1 to {TRIED}")
    for place, problem in enumerate(held_out):
        check_problem(f"held_out({TRIED})[{place}]", problem, longest)
        if problem.id in {one.id for one in trained}:
            raise TaskError(f"problem {problem.id} is in train and in held_out; keep them apart")
    for text in ("", trained[0].answer):
        check_verdict(trained[0], text, asyncio.run(task.verify(trained[0], text)))
    try:
        json.dumps(task.describe())
    except TypeError as error:
        raise TaskError(f"describe() gives what JSON does not take ({error}); give plain values") from None


def check_problem(who: str, problem: Any, longest: int) -> Problem:
    """The problem. Raises TaskError where it is none, or its prompt is empty or too long."""
    if not isinstance(problem, Problem):
        raise TaskError(f"{who} gives {problem!r:.60}; give a fairlen.tasks.task.Problem")
    ids = problem.token_ids
    if not isinstance(ids, tuple) or not all(isinstance(one, int) for one in ids):
        raise TaskError(f"{who}: token_ids={ids!r:.60}; give a tuple of whole numbers")
    if not 0 < len(ids) <= longest:
        raise TaskError(f"{who}: its prompt has {len(ids)} tokens; give 1 to longest_prompt={longest}")
    return problem


def check_verdict(problem: Problem, text: str, verdict: Any) -> None:
    """Raises TaskError for what is no verdict."""
    who = f"verify({problem.id}, {text!r:.40}) gives"
    if not isinstance(verdict, Verdict):
        raise TaskError(f"{who} {verdict!r:.60}; give a fairlen.tasks.task.Verdict")
    if verdict.status not in get_args(Status):
        raise TaskError(f"{who} status={verdict.status!r}; give one of {', '.join(get_args(Status))}")
    if not math.isfinite(verdict.outcome):
        raise TaskError(f"{who} outcome={verdict.outcome}; give a finite number, 0 for wrong and 1 for right")
