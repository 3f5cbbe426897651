"""The schedule of benchmarks/first_hour.py: what fits into its 12 minutes, and that an end loses nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from _hour_page import Outcome  # noqa: E402
from first_hour import GRACE, MARGIN, MINUTES, SECTIONS, STOPPED, arguments_of, choose_limit, run_all  # noqa: E402

FIRST = [name for name, section in SECTIONS.items() if section.is_first]


class Machine:
    """Sections that take a given share of their limit, on a clock of their own; a share above 1 is a section that hangs."""

    def __init__(self, share: float) -> None:
        self.share, self.now, self.written = share, 0.0, 0

    def clock(self) -> float:
        return self.now

    def run(self, name: str, limit: float) -> Outcome:
        """One that hangs is stopped at its limit, and takes GRACE to end."""
        seconds = limit * self.share if self.share <= 1 else limit + GRACE
        self.now += seconds + MARGIN
        return Outcome(name, "passed" if self.share <= 1 else "late", seconds, {}, "")

    def write(self, outcomes: list[Outcome]) -> None:
        self.written += 1
        assert len(outcomes) == self.written


def run(share: float, minutes: float = MINUTES) -> tuple[Machine, list[Outcome]]:
    machine = Machine(share)
    return machine, run_all(list(SECTIONS), minutes, machine.run, machine.write, machine.clock)


def test_the_first_sections_are_parity_rollouts_and_updates():
    assert FIRST == ["parity", "vLLM", "vLLM alone", "embedded engine", "update"] == list(SECTIONS)[: len(FIRST)]
    assert (
        sum(SECTIONS[name].seconds + GRACE + MARGIN for name in FIRST)
        == 130 + 110 + 90 + 90 + 130 + 5 * 15
        <= 60 * MINUTES
    )


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0, 2.0])
@pytest.mark.parametrize("minutes", [5, MINUTES, 40])
def test_the_whole_ends_in_time_however_long_sections_take(share, minutes):
    machine, outcomes = run(share, minutes)
    assert machine.now <= 60 * minutes
    assert machine.written == len(outcomes) == len(SECTIONS)


@pytest.mark.parametrize("share", [0.1, 1.0, 2.0])
def test_the_first_sections_have_all_of_their_time_even_if_all_of_them_hang(share):
    _, outcomes = run(share)
    assert [one.name for one in outcomes[: len(FIRST)]] == FIRST
    for one in outcomes[: len(FIRST)]:
        limit = SECTIONS[one.name].seconds
        assert one.seconds == pytest.approx(limit * share if share <= 1 else limit + GRACE)


def test_everything_runs_if_sections_take_a_third_of_their_limits():
    """1,400 seconds of limits / 3 = 467, and 14 * 5 between them: 537 of 720."""
    assert sum(section.seconds for section in SECTIONS.values()) == 1400
    machine, outcomes = run(1 / 3)
    assert {one.state for one in outcomes} == {"passed"}
    assert machine.now == pytest.approx(1400 / 3 + 14 * 5)


def test_a_section_is_not_started_with_less_than_half_of_its_time():
    """150 seconds for the command, so at least 75, and 15 for an end that is late."""
    command = SECTIONS["80 GB command"]
    assert choose_limit(command, MINUTES, 89.9) == 0.0
    assert choose_limit(command, MINUTES, 90.0) == 75.0
    assert choose_limit(command, MINUTES, 165.0) == choose_limit(command, MINUTES, 700.0) == 150.0
    assert choose_limit(command, 2 * MINUTES, 700.0) == 300.0
    assert choose_limit(SECTIONS["parity"], MINUTES, 30.0) == 15.0, "one of the first is started with whatever is left"


def test_a_signal_ends_the_schedule():
    machine = Machine(1.0)
    outcomes = run_all(
        list(SECTIONS), MINUTES, lambda name, limit: Outcome(name, STOPPED, 1.0, {}, ""), machine.write, machine.clock
    )
    assert [one.name for one in outcomes] == ["parity"]


def test_the_tests_that_sections_name_exist_once():
    named = []
    for section in SECTIONS.values():
        for word in section.arguments:
            if word.startswith("tests/"):
                path, _, test = word.partition("::")
                assert (ROOT / path).is_file() and (not test or f"def {test}(" in (ROOT / path).read_text())
                named.append(path)
    assert set(named) == {str(path.relative_to(ROOT)) for path in (ROOT / "tests/gpu").glob("test_*.py")}


def test_numbers_are_asked_for_where_they_are_written(tmp_path):
    for section in SECTIONS.values():
        words = arguments_of(section, "cuda", tmp_path / "found.json")
        assert ("--json" in words) == section.writes == (section.arguments[0] != "-m")


@pytest.mark.slow
def test_sigterm_leaves_the_page_of_what_was_measured(tmp_path):
    """The tests of CUDA say at once what they need; the resumed run is stopped in the middle, with its processes."""
    page = tmp_path / "hour.md"
    command = [sys.executable, str(ROOT / "benchmarks/first_hour.py"), "--smoke", "--out", str(page)]
    process = subprocess.Popen([*command, "--only", "parity", "resume", "profile"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "parity: needs a CUDA device" in process.stdout.readline()
    before = page.read_text()
    time.sleep(2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=100)
    numbers = json.loads(page.with_suffix(".json").read_text())
    assert "| parity | needs a CUDA device |" in before and page.read_text() != before
    assert numbers["resume"]["state"] == STOPPED and "profile" not in numbers
    assert sorted(os.listdir(tmp_path)) == ["hour.json", "hour.md"]
