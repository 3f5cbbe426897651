"""docs/architecture.md: its picture is that of the imports, and every file of its walks has what the page says to read in it."""

import re
import runpy
import shutil
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


def test_it_is_one_page():
    assert len(PAGE.splitlines()) <= 60


def test_files_named_between_the_steps_exist():
    for file in re.findall(r"`(\w+/[\w/]+\.py)`", PAGE):
        assert (SOURCE / file).is_file(), file


def test_its_picture_is_what_the_package_imports():
    done = subprocess.run([sys.executable, ROOT / "docs/draw_rooms.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_one_import_more_changes_the_picture(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs/draw_rooms.py", tmp_path / "docs")
    files = {"low": "", "middle/__init__": "from fairlen.low import x", "high/__init__": "import fairlen.middle"}
    for name, text in files.items():
        path = tmp_path / f"src/fairlen/{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    draw = runpy.run_path(str(tmp_path / "docs/draw_rooms.py"))["draw"]
    before = draw()
    (tmp_path / "src/fairlen/high/more.py").write_text("import fairlen.low")  # an arrow that the others lead to as well
    assert draw() == before and before.count("<rect") == 3 and before.count('class="h"') == 2
    (tmp_path / "src/fairlen/high/more.py").write_text("def f():\n    from fairlen.other import y")
    (tmp_path / "src/fairlen/other.py").write_text("import fairlen.middle")
    assert draw().count('class="h"') == 3
