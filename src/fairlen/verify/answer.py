r"""Finds the answer in a finished text, in each form of `--answer`, and settles the easy comparisons. Text only: no algebra, no
processes; a pattern of the user may backtrack without end, and is searched by `AnswerReader` in a process that can be killed.

Boxes are never joined, however near they lie: Math-Verify joins boxes less than 70 characters apart (its issues 44 and 57), which
scores `\boxed{203}. Wait: \boxed{204}` as 203204 and so punishes those who correct themselves, who write longer.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from fairlen.channels import after_thinking
from fairlen.verify.dates import moments_agree
from fairlen.verify.notation import Number, agree, read, read_glued, read_otherwise, show_characters
from fairlen.verify.typesetting import MAX_LENGTH, clean

MAX_TEXT = 100_000  # characters at the end of a text in which its answer is looked for
BOX_OR_BRACE = re.compile(
    r"\\\\?(?:boxed|fbox)(?![A-Za-z])(?:\s*(?P<box>\{)|\s+(?P<bare>[^\s{}$\\]+))?|\\.|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
"""Escaped braces are text."""
CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)")
ROUNDED_PLACES = 6  # least places, and digits after leading zeros, of a rounded decimal; Math-Verify rounds to 6


def last_box(text: str) -> str | None:
    r"""The content of the last closed `\boxed{...}`, `\fbox{...}` or `\boxed 5`, of nested boxes the outer one; None without one.
    One pass over at most `MAX_TEXT` characters at the end."""
    text = text[-MAX_TEXT:]
    found = (0, 0)
    opened: list[int] = []  # where each box begins, 0 for other braces
    for token in BOX_OR_BRACE.finditer(text):
        match token.lastgroup:
            case "box":
                opened.append(token.end())
            case "open":
                opened.append(0)
            case "close" if opened and (start := opened.pop()):
                found = start, token.start()
            case "bare":
                found = token.span("bare")
    return text[slice(*found)].strip() or None


TEXT_IN_BOX = re.compile(r"\\text ?|[{}*$]")
LEAD = r"(?:(?:the )?(?:(?:correct|final|best|right) )?(?:answer|option|choice)(?: is)?(?: ?:)? )?"
OTHER_CHOICE = (
    r"(?:and|or|nor|but|is|are|was|isn't|not(?: correct| right| valid| *$))(?![A-Za-z])|[=<>,;/&^_']|\|(?![^|]*\|)"
    + r"|\\(?:lor|land|vee|wedge|cup|cap|setminus|times|cdot|div|neq?|leq?|geq?|lt|gt|in|to|cong|sim|approx|equiv)(?![A-Za-z])"
    + r"|\\(?:text|mathrm|mbox) ?\{{ ?(?:and|or|nor) ?\}}"
    + r"|(?:[-+] ?)?[(\[](?:{one})[)\]]|(?:not |[-+] )?[(\[$*]*(?-i:{one})(?:[).,:;\]$*]|$)|.*\bor [(\[](?:{one})[)\]]"
)
"""Text after a marked letter that makes it no choice: more letters, a sentence about it, a relation. A sign and a
command are the option's own, `(B) -5`, `(B) \\pi`."""


def extract_choice(text: str, letters: Sequence[str]) -> str | None:
    """The letter chosen in a multiple-choice question, upper case; None without one.

    Boxes `B`, `(B)`, `B.`, `B) text`, `B: text`, `(B) text`, `Answer: B` are choices; `A decrease`, `B or C`, `A is wrong` are
    none. Without a box the last of "answer is (B)", "Answer: B" or "answer is **B**" counts.
    """
    one, box = alternatives(letters), last_box(text)
    return choice_in_box(box, one) if box is not None else choice_in_words(text[-MAX_TEXT:], one)


def alternatives(letters: Sequence[str]) -> str:
    return "|".join(map(re.escape, letters))


def choice_in_box(box: str, one: str) -> str | None:
    if len(box) > MAX_LENGTH:
        return None
    said = " ".join(TEXT_IN_BOX.sub("", clean(box)).split())
    marked = (
        rf"{LEAD}(?:[(\[] ?({one}) ?[)\]][.:]?|({one})(?:\)|[.:](?= |$)|(?=$)| [—–](?= )| -(?= [A-Za-z]{{3}}))) ?(.*)"
    )
    found = re.fullmatch(marked, said, re.I | re.DOTALL)
    if not found or re.match(OTHER_CHOICE.format(one=one), found.group(3), re.I | re.DOTALL):
        return None
    return (found.group(1) or found.group(2)).upper()


def choice_in_words(text: str, one: str) -> str | None:
    said = (
        r"(?i:answer)(?i:\s{1,8}is)?[\s:*$(\[]{1,8}(?:\\(?:text|textbf|mathrm|mathbf)\{\(?)?"
        + rf"({one})(?![A-Za-z0-9])(?=(.{{0,40}}))"
    )
    is_choice = re.compile(CHOSEN.format(one=one, other=OTHER_CHOICE.format(one=one)), re.I)
    found = re.findall(said, text, re.DOTALL)
    return next((letter for letter, after in reversed(found) if is_choice.match(after)), None)


CLOSERS = r"[)\]}}*$]"
CHOSEN = (
    rf"{CLOSERS}*(?:[.;:!?]?(?:\s*$|[ \t]*\n)|[.;:!?]\s|,\s(?!(?:and |or )?[(\[]?(?:{{one}})\b)"
    rf"| +(?:because|since|as|for|by|with|which|that)\b)|{CLOSERS}++ *+(?!{{other}})"
    rf"|{CLOSERS}* +[-–—]{{{{1,2}}}} ++(?!{{other}}|(?-i:[($*]*(?:{{one}})\b))"
)
"""Text that may follow the letter in a sentence: its end, a reason, or a bracket or dash and the text of the option."""


LETTERS = "ABCDEFGHIJ"
"""Options of a problem that does not list them."""
MAX_LINES = 200
PATTERN = "regex:"
MARKED = re.compile(r"####[ \t*$`]*+([^\n#]*[^\n#\s*$.`])")
NUMBER = re.compile(
    r"(?:(?<![\w)\]}.])[-−]\$?)?(?<![A-Za-z_\d])(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:/\d+)?"
)


class Form(NamedTuple):
    """How an answer is asked for, read and written; the last one counts.

    `hashes` and `last-number` are the strict and flexible form of GSM8K in lm-evaluation-harness, which reads the first `####`,
    and numbers alone.
    """

    read: Callable[[str, str], str | None]
    """From the text after the thinking, and the letters of its options, "" without any; None without an answer."""
    place: str
    """Where an instruction says that the answer goes."""
    written: str
    """A sentence that gives the answer {}."""


def read_letter(text: str, letters: str) -> str | None:
    """The letter in the box or said to be the answer, else the one that lines begin with, where it is one."""
    letters = letters or LETTERS
    if (found := extract_choice(text, letters)) or last_box(text):
        return found
    lines = {choose(line, letters) for line in text.splitlines()[-MAX_LINES:]} - {None}
    return lines.pop() if len(lines) == 1 else None


def choose(answer: str | None, letters: str) -> str | None:
    """An answer as the letter that it chooses, where a problem has letters."""
    return choice_in_box(answer, alternatives(letters)) if answer and letters else answer


def last_of(pattern: re.Pattern[str], text: str) -> str | None:
    """The group, or without one the whole, of the last match where it is not empty; None without one."""
    found = None
    for match in pattern.finditer(text):
        found = match[pattern.groups] or found
    return found


BOX = "within \\boxed{}", "The answer is \\boxed{{{}}}."
FORMS = {
    "auto": Form(lambda text, letters: extract_choice(text, letters) if letters else last_box(text), *BOX),
    "boxed": Form(lambda text, letters: choose(last_box(text), letters), *BOX),
    "hashes": Form(lambda text, letters: choose(last_of(MARKED, text), letters), "after #### on the last line", "#### {}"),
    "last-number": Form(lambda text, _: last_of(NUMBER, text), "at the end, as a number", "The answer is {}."),
    "letter": Form(read_letter, "at the end, as in: The answer is (B)", "The answer is ({})."),
}  # fmt: skip


def check_form(name: str) -> None:
    """Raise ValueError for a name that is no form, and for a pattern that does not compile or has several groups."""
    pattern, reason = name.removeprefix(PATTERN), ""
    try:
        if name == pattern or not pattern:
            reason = "" if name in FORMS else "no such form"
        elif (groups := re.compile(pattern).groups) > 1:
            reason = f"it has {groups} groups, write (?:...) for those that are not the answer"
    except (re.error, OverflowError, RecursionError) as error:
        reason = str(error)
    if reason:
        wanted = f"give {', '.join(FORMS)} or {PATTERN}PATTERN with one group, the answer, or none"
        raise ValueError(f"answer={name}: {reason}; {wanted}")


def instruct(what: str, form: str) -> str:
    """The instruction that asks for an answer in a form; a pattern says nothing of how it is asked for."""
    return f"Reason step by step, and put {what} {FORMS[form].place}." if form in FORMS else ""


def grade(pattern: str, text: str) -> str:
    """Work of a worker: reply with the answer by a pattern in JSON."""
    return json.dumps(last_of(re.compile(pattern), text))


def warm_up() -> None:
    """Load nothing more."""


def gold_of_gsm8k(solution: str) -> str:
    """The reference at the end of a GSM8K solution, `#### 1,234` -> `1234`. Raises ValueError without one."""
    _, mark, answer = solution.rpartition("####")
    answer = answer.strip().replace(",", "")
    if not mark or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        raise ValueError(f"solution={solution[-60:]!r}: expected it to end with #### and a number")
    return answer


def match_exactly(answer: str, gold: str, tolerance: float = 0.0) -> bool | None:
    """Return whether two answers are the same, where that needs no algebra; None where it does.

    The same: equal text but for typesetting, or equal numbers in any notation. Different: two numbers, or one in two units.
    A percentage is both x and x/100, as in Math-Verify. A unit or base may be left out on either side, and never contradicted.

    Args:
        answer: The answer of a response.
        gold: The reference.
        tolerance: Largest difference of two numbers that are still the same.
    """
    one, other = read(answer), read(gold)
    if one.number and not other.number:
        other = read_glued(other, one)
    elif other.number and not one.number:
        one = read_otherwise(answer, read_glued(one, other))
    fits = agree(one, other)
    if one.number and other.number:
        return fits and same_number(one.number, other.number, tolerance)
    moments = [reading.moment for reading in (one, other) if reading.moment]
    if any(moment.is_sure for moment in moments):
        return len(moments) == 2 and moments_agree(*moments)
    if (clock := CLOCK.fullmatch(other.text)) and (clock[2][0] == "0" or gcd(int(clock[1]), int(clock[2])) > 1):
        return one.text == other.text and fits  # a time: as a ratio it would have been written 2:1 and 1:3
    if (one.choice and (other.choice or other.option)) or (one.option and other.choice):
        return (one.choice or one.option) == (other.choice or other.option)
    if {one.words or one.text, other.words or other.text} == {"no solution", r"\emptyset"}:
        return True
    if one.text == other.text or (one.words and one.words == other.words):
        return fits or None
    if r"\text" in one.body + other.body and show_characters(one.body) == show_characters(other.body):
        return fits or None
    return None


def same_number(one: Number, other: Number, tolerance: float) -> bool:
    """Equal within the tolerance, or one rounds the other to six places or more."""
    values = [(value, other.value) for value in (one.value, one.product) if value is not None]
    if one.percent and not other.percent:
        values += [(value / 100, gold) for value, gold in values]
    elif other.percent and not one.percent:
        values += [(value, gold / 100) for value, gold in values]
    margin = Fraction(tolerance) if tolerance else 0
    if any(abs(a - b) <= margin for a, b in values):
        return True
    return one.percent == other.percent and (is_rounded(one, other.value) or is_rounded(other, one.value))


def is_rounded(decimal: Number, value: Fraction) -> bool:
    """Whether `value` rounds to this decimal, of enough digits to tell it from its neighbours."""
    unit = Fraction(1, 10**decimal.places)
    digits = abs(decimal.value) / unit
    return (
        decimal.places >= ROUNDED_PLACES
        and digits >= 10 ** (ROUNDED_PLACES - 1)
        and abs(value - decimal.value) <= unit / 2
    )


MAX_FENCES = 1000  # at the end of a response, among which a program is looked for: the caller waits for it
FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})(.*)\n?", re.MULTILINE)
PYTHON = re.compile(r"[{.]*(?:python|pypy|py)[\d.]*(?![\w-])", re.IGNORECASE)
"""Start of the mark after an opening fence."""
BODY = re.compile(r"(?:[^\S\n]*+\n)*+[^\S\n]++\S.*(?:\n(?:[^\S\n].*)?)*+")


def extract_code(text: str, starts_inside: bool = False, name: str = "") -> str | None:
    """The last closed block after the thinking: one that defines `name`, else one marked as Python, else an unmarked one, else
    any. Without one the indented lines at its start, as a base model continues a function `name`, or None."""
    rest = (after_thinking(text, starts_inside) or "")[-MAX_TEXT:]
    last: dict[int, tuple[str, str]] = {}
    for before, mark, code in find_blocks(rest):
        if code and not code.isspace():
            is_named = name and re.search(rf"\bdef {name}\b", code)
            last[3 if is_named else 1 if not mark else 2 if PYTHON.match(mark) else 0] = before, code
    body = BODY.match(rest) if name and not last else None
    return unindent(*last[max(last)]) if last else body[0] if body else None


def find_blocks(text: str) -> Iterator[tuple[str, str, str]]:
    """The text before the opening fence, its mark and the lines of each closed block.

    A marked fence opens a block even within one, which then was never closed. A fence that is shorter, of the other kind or
    deeper in quotes than the opening one belongs to the block.
    """
    opened, start, before, mark = "", 0, "", ""
    for found in deque(FENCE.finditer(text), MAX_FENCES):
        indent, fence, info = found.groups()
        if opened and not (fence.startswith(opened) and indent.count(">") <= before.count(">")):
            continue
        if "`" in info:
            continue
        info = info.strip()
        if opened and not info:
            yield before, mark, text[start : found.start()]
            opened = ""
        else:
            opened, start, before, mark = fence, found.end(), indent, info


def unindent(before: str, code: str) -> str:
    quotes, indent = before.count(">"), len(before) - len(before.rstrip(" \t"))
    if quotes:
        code = re.sub(rf"^(?:[ \t]*>){{1,{quotes}}} ?", "", code, flags=re.MULTILINE)
        indent = max(indent - 1, 0)
    return re.sub(rf"^[ \t]{{1,{indent}}}", "", code, flags=re.MULTILINE) if indent else code
