r"""The schemas of public data sets, known by their columns and not by their names, since every set has many copies.

| schema | columns | sets |
|---|---|---|
| verl | `prompt`, `reward_model` | DAPO-Math-17k in both forms, AIME 2024 as published with DAPO, sets of programs |
| AIME by year | `Question`, `Answer`, `Year` | AIME 1983 to 2023 or 2024 |
| problem and answer | `problem`, `answer` | AIME 2024 and 2025, HMMT, MATH-500, Polaris, AMC |
| question and answer | `question`, `answer` | AIME 2025 in two parts, AMC 2023, Minerva, GSM8K (the answer follows `####`) |
| problem and solution | `problem`, `solution` | AIME 2024 without answers (in the last \boxed{} of the solution), MATH |
| DeepMath | `question`, `final_answer` | DeepMath-103K |
| OlympiadBench | `question`, `final_answer`, `is_multiple_answer` | OlympiadBench |
| GPQA | `Question`, `Correct Answer`, `Incorrect Answer 1` to `3` | GPQA |
| LiveCodeBench | `question_content`, `public_test_cases`, `private_test_cases` | LiveCodeBench |
| your own | `prompt` with `answer`, `solution` or `tests` | yours; DeepMath-103K as published with TRL |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlen.tasks.fields import (
    Raw,
    Unusable,
    read_answers,
    read_asked,
    read_fraction,
    read_plain,
    read_program,
    with_starter,
)
from fairlen.tasks.row import Row
from fairlen.tasks.schemas_apart import (
    OPEN_CODE_REASONING,
    read_gpqa,
    read_livecodebench,
    read_olympiadbench,
    read_verl,
)

COMMON = (
    "difficulty",
    "level",
    "subject",
    "topic",
    "type",
    "problem_type",
    "year",
    "data_source",
    "source",
    "language",
)
"""Columns that are handed on wherever a set has them."""
EVERYTHING = ("*",)
RESERVED = {"prompts", "completions", "completion_ids", "answer"}
"""Arguments of reward functions, which columns must not take."""


@dataclass(frozen=True)
class Schema:
    """One way of writing problems down."""

    name: str
    needed: tuple[str, ...]
    """Columns by which it is known."""
    read: Callable[[Raw], Row]
    """A row without id and columns. Raises Unusable."""
    id: tuple[str, ...] = ("id", "ID", "unique_id", "problem_idx", "problem_id")
    """Columns that identify a problem, the first that is there."""
    also: tuple[str, ...] = ()
    """Columns that `read` uses where they are there."""
    keep: tuple[str, ...] = COMMON
    """Columns that are handed on to reward functions."""
    refusal: str = ""
    """Why the set cannot be used."""

    def columns(self, found: Sequence[str]) -> list[str] | None:
        """Those of the columns found that are worth reading; None for all."""
        wanted = {*self.needed, *self.id, *self.also, *self.keep}
        return None if self.keep == EVERYTHING else [name for name in found if name in wanted]

    def kept(self, raw: Raw) -> Raw:
        """What the source says besides question and answer, by names in lower case with underscores."""
        used = {*self.needed, *self.also}
        everything = self.keep == EVERYTHING
        names = [name for name in raw if name in self.keep or (everything and name not in used)]
        values = {name.strip().lower().replace(" ", "_").replace("-", "_"): read_plain(raw[name]) for name in names}
        kept = {name: value for name, value in values.items() if value is not None and name not in RESERVED}
        return kept | ({"difficulty": read_fraction(kept["difficulty"])} if "difficulty" in kept else {})


def answered(question: str, answer: str) -> Callable[[Raw], Row]:
    """A reader of questions whose answer is in one column."""

    def read(raw: Raw) -> Row:
        text, earlier = read_asked(raw, question)
        return Row("", "", text, read_answers(raw.get(answer)), earlier=earlier)

    return read


def solved(question: str) -> Callable[[Raw], Row]:
    r"""A reader of questions whose answer is in the last \boxed{} of a solution; a short solution without a box is the answer."""

    def read(raw: Raw) -> Row:
        solution = raw.get("solution")
        if isinstance(solution, str) and "\\boxed" not in solution and len(solution) > MAX_BARE:
            raise Unusable("a solution without a boxed answer")
        text, earlier = read_asked(raw, question)
        return Row("", "", text, read_answers(solution), earlier=earlier)

    return read


MAX_BARE = 100
"""Characters of a `solution` that is taken as the answer itself."""


def tested(question: str) -> Callable[[Raw], Row]:
    """A reader of questions about programs with tests."""

    def read(raw: Raw) -> Row:
        text, earlier = read_asked(raw, question)
        program = read_program(raw.get("tests"), str(raw.get("function") or ""))
        return Row("", "", with_starter(text, raw.get("starter_code")), program, earlier=earlier)

    return read


def refused(raw: Raw) -> Row:
    raise Unusable("refused")


SCHEMAS = (
    Schema("LiveCodeBench", ("question_content", "public_test_cases", "private_test_cases"), read_livecodebench,
           ("question_id",), ("starter_code", "metadata"),
           ("question_title", "platform", "contest_id", "contest_date", "difficulty")),
    Schema("OpenCodeReasoning", ("input", "output", "source", "solution", "dataset"), refused, refusal=OPEN_CODE_REASONING),
    Schema("GPQA", ("Question", "Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3))), read_gpqa,
           ("Record ID",), keep=("Subdomain", "High-level domain")),
    Schema("OlympiadBench", ("question", "final_answer", "is_multiple_answer"), read_olympiadbench,
           also=("context", "unit", "error", "modality"), keep=("answer_type", "subfield", *COMMON)),
    Schema("DeepMath", ("question", "final_answer"), answered("question", "final_answer")),
    Schema("verl", ("prompt", "reward_model"), read_verl, (), ("extra_info",), ("ability", *COMMON)),
    Schema("AIME by year", ("Question", "Answer", "Year"), answered("Question", "Answer"),
           keep=("Year", "Problem Number", "Part")),
    Schema("Problem and Answer", ("Problem", "Answer"), answered("Problem", "Answer")),
    Schema("prompt and tests", ("prompt", "tests"), tested("prompt"), also=("starter_code", "function"), keep=EVERYTHING),
    Schema("prompt and answer", ("prompt", "answer"), answered("prompt", "answer"), keep=EVERYTHING),
    Schema("prompt and solution", ("prompt", "solution"), solved("prompt"), keep=EVERYTHING),
    Schema("problem and tests", ("problem", "tests"), tested("problem"), also=("starter_code", "function")),
    Schema("question and tests", ("question", "tests"), tested("question"), also=("starter_code", "function")),
    Schema("problem and answer", ("problem", "answer"), answered("problem", "answer")),
    Schema("question and answer", ("question", "answer"), answered("question", "answer")),
    Schema("problem and solution", ("problem", "solution"), solved("problem")),
)  # fmt: skip
"""Of those that fit, the one with the most columns is taken, then the first."""


def choose_schema(place: str, columns: Sequence[str]) -> Schema:
    """The schema that has these columns. Raises ValueError with the nearest one, and for sets without anything to verify."""
    fitting = [schema for schema in SCHEMAS if set(schema.needed) <= set(columns)]
    if not fitting:
        raise ValueError(describe_unknown(place, columns))
    chosen = max(fitting, key=lambda schema: len(schema.needed))
    if chosen.refusal:
        raise ValueError(f"--data {place}: {chosen.refusal}")
    return chosen


def describe_unknown(place: str, columns: Sequence[str]) -> str:
    """What was found, which schema is nearest, and what it lacks."""
    found = set(columns)
    nearest = max(SCHEMAS, key=lambda one: (len(found & set(one.needed)) / len(one.needed), "tests" not in one.needed))
    missing = [name for name in nearest.needed if name not in found]
    near = (
        f"nearest is {nearest.name!r}, without {', '.join(missing)}"
        if len(missing) < len(nearest.needed)
        else "none is near"
    )
    return (
        f"--data {place}: unknown columns {', '.join(columns) or '(none)'}; {near}; "
        "rename columns to prompt and answer, or to prompt and tests"
    )
