"""Verdicts on mathematical answers that always come, and in time.

Short and easy answers are settled by text and exact numbers where they are asked about. Long ones are read, and algebra happens,
in worker processes that are killed at the deadline: within one process no timeout works, as algebra in C neither gives up the
interpreter nor hears signals.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType

from fairlen.batch import Status
from fairlen.checks import check_positive
from fairlen.verify.answer import extract_answer, match_exactly
from fairlen.verify.typesetting import MAX_LENGTH
from fairlen.verify.worker_pool import Crew, Judged, Question

MAX_QUICK = 1_000
"""Characters of an answer and its reference that are read where they are asked about; longer ones are read in a worker."""
MAX_REMEMBERED = 200
"""Characters of an answer whose verdict is remembered: 50,000 of any size would take gigabytes."""

Key = tuple[tuple[str, ...], str, float]


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """What became of an answer."""

    status: Status
    """correct or incorrect; no_answer where no box was closed after the thinking; timeout; error where algebra failed."""
    seconds: float
    """From when it was its turn; waiting for other answers is not included."""
    answer: str | None = None
    """As it stood in the box."""


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
        """The verdict on a whole finished text: on its last closed box after the thinking.

        `gold`: the reference, or several of which all must be given and nothing else. `starts_inside`: the prompt ended
        with `<think>`. `tolerance`: the largest difference of numbers that count as the same. Raises nothing for any text.
        """
        answer = extract_answer(text, starts_inside)
        return NO_ANSWER if answer is None else await self.compare(gold, answer, tolerance=tolerance)

    def verify_blocking(
        self, gold: str | Sequence[str], text: str, *, starts_inside: bool = False, tolerance: float = 0.0
    ) -> AnswerVerdict:
        """`verify`, for threads."""
        answer = extract_answer(text, starts_inside)
        return NO_ANSWER if answer is None else self.compare_blocking(gold, answer, tolerance=tolerance)

    async def compare(self, gold: str | Sequence[str], answer: str, *, tolerance: float = 0.0) -> AnswerVerdict:
        """The verdict on an answer that was already found."""
        begun = self._begin(gold, answer, tolerance)
        if isinstance(begun, AnswerVerdict):
            return begun
        key, future = begun
        return self._remember(key, await asyncio.wrap_future(future))

    def compare_blocking(self, gold: str | Sequence[str], answer: str, *, tolerance: float = 0.0) -> AnswerVerdict:
        """`compare`, for threads."""
        begun = self._begin(gold, answer, tolerance)
        if isinstance(begun, AnswerVerdict):
            return begun
        key, future = begun
        return self._remember(key, future.result())

    def close(self) -> None:
        """Ends the workers; verdicts that are still awaited are errors. The pool may be used again, and then starts new ones."""
        if self._pid != os.getpid():
            return  # they belong to the process that this one was forked from
        with self._lock:
            crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def _begin(
        self, gold: str | Sequence[str], answer: str, tolerance: float
    ) -> AnswerVerdict | tuple[Key, Future[Judged]]:
        start = time.perf_counter()
        golds = (gold,) if isinstance(gold, str) else tuple(gold)
        if not golds or not all(golds):
            raise ValueError(f"gold={gold!r}: a reference is not empty; leave out problems without one")
        status = settle(golds, answer, tolerance)
        if self._pid != os.getpid():  # threads and workers are not inherited by a fork
            self._renew()
        if status is None:
            key = golds, answer, tolerance
            with self._lock:
                status = self._verdicts.get(key)
                if status is None:
                    try:
                        return key, self._hire().ask(Question(*key, self.unevaluated))
                    except RuntimeError:  # at a limit of processes no thread starts
                        return AnswerVerdict("error", 0.0, answer)
                self._verdicts.move_to_end(key)
        return AnswerVerdict(status, time.perf_counter() - start, answer)

    def _hire(self) -> Crew:
        if self._crew is None or not self._crew.thread.is_alive():
            self._crew = Crew(self.workers, self.deadline, self.memory_mib << 20)
        return self._crew

    def _remember(self, key: Key, judged: Judged) -> AnswerVerdict:
        status, seconds = judged
        is_verdict = status in ("correct", "incorrect")
        if is_verdict and len(key[1]) <= MAX_REMEMBERED:  # a timeout may be the machine's fault
            with self._lock:
                self._verdicts[key] = status
                if len(self._verdicts) > self.cache_size:
                    self._verdicts.popitem(last=False)
        return AnswerVerdict(status, seconds, key[1])

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[Key, Status] = OrderedDict()
        self._crew: Crew | None = None


NO_ANSWER = AnswerVerdict("no_answer", 0.0)


def settle(golds: tuple[str, ...], answer: str, tolerance: float) -> Status | None:
    """The verdict where it needs no algebra and takes no time."""
    if len(answer) > MAX_LENGTH:
        return "incorrect"
    if max(len(answer), *map(len, golds)) > MAX_QUICK:
        return None
    same = match_exactly(answer, golds[0], tolerance) if len(golds) == 1 else None
    return None if same is None else "correct" if same else "incorrect"
