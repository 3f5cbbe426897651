"""Commands that pages name beside a figure: each exists, with its flags."""

import re
import shlex
from pathlib import Path

from loops import over

from fairlen.cli import read_eval_config, read_train_config
from fairlen.methods.compose import compose

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/methods").glob("*.md"))
    if page.name not in ("claims.md", "log.md", "fspo.md")
)
COMMAND = re.compile(
    r"`(make train[^`]*|(?:\S*/)?python (?:benchmarks|recipes|tests)/[^`]*|pytest [^`]*|fairlen [^`]*)`"
    r"[^`|]{0,3}(2026-\d\d-\d\d)"
)
COMMANDS = sorted({command for page in PAGES for command, _ in COMMAND.findall(page.read_text())})


@over("command", COMMANDS)
def test_a_command_beside_a_figure_exists(command):
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
