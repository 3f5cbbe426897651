"""Forms of an answer: what each reads of a text, and a pattern of the user that never ends."""

import asyncio
from contextlib import closing

import pytest
from loops import over

from fairlen.verify.answer import FORMS, check_form
from fairlen.verify.answer_pool import AnswerReader

GSM8K = "She has 3 + 4 = 7 plums.\n#### 7"


@over(
    "text, boxed, hashes, last_number, letter",
    [
        (GSM8K, None, "7", "7", None),
        (r"10 - 5 = \boxed{5}, not 4.", "5", None, "4", None),
        ("#### $1,234.50.", None, "1,234.50", "1,234.50", None),
        ("#### 7\nNo: #### **8**", None, "8", "8", None),  # the last counts, also of those who correct themselves
        ("####\nThus 5-3, or x = -3, or -$2", None, None, "-$2", None),
        ("3/4 of H2O, .5 l", None, None, ".5", None),
        ("10−15, so −5", None, None, "−5", None),
        ("It is 42, see Fig12 and x1", None, None, "42", None),
        ("B) 42\nbecause 6 * 7 = 42", None, None, "42", "B"),
        ("A) 3\nB) 4", None, None, "4", None),  # the options, listed
        ("The answer is (C).", None, None, None, "C"),
        (r"\boxed{D}", "D", None, None, "D"),
        ("A decrease", None, None, None, None),
    ],
)
def test_each_form_reads_its_own(text, boxed, hashes, last_number, letter):
    names = ("auto", "boxed", "hashes", "last-number", "letter")
    assert [FORMS[name].read(text, "") for name in names] == [boxed, boxed, hashes, last_number, letter]


@over(
    "text, auto, boxed, hashes",
    [(r"\boxed{B}", "B", "B", None), ("Answer: B", "B", None, None), ("#### (B)", None, None, "B")],
)
def test_where_there_are_options_a_form_reads_a_letter(text, auto, boxed, hashes):
    assert [FORMS[name].read(text, "ABCD") for name in ("auto", "boxed", "hashes")] == [auto, boxed, hashes]


@over("name", ["box", "regex:", "regex:(", "regex:(a)(b)", "regex:a{99999999999}"])
def test_what_is_no_form_is_refused(name):
    with pytest.raises(ValueError, match=r"^answer=.*give auto, boxed, hashes, last-number, letter or regex:PATTERN"):
        check_form(name)


def test_hostile_texts_are_read_at_once():
    """Each takes seconds where a form backtracks over what it has read."""
    for text in ("####" + " " * 99_000, "1," * 49_000, "1,111" * 19_000 + "1", "#### " * 19_000, "-$" * 49_000):
        for form in FORMS.values():
            form.read(text, "")


def test_a_pattern_reads_its_group_and_one_without_end_is_killed():
    """40 a's and a b: (a+)+$ has 2^40 ways to fail."""

    async def read_all() -> None:
        with closing(AnswerReader(r"regex:= (\d+)", deadline=60.0)) as read:
            assert (await read("1 = 2, 2 = 33 x")).answer == "33"
            assert [(await read(text)).status for text in ("no", "<think> = 5")] == ["no_answer"] * 2
            assert (await read("so = 5", letters="ABCD")).status == "no_answer"
        with closing(AnswerReader("regex:(?:a+)+$", deadline=1.0)) as read:
            assert (await read("a" * 40 + "b")).status == "timeout"
            assert (await read("caa")).answer == "aa"

    asyncio.run(read_all())
