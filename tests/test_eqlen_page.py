"""What docs/methods/eqlen.md and docs/methods/tree.md say of costs is dated, and agrees."""

import re
from pathlib import Path

METHODS = Path(__file__).parents[1] / "docs/methods"
EQLEN, TREE = (" ".join((METHODS / name).read_text().split()) for name in ("eqlen.md", "tree.md"))


def find_number(text: str, before: str, after: str) -> int:
    (found,) = re.findall(rf"{before}([\d,]+){after}", text)
    return int(found.replace(",", ""))


def test_samples_are_both_pieces_of_every_pair():
    pairs, trained = find_number(EQLEN, r"of the ", " pairs"), find_number(EQLEN, "", " of the [0-9]+ pairs")
    assert find_number(EQLEN, "gave EqLen ", " such samples") == 2 * pairs and trained < pairs


def test_both_pages_have_what_eqlen_trains():
    assert find_number(TREE, "EqLen ", " of [0-9,]+ and") == 2 * find_number(EQLEN, "", " of the [0-9]+ pairs")
    assert find_number(TREE, r"EqLen \d+ of ", " and") == find_number(EQLEN, "trained, with ", " tokens")


def test_the_numbers_are_dated():
    assert re.search(r"`python benchmarks/eqlen\.py[^`]*`, 20\d\d-\d\d-\d\d", EQLEN)
    assert re.search(r"`python benchmarks/samplers\.py[^`]*`, 20\d\d-\d\d-\d\d", TREE)
