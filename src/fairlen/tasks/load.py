"""From settings to problems: the task of a training run, the sets of an evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairlen.files.limits import bounded_memory
from fairlen.plugins import is_file_place
from fairlen.rollouts import Verdict
from fairlen.sampling.extend import Extend
from fairlen.settings import ProblemConfig, TaskConfig
from fairlen.tasks.data_row import DataRow
from fairlen.tasks.dataset import DataTask, RowSet, divide, fit_prompts, leave_out, read_rows
from fairlen.tasks.grader import Verifier
from fairlen.tasks.playground import PLAYGROUND, Playground, make_playground
from fairlen.tasks.prompt import Prompter, read_shots
from fairlen.tasks.source import read_source
from fairlen.tasks.task import Problem, Task, load_own_task

MAX_PROMPT = 1024
"""Tokens of the longest prompt that is taken where no limit is given."""
Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class ProblemSet:
    name: str  # fit for a file name
    problems: tuple[Problem, ...]
    fingerprint: str  # sha256 of the problems as they were read, before any instruction or template
    revision: str  # commit of a hub data set; empty for files
    details: dict[str, Any]
    verify: Callable[[Problem, str], Awaitable[Verdict]]
    close: Callable[[], None] = field(repr=False)  # ends the verifier's workers, which the sets of one call share
    line: str = ""  # for people: how many rows were read, and how many of them left out; empty where problems are made
    play: Callable[[Extend, Decode], Extend] = lambda extend, decode: extend
    """Makes of an engine's `extend` what plays whole trajectories, where problems are solved in turns."""


def load_task(config: TaskConfig, tokenizer: Any, seed: int = 0) -> Task:
    """Load data sets, the user's own task or the playground. Raises ValueError."""
    if not config.data.places:
        if config.data.held_out:
            raise ValueError(f"--eval-data {config.data.held_out[0]}: it goes with --data, the problems to train on")
        return open_task(config.data.task, config, tokenizer, seed)
    limit = config.data.max_prompt_length or MAX_PROMPT
    sets = read_sets((*config.data.places, *config.data.held_out))
    prompter = make_prompter(config, tokenizer, sets[0].rows)
    shots = prompter.describe_shots(sets[0].rows[0], limit)
    sets = tuple(leave_out(one, prompter.shot_keys) for one in sets)
    train, evaluation = sets[: len(config.data.places)], sets[len(config.data.places) :]
    parts = tuple(fit_prompts(part, prompter, limit) for part in divide(train, evaluation))
    verifier = Verifier({row.kind for one in sets for row in one.rows}, config.verifier)
    return DataTask(parts, prompter, verifier, seed, shots)


def open_task(place: str, config: ProblemConfig, tokenizer: Any, seed: int = 0) -> Task:
    """Open a task that makes its problems: the user's own or the playground. Raises ValueError."""
    for name, value, usual in (("answer", config.verifier.answer, "auto"), ("shots", config.data.shots, "")):
        if value != usual:
            raise ValueError(f"--{name} {value}: {place} brings its own; it goes with --data")
    if is_file_place(place):
        return load_own_task(place, tokenizer)
    return replace(load_playground(place, config.model.name, tokenizer), seed=seed)


def load_playground(place: str, model: str, tokenizer: Any) -> Playground:
    """Raises ValueError for an unknown task, or a model that does not read its prompts; any does for tokenizer None."""
    task = make_playground(place)
    if tokenizer is None:
        return task
    problem = task.train(0)
    try:
        ids = read_text(tokenizer, problem.text, model)
    except ValueError as error:
        raise ValueError(f"{error}, or give --model {PLAYGROUND}, whose tokenizer does") from None
    if ids != problem.token_ids[1:]:
        raise ValueError(
            f"model={model}: its tokenizer does not read the prompts of {PLAYGROUND}; give --model {PLAYGROUND} "
            "or one trained from it, or problems of your own with --data"
        )
    return task


def load_sets(places: Sequence[str], config: ProblemConfig, tokenizer: Any = None) -> tuple[ProblemSet, ...]:
    """The sets of an evaluation, whole and in file order, without prompts for tokenizer None. Raises ValueError."""
    sets = read_sets(places)
    prompter = make_prompter(config, tokenizer, sets[0].rows) if tokenizer is not None else None
    sets = tuple(leave_out(one, prompter.shot_keys) for one in sets) if prompter else sets
    verifier = Verifier({row.kind for one in sets for row in one.rows}, config.verifier)
    return tuple(make_problem_set(one, verifier, prompter) for one in sets)


def make_problem_set(found: RowSet, verifier: Verifier, prompter: Prompter | None = None) -> ProblemSet:
    """Without a prompter problems can be graded and not asked."""
    rows = {row.id: row for row in found.rows}

    async def verify(problem: Problem, text: str) -> Verdict:
        return await verifier(rows[problem.id], text, problem.starts_inside)

    def unasked(row: DataRow) -> Problem:
        return Problem(row.id, row.question, (), row.reference.shown)

    with bounded_memory():
        problems = tuple(map(prompter.pose if prompter else unasked, found.rows))
    details = found.describe() | {"verifier": verifier.describe()}
    details |= {"prompt": prompter.describe()} if prompter else {}
    line = "; ".join(filter(None, (found.line, prompter.describe_shots(found.rows[0]) if prompter else "")))
    return ProblemSet(found.name, problems, found.fingerprint, found.revision, details, verify, verifier.close, line)


def read_sets(places: Sequence[str]) -> tuple[RowSet, ...]:
    sources = [read_source(place) for place in places]
    names = [source.name for source in sources]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    numbered = [f"{name}-{number + 1}" if number else name for name, number in zip(names, before, strict=True)]
    return tuple(map(read_rows, sources, numbered))


def make_prompter(config: ProblemConfig, tokenizer: Any, rows: Sequence[DataRow]) -> Prompter:
    """Raises ValueError for a tokenizer that does not read the first row's prompt."""
    model, form = config.model, config.verifier.answer
    shots = read_shots(config.data.shots, form) if config.data.shots else ()
    asked = model.template, model.system_prompt, config.data.instruction, model.thinking
    prompter = Prompter(tokenizer, *asked, form, shots)
    with bounded_memory():  # of the template
        for row in rows[:1]:
            read_text(tokenizer, prompter.render(row), model.name)
    return prompter


def read_text(tokenizer: Any, text: str, model: str) -> tuple[int, ...]:
    """Raises ValueError for a tokenizer that does not know the text or makes no tokens."""
    ids: tuple[int, ...] = ()
    reason: object = "it makes no tokens of it"
    try:
        ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    except Exception as error:  # tokenizers raise nothing narrower for a word that they do not know
        reason = error
    if not ids:
        if model == PLAYGROUND:
            raise ValueError(
                f"model={model}: this shipped model reads nothing but its own tasks, and not {text!r}; "
                "name a language model with --model, a folder or a hub id"
            )
        remedy = "name another language model with --model, or add tokenizer.json and tokenizer_config.json to it"
        raise ValueError(f"model={model}: its tokenizer does not read {text!r} ({reason}); {remedy}")
    return ids
