"""Recipes that run elsewhere: the notebook, cell by cell, and the script of Hugging Face Jobs as far as this machine goes."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fairlen.flags import flag_names
from fairlen.train.run.config import TrainConfig

ROOT = Path(__file__).parents[1]
NOTEBOOK, JOB = ROOT / "recipes/fairlen.ipynb", ROOT / "recipes/hf_jobs.py"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]


def test_the_notebook_has_no_outputs():
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) == 5 and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    """Its code in one namespace, in an empty folder, as a kernel runs it."""
    cells = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    code = "\n".join([*cells, "print(page._repr_html_()[:100])"])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = " ".join(done.stdout.split())
    assert len(re.findall(r"\b(?:effect|none|unknown): ", printed)) >= 2  # of the evaluation, and of the run
    assert re.search(r"\+\d+\.\d points \[\S+ \S+\] in 8 updates", printed)
    assert '<iframe srcdoc="&lt;!doctype html&gt;' in printed.lower()


def read_header() -> dict:
    """The table of PEP 723, by the pattern that it gives."""
    (text,) = re.findall(r"(?m)^# /// script$\s((?:^#(?:| .*)$\s)+)^# ///$", JOB.read_text())
    return tomllib.loads("".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines(keepends=True)))


def test_the_job_asks_for_what_the_package_is():
    header, project = read_header(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (needed,) = map(Requirement, header["dependencies"])
    assert needed.name == project["name"] and needed.extras <= project["optional-dependencies"].keys()
    assert header["requires-python"] == project["requires-python"]


def test_the_jobs_command_takes_the_table():
    """Its dry run sends nothing: machine, secret and volume as the script has them, and the flags behind it."""
    words = ["jobs", "uv", "run", "--dry-run", str(JOB), "--repo", "me/x", "--seed", "1"]
    command = [str(Path(sys.executable).parent / "hf"), *words]
    own = {"HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_of_nobody", "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(command, env=os.environ | own, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = read_header()["tool"]["hf-jobs"]
    for text in (table["flavor"], table["timeout"], "HF_TOKEN", *table["volumes"], "--repo me/x --seed 1"):
        assert text in done.stdout + done.stderr, text
    assert "hf_of_nobody" not in done.stdout


def test_the_flags_in_its_text_exist():
    text = ast.get_docstring(ast.parse(JOB.read_text())) or ""
    given = set(re.findall(r"--[a-z][a-z-]+", text)) - {"--dry-run", "--repo"}
    assert given and given <= {f"--{name}" for name in flag_names(TrainConfig)}
