"""What longhand's model is pre-trained on: styles differ in length and care as they say, and columns add up."""

import re
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import mean

import pytest

from research.longhand.make import (
    LEARNED_FIRST,
    MAX_LENGTH,
    MORE_RESTLESS,
    STYLES,
    draw_examples,
    slip,
    spell,
    write_trace,
)
from research.longhand.task import MAX_RESPONSE_LENGTH, Longhand, read_terms, write
from research.pretraining import EOS, IGNORED

TERMS = (47, 82, 1, 59)
STEP = re.compile(r"([b-g])(\d\d)\+(\d{3})(?::(.*))?>(\d{3})")


def number(digits: str) -> int:
    """Of a text with the least significant digit first."""
    return int(digits[::-1])


@pytest.mark.parametrize(
    ("style", "text"),
    [
        # 47 + 82 = 129, 129 + 1 = 130, 130 + 59 = 189
        ("hurried", "b28+740>921;c10+921>031;d95+031>981;#981"),
        # 2 + 7 = 9; 8 + 4 = 12, 2 and 1 carried; 0 + 0 + 1 = 1
        ("careful", "b28+740:2709|8402|0011|>921;c10+921:1900|0213|0101|>031;d95+031:9009|5308|0101|>981;#981"),
    ],
)
def test_styles_without_slips_are_written_so(style, text):
    assert write_trace(Random(0), TERMS, replace(STYLES[style], slip=0.0, again=0.0)) == text


def test_checks_write_the_columns_again():
    rng, style = Random(0), replace(STYLES["checked"], slip=0.0, checks=(2, 2), again=0.0)
    steps = write_trace(rng, TERMS, style).split(";")[:-1]
    assert [step.count("?") for step in steps] == [2, 2, 2]
    for step in steps:
        _, *checks = step.split("?")  # only the first columns may be wrong
        assert len(set(checks)) == 1


def test_the_first_columns_of_a_checked_step_are_sometimes_mended():
    rng, style = Random(0), replace(STYLES["checked"], slip=0.0, checks=(1, 1), again=0.0)
    steps = [step for _ in range(500) for step in write_trace(rng, TERMS, style).split(";")[:-1]]
    mended = [len(set(re.findall(r">(\d{3})", step))) == 2 for step in steps]
    assert 0.06 < mean(mended) < 0.10  # 0.08 of 1,500, three standard errors are 0.02


@pytest.mark.parametrize("style", LEARNED_FIRST)
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


@pytest.mark.parametrize("style", STYLES)
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


def test_columns_of_a_wrong_result_end_in_it():
    # 59 + 130 = 189, written as 199: digits and carries are right, the result is not
    assert spell(59, 130, 199) == "9009|5309|0101|>991"


def test_a_slip_is_wrong_and_carried_on():
    rng = Random(0)
    assert all(0 <= slip(rng, result) != result for result in range(1, 694))
    steps = write_trace(rng, TERMS, replace(STYLES["hurried"], slip=1.0, again=0.0)).split(";")
    results = [step.split(">")[1] for step in steps[:-1]]
    assert [step[4:7] for step in steps[1:-1]] == results[:-1]  # the next step starts from the wrong result
    assert steps[-1] == "#" + results[-1]


def test_what_is_cut_has_no_end_and_all_else_has():
    """So that the model never learns to end there: the cut is beyond the max response length that it is run with."""
    labels = (labels for _, labels in islice(draw_examples(seed=0), 1500))
    responses = [[token for token in row if token != IGNORED] for row in labels]
    cut = [response for response in responses if response[-1] != EOS]
    assert cut and min(map(len, cut)) == MAX_LENGTH > MAX_RESPONSE_LENGTH
    assert all(len(response) <= MAX_LENGTH for response in responses if response[-1] == EOS)
    assert not any(EOS in response[:-1] for response in responses)


def test_lengths_and_care_differ_by_style():
    """So that responses are wrong both short and long."""
    rng, terms = Random(0), [tuple(read_terms(Longhand().train(index).text)) for index in range(400)]
    texts = {name: [write_trace(rng, each, style) for each in terms] for name, style in LEARNED_FIRST.items()}
    tokens = {name: mean(map(len, some)) for name, some in texts.items()}
    correct = {
        name: mean(text.endswith(f"#{write(sum(each))}") for text, each in zip(some, terms, strict=True))
        for name, some in texts.items()
    }
    assert tokens["hurried"] < tokens["careful"] < tokens["checked"] < tokens["restless"]
    # 3 to 6 steps: the mean of 0.78 ** n is 0.34, of 0.89 ** n 0.60, of 0.97 ** n 0.87; two slips may cancel
    for name, share in (("hurried", 0.34), ("careful", 0.60), ("checked", 0.87)):
        assert share - 0.08 < correct[name] < share + 0.10, (name, correct[name])
    assert correct["restless"] < 0.5


@pytest.mark.parametrize("styles", [STYLES, LEARNED_FIRST, MORE_RESTLESS])
def test_shares_add_up_to_one(styles):
    assert sum(style.weight for style in styles.values()) == pytest.approx(1.0)
