"""Which problems an evaluation is about: data sets, local copies of them, the playground's, a task of the user's own."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.samples import Sample, file_name
from fairlen.methods.plugins import plugins_of
from fairlen.tasks.load import ProblemSet, load_playground, load_sets
from fairlen.tasks.playground import Playground
from fairlen.tasks.source import read_source
from fairlen.tasks.task import Problem, Task, is_own_task, load_own_task

PLAYGROUND = "playground"
PLAYGROUND_PROBLEMS = 128
"""Of the playground where no limit is given: it has no end."""
HUB_PLACE = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(?P<config>(/[\w.-]+)*)(@[^:?=]*)?(?P<rest>.*)")


def open_sets(config: EvalConfig, tokenizer: Any) -> tuple[ProblemSet, ...]:
    """Return the sets, each cut to its first `limit` problems. Refuses places that cannot be read or are named twice."""
    places = places_of(config)
    if not config.data and is_own_task(config.task):
        task = load_own_task(config.task, tokenizer)
        details = {"task": task.describe(), "plugins": plugins_of("", config.task)}
        return (set_of_task(file_name(task.name), task, config, details),)
    others = [place for place in places if not is_playground(place)]
    loaded = iter(load_sets(others, config, tokenizer) if others else ())
    found = [playground_set(config, place, tokenizer) if is_playground(place) else next(loaded) for place in places]
    first = [replace(one, problems=one.problems[: config.limit or None]) for one in found]
    return tuple(map(name_as_hub, first, config.data or places, places))


def name_as_hub(found: ProblemSet, text: str, place: str) -> ProblemSet:
    """Give a local copy the name that the set of the hub would have."""
    if place == text:
        return found
    name = read_source(text).name
    return replace(found, name=name, line=name + found.line.removeprefix(found.name))


def check_places(config: EvalConfig) -> None:
    """Raise ValueError for places that cannot be read as such, which takes no model and no hub to see."""
    for place in places_of(config):
        if not is_playground(place) and not is_own_task(place):
            read_source(place)


def places_of(config: EvalConfig) -> list[str]:
    """Return what --data names, local copies in the place of hub ids; the task where it names nothing. Refuses doubles."""
    given = config.data or (config.task,)
    for text in given:
        if given.count(text) > 1:
            raise ValueError(f"--data {text}: it is named twice; leave it out once")
    return [find_place(text, config.data_root) for text in given]


def find_place(text: str, root: str) -> str:
    """Return the place of a local copy under `root` where there is one, else the text."""
    parts = HUB_PLACE.fullmatch(text)
    if not root or not parts or Path(text).exists():
        return text
    copy = Path(root).resolve() / parts["id"]
    return f"{copy}{parts['config']}{parts['rest']}" if copy.is_dir() else text


def is_playground(place: str) -> bool:
    """Whether a place is the playground or one of its families."""
    return place.partition(":")[0] == PLAYGROUND and not Path(place).exists()


def playground_set(config: EvalConfig, place: str, tokenizer: Any = None) -> ProblemSet:
    """Return held-out problems of "playground" or "playground:sums". Refuses a tokenizer that does not read them."""
    _, _, family = place.partition(":")
    if tokenizer is not None:
        task = load_playground(replace(config, task=place), tokenizer)
    else:
        task = Playground((family,)) if family else Playground()
    return set_of_task(file_name(place), task, config, {})


def set_of_task(name: str, task: Task, config: EvalConfig, details: dict[str, Any]) -> ProblemSet:
    """Return the first held-out problems of a task."""
    problems = tuple(task.held_out(config.limit or PLAYGROUND_PROBLEMS))
    digest = hash_rows([problem.id, problem.text, problem.answer] for problem in problems)
    return ProblemSet(name, problems, digest, "", details, task.verify, task.close)


def hash_rows(rows: Iterable[Any]) -> str:
    """Return the sha256 of rows as lines of JSON."""
    return hashlib.sha256("\n".join(map(json.dumps, rows)).encode()).hexdigest()


async def grade(found: ProblemSet, problem: Problem, sample: Sample) -> Sample:
    """Return the sample with the verifier's verdict on its text."""
    start = time.perf_counter()
    verdict = await found.verify(problem, sample.text)
    seconds = time.perf_counter() - start
    return replace(
        sample, outcome=verdict.outcome, status=verdict.status, extracted=verdict.answer, verify_seconds=seconds
    )
