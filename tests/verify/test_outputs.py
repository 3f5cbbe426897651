"""LiveCodeBench's rule for outputs, on pairs whose truth follows from how they were made."""

from __future__ import annotations

import json
import time

import pytest
from loops import over

from fairlen.verify.outputs import same_text, same_value

NUMBERS = [
    "7",
    "-3",
    "0",
    "10 20 30",
    "1\n2\n3",
    "1 2\n3 4\n5 6",
    "0.5",
    "3.14159 2.71828",
    "1000000000000000000000",
    "-0.25\n8",
]
WORDS = [
    "YES",
    "NO\nYES",
    "abc def",
    "a",
    "YES\n3\nno 2 3",
    "Case #1: 7\nCase #2: 9",
    "#..#\n.##.",
    "x y\n\nz",
    "[1, 2, 3]",
    "no 1",
]


def each_line(text: str, change) -> str:
    return "\n".join(change(line) for line in text.split("\n"))


SAME = {
    "itself": lambda t: t,
    "a newline at the end": lambda t: t + "\n",
    "many newlines around": lambda t: "\n\n" + t + "\n \n\n",
    "blanks at the ends of lines": lambda t: each_line(t, lambda line: f"  {line}\t "),
    "carriage returns": lambda t: t.replace("\n", "\r\n") + "\r\n",
}
SAME_NUMBERS = {
    "blanks between": lambda t: t.replace(" ", "   "),
    "decimal places": lambda t: each_line(t, lambda line: " ".join(w if "." in w else w + ".000" for w in line.split())),
    "more zeros": lambda t: each_line(t, lambda line: " ".join(w + ("00" if "." in w else ".0") for w in line.split())),
    "exponents": lambda t: each_line(t, lambda line: " ".join(w + "e0" for w in line.split())),
    "plus signs": lambda t: each_line(t, lambda line: " ".join(w if w[0] == "-" else "+" + w for w in line.split())),
}  # fmt: skip
OTHER = {
    "nothing": lambda t: "",
    "a line more": lambda t: t + "\n0",
    "a line less": lambda t: t.rpartition("\n")[0] or "other",
    "a blank line between": lambda t: t.replace("\n", "\n\n") if "\n" in t else t + "\n\n0",
    "a word more": lambda t: t + " 1",
    "a word before": lambda t: "0 " + t,
    "another last character": lambda t: t[:-1] + ("1" if t[-1] != "1" else "2"),
    "upside down": lambda t: "\n".join(reversed(t.split("\n"))) if len(set(t.split("\n"))) > 1 else "5 5 5 5",
    "the answer somewhere in text": lambda t: f"the answer is {t}",
}
OTHER_WORDS = {
    "another case": lambda t: t.swapcase() if t.swapcase() != t else t + "x",
    "blanks between": lambda t: t.replace(" ", "  ") if " " in t else t[:1] + " " + t[1:] + " .",
}
OTHER_NUMBERS = {
    "a little more": lambda t: t + ("000000000000000001" if "." in t.split()[-1] else ".000000000000000001"),
    "the other sign": lambda t: t[1:] if t[0] == "-" else "-" + t if t != "0" else "1",
    "not a number": lambda t: "nan",
    "infinity": lambda t: "inf",
}
PAIRS = [
    *((t, c, True) for t in [*NUMBERS, *WORDS] for c in SAME.items()),
    *((t, c, True) for t in NUMBERS for c in SAME_NUMBERS.items()),
    *((t, c, False) for t in [*NUMBERS, *WORDS] for c in OTHER.items()),
    *((t, c, False) for t in WORDS for c in OTHER_WORDS.items()),
    *((t, c, False) for t in NUMBERS for c in OTHER_NUMBERS.items()),
]


def test_there_are_enough_pairs_of_both_kinds() -> None:
    assert len({(t, name, truth) for t, (name, _), truth in PAIRS}) == len(PAIRS)
    assert sum(truth for *_, truth in PAIRS) == 20 * 5 + 10 * 5
    assert sum(not truth for *_, truth in PAIRS) == 20 * 9 + 10 * 2 + 10 * 4


@over("pair", PAIRS)
def test_the_rule(pair) -> None:
    expected, (_, change), truth = pair
    given = change(expected)
    assert same_text(given, expected) is truth, (given, expected)


@pytest.mark.parametrize(
    ("given", "expected", "truth"),
    [
        ("50000000000000001", "50000000000000000", False),  # as floats they would be equal
        ("0.1", "0.10000000000000000555", False),
        ("1e3", "1000", True),
        ("1E+400000000000000000", "1", False),
        ("1_000", "1000", True),  # Decimal reads underscores, and so does LiveCodeBench
        ("٣", "3", True),  # and digits of other scripts
        ("nan", "nan", True),  # the same text
        ("nan 1", "nan 1.0", False),  # not-a-number equals nothing
        ("sNaN", "1", False),
        ("Infinity", "inf", True),
        ("1,5", "1.5", False),
        ("0x10", "16", False),
        ("", "", True),
        ("\n\n", "", True),
        ("1\n\n2", "1\n\n2", True),
        ("1\x0b2", "1 2", True),  # blanks of every kind separate numbers
        ("1\x0c\n", "1", True),
        ("True", "true", False),
        ("\ufeff1", "1", False),
    ],
)
def test_particular_pairs(given: str, expected: str, truth: bool) -> None:
    assert same_text(given, expected) is truth


@pytest.mark.parametrize(
    ("given", "expected", "truth"),
    [
        ("[1, 2]", "[1,2]", True),
        ("[[1], [2, 3]]", "[[1], [2, 3]]", True),
        ("1", "1.0", True),
        ("true", "1", True),
        ("null", "null", True),
        ("null", "0", False),
        ("[1, 2]", "[2, 1]", False),
        ("[1]", "1", False),
        ('"a"', '"a"', True),
        ('"1"', "1", False),
        ('{"a": [1]}', '{"a": [1]}', True),
        ("0.1", "0.10000000000000001", True),  # the same double
        ("0.1", "0.1000000000000001", False),
        ("NaN", "NaN", False),
        ("", "null", False),
        ("[1", "[1]", False),
        ("[" * 100_000, "[]", False),
        ("9" * 10_000, "9", False),
        ("\udcff", '"\\udcff"', False),
    ],
)
def test_values(given: str, expected: str, truth: bool) -> None:
    assert same_value(given.encode("utf-8", "surrogatepass"), expected) is truth


def test_tuples_are_written_as_lists() -> None:
    assert same_value(json.dumps(((1, 2), (3,))).encode(), "[[1, 2], [3]]")


@pytest.mark.parametrize(
    "given", ["1 " * 2_000_000, "9" * 4_000_000, "1\n" * 4_000_000, "e" * 4_000_000, "1e99999999999999999999"]
)
def test_hostile_outputs_take_no_time(given: str) -> None:
    start = time.process_time()
    assert not same_text(given, "1 2 3")
    assert time.process_time() - start < 2.0
