"""`make test-gpu` fails where nothing ran, and what it covers is a table of docs/gpu.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SUBJECTS = {
    "resume with fused AdamW", "recovery from running out of memory", "estimate of memory against peaks", "checkpointing",
    "chunked heads", "compiled layers", "trees in bfloat16", "LoRA", "KL", "8,192 positions", "heads of 128", "vLLM on CUDA",
    "embedded engine", "whole runs", "phases timed by the device",
}  # fmt: skip
PASSES, SKIPS = "def test():\n    pass\n", "import pytest\n\n\n@pytest.mark.skip\ndef test():\n    pass\n"


def covered() -> dict[str, list[str]]:
    """Tests by subject, as docs/gpu.md has them."""
    rows = re.findall(r"^\| ([^|`]+) \| ((?:`[\w/.]+::\w+`(?:, )?)+) \|", (ROOT / "docs/gpu.md").read_text(), re.M)
    return {subject.strip(): re.findall(r"`([^`]+)`", tests) for subject, tests in rows}


def test_every_subject_has_tests_of_the_device():
    table = covered()
    assert set(table) >= SUBJECTS
    for subject, tests in table.items():
        for place in tests:
            path, name = place.split("::")
            tree = ast.parse((TESTS / "gpu" / path).read_text())
            found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in found, f"{subject}: there is no {place}"
            assert "pytest.mark.gpu" in ast.unparse(tree), path


def test_make_asks_that_something_passes():
    rule = (ROOT / "Makefile").read_text().split("\ntest-gpu:")[1].split("\n\n")[0]
    runs = [line for line in rule.splitlines() if "/pytest " in line and " -m gpu " in line]
    assert len(runs) == 2
    assert all("--must-pass" in line and "||" not in line for line in runs)


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
