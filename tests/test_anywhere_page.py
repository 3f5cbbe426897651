"""docs/anywhere.md: its diff turns a plain loop into one with a method in a few lines, and both run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from loops import first_quickly

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/anywhere.md").read_text()
SCRIPT = ROOT / "recipes/plain_loop.py"
BLOCK = re.search(r"```diff\n(.*?)```", PAGE, re.S)
LINES = BLOCK[1].splitlines() if BLOCK else []


def apply(text: str) -> str:
    """The script with each run of lines that go replaced by the lines that come at their place."""
    for hunk in "\n".join(LINES).split("…\n"):
        lines = hunk.splitlines()
        old = [line[1:] for line in lines if line[0] != "+"]
        new = [line[1:] for line in lines if line[0] != "-"]
        pattern = r"\n+".join(map(re.escape, old))  # the page leaves empty lines out
        assert len(re.findall(pattern, text)) == 1, hunk
        text = re.sub(pattern, lambda _, new=new: "\n".join(new), text)
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "state"),
    first_quickly([("fspo+balanced", "'surrogate.num_updates': 3"), ("dapo+balanced", "{}")], 1, "nightly"),
)  # of 3 rollout batches the second epoch: the first is on-policy
def test_the_plain_loop_runs_with_a_method(name, state, tmp_path):
    """Stock it is started by the test of all programs; here with methods of which some have a state, which has moved."""
    changed = tmp_path / "loop.py"
    script = apply(SCRIPT.read_text())
    assert script.count("fspo+balanced") == 1
    changed.write_text(script.replace("fspo+balanced", name) + "\nprint(method.state)\n")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(changed)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("right,") == 3 and state in done.stdout
