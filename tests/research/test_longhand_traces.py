"""What longhand's model is pre-trained on: styles differ in length and care as they say, and columns add up."""

import re
from dataclasses import replace
from itertools import islice
from random import Random

from loops import over

from research.longhand.make import LEARNED_FIRST, MAX_LENGTH, STYLES, draw_examples, write_trace
from research.longhand.task import MAX_RESPONSE_LENGTH, Longhand, read_terms, write
from research.pretraining import EOS, IGNORED

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
