"""`make test-gpu` fails where nothing ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PASSES, SKIPS = "def test():\n    pass\n", "import pytest\n\n\n@pytest.mark.skip\ndef test():\n    pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "options", "code"),
    [(PASSES, ("--must-pass",), 0), (SKIPS, ("--must-pass",), 1), (PASSES, ("--must-pass", "-k", "none"), 1), (SKIPS, (), 0)],
    ids=["passes", "all skip", "none selected", "not asked"],
)  # fmt: skip
def test_where_nothing_passed_it_fails(tmp_path, text, options, code):
    (tmp_path / "test_one.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", *options, "test_one.py"],
        cwd=tmp_path, env={"PATH": "", "PYTHONPATH": f"{TESTS}:{ROOT / 'src'}"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert ("no test passed" in done.stdout) == (code == 1)
