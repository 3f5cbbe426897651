"""The pool of workers: every verdict comes in time, whatever is asked; nothing is left behind; workers know nothing."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from answer_pairs import Pair, rewritten
from asking import compare
from battery import AS_FIRST_PROCESS
from hostile_answers import BOMBS, RAISING
from loops import over
from turns import longest_pause

from fairlen.verify.answer_pool import AnswerPool, AnswerReader

pytestmark = pytest.mark.slow


def descendants(pid: int) -> set[int]:
    """Processes below `pid` that are alive, multiprocessing's own resource tracker left out."""
    every = psutil.process_iter(["ppid", "status", "cmdline"])
    alive = (one for one in every if one.info["status"] != psutil.STATUS_ZOMBIE)
    parents = {one.pid: one.info["ppid"] for one in alive if "resource_tracker" not in str(one.info["cmdline"])}
    found, layer = set(), {pid}
    while layer := {child for child, parent in parents.items() if parent in layer}:
        found |= layer
    return found


def wait_until(condition, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture(scope="module")
def pool():
    with closing(AnswerPool(workers=2, deadline=2.0)) as pool:
        yield pool


def workers_of(pool: AnswerPool) -> set[int]:
    """The fork server is our child, the workers are its."""
    return descendants(fork_server_of(pool))


def fork_server_of(pool: AnswerPool) -> int:
    assert pool.server
    return pool.server[1].pid


@over(
    "text, status, answer",
    [
        (r"so \boxed{5}", "correct", "5"), (r"so \boxed{6}", "incorrect", "6"), ("so 5", "no_answer", None),
        (r"<think>\boxed{5}", "no_answer", None), (r"<think>\boxed{6}</think>\boxed{5}", "correct", "5"),
        (r"\boxed{" + "1+" * 6000 + "5}", "incorrect", "1+" * 6000 + "5"),  # no reference is so long
    ],
)  # fmt: skip
def test_easy_verdicts_start_no_worker(text, status, answer):
    with closing(AnswerPool()) as pool:
        found = asyncio.run(AnswerReader()(text))
        given = compare(pool, "5", found.answer) if found.answer else found.status
        assert (given, found.answer) == (status, answer)
        assert pool.server is None


def test_a_long_answer_is_read_in_a_worker(pool):
    """Nothing but a search for the box happens where the verdict is awaited."""
    start = time.process_time()
    assert compare(pool, "5", "~" * 9_000 + "6") == "incorrect" and time.process_time() - start < 0.25


def test_a_reference_is_not_empty(pool):
    for gold in ("", [], ["1", ""]):
        with pytest.raises(ValueError, match="a reference is not empty"):
            compare(pool, gold, "5")


def test_a_busy_machine_takes_no_verdict():
    """A worker that gets no CPU time for longer than its deadline, as another program might take it all."""
    with closing(AnswerPool(workers=1, deadline=1.0)) as pool, ThreadPoolExecutor(1) as thread:
        assert compare(pool, r"\sqrt{8}", r"2\sqrt{2}") == "correct"
        (worker,) = workers_of(pool)
        os.kill(worker, signal.SIGSTOP)
        asked = thread.submit(compare, pool, r"\sqrt{18}", r"3\sqrt{2}")
        time.sleep(1.5)
        os.kill(worker, signal.SIGCONT)
        assert asked.result(timeout=60) == "correct"


@over("name", ["tower", "expansion"])
def test_a_bomb_ends_at_the_deadline(pool, name):
    assert compare(pool, r"7+\sqrt{2}x", BOMBS[name]) in ("timeout", "incorrect")  # left alone it takes hours
    assert compare(pool, f"{len(name)}x+5", f"5+{len(name)}x") == "correct"


@over("answer", RAISING.values())
def test_what_algebra_cannot_do_is_a_verdict(pool, answer):
    for gold in (r"7+\sqrt{2}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "1<x<2", "[1,2)"):
        assert compare(pool, gold, answer) in ("incorrect", "error"), gold


def mapped(pid: int) -> int:
    """Bytes of address space."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def test_a_worker_gets_no_more_memory_than_it_may_have():
    with closing(AnswerPool(workers=1, memory_mib=64)) as pool:
        assert compare(pool, "2x+2", "2(x+1)") == "correct"
        (pid,) = workers_of(pool)
        limits = Path(f"/proc/{pid}/limits").read_text()
        most = int(re.findall(r"Max address space +(\d+)", limits)[0])
        assert 64 << 20 < most < mapped(fork_server_of(pool)) + (65 << 20)
        assert compare(pool, "x" * (66 << 20), "7x") == "error"
        assert compare(pool, "2x+4", "2(x+2)") == "correct"


FEW = {name: BOMBS[name] for name in ("tower", "factorial of a power", "binomial", "expansion")}


def test_every_verdict_comes_in_time_with_bombs_among_honest_answers():
    """Honest ones are right, no hostile one is correct, and the event loop stands still over none: it would take a deadline."""
    deadline = 4.0
    hostile = [Pair(name, r"7+\sqrt{2}x", answer, False) for name, answer in (BOMBS | RAISING).items()]
    honest = list(rewritten(seed=7, rounds=20))[:: 400 // len(hostile)]
    pairs = [one for two in zip(honest, hostile, strict=False) for one in two]

    async def grade_together(pool: AnswerPool) -> tuple[list[str], float]:
        verdicts = (pool.compare(one.gold, one.answer) for one in pairs)
        return await longest_pause(asyncio.gather(*verdicts))

    with closing(AnswerPool(workers=2, deadline=deadline)) as pool:
        verdicts, pause = asyncio.run(grade_together(pool))
    assert pause < deadline / 2 and verdicts.count("timeout") >= 3
    for pair, verdict in zip(pairs, verdicts, strict=True):
        if pair.kind in BOMBS | RAISING:
            assert verdict in ("incorrect", "timeout", "error"), (pair, verdict)
        else:
            assert verdict == ("correct" if pair.same else "incorrect"), (pair, verdict)


def test_a_queue_behind_bombs_is_no_reason_to_time_out():
    with closing(AnswerPool(workers=1, deadline=1.0)) as pool, ThreadPoolExecutor(8) as threads:
        bombs = [threads.submit(compare, pool, "7x", bomb) for bomb in FEW.values()]
        time.sleep(0.2)
        waited = threads.submit(compare, pool, "5x+5", "5(x+1)")  # behind 4 seconds of bombs
        assert [bomb.result() for bomb in bombs] == ["timeout"] * len(bombs)
        assert waited.result() == "correct"


def test_a_worker_that_dies_at_work_is_an_error_and_replaced():
    with closing(AnswerPool(workers=2, deadline=20.0)) as pool, ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(compare, pool, "7x", BOMBS[name]) for name in ("tower", "factorial of a power")]
        assert wait_until(lambda: pool.server and len(workers_of(pool)) == 2)
        before = workers_of(pool)
        time.sleep(0.5)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        assert [future.result(timeout=60) for future in asked] == ["error", "error"]
        assert compare(pool, "2x+6", "2(x+3)") == "correct"
        assert len(workers_of(pool) - before) == 1


def test_workers_that_die_while_idle_are_replaced():
    with closing(AnswerPool(workers=2)) as pool:
        assert compare(pool, "2x+2", "2(x+1)") == "correct"
        for name, find in {"w": workers_of, "n": lambda pool: {fork_server_of(pool)}}.items():
            for pid in find(pool):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.5)
            for n in range(3):
                assert compare(pool, f"{n}x+6+{name}", f"6+{n}x+{name}") == "correct"
            assert 1 <= len(workers_of(pool)) <= 2  # the thread of the last question may not have been free again


def test_a_pool_that_broke_leaves_no_zombies_where_the_first_process_reaps_none(tmp_path):
    """In a container whose first process is the trainer, which then gets the orphans of a server that has gone."""
    script = run_script(
        tmp_path,
        """
        import os, time
        from contextlib import closing
        from battery import count_zombies
        from asking import compare
        from fairlen.verify.answer_pool import AnswerPool
        assert os.getpid() == 1
        with closing(AnswerPool(workers=2)) as pool:
            compare(pool, "2x+2", "2(x+1)")
            for worker in pool.by_thread.values():
                os.kill(worker.pid, 9)
            time.sleep(0.5)
            print(compare(pool, "2x+4", "2(x+2)"))
        end = time.monotonic() + 5
        while count_zombies() and time.monotonic() < end:
            time.sleep(0.1)
        print(count_zombies())
        """,
        AS_FIRST_PROCESS,
    )
    assert script.communicate(timeout=120)[0].split() == ["correct", "0"]


def test_closing_ends_every_process_and_what_is_awaited():
    others = descendants(os.getpid())
    pool = AnswerPool(workers=2, deadline=30.0)
    verdicts: list[str] = []
    thread = threading.Thread(target=lambda: verdicts.append(compare(pool, "7x", BOMBS["tower"])))
    thread.start()
    assert wait_until(lambda: len(descendants(os.getpid()) - others) == 2, 60)  # the fork server and a worker
    pool.close()
    thread.join(timeout=60)
    assert verdicts == ["error"]
    assert wait_until(lambda: descendants(os.getpid()) <= others)
    assert compare(pool, "2x+2", "2(x+1)") == "error"  # and starts none again


def run_script(tmp_path: Path, body: str, within: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(body))
    found = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [*within, sys.executable, str(path)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | variables | {"PYTHONPATH": found}
    )


def test_a_process_that_ends_waits_for_no_question(tmp_path):
    """Nobody closes the pool: its worker has ten minutes for each of four bombs."""
    script = run_script(
        tmp_path,
        """
        import threading, time
        from asking import compare
        from fairlen.verify.answer_pool import AnswerPool
        pool = AnswerPool(workers=1, deadline=600.0)
        compare(pool, "2x+2", "2(x+1)")
        for _ in range(4):
            threading.Thread(target=compare, args=(pool, "7x", "9^{9^{9^{9}}}"), daemon=True).start()
        time.sleep(0.5)
        print("done", flush=True)
        """,
    )
    try:
        assert script.wait(120) == 0
        assert script.stdout and script.stdout.read() == "done\n"
    finally:
        script.kill()


def test_no_process_outlives_a_parent_that_was_killed(tmp_path):
    script = run_script(
        tmp_path,
        """
        import threading, time
        from asking import compare
        from fairlen.verify.answer_pool import AnswerPool
        pool = AnswerPool(workers=2, deadline=60.0)
        compare(pool, "2x+2", "2(x+1)")
        for bomb in ("9^{9^{9^{9}}}", "(10^{10})!"):
            threading.Thread(target=compare, args=(pool, "7x", bomb)).start()
        print("busy", flush=True)
        time.sleep(60)
        """,
    )
    assert script.stdout and script.stdout.readline() == "busy\n"
    time.sleep(0.5)
    family = descendants(script.pid)
    assert len(family) == 3  # the fork server and two workers that hold the interpreter
    script.kill()
    script.wait()
    gone = wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    for pid in family if not gone else ():
        os.kill(pid, signal.SIGKILL)
    assert gone


def test_workers_run_no_main_program_and_hold_no_secrets_and_the_parent_no_algebra(tmp_path):
    script = run_script(
        tmp_path,
        """
        import os, sys
        from contextlib import closing
        print("main")  # without a guard
        from asking import compare
        from fairlen.verify.answer_pool import AnswerPool
        algebra = {"math_verify", "sympy", "torch"}
        with closing(AnswerPool(workers=2)) as pool:
            print(compare(pool, "2x+2", "2(x+1)"))
            for pid in (pool.server[1].pid, *(worker.pid for worker in pool.by_thread.values())):
                print("abc" in open(f"/proc/{pid}/environ").read(), max(map(int, os.listdir(f"/proc/{pid}/fd"))))
        print(len(algebra & set(sys.modules)))
        """,
        SECRET_TOKEN="abc",
    )
    lines = script.communicate(timeout=60)[0].split()
    assert lines[:2] == ["main", "correct"] and lines[2:6:2] == ["False", "False"] and lines[6] == "0"
    assert int(lines[3]) < 32 and int(lines[5]) < 32


def test_a_forked_process_starts_workers_of_its_own(tmp_path):
    script = run_script(
        tmp_path,
        """
        import os
        from asking import compare
        from fairlen.verify.answer_pool import AnswerPool
        pool = AnswerPool(workers=1)
        print(compare(pool, "2x+2", "2(x+1)"), flush=True)
        if os.fork() == 0:
            print(compare(pool, "2x+4", "2(x+2)"), flush=True)
            pool.close()
            os._exit(0)
        os.wait()
        print(compare(pool, "2x+6", "2(x+3)"), flush=True)
        pool.close()
        """,
    )
    assert script.communicate(timeout=60)[0].split() == ["correct"] * 3
