"""Time inside fairlen's code in every process of a verl job: imported there (VERL_USE_EXTERNAL_MODULES), after the plug-in.

Each turn of our code is a line "part seconds when" of a file of its process, in the folder that FAIRLEN_CLOCK names. What our
code asks of verl in between, such as a server's answer, is not counted; of a coroutine what it computes, never what it awaits.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

ADVANTAGE, PLAN, LOSS, STREAMS = PARTS = ("advantage", "plan", "loss", "streams")
THEIRS = ""


class Clock:
    """Seconds by part; entering code of one part stops the clock of the other. One thread."""

    def __init__(self, write: Callable[[str, float], None], now: Callable[[], float] = time.perf_counter) -> None:
        self.write, self.now = write, now
        self.parts = [THEIRS]
        self.since, self.spent = 0.0, 0.0

    def enter(self, part: str) -> None:
        """Begins a turn of a part."""
        self._stop()
        self.parts.append(part)

    def leave(self) -> None:
        """Ends it; a turn of ours that is not within another is written."""
        self._stop()
        part = self.parts.pop()
        if part and not any(self.parts):
            self.write(part, self.spent)
            self.spent = 0.0

    def _stop(self) -> None:
        now = self.now()
        if self.parts[-1]:
            self.spent += now - self.since
        self.since = now

    def counted(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, or the same coroutine, its time counted as its part's."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def timed(*args: Any, **kwargs: Any) -> Any:
                return await Steps(self, part, function(*args, **kwargs))
        else:

            @functools.wraps(function)
            def timed(*args: Any, **kwargs: Any) -> Any:
                self.enter(part)
                try:
                    return function(*args, **kwargs)
                finally:
                    self.leave()

        return timed


class Steps:
    """A coroutine, each step of which is a turn."""

    def __init__(self, clock: Clock, part: str, coroutine: Any) -> None:
        self.clock, self.part, self.coroutine = clock, part, coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        step, given = self.coroutine.send, None
        while True:
            self.clock.enter(self.part)
            try:
                waits_for = step(given)
            except StopIteration as end:
                return end.value
            finally:
                self.clock.leave()
            try:
                step, given = self.coroutine.send, (yield waits_for)
            except BaseException as error:
                step, given = self.coroutine.throw, error


def write_line(part: str, seconds: float) -> None:
    """To this process's file."""
    global FILE
    if FILE is None:
        FILE = (Path(os.environ["FAIRLEN_CLOCK"]) / str(os.getpid())).open("a", buffering=1)
    FILE.write(f"{part} {seconds:.9f} {time.time():.6f}\n")


FILE: Any = None
CLOCK = Clock(write_line)


def count(part: str, owner: Any, *names: str) -> None:
    """Counts methods of a class, or functions of a module."""
    for name in names:
        setattr(owner, name, CLOCK.counted(part, getattr(owner, name)))


def install() -> None:
    """Counts the trainer (driver) and the loss (workers); streams once their module has been loaded."""
    from fairlen.integrations.verl import loss, trainer
    from fairlen.sampling import eqlen

    count(ADVANTAGE, trainer.FairTrainer, "_compute_advantage")
    count(PLAN, trainer.FairTrainer, "_learn")
    count(THEIRS, trainer.tq, "kv_batch_get", "kv_batch_put")
    count(LOSS, loss.FairLoss, "__call__")
    run_stream = eqlen.run_stream

    async def run_first_stream(*args: Any, **kwargs: Any) -> Any:
        install_streams()
        return await run_stream(*args, **kwargs)

    eqlen.run_stream = run_first_stream


@functools.cache
def install_streams() -> None:
    """Counts the agent loop and its worker, but for what they ask of servers, tokenizer and verifiers."""
    from verl.experimental.agent_loop import AgentLoopWorker
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase
    from verl.workers.rollout.llm_server import LLMServerClient

    from fairlen.integrations.verl import agent_loop
    from fairlen.sampling import eqlen, independent

    count(STREAMS, agent_loop.StreamLoop, "run")
    count(STREAMS, agent_loop.StreamWorker, "_grade")
    count(STREAMS, agent_loop.Servers, "extend")
    count(STREAMS, eqlen.Track, "__init__", "reach", "fork", "after_inherited")
    count(STREAMS, independent.Request, "respond")
    count(THEIRS, AgentLoopBase, "ct_build_initial_tokens")
    count(THEIRS, AgentLoopWorker, "_compute_score")
    count(THEIRS, LLMServerClient, "generate")


if "FAIRLEN_CLOCK" in os.environ:
    install()
