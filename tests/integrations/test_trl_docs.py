"""docs/trl.md: its diff is short, applies to a stock script and runs; its settings and names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from trl import GRPOConfig

from fairlen.integrations.trl.config import TrlConfig
from fairlen.methods.compose import compose

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


def test_the_page_begins_with_a_diff_of_at_most_five_lines():
    assert PAGE.startswith("# TRL\n\n```diff\n")
    assert sum(line[0] in "+-" for hunk in hunks() for line in hunk) <= 5


@pytest.mark.slow
def test_the_diff_applies_to_a_stock_script_which_then_runs(tmp_path):
    changed = tmp_path / "script.py"
    changed.write_text(apply(SCRIPT.read_text()))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(changed)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'advantage/eos'" in done.stdout  # a metric of the method's, which TRL has not


def test_names_and_settings_exist():
    fields = set(GRPOConfig.__dataclass_fields__) | set(TrlConfig.__dataclass_fields__)
    table = PAGE.split("## What becomes of GRPOConfig")[1].split("| TRL, other settings")[0]
    first = "\n".join(line.split("`: ")[0] + "`" for line in table.splitlines() if line.startswith("- `"))
    named = re.findall(r"`([a-z_]+)(?:=[^`]*)?`", first)
    assert len(named) > 15
    assert not set(named) - fields
    for names in re.findall(r"`((?:[a-z_]+\+)+std_trl|dr_grpo|vespo)`", PAGE):
        compose(names)
    compose("dapo_verl+std_trl", ["filter=Everything", "reward=none"])
    compose("vespo", ["aggregation=TokenMean", "aggregation.scope=update"])


def test_every_file_it_links_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
