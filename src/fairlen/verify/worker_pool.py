"""The worker processes of the answer pool, kept at full size: whoever misses the deadline is killed and replaced.

One thread keeps them. It hands over no more questions than there are workers, so that a deadline starts when a worker does, and
no honest answer times out in a queue behind slow ones. Pebble's pool does the killing. Where that breaks, as it does when an idle
worker is killed from outside, a new one takes over, and the questions that were lost with it are asked once more.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from fairlen.batch import Status
from fairlen.verify.worker import WorkerContext, judge, prepare

Judged = tuple[Status, float]
"""The verdict, and the seconds from when a worker's turn began."""

MAX_LIFE = 2000
"""Questions that a worker answers before it is replaced: sympy and its parser never forget."""
MAX_START = 120.0
"""Seconds for the first worker to be there."""
MAX_TRIES = 2
GRACE = 30.0
"""Seconds beyond the deadline after which the pool itself is taken for broken."""


@dataclass(eq=False, slots=True)
class Question:
    """Something to compare, and where the verdict goes."""

    golds: tuple[str, ...]
    answer: str
    tolerance: float
    unevaluated: bool = False
    verdict: Future[Judged] = field(default_factory=Future)
    started: float = 0.0
    tries: int = 0

    def settle(self, status: Status) -> None:
        """Gives the verdict, unless whoever asked has gone."""
        if self.verdict.set_running_or_notify_cancel():
            self.verdict.set_result((status, time.monotonic() - self.started if self.started else 0.0))


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a question that a worker had."""

    question: Question
    outcome: Future[Status]


class Crew:
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

    def ask(self, question: Question) -> Future[Judged]:
        """The verdict, in time."""
        self.events.put(question)
        return question.verdict

    def close(self) -> None:
        """Ends every worker; what has no verdict yet gets an error."""
        self.events.put(None)
        self.thread.join()

    def _keep(self) -> None:
        try:
            while self._go_on():
                self._hand_over()
        finally:
            for question in (*self.running, *self.waiting):
                question.settle("error")
            if self.pool is not None:
                self.pool.stop()
                self.pool.join()
                self.context.close()

    def _go_on(self) -> bool:
        """Waits for what happens next; False at the end."""
        try:
            event = self.events.get(timeout=1.0)
        except Empty:
            if any(time.monotonic() - question.started > self.deadline + GRACE for question in self.running):
                self._replace_pool()
            return True
        if isinstance(event, Question):
            self.waiting.append(event)
        elif event is not None and self.running.get(event.question) is event.outcome:  # not lost with a broken pool
            del self.running[event.question]
            self._end(event.question, event.outcome)
        return event is not None

    def _hand_over(self) -> None:
        while self.waiting and len(self.running) < self.size:
            question = self.waiting.popleft()
            if question.verdict.cancelled():
                continue
            question.tries += 1
            args = (question.golds, question.answer, question.tolerance, question.unevaluated)
            try:
                pool = self.pool if self.pool is not None else self._make_pool()
                question.started = time.monotonic()
                outcome = pool.schedule(judge, args=args, timeout=self.deadline)
            except (OSError, RuntimeError):  # the pool is broken, or its workers do not start
                self._once_more(question)
                self._replace_pool()
                continue
            self.running[question] = outcome
            outcome.add_done_callback(lambda outcome, question=question: self.events.put(Ended(question, outcome)))

    def _end(self, question: Question, outcome: Future[Status]) -> None:
        from pebble import ProcessExpired

        error = outcome.exception()
        if error is None:
            question.settle(outcome.result())
        elif isinstance(error, TimeoutError):
            question.settle("timeout")
        elif isinstance(error, ProcessExpired):
            question.settle("error")
        else:  # the pool broke
            self._once_more(question)
            self._replace_pool()

    def _once_more(self, question: Question) -> None:
        if question.tries < MAX_TRIES:
            self.waiting.appendleft(question)
        else:
            question.settle("error")

    def _make_pool(self) -> Any:
        """Raises OSError or RuntimeError where no worker answers; the time to start is nobody's question's."""
        from pebble import ProcessPool

        self.context = WorkerContext()
        self.pool = ProcessPool(self.size, MAX_LIFE, initializer=prepare, initargs=(self.memory,), context=self.context)
        self.pool.schedule(os.getpid).result(timeout=MAX_START)
        return self.pool

    def _replace_pool(self) -> None:
        """What was running is asked again."""
        broken, self.pool = self.pool, None
        if broken is not None:
            broken.stop()
            threading.Thread(target=broken.join, daemon=True).start()
            self.context.close()  # its workers end with it, whatever they do
        lost, self.running = self.running, {}
        for question in lost:
            self._once_more(question)
