"""Verdicts on pairs of answers: how many wrong ones pass, and how many right ones fail."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from answer_pairs import DRAWS, Pair, fixed_pairs, rewritten

from fairlen.verify.pool import AnswerPool


@pytest.fixture(scope="module")
def pool():
    with AnswerPool(workers=2, deadline=20.0) as pool:
        yield pool


def judge_all(pool: AnswerPool, pairs: list[Pair]) -> list[str]:
    with ThreadPoolExecutor(4) as threads:
        return list(threads.map(lambda pair: pool.compare_blocking(pair.gold, pair.answer).status, pairs))


def check(pool: AnswerPool, pairs: list[Pair]) -> None:
    """No wrong answer passes, at most 1% of the right ones fail."""
    statuses = judge_all(pool, pairs)
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


@pytest.mark.slow
def test_many_drawn_pairs(pool):
    check(pool, list(rewritten(seed=1, rounds=40)))


def test_every_kind_is_drawn_with_right_and_wrong_answers():
    drawn = {(pair.kind, pair.same) for pair in rewritten(rounds=1)}
    assert drawn == {(kind, same) for kind in DRAWS for same in (True, False)}


@pytest.mark.parametrize(
    ("gold", "answer", "tolerance", "status"),
    [
        (["1", "2"], "2, 1", 0.0, "correct"),
        (["1", "2"], "1", 0.0, "incorrect"),
        (["1", "2"], "1, 2, 3", 0.0, "incorrect"),
        (["2,5"], "5, 2", 0.0, "correct"),
        (["(1,2)", "(3,4)"], "(3,4),(1,2)", 0.0, "correct"),
        (["x+1"], "1+x", 0.0, "correct"),
        (r"\sqrt{2}", "1.41", 0.01, "correct"),  # 1.41421... - 1.41 < 0.01
        (r"\sqrt{2}", "1.40", 0.01, "incorrect"),
        ("3.14", r"\pi", 0.01, "correct"),
        ("1.5, 2.5", "2.49, 1.51", 0.02, "correct"),
        (r"x \Rightarrow (", "5", 0.0, "error"),  # nobody can read the reference
        ("5", r"x \Rightarrow (", 0.0, "incorrect"),
    ],
)
def test_several_references_and_tolerances(pool, gold, answer, tolerance, status):
    assert pool.compare_blocking(gold, answer, tolerance=tolerance).status == status
