"""The task of sums in longhand: its problems, the traces that teach them, and a model that has learned from those."""

import asyncio
import re
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest
from loops import over
from transformers import AutoModelForCausalLM, AutoTokenizer

from fairlen.batch import Responses
from fairlen.tasks.task import is_held_out, load_own_task
from research.longhand import PATH
from research.longhand.make import (
    LEARNED_FIRST,
    MAX_LENGTH,
    STYLES,
    count_stream_rounds,
    draw_examples,
    draw_responses,
    write_trace,
)
from research.longhand.task import ALPHABET, LABELS, MAX_RESPONSE_LENGTH, TOKEN_IDS, Longhand, encode, read_terms, write
from research.pretraining import EOS, IGNORED

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


TERMS = (47, 82, 1, 59)
STEP = re.compile(r"([b-g])(\d\d)\+(\d{3})(?::(.*))?>(\d{3})")


def number(digits: str) -> int:
    """Of a text with the least significant digit first."""
    return int(digits[::-1])


@over(
    "style, text",
    [
        # 47 + 82 = 129, 129 + 1 = 130, 130 + 59 = 189
        ("hurried", "b28+740>921;c10+921>031;d95+031>981;#981"),
        # 2 + 7 = 9; 8 + 4 = 12, 2 and 1 carried; 0 + 0 + 1 = 1
        ("careful", "b28+740:2709|8402|0011|>921;c10+921:1900|0213|0101|>031;d95+031:9009|5308|0101|>981;#981"),
    ],
)
def test_styles_without_slips_are_written_so(style, text):
    assert write_trace(Random(0), TERMS, replace(STYLES[style], slip=0.0, again=0.0)) == text


@over("style", LEARNED_FIRST)
def test_without_slips_every_style_is_right_and_columns_add_up(style):
    rng = Random(0)
    for index in range(60):
        terms = tuple(read_terms(Longhand().train(index).text))
        text = write_trace(rng, terms, replace(LEARNED_FIRST[style], slip=0.0))
        for place, before, columns, result in read_steps(text, terms):
            assert (before, result) == (sum(terms[:place]), sum(terms[: place + 1]))
            if columns:
                check_columns(f"{columns}>{write(result)}".split("?")[-1], terms[place], before)
        assert len(text) == MAX_LENGTH or text.endswith(f"#{write(sum(terms))}")


@over("style", STYLES)
def test_whoever_goes_back_goes_on_from_the_total_that_stands_there(style):
    rng, went_back = Random(0), 0
    for index in range(60):
        terms = tuple(read_terms(Longhand().train(index).text))
        text = write_trace(rng, terms, STYLES[style])
        totals, last = [terms[0]] * len(terms), 0
        for place, before, _, result in read_steps(text, terms):
            assert before == totals[place - 1]
            assert result - before - terms[place] in (0, -10, -1, 1, 10) or result == 0
            went_back += place <= last
            totals[place], last = result, place
        assert len(text) == MAX_LENGTH or text.endswith(f"#{write(totals[-1])}")
    assert went_back > 60  # 0.65 / 0.35 times a response at least


def read_steps(text: str, terms: tuple[int, ...]) -> list[tuple[int, int, str, int]]:
    """Place, total before, columns and result of every step."""
    found = []
    for step in filter(None, re.split("[;~]", text)[:-1]):
        match = STEP.fullmatch(step)
        assert match, step
        label, term, before, columns, result = match.groups()
        place = "abcdefg".index(label)
        assert number(term) == terms[place]
        found.append((place, number(before), columns, number(result)))
    return found


def check_columns(text: str, term: int, total: int) -> None:
    """Every column adds two digits and the carry of the one before: what it keeps is the digit of the result."""
    *columns, result = re.findall(r"\d{3,4}", text)
    carry, kept = 0, ""
    for place, (one, other, carried, digit) in enumerate(columns):
        assert (int(one), int(other)) == (term // 10**place % 10, total // 10**place % 10)
        assert int(carried) == carry
        carry, kept = divmod(int(one) + int(other) + carry, 10)[0], kept + digit
    assert kept == result and len(columns) == 3
    assert number(result) == term + total


def test_what_is_cut_has_no_end_and_all_else_has():
    """So that the model never learns to end there: the cut is beyond the max response length that it is run with."""
    labels = (labels for _, labels in islice(draw_examples(seed=0), 1500))
    responses = [[token for token in row if token != IGNORED] for row in labels]
    cut = [response for response in responses if response[-1] != EOS]
    assert cut and min(map(len, cut)) == MAX_LENGTH > MAX_RESPONSE_LENGTH
    assert all(len(response) <= MAX_LENGTH for response in responses if response[-1] == EOS)
    assert not any(EOS in response[:-1] for response in responses)


PROBLEMS = 50


@pytest.fixture(scope="module")
def drawn() -> Responses:
    return draw_responses(PATH, "grpo", 200, "sampling.n=8").response_table


@pytest.mark.nightly
def test_responses_are_long_and_incorrect_as_they_are_too_short_and_too_long(drawn: Responses):
    # 200 problems of 8 responses: three standard errors are 3 * 0.5 / sqrt(1600) = 0.04, were all independent
    assert 0.30 <= drawn.correct.mean() <= 0.60
    assert drawn.length.mean() >= 200
    assert 500 <= np.percentile(drawn.length, 95) <= 1500
    assert 0 < drawn.truncated.mean() < 0.08
    quarters = np.array_split(np.argsort(drawn.length, kind="stable"), 4)
    assert all(0.3 < drawn.correct[rows].mean() < 0.7 for rows in quarters)  # at no length is the verdict clear
    hurried, careful, long = (
        drawn.correct[(drawn.length >= low) & (drawn.length < high)].mean()
        for low, high in ((0, 80), (80, 180), (600, 769))
    )
    # one pass in haste has 41 to 77 tokens: 0.50 of 183 when this was written, 0.59 of 500, and 0.30 of the 64 longest
    assert hurried < careful - 0.02 and long < careful - 0.15
    share = np.bincount(drawn.prompt, drawn.correct) / np.bincount(drawn.prompt)
    assert ((share > 0) & (share < 1)).mean() >= 0.8


@pytest.mark.nightly
def test_streams_have_five_rounds_at_the_median():
    rounds = count_stream_rounds(draw_responses(PATH, "eqlen+grpo", PROBLEMS, "sampling.streams=4"))
    assert len(rounds) == 4 * PROBLEMS and np.median(rounds) >= 5


def test_the_checkpoint_is_small_and_knows_its_special_tokens():
    model = AutoModelForCausalLM.from_pretrained(PATH)
    for settings in (model.config, model.generation_config):
        assert (settings.pad_token_id, settings.eos_token_id, settings.bos_token_id) == (0, 1, 2)
    assert model.config.max_position_embeddings == 1024 >= Longhand().longest_prompt + 768
    assert 1e6 < sum(parameter.numel() for parameter in model.parameters()) < 5e6
    assert sum(file.stat().st_size for file in PATH.iterdir() if file.is_file()) < 12_000_000


def test_token_ids_are_those_of_the_shipped_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(PATH)
    assert tokenizer.get_vocab() == TOKEN_IDS
    for problem in (Longhand().train(index) for index in range(20)):
        assert tuple(tokenizer(problem.text).input_ids) == problem.token_ids
    ids = [*encode(ALPHABET), tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert tokenizer.decode(ids, skip_special_tokens=True) == ALPHABET  # no space anywhere
