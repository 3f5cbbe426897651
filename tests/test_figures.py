"""Figures of speed, memory and accuracy on the pages: each stands with the command that prints it, and with the date.

What a figure is, FIGURE says; limits and settings (a deadline, the memory of a GPU) are none. Pages of the study are left out,
and docs/log.md, where every entry is dated, and tables that another test compares with what their program prints.
"""

import re
import shlex
from pathlib import Path

import pytest

from fairlen.cli import read_eval_config, read_train_config
from fairlen.methods.compose import compose

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/methods").glob("*.md"))
    if page.name not in ("claims.md", "log.md", "fspo.md")
)
FIGURE = re.compile(
    r"tokens/s|\d times (?:the tokens|as fast|the speed)|\d ms\b|, ms\b|time of generation|\d s of training|"
    r"\bpeak [\d,.]+ [GM]iB|[\d.]+% \[[\d.]+%, [\d.]+%\]|held-out accuracy \||[\d.]+% of an? (?:update|step)"
)
COMMAND = re.compile(
    r"`(make train[^`]*|(?:\S*/)?python (?:benchmarks|recipes|tests)/[^`]*|pytest [^`]*|fairlen [^`]*)`"
    r"[^`|]{0,3}(2026-\d\d-\d\d)"
)
COMPARED = re.compile(r"<!-- scale\.py -->.*?<!-- end -->", re.S)
"""By tests/test_scale_page.py."""


def find_sections(page: Path) -> list[str]:
    """What stands under each heading of the first two ranks, tables that are compared left out."""
    return re.split(r"^(?=##? )", COMPARED.sub("", page.read_text()), flags=re.M)


SECTIONS = [
    pytest.param(section, id=f"{page.relative_to(ROOT).as_posix()}-{section.splitlines()[0].lstrip('# ')}")
    for page in PAGES
    for section in find_sections(page)
    if FIGURE.search(section)
]
COMMANDS = sorted({command for page in PAGES for command, _ in COMMAND.findall(page.read_text())})


@pytest.mark.parametrize("section", SECTIONS)
def test_figures_stand_with_a_command_and_a_date(section):
    assert COMMAND.search(section), f"no (`command`, date) beside {FIGURE.findall(section)}"


def test_figures_are_found():
    places = {param.id for param in SECTIONS}
    assert {"docs/numbers.md-How fast it is", "README.md-Two commands", "docs/vllm.md-Speed on a CPU"} <= places
    assert not FIGURE.search("after `--reward-deadline` (60 s), on one GPU of 80 GB, at most 2 GiB, 14 apples, 25%")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_exists(command):
    words = shlex.split(command.replace("\n", " "))
    if words[:2] == ["make", "train"]:
        settings = [word.removeprefix("ARGS=") for word in words[2:]]
        read_train_config(shlex.split(" ".join(settings)))
    elif words[:2] == ["fairlen", "train"]:
        read_train_config(words[2:])
    elif words[:2] == ["fairlen", "eval"]:
        read_eval_config(words[2:])
    elif words[:3] == ["fairlen", "methods", "--compare"]:
        for name in words[3:]:
            compose(name)
    else:
        (program,) = [word for word in words if word.endswith(".py")]
        text = (ROOT / program).read_text()
        for flag in words[words.index(program) + 1 :]:
            assert not flag.startswith("--") or f'"{flag}"' in text, f"{program} has no {flag}"
