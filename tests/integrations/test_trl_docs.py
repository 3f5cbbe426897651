"""docs/trl.md: its diff is short, applies to a stock script and runs; its settings and names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/trl.md").read_text()
SCRIPT = ROOT / "recipes/trl_stock.py"


def hunks() -> list[list[str]]:
    block = re.search(r"```diff\n(.*?)```", PAGE, re.S)
    assert block
    return [part.splitlines() for part in block[1].split("…\n")]


def apply(text: str) -> str:
    for hunk in hunks():
        old = "\n".join(line[1:] for line in hunk if line[0] != "+")
        new = "\n".join(line[1:] for line in hunk if line[0] != "-")
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.slow
def test_the_diff_applies_to_a_stock_script_which_then_runs(tmp_path):
    changed = tmp_path / "script.py"
    changed.write_text(apply(SCRIPT.read_text()))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command, kept = [sys.executable, str(changed)], {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=300, check=False, **kept)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'advantage/eos'" in done.stdout  # a metric of the method's, which TRL has not
