"""docs/architecture.md: its picture is that of the imports, and every file of its walks has what the page says to read in it."""

import re
import subprocess
import sys
from pathlib import Path

import fairlen

ROOT = Path(__file__).parents[1]
SOURCE = Path(fairlen.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


SHARED = "## An advantage, from the verdict to the loss"
HEADINGS = (SHARED, "### In fairlen train", "### In TRL", "### In verl", "## A kept prefix")


def walk(heading: str) -> list[tuple[str, list[str]]]:
    """(file, names to read in it) of each step below a heading."""
    text = re.split(r"\n##", PAGE.split(f"{heading}\n")[1])[0]
    return [
        (file, re.findall(r"`([\w.]+)`", names)) for file, names in re.findall(r"^- `([\w/]+\.py)`: (.*)$", text, re.M)
    ]


def test_every_step_is_where_the_page_says():
    steps = [step for heading in HEADINGS for step in walk(heading)]
    assert len(steps) >= 22 and all(names for _, names in steps)
    for file, names in steps:
        text = (SOURCE / file).read_text()
        for name in names:
            for part in name.split("."):
                assert re.search(rf"^ *(?:async )?(?:def|class) {part}\b", text, re.M), (file, name)


def test_files_named_between_the_steps_exist():
    for file in re.findall(r"`(\w+/[\w/]+\.py)`", PAGE):
        assert (SOURCE / file).is_file(), file


def test_its_picture_is_what_the_package_imports():
    done = subprocess.run([sys.executable, ROOT / "docs/draw_rooms.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
