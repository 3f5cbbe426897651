"""Tasks of reasoning-gym: reasoning-gym:NAME[?FIELD=VALUE,…][=WEIGHT], several joined by +; problems are made without end.

Workers make problems and score answers (fairlen.verify.gym), so that nothing that hangs in the package hangs a run. An answer is
correct where its score is 1 and else incorrect: what a part of it says differs by task, and `countdown` pays .01 for anything.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from importlib.metadata import version
from itertools import count, islice, zip_longest
from typing import Any

from fairlen.console import suggest
from fairlen.rollouts import Status, Verdict
from fairlen.sampling.extend import derive_seed
from fairlen.tasks.data_row import Answers, DataRow
from fairlen.tasks.dataset import Mixture
from fairlen.tasks.prompt import Prompter
from fairlen.tasks.task import Problem, is_held_out
from fairlen.verify.answer_pool import AnswerReader, WorkerPool
from fairlen.verify.gym import SIZE

PREFIX = "reasoning-gym:"
PART = re.compile(r"((\w+)(?:\?([^=,]+=[^=,]+(?:,[^=,]+=[^=,]+)*))?)(?:=(\d{1,6}(?:\.\d{1,3})?))?", re.ASCII)
MAX_DRAWS = 512
MAX_KEPT = 4096
MAX_SECONDS = 60.0
CLOSE = 1e-9  # more than sums of shares miss 1 by: `spell_backward` comes to .9999999999999998


@dataclass(frozen=True)
class GymTask:
    text: str  # name and fields, as they were given
    name: str
    fields: str  # in JSON
    weight: float


def is_reasoning_gym(place: str) -> bool:
    return place.startswith(PREFIX)


def read_parts(place: str) -> tuple[GymTask, ...]:
    """Raises ValueError for unknown names, fields and values, and without the package."""
    try:
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise ValueError(f"{place}: it needs reasoning-gym: pip install '.[reasoning-gym]' in the checkout") from None
    known = {name: config for name, (_, config) in DATASETS.items() if name != "composite"}  # + is for mixtures
    parts: dict[str, GymTask] = {}
    for one in place.removeprefix(PREFIX).split("+"):
        text, name, fields, weight = found.groups() if (found := PART.fullmatch(one)) else ("", "", "", "0")
        if weight and not float(weight):
            raise ValueError(f"{place}: {one!r}: write NAME[?FIELD=VALUE,…][=WEIGHT], such as chain_sum?max_terms=4=3")
        if name not in known:
            raise ValueError(f"{place}: there is no task {name!r}: {suggest(name, known)}")
        if text in parts:
            raise ValueError(f"{place}: {text} is named twice; give it one weight")
        values = read_fields(f"{place}: {name}", known[name](), fields or "")
        parts[text] = GymTask(text, name, json.dumps(values), float(weight or 1))
    return tuple(parts.values())


def read_fields(place: str, default: Any, text: str) -> dict[str, Any]:
    """Read FIELD=VALUE,…. Raises ValueError for an unknown field or a value that it does not take."""
    known = [name for name in vars(default) if name not in ("seed", "size", "data_file")]  # the run's, and a path
    values: dict[str, Any] = {}
    try:
        for name, _, given in (item.partition("=") for item in text.split(",") if item):
            if name not in known:
                raise ValueError(f"there is no field {name!r}: {suggest(name, known)}")
            usual = getattr(default, name)
            value = given if isinstance(usual, str) else json.loads(given)
            values[name] = value = float(value) if isinstance(usual, float) and type(value) is int else value
            if usual is not None and type(value) is not type(usual):
                raise TypeError(f"{name} is of {type(usual).__name__}, such as {json.dumps(usual)}")
        getattr(replace(default, **values), "validate", bool)()  # one task has none
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"{place} does not take {text}: {error or type(error).__name__}") from error
    return values


@dataclass(frozen=True, eq=False)
class ReasoningGym:
    """Problems of tasks that take turns by their weights; an id is TASK/S-I, problem I of the data set with seed S."""

    name: str
    parts: tuple[GymTask, ...]
    pool: WorkerPool
    prompter: Prompter | None
    read: AnswerReader = field(default_factory=AnswerReader)
    seed: int = 0  # seed of the training stream; the held-out problems are the same for every seed
    longest_prompt: int = sys.maxsize  # tokens of a prompt; others are drawn in place of longer ones
    notes: tuple[str, ...] = ()

    @cached_property
    def mixture(self) -> Mixture:
        return Mixture(tuple(part.weight for part in self.parts))

    def train(self, index: int) -> Problem:
        """Problem `index` >= 0 of an endless stream, a function of `index`, the seed and the tasks; problems may recur."""
        task, place = self.mixture.at(index)
        chunk, position = divmod(place, SIZE)
        found: Problem | str = ""
        for attempt in range(MAX_DRAWS):
            found = self.draw(self.parts[task], False, (derive_seed(self.seed, chunk, attempt), position))
            if isinstance(found, Problem):
                return found
        raise ValueError(f"{self.name}: {MAX_DRAWS} problems of {self.parts[task].text} in a row do not serve: {found}")

    def held_out(self, count: int) -> Sequence[Problem]:
        """At most `count` held-out problems, all different, of the tasks in turn."""
        wanted = -(-count // len(self.parts))
        each = [islice(self.find_held_out(part), wanted) for part in self.parts]
        turns = (problem for turn in zip_longest(*each) for problem in turn if problem is not None)
        return tuple(islice({problem.text: problem for problem in turns}.values(), count))

    def find_held_out(self, part: GymTask) -> Iterator[Problem]:
        """Raises ValueError where there is none."""
        places = ((derive_seed(chunk), position) for chunk in count() for position in range(SIZE))
        seen: dict[str, Problem] = {}
        idle, last = 0, ""
        while idle < MAX_DRAWS:
            drawn = [*self.pool.threads.map(partial(self.draw, part, True), islice(places, SIZE))]
            new = {one.text: one for one in drawn if isinstance(one, Problem) and one.text not in seen}
            idle, last = 0 if new else idle + SIZE, drawn[-1]
            seen |= new
            yield from new.values()
        if not seen:
            raise ValueError(f"{self.name}: {MAX_DRAWS} problems of {part.text} in a row do not serve: {last}")

    def draw(self, part: GymTask, held_out: bool, place: tuple[int, int]) -> Problem | str:
        """A problem of one side, or why it is none. A place is 63 bits, of which 31 are a seed, and a position."""
        seed, position = place[0] >> 32, place[1]
        made = self.make(part, seed, position)
        if "error" in made:
            return f"reasoning-gym made none ({made['error']})"
        row = DataRow(f"{part.text}/{seed}-{position}", part.text, made["question"], Answers((made["answer"],)))
        if is_held_out(row.key) != held_out:
            return "one is to train on" if held_out else "one is held out"
        if self.prompter is None:
            return Problem(row.id, row.question, (), made["answer"])
        if row.key in self.prompter.shot_keys:
            return "one is shown solved by --shots"
        problem = self.prompter.pose(row)
        length = len(problem.token_ids)
        return problem if length <= self.longest_prompt else f"one has {length} tokens; raise --max-prompt-length"

    @cached_property
    def make(self) -> Callable[[GymTask, int, int], dict[str, Any]]:
        return lru_cache(MAX_KEPT)(lambda part, s, i: self.ask("make", part, MAX_SECONDS, seed=s, position=i))

    def ask(self, what: str, part: GymTask, deadline: float, **own: Any) -> dict[str, Any]:
        """A worker's reply, or an error: timeout, or what was raised."""
        question = {what: {"name": part.name, "fields": part.fields, **own}}
        reply = self.pool.answer(json.dumps(question), deadline)
        return json.loads(reply) if reply.startswith("{") else {"error": reply}

    async def verify(self, problem: Problem, text: str) -> Verdict:
        found = await self.read(text, problem.starts_inside)
        if found.answer is None:
            return found
        status = await asyncio.wrap_future(self.pool.threads.submit(self.grade, problem.id, found.answer))
        return Verdict.of(status, found.answer)

    def grade(self, name: str, answer: str) -> Status:
        text, _, place = name.rpartition("/")
        part = next(part for part in self.parts if part.text == text)
        seed, position = map(int, place.split("-"))
        found = self.ask("make", part, MAX_SECONDS, seed=seed, position=position)  # which counts for no deadline
        if "error" not in found:
            found = self.ask("score", part, self.pool.deadline, seed=seed, position=position, answer=answer)
        if "error" in found:
            return "timeout" if found["error"] == "timeout" else "error"
        return "correct" if found["score"] >= 1 - CLOSE else "incorrect"

    def describe(self) -> dict[str, Any]:
        made_by = f"reasoning-gym {version('reasoning-gym')}"
        sets = [{"name": one.text, "weight": one.weight, "fingerprint": made_by} for one in self.parts]
        prompt = self.prompter.describe() if self.prompter else {}
        return {"task": self.name, "sets": sets, "prompt": prompt, "answer_deadline": self.pool.deadline}

    def close(self) -> None:
        self.read.close()
        self.pool.close()
