"""What docs/methods/eqlen.md says of costs is what benchmarks/eqlen.py prints."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/methods/eqlen.md").read_text()
sys.path.insert(0, str(ROOT / "benchmarks"))


def read_table() -> dict[str, list[str]]:
    """Cells by the label of their row."""
    lines = PAGE.partition("python benchmarks/eqlen.py")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    start = next(place for place, row in enumerate(rows) if row[0] == "prompts")
    return {label: cells for label, *cells in rows[start:]}


def test_the_table_has_rows_that_the_program_prints_in_their_order():
    import eqlen

    shown = list(read_table())
    assert shown == [label for label in eqlen.TABLE if label in shown] and len(shown) == 5


@pytest.mark.parametrize("label", ["prompts", "generated tokens", "verifier calls", "samples (the paper's count)", "trained tokens"])
def test_its_ratios_are_those_of_its_counts(label):
    ours, same, ratio, more, other = (float(cell.replace(",", "")) for cell in read_table()[label])
    assert (ratio, other) == (pytest.approx(ours / same, abs=0.006), pytest.approx(ours / more, abs=0.006))


def test_pairs_are_half_of_the_samples():
    (pairs,) = re.findall(r"\d+ of (\d+) pairs train", PAGE)
    assert read_table()["samples (the paper's count)"][0] == str(2 * int(pairs))


def test_the_numbers_are_dated():
    assert re.search(r"`python benchmarks/eqlen\.py[^`]*`,?\s\(?20\d\d-\d\d-\d\d", PAGE)
