"""The pages at the top: tests of promises are there, versions are said once."""

import contextlib
import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

import fairlen

ROOT = Path(__file__).parents[1]


def test_every_promise_of_security_names_a_test_that_is_there() -> None:
    table = (ROOT / "SECURITY.md").read_text().partition("## Which test holds which promise")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", row) for row in rows]
    assert len(rows) >= 10 and all(named)
    for path, name in (one for found in named for one in found):
        assert f"\ndef {name or 'test_'}" in (ROOT / path).read_text(), f"{path}::{name}"


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
