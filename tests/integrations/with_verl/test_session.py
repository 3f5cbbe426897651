"""A job as a session, without verl: its first process dies, its launcher is ended, its log cannot be written."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fairlen.integrations.verl.session import run_session


def has_ended(path: Path) -> bool:
    """Whether the process whose number a file has is gone, or waits to be forgotten; it may take a moment to die."""
    for _ in range(600):
        try:
            if psutil.Process(int(path.read_text())).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def script(tmp_path: Path, code: str) -> list[str]:
    path = tmp_path / "job.py"
    path.write_text(code)
    return [sys.executable, "-u", str(path)]


STUCK = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[0]).with_name("child").write_text(str(child.pid))
print("(TaskRunnerV1 pid=1) step:1 - loss:0.5")
for _ in range(1000):
    print("a worker has died, waiting")
    time.sleep(0.1)
"""


ORPHANED = """
import pathlib, os, subprocess, sys
output = None if sys.argv[1:] else subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=output, stderr=output)
pathlib.Path(sys.argv[0]).with_name("child").write_text(str(child.pid))
os._exit(7)
"""


@pytest.mark.parametrize("holds", [(), ("output",)])
def test_what_a_dead_first_process_has_started_is_ended(holds, tmp_path):
    """Its children are nobody's children any more, and may hold its output open."""
    assert run_session([*script(tmp_path, ORPHANED), *holds], {}, tmp_path) == 7
    assert has_ended(tmp_path / "child")


LAUNCHER = """
import signal
import sys
from pathlib import Path
from fairlen.integrations.verl.session import run_session
# as a terminal starts programs: whoever runs the tests may ignore these, nohup and a shell's & do, and processes inherit it
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_session([sys.executable, "-u", sys.argv[1]], {}, Path(sys.argv[2]))
except KeyboardInterrupt as stop:
    print("said:", stop, flush=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_whoever_ends_the_launcher_ends_the_job(number, code, tmp_path):
    job = script(tmp_path, STUCK)[-1]
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command = [sys.executable, str(launcher), job, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert any("step 1:" in line for line in started.stdout)
        started.send_signal(number)
        rest = started.stdout.read()
        assert started.wait(30) == code
    assert has_ended(tmp_path / "child")
    assert ("said: interrupted" in rest) == (number == signal.SIGINT)


def test_a_log_that_cannot_be_written_ends_the_job(tmp_path):
    """Its output is a pipe: with nobody to read it the job would wait without end."""
    (tmp_path / "verl.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        run_session(script(tmp_path, STUCK), {}, tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "child").exists() or has_ended(tmp_path / "child")
