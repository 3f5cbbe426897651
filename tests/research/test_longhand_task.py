"""The problems of longhand: what they ask, that the two streams are apart, and what the verifier says."""

import asyncio
import re

import pytest
from loops import over

from fairlen.tasks.task import is_held_out, load_own_task
from research.longhand import PATH
from research.longhand.task import LABELS, TOKEN_IDS, Longhand, encode

TASK = Longhand()


def test_a_problem_asks_for_the_sum_of_its_terms():
    for problem in (TASK.train(index) for index in range(50)):
        terms = [int(digits[::-1]) for digits in re.findall("[a-g]([0-9]{2})", problem.text)]
        assert problem.text == "".join(f"{label}{term % 10}{term // 10}" for label, term in zip(LABELS, terms)) + "="  # noqa: B905
        assert int(problem.answer[::-1]) == sum(terms) and len(problem.answer) == 3
        assert problem.columns == {"num_terms": len(terms)} and 4 <= len(terms) <= 7
        assert all(1 <= term <= 99 for term in terms)
        assert problem.token_ids == (TOKEN_IDS["<bos>"], *encode(problem.text))
        assert len(problem.token_ids) <= TASK.longest_prompt


def test_no_held_out_problem_is_ever_trained_on():
    held_out = TASK.held_out(100)
    assert all(is_held_out(problem.text) for problem in held_out)
    assert not any(is_held_out(Longhand(seed=seed).train(index).text) for seed in (0, 1) for index in range(300))
    assert len({problem.id for problem in held_out}) == 100
    assert TASK.held_out(30) == held_out[:30]


@over(
    "text, status",
    [
        ("#981", "correct"),
        ("b28+740>921;c10+921>031;d95+031>981;#981", "correct"),
        ("#981;#081", "incorrect"),  # the last one counts
        ("#081", "incorrect"),
        ("#189", "incorrect"),  # the most significant digit first
        ("#98", "incorrect"),
        ("#9810", "incorrect"),
        ("d95+031>981;", "no_answer"),  # the right number, never given as the answer
        ("#981;", "no_answer"),
        ("#", "no_answer"),
        ("", "no_answer"),
        ("#٩٨١", "no_answer"),  # other digits
    ],
)
def test_verdicts(text, status):
    problem = next(one for one in (TASK.train(index) for index in range(10_000)) if one.answer == "981")
    verdict = asyncio.run(TASK.verify(problem, text))
    assert (verdict.status, verdict.outcome) == (status, float(status == "correct"))


@over("num_terms", [(1, 4), (5, 4), (4, 8)])
def test_numbers_of_terms_that_cannot_be_are_refused(num_terms):
    with pytest.raises(ValueError, match=re.escape(f"num_terms={num_terms}: give 2 <= fewest <= most <= 7 terms")):
        Longhand(num_terms=num_terms)


def test_it_trains_as_a_task_of_ones_own():
    task = load_own_task(f"{PATH.parent / 'task.py'}:make_longhand", None)
    assert (task.name, task.train(3)) == ("longhand", TASK.train(3))
