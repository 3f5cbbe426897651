"""The ranges of pyproject.toml are those that `make test-versions` tries."""

import tomllib
from collections import defaultdict

import pytest
from loops import over
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from versions import ROOT, find_needs, read_combinations

from fairlen.integrations.verl import settings as verl

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDS = {need.name: need for need in find_needs(PROJECT, ["train", "trl", "vllm"])}
TRIED: dict[str, list[Version]] = defaultdict(list)
for combination in read_combinations():
    for package, version in combination.versions.items():
        TRIED[package.removesuffix("-cpu")].append(Version(version))


def test_what_is_tried_is_what_is_needed():
    assert {name.lower() for name in NEEDS} == set(TRIED)


@over("package", sorted(TRIED))
def test_a_range_goes_from_the_oldest_to_the_newest_that_is_tried(package):
    """From 2.11.0 to 2.15.0 it is >=2.11,<2.16 or <3, from 13.0.0 to 15.0.0 >=13,<16: the end is the next number."""
    given, oldest, newest = NEEDS[package].specifier, min(TRIED[package]), max(TRIED[package])
    (first,), (end,) = ([Version(one.version) for one in given if one.operator == sign] for sign in (">=", "<"))
    assert first == oldest
    assert end.release == (*newest.release[: len(end.release) - 1], newest.release[len(end.release) - 1] + 1)
    assert all(given.contains(version) for version in TRIED[package])


def test_the_integrations_refuse_what_is_not_in_the_ranges():
    trl = pytest.importorskip("fairlen.integrations.trl.versions", reason="TRL is not installed")
    (needed,) = (need for need in map(Requirement, PROJECT["optional-dependencies"]["verl"]) if need.name == "verl")
    assert SpecifierSet(trl.TESTED) == NEEDS["trl"].specifier
    assert SpecifierSet(verl.TESTED) == needed.specifier


def test_every_suite_runs_tests_that_are_there():
    for one in read_combinations():
        files = [argument for argument in one.arguments if argument.startswith("tests/")]
        assert files and all((ROOT / file.partition("::")[0]).exists() for file in files), one.name
