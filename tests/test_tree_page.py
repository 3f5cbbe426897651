"""What docs/methods/tree.md has in tables is what the programs print."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/methods/tree.md").read_text()
for folder in ("benchmarks", "tests/oracles"):
    sys.path.insert(0, str(ROOT / folder))


def rows_after(text: str) -> list[list[str]]:
    """The cells of the first table after some text, without its head."""
    table = re.search(r"(?:^\|.*\n)+", PAGE.partition(text)[2], re.M)
    assert table, text
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_biases_are_those_that_the_program_prints():
    from test_tree_gradient import compare

    found = compare("two levels", 2)
    names = [
        "siblings, none", "siblings, branching", "leaves, none", "leaves, branching", "tree+grpo", "grpo of leaves",
    ]  # fmt: skip
    rows = rows_after("python tests/oracles/test_tree_gradient.py")
    assert len(rows) == len(names)
    for name, (_, _, error, cosine, stop) in zip(names, rows, strict=True):
        assert float(error) == pytest.approx(found[name][0], abs=6e-4), name
        assert (float(cosine), float(stop)) == pytest.approx(found[name][1:], abs=6e-4), name
    assert float(re.findall(r"true value is\s+(\+[\d.]+)", PAGE)[0]) == pytest.approx(found["exact"][2], abs=6e-4)
