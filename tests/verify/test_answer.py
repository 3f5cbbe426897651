"""The answer in a text: the last closed box after the thinking, alone; choices; and what text and exact numbers settle."""

import time
import tracemalloc
from random import Random

import pytest
from asking import find_answer
from loops import over

from fairlen.channels import after_thinking
from fairlen.verify.answer import gold_of_gsm8k, match_exactly
from fairlen.verify.equivalence import same_whole
from fairlen.verify.notation import read
from fairlen.verify.structure import take_apart


@over(
    "text, starts_inside, rest",
    [
        ("a", False, "a"), ("<think>a</think>b", False, "b"), ("a</think>b", True, "b"), ("a</think>b", False, "b"),
        ("<think>a</think>b</think>c", False, "c"),  # the last one counts
        ("<think>a", False, None), ("a", True, None), ("", True, None), ("", False, ""),
        ("<think>a</think>b<think>c", False, None),  # thinks again, and was cut off
    ],
)  # fmt: skip
def test_what_follows_the_thinking(text, starts_inside, rest):
    assert after_thinking(text, starts_inside) == rest


@over(
    "text, answer",
    [
        (r"So \boxed{204}.", "204"), (r"\boxed{ \frac{1}{2} }", r"\frac{1}{2}"), (r"\fbox{7}", "7"), (r"\boxed {7}", "7"),
        (r"\boxed 7", "7"), (r"so $\boxed 7$.", "7"),
        (r"\\boxed{7}", "7"),  # escaped once too often
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces are text
        (r"\boxed{\left\{x : x>0 \right\}}", r"\left\{x : x>0 \right\}"), (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{5} and \boxed{6", "5"),  # the last closed one
        (r"\boxed{6", None),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),  # the outer one, whose typesetting comes off later
        (r"{ \boxed{5}", "5"), (r"} } \boxed{5}", "5"), (r"\boxed{1 \boxed{5}", "5"), (r"\boxed{}", None),
        (r"\boxed{5} then \boxed{}", None),  # the last box is empty, and no other counts
        ("204", None), (r"\boxedsomething{5}", None), ("", None), ("\\", None),
        ("{" * 1_000_000 + r"\boxed{5}", "5"),
        (r"\boxed{5}" + "x" * 200_000, None),  # not in the last 100,000 characters
    ],
)  # fmt: skip
def test_the_last_closed_box(text, answer):
    assert find_answer(text) == answer


BETWEEN = ("", " ", ", ", " and ", ". But wait, I made an error. Recomputing gives ", " word" * 12, " word" * 200)


@over("wrong", ["203", "204,205", r"\frac{1}{2}", "2"])
def test_who_corrects_himself_is_judged_by_his_last_word(wrong):
    """Math-Verify reads boxes less than 70 characters apart as one answer, which punishes correction."""
    for before in ("", r"<think>\boxed{9} \boxed{204} \boxed{1}</think> ", r"\boxed{8} then \boxed{7}, "):
        for between in BETWEEN:
            correct_last = find_answer(rf"{before}So \boxed{{{wrong}}}{between}\boxed{{204}}.")
            incorrect_last = find_answer(rf"{before}So \boxed{{204}}{between}\boxed{{{wrong}}}.")
            assert match_exactly(correct_last, "204") is True and match_exactly(incorrect_last, "204") is not True


PIECES = (
    "so ", "x^2 ", r"\frac{1}{2} ", r"\boxed{9} ", r"\boxed{204} ", "{ ", "} ", r"\{ ", "$ ", r"\boxed{", r"\fbox{3} ", "\n\n",
    "wait, ", "= 17, ", "\\",
)  # fmt: skip
ANSWERS = [
    ("204", True), ("203", False), (r"\frac{408}{2}", True), (r"204\text{ cm}", True), ("(204,1)", None), ("2,04", None),
]  # fmt: skip


@over("seed", range(100))
def test_reasoning_in_front_changes_nothing(seed):
    """Up to about 10,000 tokens, with boxes and braces that never close, in the thinking or as plain text."""
    draw = Random(seed)
    reasoning = ("".join(draw.choices(PIECES, k=draw.randrange(41))) * draw.choice((1, 1, 2, 5, 40, 400)))[:60_000]
    said, same = draw.choice(ANSWERS)
    text = rf"The answer is \boxed{{{said}}}.{draw.choice(('', ' I am sure.', ' Done. $x$', chr(10)))}"
    assert match_exactly(find_answer(text), "204") is same
    assert find_answer(f"<think>{reasoning}</think>{text}") == said
    assert find_answer(f"{reasoning}</think>{text}", starts_inside=True) == said
    assert find_answer(f"{reasoning} \n{text}") == said
    assert find_answer(f"<think>{reasoning}") is None


@over(
    "text",
    [
        "\\boxed{" * 150_000, "\\boxed{" * 70_000 + "{5}" + "x" * 500_000, "\\" * 1_000_000, "\\boxed " + " " * 1_000_000,
        "\\boxed{" * 70_000 + "5" + "}" * 500_000, "{" * 1_000_000, "answer is " * 100_000, "\\boxed  " * 120_000,
    ],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_seconds(text):
    start = time.process_time()
    find_answer(text)
    find_answer(text, "ABCD")
    assert time.process_time() - start < 8  # a quadratic reader would need hours


@over(
    "text, letter",
    [
        ("The answer is (B).", "B"), ("Answer: C", "C"), ("**Answer:** D", "D"), ("answer is **A**", "A"), (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B)}}", "B"), (r"\boxed{\textbf{C}}", "C"), (r"\boxed{(D) 5 cm}", "D"), (r"\boxed{b}", "B"),
        ("Answer: A. No, the answer is B", "B"), (r"Answer: A, so \boxed{C}", "C"), (r"Answer: A, so \boxed{5}", None),
        ("The answer is Both", None),
        (r"\boxed{A.}", "A"), (r"\boxed{\text{A}}", "A"), (r"\boxed{A) 5 cm}", "A"), (r"\boxed{A: 5 cm}", "A"),
        (r"\boxed{A. a photon}", "A"),
        (r"\boxed{Answer: C}", "C"), (r"\boxed{\text{The answer is B.}}", "B"), (r"\boxed{\bf A}", "A"),
        (r"\boxed{(A) A decrease}", "A"),
        (r"\boxed{A decrease in entropy}", None), (r"\boxed{\text{A decrease in entropy}}", None), (r"\boxed{B or C}", None),
        (r"\boxed{(B) or (C)}", None), (r"\boxed{A, B}", None), (r"\boxed{A is wrong}", None), (r"\boxed{(A) is wrong}", None),
        (r"\boxed{C=O}", None), (r"\boxed{a photon}", None), (r"\boxed{A-B}", None), (r"\boxed{B^c}", None),
        (r"\boxed{A \cup B}", None),
        ("The answer is A decrease in entropy", None), ("The answer is B or C.", None), ("Answer: C=O", None),
        ("The answer is A, B and C", None),
        ("The answer is B. A is wrong.", "B"), ("The answer is (B), since A is wrong", "B"), ("The answer is B because", "B"),
        ("Answer: A) 5 cm", "A"), ("The answer is\n\nC", "C"),
        (r"\boxed{(B) -5}", "B"), (r"\boxed{C. -2}", "C"), (r"\boxed{\text{(B)} \frac{1}{2}}", "B"),
        (r"\boxed{B) \sqrt{2}}", "B"), (r"\boxed{C) (a, b)}", "C"), (r"\boxed{A: \pi}", "A"),
        (r"\boxed{\textbf{(D)}\ \frac{3}{4}}", "D"), (r"\boxed{(C) +3}", "C"), (r"\boxed{(A) |x|}", "A"),
        (r"\boxed{(D) -b}", "D"), (r"\boxed{D. Not enough information}", "D"), (r"\boxed{B - increase}", "B"),
        (r"The answer is (B) $\frac12$", "B"), ("The answer is (B) -5", "B"),
        ("Answer: B - increase", "B"), ("Answer: B – increase", "B"), ("Answer: (C) -- 5 cm", "C"),
        (r"\boxed{A - B}", None), ("Answer: A - B", None), ("Answer: A - B + C", None), (r"\boxed{B. and C.}", None),
        (r"\boxed{(A) + (B)}", None), (r"\boxed{(A) - (B)}", None), (r"\boxed{(A) \cup (B)}", None),
        (r"\boxed{(A) \lor (B)}", None), (r"\boxed{(a) (b)}", None),
        (r"\boxed{(A) \text{ or } (B)}", None), (r"The answer is (A) \text{ or } (B)", None), (r"\boxed{(A)∨(B)}", None),
        (r"\boxed{B. not C.}", None), (r"\boxed{(A) = 5}", None), ("The answer is $A$ - $B$", None),
        ("The answer is (A) or (B)", None), ("Answer: B -  C", None), ("Answer: B - or C", None),
        (r"\boxed{A \wedge B}", None), (r"\boxed{(A)|(B)}", None),
        ("I like A", None), ("<think>answer is A</think>", None), ("<think>answer is A", None), ("Answer: E", None), ("", None),
    ],
)  # fmt: skip
def test_the_letter_that_was_chosen(text, letter):
    assert find_answer(text, "ABCD") == letter


def test_the_reference_of_gsm8k():
    assert gold_of_gsm8k("He has 5+7=<<5+7=12>>12.\n#### 1,234") == "1234"
    assert gold_of_gsm8k("#### -3.5") == "-3.5"
    for bad in ("12", "#### twelve", "####"):
        with pytest.raises(ValueError, match="end with ####"):
            gold_of_gsm8k(bad)


@over(
    "answer, gold, same",
    [
        ("042", "42", True), ("1,234", "1234", True), ("0.50", r"\frac12", True), ("1.5e3", "1500", True), ("24", "42", False),
        ("0.333333", "1/3", True), ("0.33", "1/3", False), ("0", "0.0000001", False), (r"12\text{ m}", "12 cm", False),
        ("12 m", "12 cm", None), (r"33\%", "33", True),
        ("12:05", "12:05", True), ("6:03", "12:06", False), ("1 2", "12", None), ("x+1", "1+x", None), ("1,2", "2,1", None),
        ("9" * 5000, "9", None),
        ("", "5", None), (r"\frac{1}{0}", "5", None), ("10^{999}", "10^{998}", None),
    ],
)  # fmt: skip
def test_what_needs_no_algebra(answer, gold, same):
    assert match_exactly(answer, gold) is same


@over("seed", range(1000))
def test_no_text_raises(seed):
    draw = Random(seed)
    answer = "".join(draw.choices("\\{}()[],;120./%$^_ xmA=-+eé١²½\n", k=draw.randrange(13)))
    gold = "".join(draw.choices("\\{}(),12./% x", k=draw.randrange(9)))
    find_answer(rf"\boxed{{{answer}")
    find_answer(answer, "ABCD")
    take_apart(answer)
    assert match_exactly(answer, gold) in (True, False, None)


LENGTH = 100_000
ADVERSARIAL = {
    "dots": r"\boxed{" + "." * LENGTH + "}", "some dots": r"\boxed{" + "." * 9_000 + "}",
    "ties": r"\boxed{" + "~" * 9_000 + "x}",
    "spaces": r"\boxed{x" + r"\," * 4_000 + "y}", "brackets": r"\boxed{" + "(" * 9_000 + "}",
    "boxes": r"\boxed{" * (LENGTH // 7),
    "braces": r"\boxed{" + "{" * LENGTH, "pairs": r"\boxed{" + "{}" * (LENGTH // 2), "answers": "answer is A " * (LENGTH // 12),
    "over": r"\boxed{" + "{" + r"1\over" * 1_400 + "}", "digits": r"\boxed{" + "1 1/" * 2_400 + "}",
    "raised": r"\boxed{" + "¹½" * 4_000 + "}",
    "texts": r"\boxed{5" + r"\text{a}" * 1_200 + "x}", "powers": r"\boxed{5\text{" + " ^2" * 3_000 + "!}}",
    "units": r"\boxed{5" + " m" * 4_000 + "x}", "symbols": r"\boxed{5" + r"\mu m" * 1_900 + "}",
    "indices": r"\boxed{" + r"_{\text{a" * 900 + "}", "remainders": r"\boxed{" + "(mod " * 1_900 + "}",
    "bars": r"\boxed{" + r"|\pi" * 2_400 + "}", "ellipses": r"\boxed{" + r"1,\ldots," * 900 + "}",
    "squares": r"\boxed{5\text{" + "square " * 1_400 + "}}", "ordinal": r"\boxed{5th" + "}" * 9_000,
    "layers": r"\boxed{" + "{" * 5_000 + "5" + "}" * 5_000,
}  # fmt: skip


@over("text", ADVERSARIAL.values())
def test_no_text_takes_long_to_read(text):
    """Processor time of everything that a grader does with it before a worker gets it; quadratic readers need seconds."""
    start = time.process_time()
    find_answer(text, "ABCD")
    match_exactly(find_answer(text) or "", "5")
    assert time.process_time() - start < 0.5


def test_readings_that_are_kept_are_few_and_short():
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for n in range(15):
        read(f"{n}" + "😀" * 9_000)  # 36 kB, and as much for each part of the reading
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert kept < 1 << 18  # of 15 * 36 kB at least


def test_writing_more_and_more_is_wrong_and_no_error():
    """A list longer than any that is compared: an error would be no verdict, which a policy could learn to reach."""
    many = ",".join(map(str, range(65)))
    assert not same_whole("1,2", many, 0.0)
    with pytest.raises(ValueError, match="65 items in the reference"):
        same_whole(many, "1,2", 0.0)
