"""The schemas of public data sets, known by their columns and not by their names, since every set has many copies."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fairlen.tasks import data_row
from fairlen.tasks.messages import read_messages, refuse_placeholders
from fairlen.tasks.source import DataError
from fairlen.verify.answer import gold_of_gsm8k, last_box
from fairlen.verify.structure import split_at

Raw = dict[str, Any]
COMMON = (
    "difficulty", "level", "subject", "topic", "type", "problem_type", "year", "data_source", "source", "language",
)  # fmt: skip
"""Columns that are handed on wherever a set has them."""
EVERYTHING = ("*",)
RESERVED = {"prompts", "completions", "completion_ids", "answer"}  # arguments of reward functions, no columns
MAX_BARE = 100  # characters of a `solution` without a box that is taken as the answer itself
EITHER = re.compile(r"(\S+) or (\S+) \(both were accepted\)")
"""One problem of AIME 1983 to 2023 has two accepted answers, written like that."""
MORE = ("is_multiple_answer", "aliases", "answer_index")
"""Columns that say more of an answer: whether all of a list are needed, others that count as well, its option's number."""
OPTIONS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")  # columns of GPQA
WRAPPER = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n",
    '\n\nRemember to put your answer on its own line after "Answer:".',
)
"""Around every problem of DAPO-Math-17k. It asks for a form of answer that our verifier does not read, and two instructions
would contradict each other, so it is taken off."""


@dataclass(frozen=True)
class Schema:
    name: str
    needed: tuple[str, ...]  # columns by which it is known: that of the question, that of the reference, and others
    refer: Callable[[Any, Raw], data_row.Reference] = lambda value, raw: read_answers(value, raw)
    """From the cell of the reference, and the whole row. Raises UnusableRow."""
    pose: Callable[[str, Raw], str] = lambda question, _: question
    """From the question and the row to the text that is asked. Raises UnusableRow."""
    id: tuple[str, ...] = ("id", "ID", "unique_id", "problem_idx", "problem_id")
    """Columns that identify a problem, the first that is there; COLUMN.FIELD within a struct."""
    also: tuple[str, ...] = ()  # columns that are used where they are there
    keep: tuple[str, ...] = COMMON  # columns that are handed on to reward functions

    def columns(self, found: Sequence[str], filtered: Sequence[str] = ()) -> list[str] | None:
        """Columns that are worth reading, and those to filter by; None for all."""
        wanted = {*self.id, *self.also, *self.keep, *filtered}
        return None if self.keep == EVERYTHING else [name for name in found if name in wanted or self.asks(name)]

    def asks(self, name: str) -> bool:
        return name in self.needed or name in MORE or data_row.is_option(name)

    def parse(self, raw: Raw) -> data_row.DataRow:
        """The row has the source's own id, which may be empty. Raises UnusableRow."""
        question, earlier = read_question(raw.get(self.needed[0]))
        own = next((str(cell) for name in self.id if (cell := look_up(raw, name)) is not None), "")
        posed, reference = self.pose(question, raw), self.refer(answer := raw.get(self.needed[1]), raw)
        if isinstance(reference, data_row.Answers) and (options := data_row.read_options(raw)):
            posed = data_row.list_options(posed, [*options.values()])
            reference = data_row.choose(answer, reference.parts[0], options, raw.get("answer_index"))
        return data_row.DataRow(own, "", posed, reference, self.kept(raw), earlier)

    def kept(self, raw: Raw) -> Raw:
        """Further columns, by names in lower case with underscores; dates as text."""
        used = {*self.needed, *self.also}
        everything = self.keep == EVERYTHING
        kept: Raw = {}
        for name, value in raw.items():
            plain = name.strip().lower().replace(" ", "_").replace("-", "_")
            is_kept = name in self.keep or (everything and name not in used)
            if is_kept and value is not None and plain not in RESERVED:
                kept[plain] = value.isoformat() if hasattr(value, "isoformat") else value
        return kept


def look_up(raw: Raw, name: str) -> Any:
    """A cell, or a field of a struct; None where there is none."""
    cell: Any = raw
    for part in name.split("."):
        cell = cell.get(part) if isinstance(cell, dict) else None
    return cell


def read_text(value: Any, what: str = "question") -> str:
    if not isinstance(value, str) or not value.strip():
        raise data_row.UnusableRow(f"no {what}")
    return value.strip()


def read_question(value: Any) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the last user message of a prompt, and the (role, content) pairs of the messages before it."""
    messages = read_messages(value)
    if not messages:
        question = read_text(value)
        refuse_placeholders(question)
        return question, ()
    if messages[-1][0] != "user":
        raise data_row.UnusableRow("a prompt that does not end with the user's message")
    for _, content in messages:
        refuse_placeholders(content)
    return read_text(messages[-1][1]), tuple(messages[:-1])


def with_starter(question: str, raw: Raw) -> str:
    code = str(raw.get("starter_code") or "").strip()
    return f"{question}\n\nStarter code:\n```python\n{code}\n```" if code else question


def unwrap(question: str, _: Raw) -> str:
    return read_text(question.removeprefix(WRAPPER[0]).removesuffix(WRAPPER[1]))


def with_context(question: str, raw: Raw) -> str:
    """Puts the question after its context, and adds the unit that is to be left out."""
    if str(raw.get("modality") or "").lower().startswith("multi") or "<image_" in question:
        raise data_row.UnusableRow("images")
    context, unit = (str(raw.get(name) or "").strip() for name in ("context", "unit"))
    question = f"{context}\n\n{question}" if context else question
    return f"{question}\n\nThe unit of the answer is {unit}; leave it out." if unit else question


def shuffle_options(raw: Raw) -> list[str]:
    """The order follows from the question alone, so that letters mean the same in every run."""
    options = [read_text(raw.get(name), "options") for name in OPTIONS]
    if options[0] in options[1:]:
        raise data_row.UnusableRow("an option that is both correct and incorrect")
    question = read_text(raw.get("Question"))
    Random(int.from_bytes(hashlib.sha256(question.encode()).digest()[:8])).shuffle(options)
    return options


def read_answers(value: Any, raw: Raw) -> data_row.Answers:
    """Of a solution, the content of its last box, or after ####; of a list `is_multiple_answer` says whether all are needed."""
    if isinstance(value, str) and value.startswith('["'):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) == 1 and isinstance(values[0], str) and (either := EITHER.fullmatch(values[0].strip())):
        return data_row.Answers((either[1],), (either[2],))
    parts = tuple(read_answer(part) for part in values or [None])
    aliases = tuple(read_answer(alias) for alias in raw.get("aliases") or ())
    are_needed = str(raw.get("is_multiple_answer")).lower()
    if len(parts) > 1 and are_needed not in ("true", "false"):
        raise data_row.UnusableRow(
            "a list of answers without is_multiple_answer, which is true where all are needed, false where one is"
        )
    are_others = len(parts) > 1 and are_needed == "false"
    return data_row.Answers(parts[:1], parts[1:] + aliases) if are_others else data_row.Answers(parts, aliases)


def read_answer(value: Any) -> str:
    """Whole numbers lose a decimal point, as some copies keep integers as floats."""
    if isinstance(value, (list, tuple, dict)):
        raise data_row.UnusableRow("an answer that is a list in a list, or an object")
    if isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise data_row.UnusableRow("no answer")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    text = str(value).strip()
    if "\\boxed" in text:
        text = last_box(text) or ""
    elif "####" in text:
        try:
            text = gold_of_gsm8k(text)
        except ValueError:
            raise data_row.UnusableRow("no answer") from None
    text = strip_dollars(re.sub(r"(?<=\d)\.0+$", "", text))
    if text in ("", "-"):
        raise data_row.UnusableRow("no answer")
    return text


def strip_dollars(text: str) -> str:
    """Only those around all of the text."""
    text = text.strip()
    around = re.fullmatch(r"(\$\$?)([^$]+)\1", text)
    return around[2].strip() if around else text


def read_solution(value: Any, raw: Raw) -> data_row.Answers:
    """The content of the last box; a short solution without a box is the answer."""
    if isinstance(value, str) and "\\boxed" not in value and len(value) > MAX_BARE:
        raise data_row.UnusableRow("a solution without a boxed answer")
    return read_answers(value, raw)


def read_olympiad(value: Any, raw: Raw) -> data_row.Answers:
    """Several answers if `is_multiple_answer`, with the smallest tolerance in `error`."""
    found = read_answers(value, raw)
    parts = found.parts
    if str(raw.get("is_multiple_answer")).lower() == "true" and len(parts) == 1:
        parts = tuple(part for part in map(strip_dollars, split_at(parts[0], ",")) if part)
    tolerances = re.findall(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", str(raw.get("error") or ""))
    return data_row.Answers(parts, found.others, min(map(float, tolerances), default=0.0))


def read_choice(value: Any, raw: Raw) -> data_row.Choice:
    return data_row.Choice("ABCD"[shuffle_options(raw).index(read_text(value, "options"))], "ABCD")


def read_reward_model(value: Any, raw: Raw) -> data_row.Reference:
    gold = look_up(value, "ground_truth")
    is_program = isinstance(gold, str) and gold.lstrip().startswith('{"') and '"outputs"' in gold
    return read_program(gold, raw) if is_program else read_answers(gold, raw)


def read_program(value: Any, raw: Raw) -> data_row.Program:
    """Tests are a list of objects with input and output, {"inputs": […], "outputs": […]}, or either as JSON."""
    function = str(raw.get("function") or "")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise data_row.UnusableRow("tests that are not JSON") from None
    if isinstance(value, dict):
        function = function or str(value.get("fn_name") or "")
        value = pair_tests(value)
    if not isinstance(value, list) or not value:
        raise data_row.UnusableRow("no tests")
    return make_program(value, function)


def pair_tests(value: Raw) -> list[Raw]:
    inputs, outputs = value.get("inputs"), value.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise data_row.UnusableRow("tests without as many outputs as inputs")
    if value.get("fn_name"):
        if not all(isinstance(one, list) for one in inputs):
            raise data_row.UnusableRow("tests of a function without lists of arguments")
        inputs, outputs = ["\n".join(map(json.dumps, one)) for one in inputs], list(map(json.dumps, outputs))
    return [{"input": one, "output": other} for one, other in zip(inputs, outputs, strict=True)]


def make_program(tests: Sequence[Raw], function: str, packed: str = "") -> data_row.Program:
    if function and not function.isidentifier():
        raise data_row.UnusableRow(f"tests of {function!r}, which is no name of a function")
    return data_row.Program(read_cases(tests), function, packed=packed)


def read_cases(tests: Sequence[Raw]) -> tuple[tuple[str, str], ...]:
    cases = [(test.get("input"), test.get("output")) for test in tests if isinstance(test, dict)]
    if len(cases) < len(tests) or any(not isinstance(text, str) for case in cases for text in case):
        raise data_row.UnusableRow("tests without input and output as text")
    return tuple((str(one), str(other)) for one, other in cases)


def unpack_cases(program: data_row.Program) -> tuple[tuple[str, str], ...]:
    """All tests, the packed ones too. Raises ValueError where those are damaged."""
    return program.cases + (read_cases(data_row.unpack_tests(program.packed)) if program.packed else ())


def read_livecodebench(value: Any, raw: Raw) -> data_row.Program:
    """Private tests stay packed until they are needed, since they are large."""
    try:
        metadata = json.loads(raw.get("metadata") or "{}")
        public = data_row.unpack_tests(value or "[]")
        program = make_program(public, str(metadata.get("func_name") or ""), raw.get("private_test_cases") or "")
        if not unpack_cases(program):
            raise data_row.UnusableRow("no tests")
    except (ValueError, AttributeError) as error:
        raise data_row.UnusableRow(str(error)) from None
    kinds = {str(test.get("testtype", "")) for test in public}
    if kinds - {"stdin", "functional"} or (kinds == {"functional"}) != bool(program.function):
        raise data_row.UnusableRow(f"tests of kind {', '.join(sorted(kinds))} with function {program.function!r}")
    return program


def read_humaneval(value: Any, raw: Raw) -> data_row.Program:
    """One test, which is passed where the row's own `check` raises nothing."""
    program = make_program([{"input": "", "output": "true"}], read_text(raw.get("entry_point"), "entry point"))
    return replace(program, begun=f"{read_text(raw.get('prompt'))}\n", check=read_text(value, "tests"))


def tested(question: str, keep: tuple[str, ...] = COMMON) -> Schema:
    name, also = f"{question} and tests", ("starter_code", "function")
    return Schema(name, (question, "tests"), read_program, with_starter, also=also, keep=keep)


SCHEMAS = (
    Schema("LiveCodeBench", ("question_content", "public_test_cases", "private_test_cases"), read_livecodebench, with_starter,
           ("question_id",), ("starter_code", "metadata"),
           ("question_title", "platform", "contest_id", "contest_date", "difficulty")),
    Schema("GPQA", ("Question", *OPTIONS), read_choice,
           lambda question, raw: data_row.list_options(question, shuffle_options(raw)), ("Record ID",),
           keep=("Subdomain", "High-level domain")),
    Schema("OlympiadBench", ("question", "final_answer", "is_multiple_answer"), read_olympiad, with_context,
           also=("context", "unit", "error", "modality"), keep=("answer_type", "subfield", *COMMON)),
    Schema("HumanEval", ("prompt", "test", "entry_point"), read_humaneval, id=("task_id",)),
    Schema("DeepMath", ("question", "final_answer")),
    Schema("verl", ("prompt", "reward_model"), read_reward_model, unwrap, ("extra_info.index",), ("extra_info",),
           ("ability", *COMMON)),
    Schema("AIME by year", ("Question", "Answer", "Year"), keep=("Year", "Problem Number", "Part")),
    Schema("Problem and Answer", ("Problem", "Answer")),
    tested("prompt", EVERYTHING),
    Schema("prompt and answer", ("prompt", "answer"), keep=EVERYTHING),
    Schema("prompt and solution", ("prompt", "solution"), read_solution, keep=EVERYTHING),
    tested("problem"),
    tested("question"),
    Schema("problem and answer", ("problem", "answer")),
    Schema("question and answer", ("question", "answer")),
    Schema("problem and solution", ("problem", "solution"), read_solution),
    *(Schema(f"{asked}, {listed} and {key}", (asked, key, listed)) for listed in data_row.LISTED
      for asked, key in (("question", "answerKey"), ("question_stem", "answerKey"), ("question", "correct"), ("ctx", "label"))),
)  # fmt: skip
"""The fitting schema with the most columns is taken, then the first."""


def choose_schema(place: str, columns: Sequence[str]) -> Schema:
    """Raises DataError with the nearest one."""
    found = set(columns)
    if fitting := [schema for schema in SCHEMAS if set(schema.needed) <= found]:
        return max(fitting, key=lambda schema: len(schema.needed))
    nearest = max(SCHEMAS, key=lambda one: (len(found & set(one.needed)) / len(one.needed), "answer" in one.needed))
    missing = [name for name in nearest.needed if name not in found]
    is_near = len(missing) < len(nearest.needed)
    near = f"nearest is {nearest.name!r}, without {', '.join(missing)}" if is_near else "none is near"
    raise DataError(
        place,
        f"unknown columns {', '.join(columns) or '(none)'}; {near}; rename columns to prompt and answer, or to prompt and tests",
    )
