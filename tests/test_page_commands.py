"""Commands on pages: `python ...`, `pytest ...` and `make ...` name files, modules, tests, targets and flags that exist."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HISTORY = {"log.md", "CHANGELOG.md"}
"""Pages about the past, whose commands ran when they were written."""
PAGES = [
    page for page in (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))) if page.name not in HISTORY
]
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()}
"""Folders of the checkout. A file in another one, or in none, is an example of the reader's own."""
START = re.compile(r"(?:^|(?<=[\s`(;&|]))(?:[\w./-]*/)?(?:python3?|pytest|make) (?=[\w./-])")


def code_of(text: str) -> Iterator[str]:
    """Yield the code of a page: lines of fenced and of indented blocks, and inline code, joined over line ends."""
    fenced = re.findall(r"^```(?:bash|sh|shell|console|text)?\n(.*?)^```", text, re.M | re.S)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    indented = re.findall(r"(?:^|\n\n)((?:    .*\n?)+)", prose)
    for block in (*fenced, *indented):
        for line in block.replace("\\\n", " ").splitlines():
            if "`" not in line:  # the second line of an item of a list
                yield re.sub(r"\s#.*", "", line).strip()
    for span in re.findall(r"`([^`]+)`", prose):
        yield " ".join(span.split())


def commands_of(text: str) -> Iterator[str]:
    """Yield the commands of a page that begin with python, pytest or make, with a path before it or not."""
    for code in code_of(text):
        for part in re.split(r"&&|\|\||;|\|", code):
            begin = START.search(part)
            if begin:
                yield part[begin.start() :].strip()


COMMANDS = sorted({(page.name, command) for page in PAGES for command in commands_of(page.read_text())})


def find_fault(command: str) -> str:
    """Return what a command names that does not exist; empty if everything does."""
    program, *words = shlex.split(command)
    name = Path(program).name
    if name == "make":
        return find_make_fault(words)
    if name == "pytest":
        return next(filter(None, map(find_test_fault, words)), "")
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
        words.pop(0)
    if not words or words[0] == "-c":
        return ""
    if words[0] == "-m":
        if words[1] == "pytest":
            return next(filter(None, map(find_test_fault, words[2:])), "")
        return find_module_fault(words[1], words[2:])
    return find_script_fault(words[0], words[1:])


def find_make_fault(words: list[str]) -> str:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(" ".join(re.findall(r"^([\w. -]+):(?!=)", makefile, re.M)).split()) - {".PHONY"}
    variables = set(re.findall(r"^(?:export )?(\w+) *[?:]?=", makefile, re.M))
    for word in words:
        variable, is_set, _ = word.partition("=")
        if word not in targets and not (is_set and variable in variables):
            return f"the Makefile has no {word}"
    return ""


def find_test_fault(word: str) -> str:
    path, _, name = word.partition("::")
    if word.startswith("-") or "/" not in path:
        return ""
    if not (ROOT / path).exists():
        return f"{path} does not exist"
    test = name.partition("[")[0].rpartition("::")[2]
    return "" if not name or f"def {test}(" in (ROOT / path).read_text() else f"{path} has no test {test}"


def find_module_fault(module: str, words: list[str]) -> str:
    if module.partition(".")[0] not in ("research", "fairlen"):
        return ""  # of another package, which need not be installed here
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        return f"there is no module {module}"
    is_package = found.submodule_search_locations is not None
    source = Path(found.submodule_search_locations[0]) if is_package else Path(str(found.origin))
    files = [*source.glob("*.py")] if is_package else [source]
    return find_flag_fault(module, files, words) if module != "fairlen" else ""


def find_script_fault(script: str, words: list[str]) -> str:
    path = ROOT / script
    if Path(script).parts[0] not in FOLDERS:
        return ""
    if not path.is_file():
        return f"{script} does not exist"
    if path.name.startswith("test_"):
        return f"{script} is a file of tests, which python cannot run by itself: write pytest {script}"
    return find_flag_fault(script, [path, *path.parent.glob("_*.py")], words)


@cache
def read_all(files: tuple[Path, ...]) -> str:
    return "".join(file.read_text() for file in files)


def find_flag_fault(program: str, files: list[Path], words: list[str]) -> str:
    """Look for each flag in the source of a program: as text, or as a field or parameter from which a parser makes it."""
    text = read_all(tuple(files))
    if "TrlParser" in text or "HfArgumentParser" in text:
        return ""  # every field of TRL's own settings is a flag
    for word in words:
        flag = word.partition("=")[0]
        field = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and f'"{flag}"' not in text and not re.search(rf"\b{field}: ", text):
            return f"{program} has no {flag}"
    return ""


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: re.sub(r"\W+", "-", value)[:60])
def test_a_command_on_a_page_names_what_exists(page, command):
    assert find_fault(command) == "", f"{page}: {command}"


def test_the_pages_have_commands_of_each_kind():
    programs = [Path(command.split()[0]).name for _, command in COMMANDS]
    assert min(programs.count("python"), programs.count("make")) >= 15 and "pytest" in programs


WRONG = {
    "make tset": "no tset",
    "make test ARG=1": "no ARG=1",
    "python benchmarks/nothing.py": "does not exist",
    "python benchmarks/update.py --thraeds 1": "has no --thraeds",
    "python tests/oracles/test_eqlen_gradient.py": "write pytest",
    ".venv/bin/python -m research.nothing": "no module",
    "python -m research.ledger --chekc": "has no --chekc",
    "pytest -s tests/nothing": "does not exist",
    "pytest tests/test_docs.py::test_nothing": "has no test test_nothing",
}


@pytest.mark.parametrize(("command", "fault"), WRONG.items())
def test_a_wrong_command_is_found(command, fault):
    assert fault in find_fault(command)
    for page in (f"Run `{command}` first.", f"Run\n\n    {command}  # first\n", f"```bash\ncd x && {command}\n```\n"):
        assert list(commands_of(page)) == [command]


@pytest.mark.parametrize(
    "command",
    ["python mine.py --any", "make test ARGS='-k x'", "python -c 'print(1)'", "pytest -q", "python -m pip install x"],
)
def test_a_command_of_the_readers_own_passes(command):
    assert find_fault(command) == ""
