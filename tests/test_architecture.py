"""docs/architecture.md: every file of its walks is there, and has what the page says to read in it."""

import re
from pathlib import Path

import fairlen

ROOT = Path(__file__).parents[1]
SOURCE = Path(fairlen.__file__).parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def walk(heading: str) -> list[tuple[str, list[str]]]:
    """(file, names to read in it) of each step below a heading."""
    rows = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| (.*)\|$", PAGE.split(f"## {heading}")[1].split("\n## ")[0], re.M)
    return [(file, re.findall(r"`([\w.]+)`", names)) for file, names in rows]


def test_every_step_is_where_the_page_says():
    steps = walk("An advantage, from the verdict to the loss") + walk("A kept prefix")
    assert len(steps) >= 14
    for file, names in steps:
        text = (SOURCE / file).read_text()
        for name in names:
            for part in name.split("."):
                assert re.search(rf"^ *(?:async )?(?:def|class) {part}\b", text, re.M), (file, name)


def test_an_advantage_passes_through_at_most_ten_files():
    assert len({file for file, _ in walk("An advantage, from the verdict to the loss")}) <= 10


def test_it_is_one_page():
    assert len(PAGE.splitlines()) <= 60
