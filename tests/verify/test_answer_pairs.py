"""Verdicts on pairs of answers: how many wrong ones pass, and how many right ones fail."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from answer_pairs import DRAWS, Pair, fixed_pairs, rewritten
from asking import compare
from loops import first_quickly, over

from fairlen.verify.answer_pool import AnswerPool
from fairlen.verify.equivalence import grade

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool():
    with closing(AnswerPool(workers=2, deadline=20.0)) as pool:
        yield pool


def grade_all(pool: AnswerPool, pairs: list[Pair]) -> list[str]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda pair: compare(pool, pair.gold, pair.answer), pairs))


def check(pool: AnswerPool, pairs: list[Pair]) -> None:
    """No wrong answer passes, at most 1% of the right ones fail."""
    statuses = grade_all(pool, pairs)
    passed = [pair for pair, status in zip(pairs, statuses, strict=True) if status == "correct" and not pair.same]
    failed = [(pair, status) for pair, status in zip(pairs, statuses, strict=True) if status != "correct" and pair.same]
    same = sum(pair.same for pair in pairs)
    print(
        f"{len(pairs)} pairs: {len(passed)} of {len(pairs) - same} wrong ones pass, {len(failed)} of {same} right ones fail"
    )
    assert not passed
    assert len(failed) <= 0.01 * same, failed


def test_pairs_by_hand_and_drawn(pool):
    pairs = [*fixed_pairs(), *rewritten(rounds=1)]
    counts = Counter(pair.same for pair in pairs)
    assert len(fixed_pairs()) >= 300 and min(counts.values()) > 180
    check(pool, pairs)


@over(
    "table, num_pairs, num_unnamed",
    [("answer_pairs_before", 300, 150), ("answer_pairs_before_2", 227, 104), ("answer_pairs_before_3", 239, 239)],
)
def test_pairs_that_were_written_before_the_code(pool, table, num_pairs, num_unnamed):
    """Also of families that were not named to whoever wrote the code."""
    pairs = fixed_pairs(f"{table}.tsv")
    unnamed = [pair for pair in pairs if not pair.kind.endswith("(named)")]
    assert (len(pairs), len(unnamed)) == (num_pairs, num_unnamed)
    check(pool, pairs)


def test_pairs_that_were_written_after_the_code(pool):
    """Tried once before it was changed: none of 32 different ones passed, 2 of 50 same ones failed, and were mended."""
    check(pool, fixed_pairs("answer_pairs_after.tsv"))


@pytest.mark.parametrize(
    ("table", "num_pairs", "most_failed"), [("answer_pairs_blind", 358, 19), ("answer_pairs_blind_2", 226, 14)]
)
def test_pairs_that_were_written_without_knowledge_of_the_grader(pool, table, num_pairs, most_failed):
    """None of the wrong ones passes. The first table showed kinds that were mended since: of its 219 right ones 19 fail, 13 of
    them in other units, which are not converted. The second was graded once: 14 of its 135 right ones fail."""
    lines = Path(__file__).with_name(f"{table}.tsv").read_text().splitlines()[1:]
    pairs = [Pair(kind, gold, answer, same == "1") for kind, gold, answer, same in (line.split("\t") for line in lines)]
    statuses = grade_all(pool, pairs)
    passed = [pair for pair, status in zip(pairs, statuses, strict=True) if status == "correct" and not pair.same]
    failed = [pair for pair, status in zip(pairs, statuses, strict=True) if status != "correct" and pair.same]
    assert len(pairs) == num_pairs and passed == []
    assert len(failed) <= most_failed, failed


def test_operators_count_where_they_are_asked_for():
    for gold, status in (("5050", "correct"), ("5051", "incorrect")):
        assert grade([gold], r"\sum_{k=1}^{100} k", 0.0, unevaluated=True) == status


@pytest.mark.parametrize("rounds", first_quickly([8, 40], others="nightly"))
def test_many_drawn_pairs(pool, rounds):
    check(pool, list(rewritten(seed=1, rounds=rounds)))


def test_every_kind_is_drawn_with_right_and_wrong_answers():
    drawn = {(pair.kind, pair.same) for pair in rewritten(rounds=1)}
    assert drawn == {(kind, same) for kind in DRAWS for same in (True, False)}


@over(
    "gold, answer, tolerance, status",
    [
        (["1", "2"], "2, 1", 0.0, "correct"), (["1", "2"], "1", 0.0, "incorrect"),
        (["1", "2"], "1, 2, 3", 0.0, "incorrect"), (["1,000", "2,000"], "1000, 2000", 0.0, "correct"),
        (["2,5"], "5, 2", 0.0, "correct"),
        (["(1,2)", "(3,4)"], "(3,4),(1,2)", 0.0, "correct"), (["x+1"], "1+x", 0.0, "correct"),
        (r"\sqrt{2}", "1.41", 0.01, "correct"),  # 1.41421... - 1.41 < 0.01
        (r"\sqrt{2}", "1.40", 0.01, "incorrect"), ("3.14", r"\pi", 0.01, "correct"),
        ("1.5, 2.5", "2.49, 1.51", 0.02, "correct"),
        (r"x \Rightarrow (", "5", 0.0, "error"),  # nobody can read the reference
        ("5", r"x \Rightarrow (", 0.0, "incorrect"),
    ],
)  # fmt: skip
def test_several_references_and_tolerances(pool, gold, answer, tolerance, status):
    assert compare(pool, gold, answer, tolerance=tolerance) == status
