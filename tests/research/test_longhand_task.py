"""The problems of longhand: what they ask, that the two streams are apart, and what the verifier says."""

import asyncio
import re

import pytest

from fairlen.tasks.task import is_held_out, load_own_task
from research.longhand import PATH
from research.longhand.task import ALPHABET, LABELS, TOKEN_IDS, Longhand, encode, read_terms, write

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


def test_the_example_of_the_page():
    # a74 is 47, b28 is 82, c10 is 1, d95 is 59; 47 + 82 + 1 + 59 = 189
    assert list(read_terms("a74b28c10d95=")) == [47, 82, 1, 59]
    assert write(189) == "981"


def test_reading_terms_undoes_drawing():
    for problem in (Longhand(num_terms=(2, 7)).train(index) for index in range(100)):
        terms = list(read_terms(problem.text))
        assert "".join(label + write(term, 2) for label, term in zip(LABELS, terms)) + "=" == problem.text  # noqa: B905


def test_the_longest_prompt_is_reached():
    # <bos>, 3 characters for each of 7 terms, =
    assert TASK.longest_prompt == 23 == max(len(TASK.train(index).token_ids) for index in range(50))


def test_no_held_out_problem_is_ever_trained_on():
    held_out = TASK.held_out(100)
    assert all(is_held_out(problem.text) for problem in held_out)
    assert not any(is_held_out(Longhand(seed=seed).train(index).text) for seed in (0, 1) for index in range(300))
    assert len({problem.id for problem in held_out}) == 100
    assert TASK.held_out(30) == held_out[:30]


def test_seeds_share_held_out_problems_and_no_training_stream():
    streams = [[Longhand(seed=seed).train(index).text for index in range(30)] for seed in range(3)]
    assert streams[0] == [TASK.train(index).text for index in range(30)]
    assert not set(streams[0]) & set(streams[1]) | set(streams[1]) & set(streams[2])
    assert Longhand(seed=1).held_out(20) == TASK.held_out(20)


def test_what_a_run_records_decides_its_problems():
    assert TASK.describe() == {"task": "longhand", "num_terms": [4, 7]}
    assert Longhand((2, 3), seed=5).describe() == {"task": "longhand", "num_terms": [2, 3], "seed": 5}


@pytest.mark.parametrize(
    ("text", "status"),
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


def test_every_character_has_one_token():
    assert encode(ALPHABET) == tuple(range(3, 3 + len(ALPHABET)))
    assert len(TOKEN_IDS) == len(ALPHABET) + 3
    with pytest.raises(KeyError):
        encode("x")


@pytest.mark.parametrize("num_terms", [(1, 4), (5, 4), (4, 8)])
def test_numbers_of_terms_that_cannot_be_are_refused(num_terms):
    with pytest.raises(ValueError, match=re.escape(f"num_terms={num_terms}: give 2 <= fewest <= most <= 7 terms")):
        Longhand(num_terms=num_terms)


def test_few_terms_have_few_held_out_problems():
    two = Longhand(num_terms=(2, 2))
    count = sum(is_held_out(f"a{write(a, 2)}b{write(b, 2)}=") for a in range(1, 100) for b in range(1, 100))
    assert (
        1_000 < count < 1_450
    )  # of 99 * 99, one in 8: 1,225 and ten standard errors of 33, hashes being what they are
    with pytest.raises(ValueError, match=r"held_out\(1500\): only \d+ problems found; ask for fewer"):
        two.held_out(1500)


def test_it_trains_as_a_task_of_ones_own():
    task = load_own_task(f"{PATH.parent / 'task.py'}:make_longhand", None)
    assert (task.name, task.train(3)) == ("longhand", TASK.train(3))
