"""A job under watch without verl: it stands still, its first process dies, its launcher is ended."""

from __future__ import annotations

import io
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fairlen.integrations.verl import watch
from fairlen.integrations.verl.watch import STEP, TIMED_OUT, read_lines, run_watched


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


def test_a_job_that_stands_still_is_ended_with_its_children(tmp_path, capsys):
    """It goes on printing, but no step follows step 1."""
    begun = time.monotonic()
    code = run_watched(script(tmp_path, STUCK), {}, tmp_path / "log", start_limit=30, step_limit=1.0)
    assert code == TIMED_OUT and time.monotonic() - begun < 60
    assert "no step after step 1 within 1 s" in capsys.readouterr().err
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert "a worker has died" in (tmp_path / "log").read_text()


ORPHANED = """
import pathlib, os, subprocess, sys
output = None if sys.argv[1:] else subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=output, stderr=output)
pathlib.Path(sys.argv[0]).with_name("child").write_text(str(child.pid))
os._exit(7)
"""


@pytest.mark.parametrize("holds", [(), ("output",)])
def test_what_a_dead_first_process_has_started_is_ended(holds, tmp_path, monkeypatch):
    """Its children are nobody's children any more, and may hold its output open. The limit of a step is not waited for."""
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    begun = time.monotonic()
    assert run_watched([*script(tmp_path, ORPHANED), *holds], {}, tmp_path / "log", 60, 60) == 7
    assert time.monotonic() - begun < 30
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


LAUNCHER = """
import signal
import sys
from pathlib import Path
from fairlen.integrations.verl.watch import run_watched
# as a terminal starts programs: whoever runs the tests may ignore these, nohup and a shell's & do, and processes inherit it
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    run_watched([sys.executable, "-u", sys.argv[1]], {}, Path(sys.argv[2]), 60, 60)
except KeyboardInterrupt as stop:
    print("said:", stop, flush=True)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_whoever_ends_the_launcher_ends_the_job(number, code, tmp_path):
    job = script(tmp_path, STUCK)[-1]
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command = [sys.executable, str(launcher), job, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert any("step 1:" in line for line in started.stdout)
        started.send_signal(number)
        rest = started.stdout.read()
        assert started.wait(30) == code
    child = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    assert ("said: interrupted" in rest) == (number == signal.SIGINT)


def test_a_job_that_never_starts_is_ended(tmp_path, capsys):
    code = run_watched(script(tmp_path, "import time; time.sleep(60)"), {}, tmp_path / "log", 0.5, 60)
    assert code == TIMED_OUT and "no first step within 0.5 s" in capsys.readouterr().err


def test_a_job_that_goes_on_is_left_alone(tmp_path):
    """Five steps of 0.4 s each under a limit of 2 s, and the job's own exit code."""
    code = "import time\nfor i in range(5):\n  time.sleep(0.4)\n  print(f'step:{i} - x')\nraise SystemExit(3)"
    assert run_watched(script(tmp_path, code), {}, tmp_path / "log", 20, 2.0) == 3


def test_a_step_is_verls_line_of_metrics():
    assert STEP.search("(TaskRunnerV1 pid=26659) step:12 - actor/pg_loss:0.1").group(1) == "12"
    assert not STEP.search("training/global_step: 12") and not STEP.search("timestep:3")


def test_a_log_that_cannot_be_written_ends_the_lines(tmp_path):
    """Else the launcher would wait for lines until its limit."""
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    lines = queue.Queue()
    with pytest.raises(OSError):
        read_lines(io.StringIO("step:1\n"), lines, tmp_path / "log")
    assert not lines.empty() and lines.get_nowait() is None
    assert not (tmp_path / "elsewhere").exists()
