"""Problems of an evaluation, and grading of responses to them; responses are rescored without model and tokenizer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from fairlen.console import Pace, showing
from fairlen.evaluate.config import EvalConfig, find_suite
from fairlen.evaluate.samples import Sample, file_name
from fairlen.plugins import is_file_place, plugins_of
from fairlen.sampling.extend import gather
from fairlen.tasks.environment import Interactive, choose_extend
from fairlen.tasks.load import ProblemSet, load_sets, open_task
from fairlen.tasks.playground import is_playground, make_playground
from fairlen.tasks.source import DataError, locate, read_source
from fairlen.tasks.task import Problem

MADE_PROBLEMS = 128
"""Of a task that makes its problems, without a limit."""
MAX_AT_ONCE = 256
"""Texts that wait for their verdict at a time."""


def open_sets(config: EvalConfig, tokenizer: Any = None) -> tuple[ProblemSet, ...]:
    """Sets cut to `limit` problems, without prompts for tokenizer None. Raises ValueError for bad places."""
    places = config.data.places
    if not places:
        return (made_set(config.data.task, config, tokenizer),)
    others = [place for place in places if not is_playground(place)]
    loaded = iter(load_sets(others, config, tokenizer) if others else ())
    found = [made_set(place, config, tokenizer) if is_playground(place) else next(loaded) for place in places]
    return tuple(replace(one, problems=one.problems[: config.run.problems or None]) for one in found)


def check_places(config: EvalConfig) -> None:
    """Raise ValueError for malformed and doubled places and missing sets of a suite, before a model is loaded."""
    if config.run.suite:
        check_suite(config.run.suite)
    for place in config.data.places or (config.data.task,):
        if config.data.places.count(place) > 1:
            raise ValueError(f"--data {place}: it is named twice; leave it out once")
        if place in config.data.places and not is_playground(place):
            read_source(place)
        elif not is_file_place(place):
            make_playground(place)


def check_suite(name: str) -> None:
    """Raise ValueError where a set of the suite is missing, saying which are there: no part of a suite has its name."""
    found, missing = [], {}
    for one in find_suite(name).benchmarks:
        try:
            locate(read_source(one.place))
            found.append(one.key)
        except DataError as error:
            missing[one.key] = str(error.__cause__ or error).strip().partition("\n")[0]
    if missing:
        raise ValueError(
            f"--suite {name}: {', '.join(missing)} missing ({next(iter(missing.values()))}); "
            f"{', '.join(found) or 'none'} there. `make contests` writes aime24, aime25, hmmt and humaneval; give another as "
            f"data/contests/{next(iter(missing))}.jsonl, in $FAIRLEN_DATA, or evaluate others by --data beside --suite"
        )


def made_set(place: str, config: EvalConfig, tokenizer: Any) -> ProblemSet:
    """The first held-out problems of a task that makes them, such as "playground:sums"."""
    task = open_task(place, config, tokenizer)
    if isinstance(task, Interactive) and config.run.budgets:
        raise ValueError(f"--budgets of {place}: it is solved in turns, which its environment grades when played")
    problems = tuple(task.held_out(config.run.problems or MADE_PROBLEMS))
    rows = (json.dumps([problem.id, problem.text, problem.answer]) for problem in problems)
    digest = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    name, details = place, task.describe()
    if is_file_place(place):
        name, details = task.name, {"task": details, "plugins": plugins_of("", place)}
    play = partial(choose_extend, task)
    return ProblemSet(file_name(name), problems, digest, "", details, task.verify, task.close, play=play)


def find_sets(config: EvalConfig, names: Sequence[str] = ()) -> dict[str, ProblemSet]:
    """Return the set of each file of samples, by default all sets of the settings. Raises ValueError without one."""
    for place in config.data.places:
        if is_file_place(place):
            raise ValueError(
                f"--from-samples of --task {place}: such problems are code, which is not run to rescore samples; "
                "evaluate again"
            )
    sets = {file_name(found.name): found for found in open_sets(config)}
    if lost := [name for name in names if name not in sets]:
        raise ValueError(f"--from-samples: {lost[0]} is none of the sets {', '.join(sets)}: name its place with --data")
    return {name: sets[name] for name in names or sets}


async def rescore(found: ProblemSet, samples: Sequence[Sample], console: Console) -> tuple[Sample, ...]:
    """Grade samples by the verifier as it is now. Raises ValueError for a problem that the set lacks."""
    by_id = {problem.id: problem for problem in found.problems}
    free = asyncio.Semaphore(MAX_AT_ONCE)
    done: list[Sample] = []

    async def one(sample: Sample) -> Sample:
        if (problem := by_id.get(sample.problem_id)) is None:
            missing = f"problem {sample.problem_id!r} is not in {found.name}"
            raise ValueError(f"--from-samples: {missing}: name the set that was sampled with --data")
        async with free:
            done.append(await grade(found, replace(problem, starts_inside=sample.starts_inside), sample))
        return done[-1]

    with showing(console, Pace(found.name, len(samples), lambda: len(done), "samples")):
        return tuple(await gather(map(one, samples)))


async def grade(found: ProblemSet, problem: Problem, sample: Sample) -> Sample:
    start = time.perf_counter()
    verdict = await found.verify(problem, sample.text)
    seconds = time.perf_counter() - start
    closed = replace(problem, starts_inside=False)
    forced = [(await found.verify(closed, text)).status if text else verdict.status for text in sample.asked]
    return replace(
        sample, outcome=verdict.outcome, status=verdict.status, extracted=verdict.answer, verify_seconds=seconds,
        forced=tuple(forced),
    )  # fmt: skip
