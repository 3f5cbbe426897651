"""What the page of a comparison says: a winner only where intervals and seeds allow one, costs as they were, names in words."""

import json
import re

import pytest
from made_comparison import make_comparison

from fairlen.cli import main
from fairlen.compare.config import CompareConfig


def page_of(folder) -> str:
    assert main(["report", str(folder)]) == 0
    return (folder / "report.html").read_text()


def best_of(page: str) -> tuple[str, str]:
    found = re.search(r"<dt>best at the end</dt><dd><strong>(.*?)</strong><span>(.*?)</span>", page)
    assert found
    return found[1], found[2]


@pytest.mark.parametrize(
    ("last", "seeds", "number", "words"),
    [
        ({"grpo": 10, "dapo": 30}, 3, "39%", "dapo, clearly above each other method"),
        ({"grpo": 30, "dapo": 10}, 3, "39%", "grpo, clearly above each other method"),
        ({"grpo": 20, "dapo": 20}, 3, "not clear", "grpo, dapo are tied"),
        ({"grpo": 1, "dapo": 30, "rloo": 30}, 3, "not clear", "dapo, rloo are tied"),
        ({"grpo": 10, "dapo": 30}, 2, "not known", "2 of the 3 seeds that it takes; highest so far: dapo"),
        ({"grpo": 10, "dapo": 30}, 1, "not known", "1 of the 3 seeds that it takes; highest so far: dapo"),
    ],
    ids=["second", "reference", "equal", "two of three", "two seeds", "one seed"],
)
def test_a_winner_is_named_where_intervals_and_seeds_allow_it(last, seeds, number, words, tmp_path):
    """(30 + 0) / 80, (30 + 1) / 80 and (30 + 2) / 80 of three seeds: their mean is 31 / 80 = 38.75%."""
    page = page_of(make_comparison(tmp_path / "c", last, seeds))
    assert best_of(page) == (number, words)
    assert ("differ from the reference" in page) == (seeds == 3)


def test_costs_are_what_was_spent(tmp_path):
    """1,000, 1,030 and 1,060 tokens of three seeds; curves end where the cheapest run did."""
    page = page_of(make_comparison(tmp_path / "c", {"grpo": 10, "dapo": 30}))
    assert "each run spent 1,000 to 1,060 generated tokens" in page
    assert "<h3>Learning at equal generated tokens</h3>" in page
    titles = re.findall(r"<title>(generated tokens [^<]*)</title>", page)
    assert len(titles) == 25
    ends = titles[-1].split("\n")
    assert ends[0] == "generated tokens 1,000"
    assert ends[2].startswith("dapo: 38% [38%, 38%]")  # 30/80, 31/80 * 1000/1030, 32/80 * 1000/1060: 37.5% to 37.7%


def test_methods_have_their_names_on_the_axis(tmp_path):
    name = "fspo:surrogate.width=0.01,surrogate.z=2"
    page = page_of(make_comparison(tmp_path / "c", {"grpo": 10, name: 30}))
    assert page.count(f'class="row-name c-correct">{name[:35]}…</text>') == 2  # of accuracy, and of the difference
    assert f'<b class="c-correct">&#9679;&nbsp;{name}</b>' in page


def test_three_seeds_are_the_default():
    assert CompareConfig(("grpo", "dapo")).seeds == 3


def test_a_comparison_that_has_not_ended_has_no_page(tmp_path, capsys):
    (tmp_path / "comparison.json").write_text(json.dumps({"match": "generated"}))
    assert main(["report", str(tmp_path)]) == 2
    assert "the comparison has not ended; its command resumes it" in capsys.readouterr().err
