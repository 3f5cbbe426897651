"""Bounds on the memory and the seconds that reading somebody else's files may take."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairlen import playground
from fairlen.files.limits import MAX_MEMORY, bounded_memory, bounded_seconds

GIB = 2**30
MIB = 2**20


def limit() -> int:
    return resource.getrlimit(resource.RLIMIT_AS)[0]


def python(code: str, **variables: str) -> str:
    """What a program says."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


TOKENIZE = f"""
import tokenizers
from fairlen.files.limits import bounded_memory
tokenizer = tokenizers.Tokenizer.from_file({str(playground.PATH / "tokenizer.json")!r})
with bounded_memory():
    print(len(tokenizer.encode_batch(["12" * 50] * 1000)))
"""


def test_threads_of_many_cores_fit_within_the_bound():
    """64 MiB of an arena for each of 128 threads are 8 GiB of address space, of which nothing is used."""
    said = python(TOKENIZE, RAYON_NUM_THREADS="128", MALLOC_ARENA_MAX="2000", TOKENIZERS_PARALLELISM="true")
    assert said.strip() == "1000", said[-300:]


@pytest.mark.parametrize("cores", [1, 8, 192])
def test_the_bound_grows_with_the_cores(monkeypatch, cores):
    """Two threads for each core, and of each 128 MiB besides the 4 GiB that data may take."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with bounded_memory():
        assert 0 <= limit() - taken - MAX_MEMORY - cores * 2 * 128 * MIB < GIB  # what was taken may have grown


def test_a_bound_within_a_bound_leaves_the_outer_one():
    before = limit()
    with bounded_memory():
        outer = limit()
        with bounded_memory(GIB):
            assert limit() == outer
        assert limit() == outer != before
    assert limit() == before


def test_bounds_of_threads_that_end_in_another_order_are_taken_back():
    before, entered, leave = limit(), threading.Event(), threading.Event()

    def enter() -> None:
        with bounded_memory():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=enter)
    thread.start()
    assert entered.wait(30)
    with bounded_memory():
        leave.set()
        thread.join(30)
        assert limit() != before
    assert limit() == before


def test_an_alarm_that_comes_while_the_bound_ends_leaves_nothing():
    """It comes as the timer is set to zero."""
    before, calls = signal.getsignal(signal.SIGALRM), []

    def come(frame, event, called) -> None:
        if event == "c_call" and called is signal.setitimer:
            calls.append(called)
            if len(calls) == 2:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGALRM)

    bound = bounded_seconds(60)
    sys.setprofile(come)
    try:
        with contextlib.suppress(TimeoutError), bound:
            pass
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        found = signal.signal(signal.SIGALRM, before)
    assert len(calls) == 2 and found is before


def test_what_takes_too_long_is_broken_off():
    with pytest.raises(TimeoutError, match=r"within 0.05 s"), bounded_seconds(0.05):
        time.sleep(30)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


FROM_C = """
import ctypes, signal, sys
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(print)
ctypes.CDLL(None).signal(signal.SIGALRM, handler)
del sys.modules["_signal"]
import _signal  # which looks anew at what is set
assert signal.getsignal(signal.SIGALRM) is None
from fairlen.files.limits import bounded_seconds
with bounded_seconds(60):
    pass
print(signal.getsignal(signal.SIGALRM) == signal.SIG_DFL)
"""


def test_a_handler_that_was_set_from_c_is_no_error():
    assert python(FROM_C).strip() == "True"
