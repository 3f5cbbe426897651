"""Runs tests with the oldest and the newest version of what fairlen depends on, and prints a table: `make test-versions`.

versions.toml beside this file says which. Each combination has an environment of its own, which is kept until its line changes.

    python tests/versions.py                      all of them, one after another
    python tests/versions.py core-oldest trl-newest
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MATRIX = Path(__file__).with_suffix(".toml")
TOOLS = ("pytest>=8.3,<10",)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
"""Of the tests: nothing of the interpreter that runs this program."""


@dataclass(frozen=True)
class Combination:
    """Versions that are tried together, and the tests that try them."""

    name: str
    python: str
    """Such as 3.13; empty for the interpreter that runs this program."""
    versions: Mapping[str, str]
    """By the name of a package."""
    requirements: tuple[str, ...]
    """What pip is given beside fairlen itself."""
    arguments: tuple[str, ...]
    """Of pytest."""


@dataclass(frozen=True)
class Result:
    """How many tests passed and failed, or why none ran."""

    passed: int = 0
    failed: int = 0
    reason: str = ""


def read_combinations(matrix: Path = MATRIX, project: Path = ROOT / "pyproject.toml") -> list[Combination]:
    """Return all combinations of the file, in its order."""
    found, described = tomllib.loads(matrix.read_text()), tomllib.loads(project.read_text())["project"]
    combinations = []
    for name, row in found["combinations"].items():
        suite = found["suites"][row["suite"]]
        asked = {need.name: str(need) for need in find_needs(described, suite["extras"])}
        asked |= {package: f"{package}=={version}" for package, version in row["versions"].items()}
        wanted = read_pins(ROOT / suite["pins"]) if "pins" in suite else (*asked.values(), *TOOLS)
        combinations.append(
            Combination(name, row.get("python", ""), row["versions"], wanted, tuple(suite["arguments"]))
        )
    return combinations


def read_pins(file: Path) -> tuple[str, ...]:
    """Return what installs exactly the packages of a file."""
    return ("--no-deps", *(line for line in file.read_text().splitlines() if not line.startswith("#")))


def find_needs(project: Mapping[str, Any], extras: Sequence[str]) -> Iterator[Requirement]:
    """What the project asks for with some extras, and with those that they ask for."""
    optional = project["optional-dependencies"]
    yield from map(Requirement, project["dependencies"])
    for extra in extras:
        for need in map(Requirement, optional[extra]):
            if need.name == project["name"]:
                yield from find_needs(project, sorted(need.extras))
            else:
                yield need


def prepare(one: Combination, folder: Path) -> Path:
    """Return the interpreter of an environment with all that is asked for. Raises RuntimeError with why there is none."""
    python, done, wanted = folder / "bin" / "python", folder / "requirements.txt", "\n".join(one.requirements)
    if done.is_file() and done.read_text() == wanted:
        return python
    base = shutil.which(f"python{one.python}") if one.python else sys.executable
    if base is None:
        raise RuntimeError(f"there is no python{one.python} here")
    shutil.rmtree(folder, ignore_errors=True)
    run(base, "-m", "venv", folder)
    install = (python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    if "torch" in one.versions:  # first: whichever build of it the machine offers then satisfies all that follows
        run(*install, *os.environ.get("TORCH_FLAGS", "").split(), f"torch=={one.versions['torch']}")
    run(*install, *one.requirements)
    run(*install, "--no-deps", "-e", ROOT)
    done.write_text(wanted)
    return python


def run(*command: str | Path) -> None:
    """Run a command. Raises RuntimeError with the error that it wrote where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout or "no reason given").strip().splitlines()
        raise RuntimeError(next((line for line in lines if line.startswith("ERROR")), lines[-1]))


def try_out(one: Combination, folder: Path) -> Result:
    """Run the tests of a combination; what they print stays in its environment."""
    try:
        python = prepare(one, folder)
    except RuntimeError as error:
        return Result(reason=str(error))
    counted, printed = folder / "tests.xml", folder / "tests.txt"
    counted.unlink(missing_ok=True)
    command = (python, "-m", "pytest", "-q", "-rfE", "-p", "no:cacheprovider", f"--junitxml={counted}", *one.arguments)
    with printed.open("w") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, env=ENVIRONMENT, check=False).returncode
    if not counted.is_file():
        return Result(reason=f"pytest ended with code {code}, see {printed}")
    suite = ElementTree.parse(counted).getroot()[0]
    total, failures, errors, skipped = (int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped"))
    return Result(total - failures - errors - skipped, failures + errors)


def describe(one: Combination, result: Result) -> str:
    """A row of the table."""
    versions = ", ".join(f"{package} {version}" for package, version in one.versions.items())
    python = f"Python {one.python}, " if one.python else ""
    found = f"{result.reason} |" if result.reason else f"{result.passed} | {result.failed}"
    return f"| {one.name} | {python}{versions} | {found} |"


def main(arguments: Sequence[str] | None = None) -> int:
    combinations = {one.name: one for one in read_combinations()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(combinations)}; without one all of them")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-versions", help="the folder that keeps them")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(combinations):
        parser.error(f"there is no combination {', '.join(sorted(unknown))}, but {', '.join(combinations)}")
    print("| combination | versions | passed | failed |\n|---|---|---|---|", flush=True)
    results = []
    for name in given.names or combinations:
        results.append(try_out(combinations[name], given.environments.absolute() / name))
        print(describe(combinations[name], results[-1]), flush=True)
    return 0 if all(result.passed and not result.failed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
