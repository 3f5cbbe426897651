"""Readers of schemas that need more than a question and an answer: LiveCodeBench, GPQA, OlympiadBench, verl's."""

from __future__ import annotations

import json
import re

from fairlen.tasks.fields import (
    Raw,
    Unusable,
    read_answers,
    read_cases,
    read_function,
    read_program,
    read_prompt,
    read_text,
    shuffle_options,
    split_parts,
    unpack_cases,
    with_starter,
)
from fairlen.tasks.packed_tests import unpack_tests
from fairlen.tasks.row import Answers, Program, Row

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


def read_verl(raw: Raw) -> Row:
    """Rows for verl: DAPO-Math-17k, its processed copy, AIME as published with it; programs where the reference holds tests."""
    question, earlier = read_prompt(raw.get("prompt"))
    question = read_text(question.removeprefix(WRAPPER[0]).removesuffix(WRAPPER[1]))
    reward = raw.get("reward_model")
    gold = reward.get("ground_truth") if isinstance(reward, dict) else None
    if isinstance(gold, str) and gold.lstrip().startswith('{"') and '"outputs"' in gold:
        return Row(find_index(raw), "", question, read_program(gold), earlier=earlier)
    return Row(find_index(raw), "", question, read_answers(gold), earlier=earlier)


def find_index(raw: Raw) -> str:
    """The id that verl's rows have in `extra_info`; empty where there is none."""
    extra = raw.get("extra_info")
    index = extra.get("index") if isinstance(extra, dict) else None
    return "" if index is None else str(index)


def read_gpqa(raw: Raw) -> Row:
    """GPQA: four options whose order depends on the question alone, so that a letter means the same in every run."""
    question = read_text(raw.get("Question"))
    right = read_text(raw.get("Correct Answer"), "answer")
    wrong = [read_text(raw.get(f"Incorrect Answer {number}"), "options") for number in (1, 2, 3)]
    if right in wrong:
        raise Unusable("an option that is both right and wrong")
    options, choice = shuffle_options(question, right, wrong)
    return Row("", "", f"{question}\n\n{options}", choice)


def read_olympiadbench(raw: Raw) -> Row:
    """OlympiadBench: several answers in one text where `is_multiple_answer`, a tolerance in `error`, a unit to leave out."""
    if str(raw.get("modality") or "").lower().startswith("multi") or "<image_" in str(raw.get("question")):
        raise Unusable("images")
    context = str(raw.get("context") or "").strip()
    question = "\n\n".join(part for part in (context, read_text(raw.get("question"))) if part)
    unit = str(raw.get("unit") or "").strip()
    question += f"\n\nThe unit of the answer is {unit}; leave it out." if unit else ""
    answers = read_answers(raw.get("final_answer"))
    parts = answers.parts
    if is_true(raw.get("is_multiple_answer")) and len(parts) == 1:
        parts = split_parts(parts[0])
    return Row("", "", question, Answers(parts, tolerance=read_tolerance(raw.get("error"))))


def read_tolerance(value: object) -> float:
    """The absolute tolerance of OlympiadBench. Some rows have one for each part: the smallest holds for all."""
    numbers = [float(number) for number in re.findall(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", str(value or ""))]
    return min(numbers, default=0.0)


def is_true(value: object) -> bool:
    return value is True or str(value).lower() == "true"


def read_livecodebench(raw: Raw) -> Row:
    """LiveCodeBench: public and private tests; the private ones stay packed until they are needed, since they are large."""
    question = with_starter(read_text(raw.get("question_content")), raw.get("starter_code"))
    try:
        metadata = json.loads(raw.get("metadata") or "{}")
        public = unpack_tests(raw.get("public_test_cases") or "[]")
        function = read_function(str(metadata.get("func_name") or ""))
        program = Program(read_cases(public), raw.get("private_test_cases") or "", function)
        cases = unpack_cases(program)
    except (ValueError, AttributeError) as error:
        raise Unusable(str(error)) from None
    kinds = {str(test.get("testtype", "")) for test in public}
    if not cases:
        raise Unusable("no tests")
    if kinds - {"stdin", "functional"} or (kinds == {"functional"}) != bool(program.function):
        raise Unusable(f"tests of kind {', '.join(sorted(kinds))} with function {program.function!r}")
    return Row("", "", question, program)
