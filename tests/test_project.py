"""The repository: promises have tests, versions are said once, programs are started and can fail, tests run at the same time."""

import contextlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from loops import over
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
    tested = [need for extra in ("train", "trl", "deepspeed", "verl", "math", "test", "dev") for need in extras[extra]]
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


@pytest.mark.slow
def test_constraints_name_everything_that_is_installed_with_the_extras() -> None:
    """Followed from the extras of the tests through what every package asks for: nothing comes in at an unnamed version."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {line.partition("==")[0].lower().replace("_", "-"): line.partition("==")[2] for line in lines}
    start = (
        "fairlen",
        frozenset({"train", "lora", "trl", "deepspeed", "verl", "math", "test", "dev"}),
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


sys.path.insert(0, str(ROOT / "benchmarks"))

import _all  # noqa: E402


def read_make_rules(text: str) -> list[tuple[list[str], list[str]]]:
    """Return (targets, prerequisites) of each rule in a Makefile, with variables such as $(ALL) expanded."""
    assigned = re.findall(r"^(?:export )?(\w+)\s*[:?]?= ?(.*)$", text, re.MULTILINE)
    variables = {name: value.partition("#")[0].strip() for name, value in assigned}

    def expand(words: str) -> list[str]:
        return re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], words).split()

    rules = []
    for line in text.splitlines():
        is_rule = re.match(r"^[^\s#:=]+[^:=]*:(?!=)", line) and not line.startswith((".PHONY", ".DEFAULT"))
        if is_rule:
            targets, _, prerequisites = line.partition(":")
            rules.append((expand(targets), expand(prerequisites.partition("#")[0])))
    return rules


def find_missing_rules(text: str, root: Path) -> set[str]:
    """Return the prerequisites that are neither a target of a rule nor a file: make ignores those that are phony."""
    rules = read_make_rules(text)
    targets = {target for names, _ in rules for target in names}
    needed = {name for _, names in rules for name in names}
    return {name for name in needed - targets if not (root / name).is_file()}


def test_every_prerequisite_in_the_makefile_has_a_rule():
    text = (ROOT / "Makefile").read_text()
    rules = read_make_rules(text)
    assert len(rules) > 15
    assert find_missing_rules(text, ROOT) == set()
    targets = {target for names, _ in rules for target in names}
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony and set(phony[1].split()) <= targets


def test_a_prerequisite_without_a_rule_is_found(tmp_path):
    (tmp_path / "lock.txt").write_text("")
    text = "ALL := .ready\n.PHONY: test browser\n$(ALL): lock.txt\n\ttouch $@\ntest: $(ALL) browser ## runs\n\tpytest\n"
    assert find_missing_rules(text, tmp_path) == {"browser"}


def test_every_program_is_listed_once():
    assert _all.find_programs() == sorted(_all.PROGRAMS)
    assert {program.kind for program in _all.PROGRAMS.values()} == {"cpu", "cuda", "vllm", "ray"}


@over("name", sorted(name for name in _all.PROGRAMS if name.startswith("benchmarks/")))
def test_every_benchmark_takes_smoke(name):
    text = (ROOT / name).read_text()
    assert "add_smoke(parser)" in text or "read_size(" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print('7 tokens/s')", ""),
        ("raise SystemExit('bad.py: 3 of 4')", "exit code 1"),
        ("print('nan tokens/s')", "it does not print"),
        ("print('7 tokens/s'); open('weights', 'wb').write(bytes(30_000_000))", "it leaves 30 MB behind"),
        ("print('7 tokens/s', flush=True); import time; time.sleep(60)", "not done after 2 s"),
    ],
)
def test_a_program_that_fails_is_noticed(tmp_path, code, complaint):
    program = tmp_path / "program.py"
    program.write_text(code)
    ended = _all.start(program, (), r"\d tokens/s", limit=2.0 if "sleep" in code else 60.0)
    assert ended.complaint.startswith(complaint) and bool(ended.complaint) == bool(complaint)
    assert ended.printed or "SystemExit" not in code


@pytest.mark.parametrize("number", ["float('nan')", "float('inf')", "0", "-1.5"])
def test_a_measurement_that_is_none_ends_the_program_in_one_line(tmp_path, number):
    program = tmp_path / "speed.py"
    program.write_text(f"from _checks import demand_positive\ndemand_positive('tokens/s', (1.0, {number}))\n")
    env = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"speed\.py: tokens/s is \S+: it should be finite and above 0\n", done.stderr)


TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))

PATIENCE = 30.0
"""The fewest seconds after which a test may say that something took too long, by the wall clock."""
HASTY = re.compile(
    r"^\s*assert .*(?:\btook\b|\belapsed\b|\.seconds\b|time\.(?:time|monotonic|perf_counter)\(\)[^<\n]*?)"
    r"\s*<=? (\d+(?:\.\d+)?)\b",
    re.M,
)
"""An upper bound on wall time; `process_time` and `thread_time` stand still while the machine does something else."""


def find_hasty(source: str) -> list[str]:
    """Assertions that less than PATIENCE seconds of wall time went by."""
    return [found[0].strip() for found in HASTY.finditer(source) if float(found[1]) < PATIENCE]


@over("path", FILES)
def test_nobody_is_in_a_hurry(path):
    """A machine with other work may take seconds over anything: how long is asked of the processor's clock, or generously."""
    assert find_hasty(path.read_text()) == []


def test_ports_are_given_by_the_system():
    bound = re.compile(r"(?:Server|bind|listen|create_server)\(\(?[^()\n]*,\s*[1-9]\d{2,4}\b")
    assert bound.search('HTTPServer(("127.0.0.1", 8080), Handler)') and not bound.search('HTTPServer(("", 0), H)')
    probed = re.compile(r"\.getsockname\(\)\[1\]")  # a port that is let go of belongs to whoever is first
    assert [str(path) for path in FILES if path != Path(__file__) and bound.search(path.read_text())] == []
    assert [str(path) for path in FILES if path != Path(__file__) and probed.search(path.read_text())] == []
