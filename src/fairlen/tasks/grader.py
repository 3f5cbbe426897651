"""From a finished response to its outcome: verifier_weight * verdict + the sum of weight * reward function.

A reward function is called by keyword, with TRL's names and lists of one (docs/extending.md). An async one must
not block; others run in a thread, one call at a time and in order, so that what they draw from `random` can be repeated.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from numbers import Real
from typing import Any, cast

from fairlen.console import warn
from fairlen.hangs import UNWATCHED, DeadlineError, SideThread, TrainingStopped, Watchdog, run_async
from fairlen.plugins import find_plugin, is_file_place
from fairlen.precision import add_parts
from fairlen.rollouts import VERDICTS, Response, Verdict
from fairlen.settings import RewardSettings, VerifierSettings
from fairlen.tasks.data_row import Answers, Choice, DataRow, Program
from fairlen.tasks.environment import shorten
from fairlen.tasks.schemas import unpack_cases
from fairlen.tasks.task import NO_FAILURES, Failures, Problem, Task
from fairlen.verify.answer_pool import AnswerPool, AnswerReader
from fairlen.verify.program import ProgramTests, grade_program
from fairlen.verify.sandbox import open_sandbox

VERIFIER = "verifier"
DEFAULTS = RewardSettings()
OVERDUE = (
    "reward {name}: {error} on problem {problem}; such responses have no verdict, and their share is logged. "
    "The thread cannot be killed and goes on by itself; --reward-deadline sets the time"
)
RewardFunction = Callable[..., Sequence[float | None] | Awaitable[Sequence[float | None]]]


class Verifier:
    """Grades responses. Everything that a kind of problem needs is opened with it, so that a run fails at its start."""

    def __init__(self, kinds: Iterable[str], settings: VerifierSettings = DEFAULTS) -> None:
        """`kinds` of problems: math, choice, code. Raises ValueError, with what to install, where a kind cannot be verified."""
        self.kinds, workers = frozenset(kinds), settings.workers
        deadline, unevaluated = settings.answer_deadline, settings.accept_unevaluated
        num_workers = workers or len(os.sched_getaffinity(0))
        check_kinds(self.kinds, settings.answer)
        self.read = AnswerReader(settings.answer, num_workers, deadline)
        try:
            self.pool = AnswerPool(num_workers, deadline, unevaluated=unevaluated) if "math" in self.kinds else None
        except ModuleNotFoundError as error:
            raise ValueError(f"--data: {error}") from None
        is_needed, on_host = "code" in self.kinds, settings.unsafe_exec_on_host
        self.sandbox = open_sandbox(on_host, workers) if is_needed else None

    async def __call__(self, row: DataRow, text: str, starts_inside: bool = False) -> Verdict:
        match row.reference:
            case Answers() as answers if self.pool is not None:
                found = await self.read(text, starts_inside)
                return await compare_answers(self.pool, answers, found.answer) if found.answer else found
            case Choice() as choice:
                found = await self.read(text, starts_inside, choice.letters)
                status = "correct" if found.answer == choice.letter else "incorrect"
                return Verdict.of(status, found.answer) if found.answer else found
            case Program() as program if self.sandbox is not None:
                return Verdict.of(await grade_program(self.sandbox, text, unpack(program), starts_inside))
        raise ValueError(f"problem {row.id}: {row.kind}, but this verifier was opened for {sorted(self.kinds)}")

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"kinds": sorted(self.kinds)}
        if self.pool is not None:
            described |= {"answer_deadline": self.pool.deadline, "accept_unevaluated": self.pool.unevaluated}
        if self.sandbox is not None:
            described["sandbox"] = self.sandbox.describe()
        return described

    def close(self) -> None:
        self.read.close()
        if self.pool is not None:
            self.pool.close()


async def compare_answers(pool: AnswerPool, answers: Answers, answer: str) -> Verdict:
    status = await pool.compare(answers.parts, answer, tolerance=answers.tolerance)
    for other in answers.others:
        if status in ("incorrect", "error"):
            status = await pool.compare(other, answer, tolerance=answers.tolerance)
    return Verdict.of(status, answer)


def check_kinds(kinds: Collection[str], form: str) -> None:
    """Raise ValueError for a form that problems of these kinds cannot be answered in."""
    if form == "last-number" and "choice" in kinds:
        raise ValueError("--answer last-number: the answer to a problem with options is a letter; give --answer letter")
    if form != "auto" and set(kinds) == {"code"}:
        raise ValueError(f"--answer {form}: programs are read from the last block of code; leave it out")


@lru_cache(maxsize=16)
def unpack(program: Program) -> ProgramTests:
    return replace(program, cases=unpack_cases(program), packed="")


@dataclass(frozen=True)
class WeightedReward:
    name: str
    function: RewardFunction
    weight: float = 1.0


@dataclass
class Grader:
    """Sets outcome, status, outcomes, extracted answer and time of a response."""

    task: Task
    decode: Callable[[Sequence[int]], str]
    rewards: Sequence[WeightedReward] = ()
    settings: RewardSettings = DEFAULTS
    watchdog: Watchdog = UNWATCHED
    decode_whole: Callable[[Sequence[int]], str] | None = None
    """As `decode`, special tokens kept; None where all of a response counts as an answer."""
    seconds: float = 0.0  # time in which the verifier had at least one text
    num_out: int = 0
    busy_since: float = 0.0
    num_graded: int = 0
    failures: Failures = NO_FAILURES
    """Of what was graded since the trainer last began with none."""
    overdue: set[str] = field(default_factory=set)
    side: SideThread = field(default_factory=lambda: SideThread("rewards"))

    async def __call__(self, problem: Problem, response: Response) -> Response:
        token_ids = response.token_ids[response.num_prompt :]
        text = self.decode(token_ids)
        start = time.perf_counter()
        with self.busy(), self.watchdog.watch(f"verifier: problem {problem.id}", lambda: self.num_graded):
            graded = response.status != "unverified"  # by its environment, which alone knows what happened
            verdict = Verdict(response.status, response.outcome) if graded else await self.task.verify(problem, text)
        seconds = time.perf_counter() - start
        parts = {VERIFIER: float(verdict.outcome)}
        weights = {VERIFIER: self.settings.weight, **{reward.name: reward.weight for reward in self.rewards}}
        for reward in self.rewards:
            with self.watchdog.watch(f"reward {reward.name}: problem {problem.id}", lambda: self.num_graded):
                try:
                    given = problem, text, token_ids, self.side, self.settings.reward_deadline, verdict.outcome
                    value = await call_reward(reward, *given)
                except DeadlineError as error:
                    if reward.name not in self.overdue:
                        warn(OVERDUE.format(name=reward.name, error=error, problem=problem.id))
                    self.overdue.add(reward.name)
                    verdict, weights = Verdict("timeout", 0.0, verdict.answer), dict.fromkeys(weights, 0.0)
                    break
            if value is not None:
                parts[reward.name] = value
        self.num_graded += 1
        ended = response.finish == "length", text, problem.answer, hasattr(self.task, "prompter"), problem.starts_inside
        self.failures += Failures.of(verdict.status, *ended)
        outcome = add_parts([weights[name] for name in parts], parts.values())
        counts = verdict.status in VERDICTS or self.settings.without_verdict == "incorrect"
        response = response.with_channels(self.decode_whole) if self.decode_whole else response
        return replace(
            response, outcome=outcome, status=verdict.status, active=counts,
            outcomes=parts, extracted=verdict.answer, verify_seconds=seconds,
        )  # fmt: skip

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time once, however many texts are out."""
        if self.num_out == 0:
            self.busy_since = time.perf_counter()
        self.num_out += 1
        try:
            yield
        finally:
            self.num_out -= 1
            if self.num_out == 0:
                self.seconds += time.perf_counter() - self.busy_since


async def call_reward(
    reward: WeightedReward,
    problem: Problem,
    text: str,
    token_ids: Sequence[int],
    side: SideThread,
    deadline: float,
    verdict: float = 0.0,
) -> float | None:
    """One number, or None where the function does not apply. Raises DeadlineError past the deadline (0 is none), ValueError where
    the function raised or returned something else."""
    columns = {name: [value] for name, value in problem.columns.items()}
    response = {"prompts": [problem.text], "completions": [text], "completion_ids": [list(token_ids)]}
    lists = {"answer": [problem.answer]} | columns | response | {"verdict": [verdict]}
    call = partial(reward.function, **lists)
    try:
        values = await side.call(
            partial(exhaust, call) if inspect.isgeneratorfunction(reward.function) else call, deadline
        )
        is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Set)
        numbers = list(values) if is_list else []
    except (DeadlineError, TrainingStopped):
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error} (problem {problem.id})"
        raise ValueError(f"reward {reward.name} raised {why}") from error
    if len(numbers) != 1 or not isinstance(numbers[0], Real | None):
        raise ValueError(
            f"reward {reward.name} returned {shorten(values)} for one response: return a list with one number, or None, "
            "for each"
        )
    try:
        return None if numbers[0] is None else float(numbers[0])
    except OverflowError:
        raise ValueError(
            f"reward {reward.name} returned a number beyond {sys.float_info.max:.2g} (problem {problem.id}): return a finite "
            "number, or None where it does not apply"
        ) from None


def exhaust(generator: Callable[[], Any]) -> list[Any]:
    """Run a generator to its end: where it is called, and not where its values are read."""
    return list(generator())


class RewardError(ValueError):
    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"--rewards {text}: {problem}")


def describe_verdict(task_name: str, rewards: Sequence[WeightedReward], settings: RewardSettings) -> str:
    """Return a line on what counts as correct in a run, and what is added to the outcome that trains."""
    line = f"correct: by the verdict of {task_name}"
    if not rewards:
        return line
    parts = [f"{settings.weight:g} * verdict", *(f"{reward.weight:g} * {reward.name}" for reward in rewards)]
    return f"{line}; reward functions do not change it. The outcome that trains is {' + '.join(parts)}"


def load_reward(text: str) -> WeightedReward:
    """Run the file of "FILE.py:FUNCTION" or "FILE.py:FUNCTION=0.5". Raises RewardError."""
    place, _, weight = text.partition("=")
    if not is_file_place(place) or place.endswith(":"):
        raise RewardError(text, "write FILE.py:FUNCTION or FILE.py:FUNCTION=WEIGHT")
    try:
        number = float(weight or 1.0)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise RewardError(text, f"the weight {weight!r} is not a finite number; write {place}=0.5")
    plugin = find_plugin("rewards", place)
    if not callable(plugin.value):
        raise RewardError(text, f"{plugin.name} is {plugin.value!r:.60}, which cannot be called; name a function")
    return WeightedReward(plugin.name, cast(RewardFunction, plugin.value), number)


def load_rewards(texts: Sequence[str], problem: Problem, deadline: float = 0.0) -> list[WeightedReward]:
    """The reward functions of a run, each tried on `problem` with an empty and the correct answer. Raises RewardError."""
    rewards = [load_reward(text) for text in texts]
    names = [reward.name for reward in rewards]
    for text, reward in zip(texts, rewards, strict=True):
        if reward.name == VERIFIER:
            what = f"records call the verdict's part of an outcome {VERIFIER}; give the function another name"
            raise RewardError(text, what)
        if names.count(reward.name) > 1:
            raise RewardError(text, f"{reward.name} is named twice; leave one out, or give the functions other names")
        for answer in ("", problem.answer):
            try_reward(text, reward, problem, answer, deadline)
    return rewards


def try_reward(text: str, reward: WeightedReward, problem: Problem, answer: str, deadline: float) -> None:
    tried = f"{text}, tried on problem {problem.id} and the answer {answer!r:.40}"
    try:
        given = problem, answer, (0,), SideThread("trial"), deadline, float(answer == problem.answer)
        value = run_async(call_reward(reward, *given))
    except (ValueError, DeadlineError) as error:
        taken = ", ".join(str(one).partition(":")[0] for one in inspect.signature(reward.function).parameters.values())
        columns = "".join(f", {name}=" for name in problem.columns)
        called = f"f(prompts=, completions=, completion_ids=, answer=, verdict={columns})"
        raise RewardError(tried, f"{error}; it is called as {called} and takes ({taken})") from error
    if value is not None and not math.isfinite(value):
        raise RewardError(tried, f"it returned {value}; return a finite number, or None where it does not apply")
