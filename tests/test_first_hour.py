"""benchmarks/first_hour.py on a CPU: each section ends or says what it needs, and the page has numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "benchmarks" / "first_hour.py"


@pytest.mark.slow
def test_every_section_ends_and_the_page_has_numbers_beside_those_of_others(tmp_path):
    command = [sys.executable, PROGRAM, "--smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "first_hour.md").read_text()
    outcomes = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| \d+ \|$", page, re.M))
    needing = {name for name, outcome in outcomes.items() if outcome.startswith("needs a CUDA device")}
    assert needing == {"tests", "memory against the account", "vLLM", "vLLM alone", "tests of vLLM"}
    assert len(outcomes) == 13 and {outcomes[name] for name in set(outcomes) - needing} == {"passed"}
    numbers = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]* \|$", page.split("## Numbers")[1], re.M))
    assert re.fullmatch(r"[\d,]+ tokens/s of [\d,]+", numbers["nano-vllm's requests, embedded engine, float32"])
    assert numbers["resumed run from one that never stopped, last update"].startswith("loss/total 0, gradient/norm 0")
    assert float(numbers["update: TRL's time over ours"]) > 0
    assert "backward" in numbers["80 GB command, seconds"]
    assert "11,896 tokens/s, 11.1% MFU" in page and "12,100" in page
    assert [path.name for path in tmp_path.iterdir()] == ["first_hour.md"]
