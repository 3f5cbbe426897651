"""Tutorials: each is done as it stands, file by file and command by command, in an empty folder."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
STEP = re.compile(r'^```python title="([\w.]+)"\n([\s\S]*?)^```|^    (\S.*)$', re.M)
"""A file with its text, or a command."""
FOUND = {
    "audit": ("ALARM length",),
    "method": ("every token weighs the same",),
    "own": ("[0.125  0.0625", "a token of a short response weighs"),
    "turns": ("accuracy, 95% interval",),
    "verl": ("dapo+balanced",),
}
"""What a tutorial says will be printed; one of several is enough."""
MARKS = {
    page: [pytest.mark.nightly, *[pytest.mark.ray] * (page == "verl")] for page in ("method", "own", "turns", "verl")
}
"""Tutorials that take a minute of the processor or more."""


def steps_of(page: str) -> Iterator[tuple[str, str]]:
    """Yield (file, text), or ("", command)."""
    text = (TUTORIALS / f"{page}.md").read_text()
    for name, body, command in STEP.findall(text.replace("\r", "")):
        yield name, body or command


def do(page: str, folder: Path) -> str:
    """Do a tutorial in a folder; return everything that its commands printed."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    variables = os.environ | {"PATH": path, "XDG_STATE_HOME": str(folder / "state")}
    printed = []
    for name in ("recipes", "tests"):  # as in a checkout
        (folder / name).symlink_to(TUTORIALS.parents[1] / name)
    for name, text in steps_of(page):
        if name:
            (folder / name).write_text(text)
            continue
        done = subprocess.run(
            ["bash", "-c", text], cwd=folder, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout)
    return "".join(printed)


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS.get(page, pytest.mark.slow)) for page in FOUND])
def test_a_tutorial_can_be_done(page, tmp_path):
    printed = " ".join(do(page, tmp_path).split())
    assert any(" ".join(text.split()) in printed for text in FOUND[page]), printed[-3000:]


def test_all_tutorials_are_done():
    assert {page.stem for page in TUTORIALS.glob("*.md")} == set(FOUND)
    assert all(len(list(steps_of(page))) > 1 for page in FOUND)
