"""The watchdog: what stands still is said once, with where it stands; what goes on is not."""

import asyncio
import contextlib
import gc
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import closing

import pytest

from fairlen.hangs import SideThread, Watchdog


def test_a_stall_is_told_once_with_stacks_and_what_it_waits_for(tmp_path, capsys):
    started, go = threading.Event(), threading.Event()

    def stand_here() -> None:
        started.set()
        go.wait()

    thread = threading.Thread(target=stand_here, name="stuck")
    thread.start()
    started.wait()
    with closing(Watchdog(0.2, tmp_path / "debug")) as watchdog, watchdog.watch("sandbox: program 3"):
        time.sleep(1.0)  # five times as long
    go.set()
    thread.join()
    told = capsys.readouterr().err
    assert told.count("nothing happens; still waiting for sandbox: program 3 (nothing for 0 s)") == 1
    assert "sandbox: program 3 has ended after 1 s; going on" in told
    (report,) = (tmp_path / "debug").iterdir()
    text = report.read_text()
    assert text in told and report.name == "stall-001.txt"
    assert re.search(r"thread stuck:(\n.*)+in stand_here", text) and "thread MainThread:" in text


def test_what_goes_on_is_not_told(capsys):
    done = []
    with closing(Watchdog(0.6)) as watchdog, watchdog.watch("engine", lambda: len(done)):
        for _ in range(14):  # 1.4 s, twice the limit, something every sixth of it
            time.sleep(0.1)
            done.append(1)
    with closing(Watchdog(0.0)) as never, never.watch("engine"):
        time.sleep(0.1)
        assert never.thread is None
    assert (watchdog.num_stalls, capsys.readouterr().err) == (0, "")


def test_a_second_stall_is_told_again(capsys):
    done = []
    with closing(Watchdog(0.2)) as watchdog, watchdog.watch("engine", lambda: len(done)):
        time.sleep(0.6)
        done.append(1)
        time.sleep(0.6)
    assert watchdog.num_stalls == 2
    assert capsys.readouterr().err.count("still waiting for engine") == 2


@pytest.mark.slow
def test_a_library_that_holds_the_lock_is_caught_by_the_interpreter():
    """A match that takes ages in C and lets no thread run: the stacks come all the same, and nothing is ended."""
    code = """
import re
from fairlen.hangs import SideThread, Watchdog
with Watchdog(0.3).watch("reward: a regular expression"):
    re.match("(a*)*b", "a" * 24)
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0 and "went on" in done.stdout
    assert "Timeout (0:00:00" in done.stderr and 'File "<string>", line 5 in <module>' in done.stderr


@pytest.mark.parametrize("is_there", [False, True], ids=["later", "at once"])
def test_a_call_whose_caller_was_cancelled_ends_without_a_word(caplog, is_there):
    """Its thread goes on, counted as left behind, or has just raised its error: in either case the error is nobody's."""

    def fail_late() -> None:
        time.sleep(0.2)
        raise ValueError("too late")

    async def run() -> SideThread:
        beside = SideThread("test")
        call = asyncio.create_task(beside.call(fail_late, 10.0))
        await asyncio.sleep(0.05)
        time.sleep(0.3 * is_there)  # the loop has not seen the error yet
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        assert [thread.is_alive() for thread in beside.left_behind] == [True] * (not is_there)
        await asyncio.sleep(0.3)
        return beside

    asyncio.run(run())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_what_would_look_like_the_end_of_the_task_is_an_error_of_the_function():
    def give_up() -> None:
        raise CancelledError

    with pytest.raises(RuntimeError, match="CancelledError"):
        asyncio.run(SideThread("rewards").call(give_up, 5.0))
