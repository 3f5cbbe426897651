"""A sandbox is admitted only where attempts fail and honest programs run; limits, parallel runs, and what is left at the end."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from battery import find_processes
from loops import over
from turns import longest_pause

from fairlen.verify.bubblewrap import Bubblewrap, build_filter
from fairlen.verify.execution import Limits
from fairlen.verify.process import supervise
from fairlen.verify.sandbox import HostSandbox, find_escapes, find_unfit, open_sandbox

SHORT = Limits(seconds=1.0)


def run(sandbox, program: str, stdin: bytes = b"", limits: Limits = Limits()):  # noqa: B008  # frozen
    return asyncio.run(sandbox.run(program, stdin, limits))


class Weakened(Bubblewrap):
    """Bubblewrap with other options in place of some of its own."""

    def __init__(self, replaced: dict[str, list[str]], filtered: bool = True) -> None:
        super().__init__()
        self.replaced, self.filtered = replaced, filtered

    def _command(self, limits: Limits, uid: int, source: int, calls: int, status: int) -> list[str]:
        command = super()._command(limits, uid, source, calls, status)
        if not self.filtered:
            place = command.index("--seccomp")
            del command[place : place + 2]
        return [word for old in command for word in self.replaced.get(old, [old])]


@over(
    "replaced, filtered, complaint",
    [
        ({"--unshare-all": ["--unshare-user", "--unshare-pid", "--unshare-uts"]}, False, "connects over TCP"),
        ({"--unshare-all": ["--unshare-user", "--unshare-net", "--unshare-uts"], "--as-pid-1": []}, True, "sees processes"),
        ({"--hostname": ["--ro-bind", "/etc/passwd", "/etc/passwd", "--hostname"]}, True, "reads /etc/passwd"),
        ({"--chdir": ["--bind", "/tmp", "/tmp", "--chdir"]}, True, "changes files of the host"),
        ({"--remount-ro": ["--dir"]}, True, "writes to /"), ({}, False, "starts processes"),
    ],
)  # fmt: skip
def test_a_sandbox_with_one_hole_is_found_out(replaced: dict, filtered: bool, complaint: str) -> None:
    weakened = Weakened(replaced, filtered)
    assert asyncio.run(find_unfit(weakened)) == ""
    escapes = asyncio.run(find_escapes(weakened))
    assert any(complaint in escape for escape in escapes), escapes


def test_without_bubblewrap_nothing_is_opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError) as refusal:
        open_sandbox()
    for remedy in ("bwrap is missing", "apt-get install", "max_user_namespaces", "--unsafe-exec-on-host"):
        assert remedy in str(refusal.value)


def test_old_bubblewrap_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho bubblewrap 0.6.1\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"0\.6\.1.*bubblewrap 0\.8 or later"):
        open_sandbox()


def test_without_namespaces_nothing_is_opened() -> None:
    """In a container that forbids them; bubblewrap itself makes such a one."""
    attempt = "try: open_sandbox()\nexcept ValueError as error: print(error)"
    code = f"from fairlen.verify.sandbox import open_sandbox\n{attempt}"
    nested = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns", "--", sys.executable, "-c", code]
    done = subprocess.run(nested, capture_output=True, text=True, timeout=120, check=False)
    assert "an honest program ended with 'infrastructure': bubblewrap: " in done.stdout, done
    assert "apt-get install bubblewrap" in done.stdout and "--unsafe-exec-on-host" in done.stdout


@pytest.mark.slow
def test_the_host_runs_programs_only_by_name_and_says_so() -> None:
    host = open_sandbox(unsafe_exec_on_host=True)
    assert isinstance(host, HostSandbox) and host.describe()["unsafe"] is True
    assert run(host, "print(input() * 2)", b"ab\n").stdout == b"abab\n"
    assert run(host, "while True: pass", limits=SHORT).status == "timeout"
    assert run(host, "x = bytearray(1 << 31)").status == "crashed"
    assert run(host, "while True: print('x' * 999)", limits=Limits(output_bytes=5000)).stdout[:1] == b"x"
    folder = run(host, "import os\nopen('x', 'w').write('x')\nprint(os.getcwd())").stdout.decode().strip()
    assert folder.startswith("/") and not Path(folder).exists()


@over(
    "program, status, exit_code",
    [
        ("print(1)", "ok", 0), ("1 / 0", "crashed", 1), ("import sys; sys.exit(3)", "crashed", 3),
        ("import ctypes; ctypes.string_at(0)", "crashed", 128 + 11), ("x = bytearray(2 << 30)", "crashed", 1),
        ("import time; time.sleep(9)", "timeout", None), ("while True: print('x' * 9999)", "output_limit", None),
    ],
)  # fmt: skip
def test_endings(sandbox: Bubblewrap, program: str, status: str, exit_code: int | None) -> None:
    execution = run(sandbox, program, limits=Limits(seconds=3.0, output_bytes=1 << 16))
    assert (execution.status, execution.exit_code) == (status, exit_code), execution
    assert len(execution.stdout) <= 1 << 16


def test_a_run_ends_when_its_process_does(sandbox: Bubblewrap) -> None:
    """Not when its pipes do: what is stopped in the middle of its output, or leaves a child with its pipes, has ended."""
    limits = Limits(seconds=120.0, output_bytes=1 << 20)
    start = time.monotonic()
    flood = run(sandbox, "print('7' * (24 << 20))", limits=limits)
    stray = "import subprocess; subprocess.Popen(['sleep', '90'], start_new_session=True); print(1)"
    left = run(HostSandbox(), stray, limits=limits)
    assert (flood.status, left.status, left.stdout) == ("output_limit", "ok", b"1\n")
    assert time.monotonic() - start < 90.0


@pytest.mark.slow
def test_what_a_run_costs_is_bounded_by_cpu_time_too(sandbox: Bubblewrap) -> None:
    spin = "import threading\ndef spin():\n    while True: pass\nspin()"
    start = time.monotonic()
    execution = run(sandbox, spin, limits=Limits(seconds=120.0, cpu_seconds=1))
    # the first process of its namespace outlives SIGXCPU, and is killed a second of processor time later
    assert execution.exit_code == 128 + signal.SIGKILL and time.monotonic() - start < 90.0


@pytest.mark.slow
def test_programs_die_with_the_process_that_started_them() -> None:
    mark = (8 << 20) + 4096 * (1 + secrets.randbelow(1 << 10))
    code = (
        "import asyncio\nfrom fairlen.verify.bubblewrap import Bubblewrap\nfrom fairlen.verify.execution import Limits\n"
        "async def main():\n    task = asyncio.create_task(Bubblewrap().run('import time; time.sleep(60)', b'', "
        f"Limits(seconds=60.0, file_bytes={mark})))\n    await asyncio.sleep(1.0)\n    print('started', flush=True)\n"
        f"    await task\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
        assert find_processes(mark)
        parent.send_signal(signal.SIGKILL)
    time.sleep(0.5)
    assert find_processes(mark) == []


def test_programs_on_the_host_die_with_the_process_that_started_them(tmp_path: Path) -> None:
    """The program writes its pid and sleeps; its parent is killed without a word."""
    program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = (
        "import asyncio\nfrom fairlen.verify.sandbox import HostSandbox\nfrom fairlen.verify.execution import Limits\n"
        f"asyncio.run(HostSandbox().run({program!r}, b'', Limits(seconds=60.0)))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        path = tmp_path / "pid"
        while not path.exists() or not path.read_text():
            assert parent.poll() is None
            time.sleep(0.02)
        command = Path(f"/proc/{int(path.read_text())}/cmdline")  # empty of one that has died and was not waited for
        assert command.read_bytes()
        parent.send_signal(signal.SIGKILL)
    time.sleep(0.5)
    assert not command.exists() or not command.read_bytes()


def test_there_is_a_filter_for_two_machines() -> None:
    assert len(build_filter("x86_64")) % 8 == len(build_filter("aarch64")) % 8 == 0
    with pytest.raises(ValueError, match="machine='riscv64'"):
        build_filter("riscv64")


def test_a_program_that_was_in_time_is_not_late_because_we_were_busy():
    """The loop is blocked past the deadline of 0.6 s by something else, while the process ends after 0.1 s."""

    async def both():
        running = asyncio.ensure_future(
            supervise(["sh", "-c", "sleep 0.1; echo 42"], b"", Limits(seconds=0.6), os.environ)
        )
        await asyncio.sleep(0.3)
        time.sleep(0.6)
        return await running

    ended = asyncio.run(both())
    assert (ended.status, ended.exit_code, ended.stdout) == ("ok", 0, b"42\n")
    late = asyncio.run(supervise(["sleep", "9"], b"", Limits(seconds=0.2), os.environ))
    assert (late.status, late.exit_code) == ("timeout", None)


def test_what_a_program_leaves_on_the_host_is_removed_without_stopping_the_event_loop() -> None:
    """30,000 files: removing them takes 0.3 s and more."""
    program = "import os\nfor n in range(30_000): open(str(n), 'w').close()\nprint(os.getcwd())"
    execution, pause = asyncio.run(longest_pause(HostSandbox().run(program, b"", Limits(seconds=60.0))))
    assert execution.status == "ok" and not Path(execution.stdout.decode().strip()).exists()
    assert pause < 0.1


HOG = """
import hashlib, threading
def spin():
    while True: hashlib.sha256(bytes(1 << 20)).digest()
for _ in range(30): threading.Thread(target=spin).start()
spin()
"""
"""31 threads that compute at once: hashing lets go of the interpreter."""
HONEST = "import time\nwhile time.process_time() < 0.7: pass\nprint(1)"

NEIGHBOURS = f"""
import asyncio, os
from fairlen.verify.bubblewrap import Bubblewrap
from fairlen.verify.execution import Limits
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
sandbox = Bubblewrap(slots=2)
async def both():
    hog = asyncio.ensure_future(sandbox.run({HOG!r}, b"", Limits(seconds=2.0)))
    await asyncio.sleep(0.3)
    honest = await sandbox.run({HONEST!r}, b"", Limits(seconds=1.0))
    return honest.status, (await hog).status
print(*asyncio.run(both()))
"""


@pytest.mark.slow
def test_a_program_is_not_late_because_its_neighbour_takes_the_core() -> None:
    """Honest: 0.7 s of the 1 s of CPU time that it may use. Beside the other on one core it has a half of that second at best."""
    done = subprocess.run([sys.executable, "-c", NEIGHBOURS], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["ok", "timeout"]


def test_a_program_with_many_threads_has_one_core(sandbox: Bubblewrap) -> None:
    assert run(sandbox, "import os; print(len(os.sched_getaffinity(0)))").stdout == b"1\n"
    execution = run(sandbox, "import os\nos.sched_setaffinity(0, range(os.cpu_count()))")
    assert b"Function not implemented" in execution.stderr


def test_a_run_that_is_cancelled_as_it_starts_leaves_nothing() -> None:
    """At every moment of a start, which takes 20 ms."""
    mark = (8 << 20) + 4096 * (1 + secrets.randbelow(1 << 10))

    async def start_and_cancel(sandbox: Bubblewrap, after: float) -> None:
        limits = Limits(seconds=60.0, file_bytes=mark)
        task = asyncio.create_task(sandbox.run("import time; time.sleep(60)", b"", limits))
        await asyncio.sleep(after)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    sandbox = Bubblewrap()
    for millisecond in (*range(0, 30, 3), 400):
        asyncio.run(start_and_cancel(sandbox, millisecond / 1000))
    assert find_processes(mark) == []
