"""What the pages at the top promise: no torch in the core, nothing that unpickles, versions said once."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import fairlen
from fairlen.methods.presets import BASES
from fairlen.tasks.shipped import SHIPPED

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

WITHOUT_TRAINING = """
import sys
for name in ("torch", "transformers", "safetensors", "tokenizers"):
    sys.modules[name] = None  # importing it now fails
import fairlen
from fairlen.catalogue import list_methods
names = list_methods()
for base in names["bases"]:
    print(fairlen.compose(base).sampling.num_tracks)
"""


def test_the_core_works_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRAINING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16"] * (len(BASES) - 1) + ["4"]  # the last one is of trees


@pytest.mark.parametrize(
    "word", [r"^\s*(import|from) +(pickle|cPickle|dill|shelve|marshal)\b", r"torch\.load\((?!.*\bweights_only=True\b)"]
)
def test_security_promises(word: str) -> None:
    assert len(SOURCES) > 20
    assert [str(p) for p in SOURCES if re.search(word, p.read_text(), re.MULTILINE)] == []


def test_every_promise_of_security_names_a_test_that_is_there() -> None:
    table = (ROOT / "SECURITY.md").read_text().partition("## Which test holds which promise")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) >= 10 and all(named)
    for path, name in (one for found in named for one in found):
        assert f"\ndef {name or 'test_'}" in (ROOT / path).read_text(), f"{path}::{name}"


MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_wheel_takes_every_shipped_model(name: str) -> None:
    """hatchling takes whatever lies in src/fairlen, but for what .gitignore names."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"]["packages"] == ["src/fairlen"]
    assert SHIPPED[name].path == ROOT / "src/fairlen" / name
    assert {path.name for path in SHIPPED[name].path.iterdir() if path.is_file()} == MODEL_FILES | {"__init__.py"}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    assert not any(fnmatch(part, pattern) for part in (name, *MODEL_FILES) for pattern in ignored)
    assert sum((SHIPPED[name].path / file).stat().st_size for file in MODEL_FILES) < 12_000_000


def test_the_changelog_begins_with_the_version() -> None:
    found = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found and found[1] == fairlen.__version__


def test_every_constraint_is_one_exact_version() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {line.partition("==")[0].lower().replace("_", "-"): line.partition("==")[2] for line in lines}
    assert len(pins) == len(lines) > 100
    assert all(re.fullmatch(r"[\w.]+", version) for version in pins.values())  # no build tags, no paths
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = [
        need
        for extra in ("train", "trl", "deepspeed", "verl", "math", "reasoning-gym", "test", "dev")
        for need in extras[extra]
    ]
    assert {re.split(r"[\[<>=!]", need)[0].lower() for need in tested} - {"fairlen"} <= set(pins)


def needs_of(name: str, extras: frozenset[str] = frozenset()) -> set[tuple[str, frozenset[str]]]:
    """Packages, with their extras, that an installed one asks for on this machine."""
    needs = [Requirement(text) for text in requires(name) or ()]
    wanted = [{"extra": extra} for extra in extras or {""}]
    return {
        (need.name.lower().replace("_", "-"), frozenset(need.extras))
        for need in needs
        if need.marker is None or any(need.marker.evaluate(environment) for environment in wanted)
    }


def test_constraints_name_everything_that_is_installed_with_the_extras() -> None:
    """Followed from the extras of the tests through what every package asks for: nothing comes in at an unnamed version."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {line.partition("==")[0].lower().replace("_", "-"): line.partition("==")[2] for line in lines}
    start = (
        "fairlen",
        frozenset(
            {"train", "lora", "bitsandbytes", "trl", "deepspeed", "verl", "math", "reasoning-gym", "test", "dev"}
        ),
    )
    seen, waiting, unnamed, others = set(), [start], set(), {}
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        if name not in pins and name != "fairlen":
            unnamed.add(name)
        with contextlib.suppress(PackageNotFoundError):  # asked for by an extra of an extra that is not installed
            if name != "fairlen" and (found := version(name).partition("+")[0]) != pins.get(name):
                others[name] = found
            waiting += needs_of(name, extras)
    assert len(seen) > 100
    assert unnamed == set() and others == {}
