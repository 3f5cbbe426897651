"""Tasks: prompts as token ids, and a verdict on a finished text. `Synthetic` is the base of those whose problems are drawn.

One of the user's own, FILE.py:NAME, is called with the tokenizer, and tried before it is used.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Protocol, get_args

from fairlen.channels import after_thinking
from fairlen.console import visible
from fairlen.hangs import run_async
from fairlen.plugins import find_plugin
from fairlen.rollouts import Status, Verdict
from fairlen.verify.answer import FORMS, match_exactly

PARTS = ("name", "longest_prompt", "notes", "train", "held_out", "verify", "describe", "close")
HELD_OUT_SHARE = 8  # one problem in this many is held out
MAX_DRAWS = 20_000  # draws without a new problem after which a pool counts as empty
TRIED = 8  # problems of each side that are looked at

FEW = 0.02
"""Share of correct responses below which it is explained."""
KEPT, SHOWN = 64, 60
"""Responses that other forms of answer are tried on; characters of one that are shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to solve."""

    id: str
    """Unique within the task; the same problem keeps its id in every run."""
    text: str
    """Question and instruction, before any chat template."""
    token_ids: tuple[int, ...]
    """The prompt as the model reads it, BOS and template included; at least one token."""
    answer: str
    """The reference answer, as it is shown and handed to reward functions; empty where a problem has tests instead."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Other columns of the source (family, difficulty), handed to reward functions."""
    starts_inside: bool = False
    """The prompt ends within the thinking of the model, so that its answer counts after </think> alone."""


@dataclass(frozen=True)
class Failures:
    """Why hardly any response is correct, by what happened to those that were graded; it adds up."""

    counts: Counter[str] = field(default_factory=Counter)
    """By status; of truncated ones that are not correct; of all."""
    texts: tuple[tuple[str, str], ...] = ()
    """The first that are not correct, each with its reference answer."""
    takes_form: bool = False
    """Whether --answer, --shots and --instruction apply to the problems."""

    @classmethod
    def of(
        cls, status: str, is_truncated: bool, text: str, reference: str, takes_form: bool, starts_inside: bool = False
    ) -> Failures:
        """Count one response; `starts_inside`: its prompt ended with `<think>`."""
        if status == "correct":
            return cls(Counter(("all", status)))
        whole = f"<think>{text}" if starts_inside else text
        return cls(Counter(("all", status, *["truncated"] * is_truncated)), ((whole, reference),), takes_form)

    def __add__(self, other: Failures) -> Failures:
        texts = self.texts if len(self.texts) >= KEPT else self.texts + other.texts
        return Failures(self.counts + other.counts, texts, self.takes_form or other.takes_form)

    def explain(self, length: str = "raise --max-response-length") -> str:
        """A sentence where hardly any response is correct, else nothing; `length` is the advice against truncation."""
        found = self.counts
        if found["correct"] >= FEW * found["all"]:
            return ""
        end = visible(" ".join(self.texts[0][0].split())[-SHOWN:])
        return (
            f"{found['correct']} of {found['all']} responses are correct: {found['no_answer']} have no answer in the form that "
            f"is read, {found['incorrect']} are incorrect; {found['truncated']} are truncated. One ends {end!r}. What may help: "
            f"{self.advise(length)}"
        )

    def advise(self, length: str) -> str:
        """What may help, the surest first."""
        right = Counter(form for text, reference in self.texts for form in find_forms(text, reference))
        found = []
        if self.takes_form and right:
            (form, count), *_ = right.most_common(1)
            found.append(f"give --answer {form}, which finds the right answer in {count} of {len(self.texts)}")
        if self.counts["truncated"] > self.counts["all"] / 2:
            found.append(length)
        if self.takes_form and self.counts["no_answer"] > self.counts["all"] / 2:
            found.append("show the form with --shots FILE:3, or ask for it with --instruction")
        return "; ".join(found) or "give easier problems or a stronger model"


NO_FAILURES = Failures()


def find_forms(text: str, reference: str) -> list[str]:
    """The forms by which a text gives its reference answer."""
    rest = after_thinking(text) or ""
    answers = {name: form.read(rest, "") for name, form in FORMS.items() if name != "auto"}
    return [name for name, answer in answers.items() if answer and reference and match_exactly(answer, reference)]


class Task(Protocol):
    """Problems to train on, problems held out, and a verifier."""

    @property
    def name(self) -> str:
        """As in `--task`."""
        ...

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt, of training and held out."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Lines to log of the data at the start of a run."""
        ...

    def train(self, index: int) -> Problem:
        """Return the problem at position `index` >= 0 of an endless training stream that depends on nothing else."""
        ...

    def held_out(self, count: int) -> Sequence[Problem]:
        """Return the first `count` held-out problems; none of them ever occurs in `train`."""
        ...

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """Grade a finished response. Never raises for bad text: that is a verdict."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return what the run folder records of the data, by plain values; a run is resumed with the same alone."""
        ...

    def close(self) -> None:
        """Stop the processes of the verifier."""
        ...


@dataclass(frozen=True)
class Synthetic(ABC):
    """A task whose answers end with `#` and a number; every problem follows from an index, the seed and `kind`."""

    name: str = field(init=False)
    notes: tuple[str, ...] = field(default=(), init=False)
    seed: int = field(default=0, kw_only=True)
    """Seed of the training stream; the held-out problems do not depend on it."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Everything but the seed that decides which problems there are."""

    @abstractmethod
    def draw(self, rng: Random, turn: int) -> Problem:
        """Draw a problem, the `turn`-th of its stream."""

    @property
    @abstractmethod
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt."""

    def describe(self) -> dict[str, Any]:
        """Fields that are 0 are left out."""
        values = ((one.name, getattr(self, one.name)) for one in fields(self) if one.init)
        return {"task": self.name} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in values if value
        }

    def train(self, index: int) -> Problem:
        """Problem `index` >= 0 of an endless stream, a function of `index` and the fields alone; problems may recur."""
        stream = f"{self.seed}/" if self.seed else ""
        rng = Random(f"train/{self.kind}/{stream}{index}")
        while is_held_out((problem := self.draw(rng, index)).text):
            pass
        return problem

    def held_out(self, count: int) -> Sequence[Problem]:
        """The first `count` held-out problems, all different. Raises ValueError where there are fewer."""
        rng = Random(f"held out/{self.kind}")
        found: dict[str, Problem] = {}
        while len(found) < count:
            draws = (self.draw(rng, len(found)) for _ in range(MAX_DRAWS))
            new = next((one for one in draws if is_held_out(one.text) and one.text not in found), None)
            if new is None:
                raise ValueError(f"held_out({count}): only {len(found)} problems found; ask for fewer or longer ones")
            found[new.text] = new
        return tuple(found.values())

    async def verify(self, problem: Problem, text: str) -> Verdict:
        """No answer where the text does not end with `#` and a number."""
        _, mark, answer = text.strip().rpartition("#")
        if not mark or not (answer.isascii() and answer.isdecimal()):
            return Verdict.of("no_answer")
        return Verdict.of("correct" if answer == problem.answer else "incorrect", answer)

    def close(self) -> None:  # noqa: B027
        """Do nothing: there is nothing to end."""


def is_held_out(text: str) -> bool:
    """A property of the text alone, so that no stream of any seed can ever train on it."""
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_SHARE == 0


def load_own_task(place: str, tokenizer: Any) -> Task:
    """Make and try a task. Raises ValueError naming the place, the part and its fault."""
    make: Any = find_plugin("task", place).value
    if not callable(make):
        raise ValueError(f"--task {place}: it is {make!r:.60}; give a class or a function that takes the tokenizer")
    try:
        task: Any = make(tokenizer)
        fault = next(find_faults(task), "")
    except Exception as error:
        what = f"called with the tokenizer and tried, it raised {type(error).__name__}: {error}"
        raise ValueError(f"--task {place}: {what}") from error
    if fault:
        raise ValueError(f"--task {place}: {fault}")
    return task


def find_faults(task: Any) -> Iterator[str]:
    """Yield violations of `Task`, where the first may lead to others; errors of the task itself pass."""
    if missing := [part for part in PARTS if not hasattr(task, part)]:
        yield f"{type(task).__name__} has no {', '.join(missing)}; a task has {', '.join(PARTS)}"
    longest = task.longest_prompt
    if not isinstance(longest, int) or longest < 1:
        yield f"longest_prompt={longest!r}: give the tokens of the longest prompt, a whole number above 0"
    max_turns = getattr(task, "max_turns", 1)
    if not isinstance(max_turns, int) or max_turns < 1:
        yield f"max_turns={max_turns!r}: give the turns after which a trajectory is truncated, a whole number above 0"
    trained = [task.train(index) for index in range(TRIED)]
    for index, problem in enumerate(trained):
        yield from find_problem_faults(f"train({index})", problem, longest)
    for index, problem in enumerate(trained):
        if task.train(index) != problem:
            yield f"train({index}) gives another problem each time; let it depend on the index alone, so that runs resume"
    held_out = task.held_out(TRIED)
    if not 0 < len(held_out) <= TRIED:
        yield f"held_out({TRIED}) gives {len(held_out)} problems; give 1 to {TRIED}"
    for place, problem in enumerate(held_out):
        yield from find_problem_faults(f"held_out({TRIED})[{place}]", problem, longest)
        if problem.id in {one.id for one in trained}:
            yield f"problem {problem.id} is in train and in held_out; keep them apart"
    for text in ("", trained[0].answer):
        who, verdict = f"verify({trained[0].id}, {text!r:.40}) gives", run_async(task.verify(trained[0], text))
        if not isinstance(verdict, Verdict):
            yield f"{who} {verdict!r:.60}; give a fairlen.tasks.task.Verdict"
        if verdict.status not in get_args(Status):
            yield f"{who} status={verdict.status!r}; give one of {', '.join(get_args(Status))}"
        if not is_finite_number(verdict.outcome):
            yield f"{who} outcome={verdict.outcome!r:.60}; give a finite number, 0 to 1"
    try:
        json.dumps(task.describe())
    except TypeError as error:
        yield f"describe() gives what JSON does not take ({error}); give plain values"


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a number that is finite as a float; 10**400 is not."""
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def find_problem_faults(who: str, problem: Any, longest: int) -> Iterator[str]:
    if not isinstance(problem, Problem):
        yield f"{who} gives {problem!r:.60}; give a fairlen.tasks.task.Problem"
    ids = problem.token_ids
    if not isinstance(ids, tuple) or not all(isinstance(one, int) for one in ids):
        yield f"{who}: token_ids={ids!r:.60}; give a tuple of whole numbers"
    if not 0 < len(ids) <= longest:
        yield f"{who}: its prompt has {len(ids)} tokens; give 1 to longest_prompt={longest}"
