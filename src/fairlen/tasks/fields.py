"""What the cells of data sets mean: questions, answers, tests, choices. A cell that means nothing raises Unusable."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from random import Random
from typing import Any

from fairlen.tasks.packed_tests import unpack_tests
from fairlen.tasks.row import Answers, Choice, Program
from fairlen.verify.answer import extract_answer, gold_of_gsm8k

Raw = dict[str, Any]
LETTERS = "ABCDEFGHIJ"


class Unusable(ValueError):
    """A row that cannot be trained on or be graded, with a reason that is counted."""


def read_text(value: Any, what: str = "question") -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"no {what}")
    return value.strip()


def read_prompt(value: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The last user message, and the messages before it, of a prompt as text or as a list of messages."""
    if isinstance(value, str):
        return read_text(value, "prompt"), ()
    if not isinstance(value, Sequence) or not value or not all(isinstance(message, dict) for message in value):
        raise Unusable("no prompt")
    messages = [(str(message.get("role", "")), str(message.get("content") or "")) for message in value]
    if messages[-1][0] != "user":
        raise Unusable("a prompt that does not end with the user's message")
    return read_text(messages[-1][1], "prompt"), tuple(messages[:-1])


def read_answers(value: Any) -> Answers:
    r"""An answer as text, number or list of parts; of a solution what is in its last box, or after ####."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) == 1 and isinstance(values[0], str) and (either := EITHER.fullmatch(values[0].strip())):
        return Answers((either[1],), (either[2],))
    return Answers(tuple(read_answer(part) for part in values or [None]))


EITHER = re.compile(r"(\S+) or (\S+) \(both were accepted\)")
"""One problem of AIME 1983 to 2023 has two accepted answers, written like that."""


def read_answer(value: Any) -> str:
    """One answer. Whole numbers lose a decimal point, as some copies keep integers as floats."""
    if isinstance(value, bool) or value is None:
        raise Unusable("no answer")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Unusable("no answer")
        return str(int(value)) if value.is_integer() else repr(value)
    text = str(value).strip()
    if "\\boxed" in text:
        text = extract_answer(text) or ""
    elif "####" in text:
        try:
            text = gold_of_gsm8k(text)
        except ValueError:
            raise Unusable("no answer") from None
    text = strip_dollars(re.sub(r"(?<=\d)\.0+$", "", text))
    if text in ("", "-"):
        raise Unusable("no answer")
    return text


def strip_dollars(text: str) -> str:
    """A text without the dollar signs around all of it; those around its parts stay."""
    text = text.strip()
    for sign in ("$$", "$"):
        inner = text[len(sign) : -len(sign)]
        if len(text) > 2 * len(sign) and text.startswith(sign) and text.endswith(sign) and "$" not in inner:
            return inner.strip()
    return text


def split_parts(text: str) -> tuple[str, ...]:
    """Answers in a list joined by commas; commas within brackets join nothing."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    return tuple(part for part in map(strip_dollars, (*parts, text[start:])) if part)


def read_fraction(value: Any) -> float | str | None:
    """A share such as "3/8" as 0.375; other values as they are."""
    match = re.fullmatch(r"(\d+)/([1-9]\d*)", value.strip()) if isinstance(value, str) else None
    return int(match[1]) / int(match[2]) if match else value


def read_plain(value: Any) -> Any:
    """A cell as JSON can hold it: dates as text."""
    return value.isoformat() if hasattr(value, "isoformat") else value


def read_asked(raw: Raw, column: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The question, and the messages before it where the column is a prompt."""
    return read_prompt(raw.get(column)) if column == "prompt" else (read_text(raw.get(column)), ())


def with_starter(question: str, starter: Any) -> str:
    """A question with the code that its program begins with."""
    code = str(starter or "").strip()
    return f"{question}\n\nStarter code:\n```python\n{code}\n```" if code else question


def shuffle_options(question: str, right: str, wrong: Sequence[str]) -> tuple[str, Choice]:
    """The options as lettered lines, in an order that the question alone decides, and the letter of the right one."""
    options = [right, *wrong]
    Random(int.from_bytes(hashlib.sha256(question.encode()).digest()[:8])).shuffle(options)
    letters = LETTERS[: len(options)]
    lines = [f"{letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    return "\n".join(lines), Choice(letters[options.index(right)], letters)


def read_program(value: Any, function: str = "") -> Program:
    """Tests as a list of objects with input and output, as {"inputs": […], "outputs": […]}, or either as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Unusable("tests that are not JSON") from None
    if isinstance(value, dict):
        function = function or str(value.get("fn_name") or "")
        value = pair_tests(value)
    if not isinstance(value, list) or not value:
        raise Unusable("no tests")
    return Program(read_cases(value), function=read_function(function))


def read_function(name: str) -> str:
    """The name of a function, or nothing."""
    if name and not name.isidentifier():
        raise Unusable(f"tests of {name!r}, which is no name of a function")
    return name


def pair_tests(value: Raw) -> list[Raw]:
    """Tests from two lists. Arguments and results of functions are kept as JSON."""
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise Unusable("tests without as many outputs as inputs")
    if not value.get("fn_name"):
        return [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]
    if not all(isinstance(one, list) for one in inputs):
        raise Unusable("tests of a function without lists of arguments")
    return [
        {"input": "\n".join(map(json.dumps, one)), "output": json.dumps(other)}
        for one, other in zip(inputs, outputs, strict=True)
    ]


def read_cases(tests: Sequence[Raw]) -> tuple[tuple[str, str], ...]:
    """Input and output of each test."""
    cases = [(test.get("input"), test.get("output")) for test in tests if isinstance(test, dict)]
    if len(cases) < len(tests) or any(not isinstance(text, str) for case in cases for text in case):
        raise Unusable("tests without input and output as text")
    return tuple((str(one), str(other)) for one, other in cases)


def unpack_cases(program: Program) -> tuple[tuple[str, str], ...]:
    """All tests of a program, the packed ones too. Raises ValueError where those are damaged."""
    return program.cases + (read_cases(unpack_tests(program.packed)) if program.packed else ())
