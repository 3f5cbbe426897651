"""The clock of benchmarks/verl_adapter.py: whose time is counted, and what a share comes to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _verl_clock import LOSS, STREAMS, THEIRS, Clock
from verl_adapter import Turn, share


class Watched(Clock):
    """A clock of our own time, which `work` moves, and all that it wrote."""

    def __init__(self):
        self.time, self.found = 0.0, []
        super().__init__(lambda part, seconds: self.found.append((part, seconds)), lambda: self.time)

    def work(self, seconds):
        self.time += seconds


@pytest.fixture
def clock():
    return Watched()


def test_what_ours_asks_of_theirs_is_not_counted(clock):
    """Ours for 1 s, theirs for 20 s within, which asks ours for 3 s in between: one turn of 4 s."""
    inner = clock.counted(LOSS, clock.work)

    def theirs():
        clock.work(10)
        inner(3)
        clock.work(10)

    asked = clock.counted(THEIRS, theirs)

    def ours():
        clock.work(1)
        asked()

    clock.work(100)
    clock.counted(LOSS, ours)()
    assert clock.found == [(LOSS, 4.0)] and clock.parts == [THEIRS]


def test_what_a_coroutine_awaits_is_not_counted(clock):
    """Two coroutines at a time, each working twice, for 1 and 2 s, around a wait in which others work: 6 s, errors included."""

    async def stream(fails):
        clock.work(1)
        await asyncio.sleep(0)
        clock.work(2)
        if fails:
            raise KeyError("lost")
        return 7

    async def others():
        for _ in range(3):
            clock.work(100)
            await asyncio.sleep(0)

    counted = clock.counted(STREAMS, stream)

    async def run_all():
        return await asyncio.gather(counted(False), others(), counted(True), return_exceptions=True)

    value, _, error = asyncio.run(run_all())
    assert value == 7 and isinstance(error, KeyError)
    assert clock.found == [(STREAMS, 1.0), (STREAMS, 1.0), (STREAMS, 2.0), (STREAMS, 2.0)]


def test_a_cancelled_coroutine_hears_of_it(clock):
    async def wait():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            clock.work(5)
            raise

    async def run_and_cancel():
        task = asyncio.ensure_future(clock.counted(STREAMS, wait)())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run_and_cancel())
    assert clock.found == [(STREAMS, 0.0), (STREAMS, 5.0)] and clock.parts == [THEIRS]


def test_a_share_is_over_the_steps_after_the_first():
    """Advantages at 100, 104 and 110: two steps in 10 s. Advantages come to 0.03 + 0.05 s, losses
    to 0.1 s in one worker and 0.2 s in the other, of which the slower counts, and what came before 100 is warm-up."""
    turns = [
        Turn("advantage", 9.0, 100.0, "driver"), Turn("advantage", 0.03, 104.0, "driver"),
        Turn("advantage", 0.05, 110.0, "driver"),
        Turn("loss", 5.0, 99.0, "one"), Turn("loss", 0.1, 105.0, "one"), Turn("loss", 0.15, 103.0, "two"),
        Turn("loss", 0.05, 106.0, "two"), Turn("streams", 0.02, 110.5, "three"),
    ]  # fmt: skip
    found = share(turns)
    assert found.step == pytest.approx(5000)
    assert found.parts == pytest.approx({"advantage": 40, "plan": 0, "loss": 100, "streams": 0})
    assert found.inside == pytest.approx(140 / 5000)
    with pytest.raises(ValueError, match="--steps 2"):
        share(turns[:1])


@pytest.mark.slow
def test_what_is_counted_exists(tmp_path):
    """A name that has changed would end every stream of a job, which verl says of the whole rollout batch alone."""
    pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
    code = "import fairlen.integrations.verl.plugin, _verl_clock; _verl_clock.install_streams()"
    benchmarks = str(Path(__file__).parents[3].joinpath("benchmarks"))
    path = os.pathsep.join(filter(None, (benchmarks, os.environ.get("PYTHONPATH"))))
    env = os.environ | {"FAIRLEN_CLOCK": str(tmp_path), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-1000:]
