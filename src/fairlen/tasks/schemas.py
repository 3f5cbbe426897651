r"""The schemas of public data sets, known by their columns and not by their names, since every set has many copies.

`SCHEMAS` lists them, docs/data.md the sets that have each. A row of cells becomes a question and a reference, or raises Unusable.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from fairlen.tasks.row import Answers, Choice, Program, Reference, Row, unpack_tests
from fairlen.tasks.source import DataError
from fairlen.verify.answer import extract_answer, gold_of_gsm8k

Raw = dict[str, Any]
COMMON = (
    "difficulty", "level", "subject", "topic", "type", "problem_type", "year", "data_source", "source", "language",
)  # fmt: skip
"""Columns that are handed on wherever a set has them."""
EVERYTHING = ("*",)
RESERVED = {"prompts", "completions", "completion_ids", "answer"}
"""Arguments of reward functions, which columns must not take."""
LETTERS = "ABCDEFGHIJ"
MAX_BARE = 100
"""Characters of a `solution` that is taken as the answer itself."""
EITHER = re.compile(r"(\S+) or (\S+) \(both were accepted\)")
"""One problem of AIME 1983 to 2023 has two accepted answers, written like that."""
WRAPPER = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
"""Around every problem of DAPO-Math-17k. It asks for a form of answer that our verifier does not read, and two instructions
would contradict each other, so it is taken off."""
OPEN_CODE_REASONING = (
    "OpenCodeReasoning has solutions but no unit tests, so nothing can verify a program; it is data for supervised training. "
    "For programs give LiveCodeBench, or rows with prompt and tests"
)


class Unusable(ValueError):
    """A row that cannot be trained on or be graded, with a reason that is counted."""


@dataclass(frozen=True)
class Schema:
    """One way of writing problems down."""

    name: str
    needed: tuple[str, ...]
    """Columns by which it is known."""
    read: Callable[[Raw], Row]
    """A row without id and columns. Raises Unusable."""
    id: tuple[str, ...] = ("id", "ID", "unique_id", "problem_idx", "problem_id")
    """Columns that identify a problem, the first that is there; COLUMN.FIELD within a struct."""
    also: tuple[str, ...] = ()
    """Columns that `read` and `id` use where they are there."""
    keep: tuple[str, ...] = COMMON
    """Columns that are handed on to reward functions."""
    refusal: str = ""
    """Why the set cannot be used."""

    def columns(self, found: Sequence[str]) -> list[str] | None:
        """Return those of the columns found that are worth reading; None for all."""
        wanted = {*self.needed, *self.id, *self.also, *self.keep}
        return None if self.keep == EVERYTHING else [name for name in found if name in wanted]

    def find_id(self, raw: Raw) -> str:
        """Return the source's own id of a problem; empty where it has none."""
        return next((str(cell) for name in self.id if (cell := look_up(raw, name)) is not None), "")

    def kept(self, raw: Raw) -> Raw:
        """Return what the source says besides question and answer, by names in lower case with underscores."""
        used = {*self.needed, *self.also}
        everything = self.keep == EVERYTHING
        names = [name for name in raw if name in self.keep or (everything and name not in used)]
        values = {name.strip().lower().replace(" ", "_").replace("-", "_"): read_plain(raw[name]) for name in names}
        kept = {name: value for name, value in values.items() if value is not None and name not in RESERVED}
        return kept | ({"difficulty": read_fraction(kept["difficulty"])} if "difficulty" in kept else {})


def look_up(raw: Raw, name: str) -> Any:
    """Return a cell, or a field of a struct; None where there is none."""
    cell: Any = raw
    for part in name.split("."):
        cell = cell.get(part) if isinstance(cell, dict) else None
    return cell


# ------------------------------------------------------------------------------------------------------ questions


def asking(
    column: str, refer: Callable[[Raw], Reference], pose: Callable[[str, Raw], str] = lambda question, _: question
) -> Callable[[Raw], Row]:
    """Return a reader of rows whose question is in one column; messages before it count where that is a prompt."""

    def read(raw: Raw) -> Row:
        question, earlier = read_prompt(raw.get(column)) if column == "prompt" else (read_text(raw.get(column)), ())
        return Row("", "", pose(question, raw), refer(raw), earlier=earlier)

    return read


def read_text(value: Any, what: str = "question") -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise Unusable(f"no {what}")
    return value.strip()


def read_prompt(value: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the last user message, and the messages before it, of a prompt as text or as a list of messages."""
    if isinstance(value, str):
        return read_text(value, "prompt"), ()
    if not isinstance(value, Sequence) or not value or not all(isinstance(message, dict) for message in value):
        raise Unusable("no prompt")
    messages = [(str(message.get("role", "")), str(message.get("content") or "")) for message in value]
    if messages[-1][0] != "user":
        raise Unusable("a prompt that does not end with the user's message")
    return read_text(messages[-1][1], "prompt"), tuple(messages[:-1])


def with_starter(question: str, raw: Raw) -> str:
    """Return a question with the code that its program begins with."""
    code = str(raw.get("starter_code") or "").strip()
    return f"{question}\n\nStarter code:\n```python\n{code}\n```" if code else question


def unwrap(question: str, _: Raw) -> str:
    """Return a question of DAPO-Math-17k without the text around it."""
    return read_text(question.removeprefix(WRAPPER[0]).removesuffix(WRAPPER[1]))


def with_context(question: str, raw: Raw) -> str:
    """Return a question of OlympiadBench after its context, and with the unit that is to be left out."""
    if str(raw.get("modality") or "").lower().startswith("multi") or "<image_" in question:
        raise Unusable("images")
    context, unit = (str(raw.get(name) or "").strip() for name in ("context", "unit"))
    question = f"{context}\n\n{question}" if context else question
    return f"{question}\n\nThe unit of the answer is {unit}; leave it out." if unit else question


# -------------------------------------------------------------------------------------------------------- answers


def answer_in(column: str) -> Callable[[Raw], Answers]:
    """Return a reader of the answer in one column."""
    return lambda raw: read_answers(raw.get(column))


def read_answers(value: Any) -> Answers:
    r"""Return an answer from a text, number or list of parts; of a solution what is in its last box, or after ####."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) == 1 and isinstance(values[0], str) and (either := EITHER.fullmatch(values[0].strip())):
        return Answers((either[1],), (either[2],))
    return Answers(tuple(read_answer(part) for part in values or [None]))


def read_answer(value: Any) -> str:
    """Return one answer. Whole numbers lose a decimal point, as some copies keep integers as floats."""
    if isinstance(value, bool) or value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise Unusable("no answer")
    if isinstance(value, float):
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
    """Return a text without the dollar signs around all of it; those around its parts stay."""
    text = text.strip()
    for sign in ("$$", "$"):
        inner = text[len(sign) : -len(sign)]
        if len(text) > 2 * len(sign) and text.startswith(sign) and text.endswith(sign) and "$" not in inner:
            return inner.strip()
    return text


def read_solution(raw: Raw) -> Answers:
    r"""Return what is in the last \boxed{} of a solution; a short solution without a box is the answer."""
    solution = raw.get("solution")
    if isinstance(solution, str) and "\\boxed" not in solution and len(solution) > MAX_BARE:
        raise Unusable("a solution without a boxed answer")
    return read_answers(solution)


def read_olympiad(raw: Raw) -> Answers:
    """Return OlympiadBench's answers: several in one text where `is_multiple_answer`, a tolerance in `error`."""
    parts = read_answers(raw.get("final_answer")).parts
    if str(raw.get("is_multiple_answer")).lower() == "true" and len(parts) == 1:
        parts = split_parts(parts[0])
    return Answers(parts, tolerance=read_tolerance(raw.get("error")))


def split_parts(text: str) -> tuple[str, ...]:
    """Return the answers in a list joined by commas; commas within brackets join nothing."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    return tuple(part for part in map(strip_dollars, (*parts, text[start:])) if part)


def read_tolerance(value: object) -> float:
    """Return the absolute tolerance of OlympiadBench. Some rows have one for each part: the smallest holds for all."""
    numbers = [float(number) for number in re.findall(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", str(value or ""))]
    return min(numbers, default=0.0)


def read_fraction(value: Any) -> float | str | None:
    """Return a share such as "3/8" as 0.375; other values as they are."""
    match = re.fullmatch(r"(\d+)/([1-9]\d*)", value.strip()) if isinstance(value, str) else None
    return int(match[1]) / int(match[2]) if match else value


def read_plain(value: Any) -> Any:
    """Return a cell as JSON can hold it: dates as text."""
    return value.isoformat() if hasattr(value, "isoformat") else value


def read_gpqa(raw: Raw) -> Row:
    """Return a row of GPQA. The question alone decides the order of its options, so that letters mean the same in every run."""
    question = read_text(raw.get("Question"))
    right = read_text(raw.get("Correct Answer"), "answer")
    wrong = [read_text(raw.get(f"Incorrect Answer {number}"), "options") for number in (1, 2, 3)]
    if right in wrong:
        raise Unusable("an option that is both correct and incorrect")
    options, choice = shuffle_options(question, right, wrong)
    return Row("", "", f"{question}\n\n{options}", choice)


def shuffle_options(question: str, correct: str, incorrect: Sequence[str]) -> tuple[str, Choice]:
    """Return the options as lettered lines, in an order that the question alone decides, and the letter of the correct one."""
    options = [correct, *incorrect]
    Random(int.from_bytes(hashlib.sha256(question.encode()).digest()[:8])).shuffle(options)
    letters = LETTERS[: len(options)]
    lines = [f"{letter}) {option}" for letter, option in zip(letters, options, strict=True)]
    return "\n".join(lines), Choice(letters[options.index(correct)], letters)


# ------------------------------------------------------------------------------------------------------- programs


def read_reward_model(raw: Raw) -> Reference:
    """Return the reference of verl's rows: an answer, or tests as JSON."""
    gold = look_up(raw, "reward_model.ground_truth")
    is_program = isinstance(gold, str) and gold.lstrip().startswith('{"') and '"outputs"' in gold
    return read_program(gold) if is_program else read_answers(gold)


def read_tests(raw: Raw) -> Program:
    """Return the tests of a program, or of the function that a column names."""
    return read_program(raw.get("tests"), str(raw.get("function") or ""))


def read_program(value: Any, function: str = "") -> Program:
    """Return tests from a list of objects with input and output, from {"inputs": […], "outputs": […]}, or from either as JSON."""
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
    """Return the name of a function, or nothing."""
    if name and not name.isidentifier():
        raise Unusable(f"tests of {name!r}, which is no name of a function")
    return name


def pair_tests(value: Raw) -> list[Raw]:
    """Return tests from two lists. Arguments and results of functions are kept as JSON."""
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise Unusable("tests without as many outputs as inputs")
    if value.get("fn_name"):
        if not all(isinstance(one, list) for one in inputs):
            raise Unusable("tests of a function without lists of arguments")
        inputs, outputs = ["\n".join(map(json.dumps, one)) for one in inputs], list(map(json.dumps, outputs))
    return [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def read_cases(tests: Sequence[Raw]) -> tuple[tuple[str, str], ...]:
    """Return input and output of each test."""
    cases = [(test.get("input"), test.get("output")) for test in tests if isinstance(test, dict)]
    if len(cases) < len(tests) or any(not isinstance(text, str) for case in cases for text in case):
        raise Unusable("tests without input and output as text")
    return tuple((str(one), str(other)) for one, other in cases)


def unpack_cases(program: Program) -> tuple[tuple[str, str], ...]:
    """Return all tests of a program, the packed ones too. Raises ValueError where those are damaged."""
    return program.cases + (read_cases(unpack_tests(program.packed)) if program.packed else ())


def read_livecodebench(raw: Raw) -> Program:
    """Return LiveCodeBench's tests; the private ones stay packed until they are needed, since they are large."""
    try:
        metadata = json.loads(raw.get("metadata") or "{}")
        public = unpack_tests(raw.get("public_test_cases") or "[]")
        function = read_function(str(metadata.get("func_name") or ""))
        program = Program(read_cases(public), raw.get("private_test_cases") or "", function)
        if not unpack_cases(program):
            raise Unusable("no tests")
    except (ValueError, AttributeError) as error:
        raise Unusable(str(error)) from None
    kinds = {str(test.get("testtype", "")) for test in public}
    if kinds - {"stdin", "functional"} or (kinds == {"functional"}) != bool(program.function):
        raise Unusable(f"tests of kind {', '.join(sorted(kinds))} with function {program.function!r}")
    return program


# ---------------------------------------------------------------------------------------------------------- table


def answered(name: str, question: str, answer: str, *more: str, keep: tuple[str, ...] = COMMON) -> Schema:
    """Return a schema of a question and an answer in one column each."""
    return Schema(name, (question, answer, *more), asking(question, answer_in(answer)), keep=keep)


def tested(question: str, keep: tuple[str, ...] = COMMON) -> Schema:
    """Return a schema of programs with tests."""
    read = asking(question, read_tests, with_starter)
    return Schema(f"{question} and tests", (question, "tests"), read, also=("starter_code", "function"), keep=keep)


SCHEMAS = (
    Schema("LiveCodeBench", ("question_content", "public_test_cases", "private_test_cases"),
           asking("question_content", read_livecodebench, with_starter), ("question_id",), ("starter_code", "metadata"),
           ("question_title", "platform", "contest_id", "contest_date", "difficulty")),
    Schema("OpenCodeReasoning", ("input", "output", "source", "solution", "dataset"), asking("input", read_solution),
           refusal=OPEN_CODE_REASONING),
    Schema("GPQA", ("Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))), read_gpqa,
           ("Record ID",), keep=("Subdomain", "High-level domain")),
    Schema("OlympiadBench", ("question", "final_answer", "is_multiple_answer"), asking("question", read_olympiad, with_context),
           also=("context", "unit", "error", "modality"), keep=("answer_type", "subfield", *COMMON)),
    answered("DeepMath", "question", "final_answer"),
    Schema("verl", ("prompt", "reward_model"), asking("prompt", read_reward_model, unwrap), ("extra_info.index",),
           ("extra_info",), ("ability", *COMMON)),
    answered("AIME by year", "Question", "Answer", "Year", keep=("Year", "Problem Number", "Part")),
    answered("Problem and Answer", "Problem", "Answer"),
    tested("prompt", EVERYTHING),
    answered("prompt and answer", "prompt", "answer", keep=EVERYTHING),
    Schema("prompt and solution", ("prompt", "solution"), asking("prompt", read_solution), keep=EVERYTHING),
    tested("problem"),
    tested("question"),
    answered("problem and answer", "problem", "answer"),
    answered("question and answer", "question", "answer"),
    Schema("problem and solution", ("problem", "solution"), asking("problem", read_solution)),
)  # fmt: skip
"""Of those that fit, the one with the most columns is taken, then the first."""


def choose_schema(place: str, columns: Sequence[str]) -> Schema:
    """Return the schema that has these columns. Raises DataError with the nearest one, and for sets that nothing can verify."""
    fitting = [schema for schema in SCHEMAS if set(schema.needed) <= set(columns)]
    if not fitting:
        raise DataError(place, describe_unknown(columns))
    chosen = max(fitting, key=lambda schema: len(schema.needed))
    if chosen.refusal:
        raise DataError(place, chosen.refusal)
    return chosen


def describe_unknown(columns: Sequence[str]) -> str:
    """Return what was found, which schema is nearest, and what it lacks."""
    found = set(columns)
    nearest = max(SCHEMAS, key=lambda one: (len(found & set(one.needed)) / len(one.needed), "tests" not in one.needed))
    missing = [name for name in nearest.needed if name not in found]
    is_near = len(missing) < len(nearest.needed)
    near = f"nearest is {nearest.name!r}, without {', '.join(missing)}" if is_near else "none is near"
    names = ", ".join(columns) or "(none)"
    return f"unknown columns {names}; {near}; rename columns to prompt and answer, or to prompt and tests"
