"""Programs of benchmarks/ and recipes/: each is started by `make bench-smoke`, test-verl or test-vllm, and can fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loops import over

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import _all  # noqa: E402


def test_every_program_is_listed_once():
    assert _all.find_programs() == sorted(_all.PROGRAMS)
    assert {program.kind for program in _all.PROGRAMS.values()} == {"cpu", "cuda", "vllm", "ray"}


@over("name", sorted(name for name in _all.PROGRAMS if name.startswith("benchmarks/")))
def test_every_benchmark_takes_smoke(name):
    assert "add_smoke(parser)" in (ROOT / name).read_text()


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print('7 tokens/s')", ""),
        ("raise SystemExit('bad.py: 3 of 4')", "exit code 1"),
        ("print('nan tokens/s')", "it does not print"),
        ("print('7 tokens/s'); open('weights', 'wb').write(bytes(30_000_000))", "it leaves 30 MB behind"),
        ("print('7 tokens/s', flush=True); import time; time.sleep(60)", "not done after 2 s"),
    ],
)
def test_a_program_that_fails_is_noticed(tmp_path, code, complaint):
    program = tmp_path / "program.py"
    program.write_text(code)
    ended = _all.start(program, (), r"\d tokens/s", limit=2.0 if "sleep" in code else 60.0)
    assert ended.complaint.startswith(complaint) and bool(ended.complaint) == bool(complaint)
    assert ended.printed or "SystemExit" not in code


@pytest.mark.parametrize("number", ["float('nan')", "float('inf')", "0", "-1.5"])
def test_a_measurement_that_is_none_ends_the_program_in_one_line(tmp_path, number):
    program = tmp_path / "speed.py"
    program.write_text(f"from _checks import demand_positive\ndemand_positive('tokens/s', (1.0, {number}))\n")
    env = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"speed\.py: tokens/s is \S+: it should be finite and above 0\n", done.stderr)
