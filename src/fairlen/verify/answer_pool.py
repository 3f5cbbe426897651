"""Verdicts on mathematical answers that always come, and in time.

Short and easy answers are settled by text and exact numbers where they are asked about. Long ones are read, and algebra happens,
in worker processes that are killed at the deadline: within one process no timeout works, as algebra in C neither gives up the
interpreter nor hears signals.

One thread keeps the workers. It hands over no more questions than there are workers, so that a deadline starts with a worker, and
no honest answer times out in a queue behind slow ones. Pebble's pool does the killing. Where that breaks, as it does when an
idle worker is killed from outside, a new one takes over, and the questions that were lost with it are asked once more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from fairlen.batch import Status
from fairlen.checks import check_positive
from fairlen.verify.answer import extract_answer, match_exactly
from fairlen.verify.typesetting import MAX_LENGTH
from fairlen.verify.worker import WorkerContext, grade, prepare

MAX_LIFE = 2000
"""Questions that a worker answers before it is replaced: sympy and its parser never forget."""
MAX_START = 120.0
"""Seconds for the first worker to be there."""
MAX_TRIES = 2
GRACE = 30.0
"""Seconds beyond the deadline after which the pool itself is taken for broken."""
MAX_QUICK = 1_000
"""Characters of an answer and its reference that are read where they are asked about; longer ones are read in a worker."""
MAX_REMEMBERED = 200
"""Characters of an answer whose verdict is remembered: 50,000 of any size would take gigabytes."""
Key = tuple[tuple[str, ...], str, float]
"""References, answer and tolerance: what questions with the same verdict have in common."""


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """The verdict on an answer."""

    status: Status
    """correct or incorrect; no_answer where no box was closed after the thinking; timeout; error where algebra failed."""
    seconds: float
    """From when it was its turn; waiting for other answers is not included."""
    answer: str | None = None
    """As it stood in the box."""


@dataclass(eq=False, slots=True)
class Question:
    """Something to compare, and where the verdict goes."""

    golds: tuple[str, ...]
    answer: str
    tolerance: float
    unevaluated: bool
    remember: Callable[[Key, Status], None]
    """Called before the verdict is there."""
    verdict: Future[AnswerVerdict] = field(default_factory=Future)
    started: float = 0.0
    tries: int = 0

    @property
    def key(self) -> Key:
        return self.golds, self.answer, self.tolerance

    def settle(self, status: Status) -> None:
        """Give the verdict, unless whoever asked has gone."""
        if self.verdict.set_running_or_notify_cancel():
            self.remember(self.key, status)
            seconds = time.monotonic() - self.started if self.started else 0.0
            self.verdict.set_result(AnswerVerdict(status, seconds, self.answer))


Ended = tuple[Question, Future[Status]]
"""A question that a worker had, and what became of it."""


class WorkerPool:
    """Answers questions, one a worker at a time. Use from any thread."""

    def __init__(self, size: int, deadline: float, memory: int) -> None:
        self.size, self.deadline, self.memory = size, deadline, memory
        self.events: SimpleQueue[Question | Ended | None] = SimpleQueue()
        self.waiting: deque[Question] = deque()
        self.running: dict[Question, Future[Status]] = {}
        self.context: Any = None
        self.pool: Any = None
        self.thread = threading.Thread(target=self._keep, name="fairlen-answers", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """End every worker; what has no verdict yet gets an error."""
        self.events.put(None)
        self.thread.join()

    def _keep(self) -> None:
        try:
            while self._handle_event():
                self._hand_over()
        finally:
            for question in (*self.running, *self.waiting):
                question.settle("error")
            if self.pool is not None:
                self.pool.stop()
                self.pool.join()
                self.context.close()

    def _handle_event(self) -> bool:
        """Wait for what happens next; return False at the end."""
        try:
            event = self.events.get(timeout=1.0)
        except Empty:
            if any(time.monotonic() - question.started > self.deadline + GRACE for question in self.running):
                self._replace_pool()
            return True
        if isinstance(event, Question):
            self.waiting.append(event)
        elif event is not None and self.running.get(event[0]) is event[1]:  # not lost with a broken pool
            del self.running[event[0]]
            self._end(*event)
        return event is not None

    def _hand_over(self) -> None:
        while self.waiting and len(self.running) < self.size:
            question = self.waiting.popleft()
            if question.verdict.cancelled():
                continue
            question.tries += 1
            args = (*question.key, question.unevaluated)
            try:
                pool = self.pool if self.pool is not None else self._make_pool()
                question.started = time.monotonic()
                outcome = pool.schedule(grade, args=args, timeout=self.deadline)
            except (OSError, RuntimeError):  # the pool is broken, or its workers do not start
                self._retry(question)
                self._replace_pool()
                continue
            self.running[question] = outcome
            outcome.add_done_callback(lambda outcome, question=question: self.events.put((question, outcome)))

    def _end(self, question: Question, outcome: Future[Status]) -> None:
        from pebble import ProcessExpired

        error = outcome.exception()
        if error is None:
            question.settle(outcome.result())
        elif isinstance(error, (TimeoutError, ProcessExpired)):
            question.settle("timeout" if isinstance(error, TimeoutError) else "error")
        else:  # the pool broke
            self._retry(question)
            self._replace_pool()

    def _retry(self, question: Question) -> None:
        if question.tries < MAX_TRIES:
            self.waiting.appendleft(question)
        else:
            question.settle("error")

    def _make_pool(self) -> Any:
        """Start the workers, outside of any question's deadline. Raises OSError or RuntimeError where no worker answers."""
        from pebble import ProcessPool

        self.context = WorkerContext()
        self.pool = ProcessPool(self.size, MAX_LIFE, initializer=prepare, initargs=(self.memory,), context=self.context)
        self.pool.schedule(os.getpid).result(timeout=MAX_START)
        return self.pool

    def _replace_pool(self) -> None:
        """Ask what was running again, of a new pool."""
        broken, self.pool = self.pool, None
        if broken is not None:
            broken.stop()
            threading.Thread(target=broken.join, daemon=True).start()
            self.context.close()  # its workers end with it, whatever they do
        lost, self.running = self.running, {}
        for question in lost:
            self._retry(question)


class AnswerPool:
    """Compares answers with references, from any thread and from asyncio. Workers start with the first answer that needs one.

    Close it, or use it as a context manager; workers also end with the process that made them, however it ends.
    """

    def __init__(
        self, workers: int = 2, deadline: float = 5.0, memory_mib: int = 2048, cache_size: int = 50_000,
        unevaluated: bool = False,
    ) -> None:  # fmt: skip
        """`workers`: processes of algebra. `deadline`: seconds for each answer. `memory_mib`: what a worker may take beyond the
        80 MiB that it shares with the others. `cache_size`: verdicts remembered. `unevaluated`: where the reference is a number,
        operators that are not worked out are answers too, `5!` for 120."""
        self.unevaluated = unevaluated
        self.workers, self.deadline, self.memory_mib, self.cache_size = workers, deadline, memory_mib, cache_size
        check_positive(self, "workers", "deadline", "memory_mib", "cache_size")
        for package in ("math_verify", "pebble"):
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(f"verdicts on mathematics need {package}: pip install 'fairlen[math]'")
        self._renew()

    def __enter__(self) -> AnswerPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def verify(
        self, gold: str | Sequence[str], text: str, *, starts_inside: bool = False, tolerance: float = 0.0
    ) -> AnswerVerdict:
        """Return the verdict on a whole finished text: on its last closed box after the thinking.

        `gold`: the reference, or several of which all must be given and nothing else. `starts_inside`: the prompt ended
        with `<think>`. `tolerance`: the largest difference of numbers that count as the same. Raises nothing for any text.
        """
        answer = extract_answer(text, starts_inside)
        return NO_ANSWER if answer is None else await self.compare(gold, answer, tolerance=tolerance)

    async def compare(self, gold: str | Sequence[str], answer: str, *, tolerance: float = 0.0) -> AnswerVerdict:
        """Return the verdict on an answer that was already found."""
        verdict = self._submit(gold, answer, tolerance)
        return verdict if isinstance(verdict, AnswerVerdict) else await asyncio.wrap_future(verdict)

    def compare_blocking(self, gold: str | Sequence[str], answer: str, *, tolerance: float = 0.0) -> AnswerVerdict:
        """`compare`, for threads."""
        verdict = self._submit(gold, answer, tolerance)
        return verdict if isinstance(verdict, AnswerVerdict) else verdict.result()

    def close(self) -> None:
        """End the workers; verdicts that are still awaited are errors. The pool may be used again, and then starts new ones."""
        if self._pid != os.getpid():
            return  # they belong to the process that this one was forked from
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close()

    def _submit(
        self, gold: str | Sequence[str], answer: str, tolerance: float
    ) -> AnswerVerdict | Future[AnswerVerdict]:
        start = time.perf_counter()
        golds = (gold,) if isinstance(gold, str) else tuple(gold)
        if not golds or not all(golds):
            raise ValueError(f"gold={gold!r}: a reference is not empty; leave out problems without one")
        status = settle(golds, answer, tolerance)
        if self._pid != os.getpid():  # threads and workers are not inherited by a fork
            self._renew()
        if status is None:
            question = Question(golds, answer, tolerance, self.unevaluated, self._remember)
            with self._lock:
                status = self._verdicts.get(question.key)
                if status is None:
                    return self._ask(question)
                self._verdicts.move_to_end(question.key)
        return AnswerVerdict(status, time.perf_counter() - start, answer)

    def _ask(self, question: Question) -> AnswerVerdict | Future[AnswerVerdict]:
        """Hand a question to the workers, which are started if need be."""
        try:
            if self._workers is None or not self._workers.thread.is_alive():
                self._workers = WorkerPool(self.workers, self.deadline, self.memory_mib << 20)
        except RuntimeError:  # at a limit of processes no thread starts
            return AnswerVerdict("error", 0.0, question.answer)
        self._workers.events.put(question)
        return question.verdict

    def _remember(self, key: Key, status: Status) -> None:
        is_verdict = status in ("correct", "incorrect")
        if is_verdict and len(key[1]) <= MAX_REMEMBERED:  # a timeout may be the machine's fault
            with self._lock:
                self._verdicts[key] = status
                if len(self._verdicts) > self.cache_size:
                    self._verdicts.popitem(last=False)

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Key, Status] = OrderedDict()
        self._workers: WorkerPool | None = None


NO_ANSWER = AnswerVerdict("no_answer", 0.0)


def settle(golds: tuple[str, ...], answer: str, tolerance: float) -> Status | None:
    """Return the verdict where it needs no algebra and takes no time."""
    if len(answer) > MAX_LENGTH:
        return "incorrect"
    if max(len(answer), *map(len, golds)) > MAX_QUICK:
        return None
    same = match_exactly(answer, golds[0], tolerance) if len(golds) == 1 else None
    return None if same is None else "correct" if same else "incorrect"
