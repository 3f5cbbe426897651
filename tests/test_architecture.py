"""docs/architecture.md: every file of its walks is there, and has what the page says to read in it."""

import re
from pathlib import Path

import pytest

import fairlen

ROOT = Path(__file__).parents[1]
SOURCE = Path(fairlen.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


HEADINGS = ("An advantage", "The same in TRL", "The same in verl", "A kept prefix")


def walk(heading: str) -> list[tuple[str, list[str]]]:
    """(file, names to read in it) of each step below a heading."""
    rows = re.findall(
        r"^\| [^|]* ?\| `([\w/]+\.py)` \| (.*)\|$", PAGE.split(f"## {heading}")[1].split("\n## ")[0], re.M
    )
    return [(file, re.findall(r"`([\w.]+)`", names)) for file, names in rows]


def test_every_step_is_where_the_page_says():
    steps = [step for heading in HEADINGS for step in walk(heading)]
    assert len(steps) >= 29
    for file, names in steps:
        text = (SOURCE / file).read_text()
        for name in names:
            for part in name.split("."):
                assert re.search(rf"^ *(?:async )?(?:def|class) {part}\b", text, re.M), (file, name)


@pytest.mark.parametrize(("home", "most"), [("An advantage", 10), ("The same in TRL", 6), ("The same in verl", 7)])
def test_an_advantage_passes_through_few_files(home, most):
    assert 5 <= len({file for file, _ in walk(home)}) <= most


def test_it_is_one_page():
    assert len(PAGE.splitlines()) <= 85
