"""Rules of the tests themselves, so that they run at the same time, in any order, on a machine that is busy."""

import re
from pathlib import Path

from loops import over

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
