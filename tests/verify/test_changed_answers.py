"""Changing the number, the prefix, the exponent or the unit of an answer that is accepted makes it wrong."""

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import pytest
from answer_pairs import fixed_pairs
from asking import compare

from fairlen.verify.answer import match_exactly
from fairlen.verify.answer_pool import AnswerPool
from fairlen.verify.units import PREFIXES, WITH_PREFIXES, parse_unit

PLAIN = {symbol: names.split()[0] for symbol, names in WITH_PREFIXES.items() if names}
"""Units that take prefixes, with a name of each."""


def draw_measure(rng: Random) -> tuple[str, list[str], list[str]]:
    """Draw a reference, ways to write it, and changes of it, each in one thing."""
    number, exponent = rng.randint(2, 99), rng.randint(1, 3)
    (prefix, spelled), (other_prefix, _) = rng.sample(sorted(PREFIXES.items()), 2)
    symbol, other = rng.sample(sorted(PLAIN), 2)
    under = rng.choice(["lb", "h", "acre"])  # units that are not drawn, so that nothing cancels
    unit = f"{prefix}{symbol}"

    def write(number: int, unit: str, exponent: int, under: str = under) -> str:
        power = f"^{{{exponent}}}" if exponent > 1 else ""
        return rf"{number}\ \mathrm{{{unit}}}{power}/\mathrm{{{under}}}"

    words = {1: "{}", 2: "square {}", 3: "cubic {}"}[exponent].format(f"{spelled}{PLAIN[symbol]}s")
    power = f"^{exponent}" if exponent > 1 else ""
    same = [rf"{number}\text{{ {words} per {under}}}", rf"{number}\ \mathrm{{{unit}{power}\,{under}^{{-1}}}}"]
    changed = [
        write(number + 1, unit, exponent), write(number, f"{other_prefix}{symbol}", exponent),
        write(number, symbol, exponent), write(number, unit, exponent % 3 + 1), write(number, f"{prefix}{other}", exponent),
        write(number, unit, exponent, "min"), rf"{number}\ \mathrm{{{unit}}}{power}",
    ]  # fmt: skip
    return write(number, unit, exponent), same, changed


def test_a_measure_is_wrong_if_one_thing_in_it_changes():
    rng = Random(0)
    accepted, num_changed = [], 0
    for _ in range(1500):
        gold, same, changed = draw_measure(rng)
        for answer in same:
            assert match_exactly(answer, gold) is True, (gold, answer)
        for answer in changed:
            num_changed += 1
            if match_exactly(answer, gold) is not False and parse_of(gold) != parse_of(answer):
                accepted.append((gold, answer))
    assert num_changed == 7 * 1500
    assert accepted == []


def parse_of(text: str) -> tuple[str, str]:
    """Return number and unit: `Gy` and `G` times `y` are drawn apart and may be written alike."""
    number, _, unit = text.partition("\\ ")
    return number, parse_unit(unit.replace("\\mathrm", "\\text").replace("{", " {", 1))


def test_every_prefix_is_another_unit():
    """20 prefixes and none: 21 different units for each symbol."""
    for symbol in PLAIN:
        units = {parse_unit(f"{prefix}{symbol}") for prefix in ("", *PREFIXES)}
        assert len(units) == 21 and "" not in units, symbol


CHANGES = {str(digit): str((digit + 1) % 10) for digit in range(10)}


@pytest.mark.slow
def test_a_changed_digit_makes_an_accepted_answer_wrong():
    """Every digit of every accepted answer of a table is changed, one at a time."""
    pairs = [pair for pair in fixed_pairs("answer_pairs_before_3.tsv") if pair.same]
    changed = [
        (pair.gold, pair.answer[: digit.start()] + CHANGES[digit[0]] + pair.answer[digit.end() :])
        for pair in pairs
        for digit in re.finditer(r"\d", pair.answer)
        if pair.gold != pair.answer
    ]
    assert len(changed) > 150
    with closing(AnswerPool(workers=2, deadline=20.0)) as pool, ThreadPoolExecutor(4) as threads:
        statuses = list(threads.map(lambda pair: compare(pool, *pair), changed))
    assert [pair for pair, status in zip(changed, statuses, strict=True) if status == "correct"] == []
