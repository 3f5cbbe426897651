"""A file of responses that some other program wrote: their texts, which problems they answer, and the references.

    {"problem": "What is 1 + 1?", "text": "So \\boxed{2}.", "gold": "2"}

Columns: `text`; `problem`, the question, or `id`; and `gold`, unless `--data` has the references.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.samples import Sample, file_name
from fairlen.files.foreign import open_regular_file
from fairlen.files.formats import Unreadable, columns_of, stream
from fairlen.tasks.data_row import Answers, DataRow, UnusableRow, normalize
from fairlen.tasks.dataset import RowSet
from fairlen.tasks.grader import Verifier
from fairlen.tasks.load import ProblemSet, make_problem_set
from fairlen.tasks.schemas import read_answers
from fairlen.tasks.source import DataSource
from fairlen.tasks.task import Problem

ASKED = "give the columns text; problem or id; and gold, the reference, unless --data has it"


def is_responses_file(place: str) -> bool:
    return bool(place) and Path(place).is_file()


def read_responses(path: Path, has_data: bool) -> tuple[Sample, ...]:
    """Read the responses of a file.

    Args:
        path: A file in any format that data sets may have.
        has_data: Whether `--data` has the references, so that the column `gold` is not needed.

    Raises:
        ValueError: If a column or a text is missing, with the line.
    """
    try:
        columns = columns_of(path)
        check_columns(path, columns, has_data)
        samples = tuple(read_rows(path, columns, has_data))
    except Unreadable as error:
        raise ValueError(f"--from-samples {error}") from None
    if not samples:
        raise ValueError(f"--from-samples {path}: the file has no rows")
    return samples


def check_columns(path: Path, columns: Sequence[str], has_data: bool) -> None:
    missing = [] if "text" in columns else ["text"]
    if not {"problem", "id"} & set(columns):
        missing.append("problem or id")
    if not has_data and "gold" not in columns:
        missing.append("gold")
    if missing:
        named = ", ".join(columns) or "none"
        raise ValueError(f"--from-samples {path}: no column {' and no column '.join(missing)} among {named}; {ASKED}")


def read_rows(path: Path, columns: Sequence[str], has_data: bool) -> Iterator[Sample]:
    """Yield a sample for each row; responses to one problem are numbered in the order of the file."""
    used = [name for name in ("id", "problem", "text", "gold") if name in columns]
    seen: Counter[str] = Counter()
    for chunk in stream(path, columns=used):
        for line, row in zip(chunk.lines, chunk.rows(), strict=True):
            place = f"--from-samples {path}:{line}"
            text = row.get("text")
            if not isinstance(text, str):
                raise ValueError(f"{place}: text={text!r:.40} is not a text; write the response, '' for an empty one")
            problem = str(row.get("problem") or "")
            name = str(row["id"]) if row.get("id") is not None else problem
            if not name:
                raise ValueError(f"{place}: the row has neither problem nor id; {ASKED}")
            gold = "" if has_data else read_gold(row.get("gold"), place)
            yield Sample(name, problem, gold, seen[name], text)
            seen[name] += 1


def read_gold(value: Any, place: str) -> str:
    try:
        answers = read_answers(value, {})
    except UnusableRow as reason:
        raise ValueError(f"{place}: gold={value!r:.40}: {reason}; give the reference as a text or a number") from None
    return answers.shown


def set_of_golds(config: EvalConfig, name: str, samples: Sequence[Sample]) -> ProblemSet:
    """Return the problems of a file with the references in it. Raises ValueError if one problem has two references."""
    first: dict[str, Sample] = {}
    for sample in samples:
        known = first.setdefault(sample.problem_id, sample)
        if known.answer != sample.answer:
            raise ValueError(
                f"--from-samples: the problem {sample.problem_id!r:.60} has the references {known.answer!r} and "
                f"{sample.answer!r}; correct one, or tell the problems apart by a column id"
            )
    rows = tuple(DataRow(one.problem_id, name, one.problem, Answers((one.answer,))) for one in first.values())
    found = RowSet(name, DataSource(name, name, True), "text and gold", rows=rows, num_read=len(samples))
    return make_problem_set(found, Verifier({"math"}, config.verifier))


def match_problems(found: ProblemSet, samples: Sequence[Sample], path: Path) -> tuple[Sample, ...]:
    """Return the samples with the ids of a set's problems, which are found by id or question.

    Raises:
        ValueError: If the set lacks a problem.
    """
    problems: dict[str, Problem] = {}
    for problem in found.problems:
        own_id = problem.id.removeprefix(f"{found.name}/")
        problems |= {f"id {problem.id}": problem, f"id {own_id}": problem, f"text {normalize(problem.text)}": problem}
    matched = []
    numbers: Counter[str] = Counter()
    for sample in samples:
        problem = problems.get(f"id {sample.problem_id}") or problems.get(f"text {normalize(sample.problem)}")
        if problem is None:
            raise ValueError(
                f"--from-samples {path}: the problem {sample.problem_id!r:.60} is not in {found.name}, by id or by question; "
                "name its data set with --data, or leave --data out and give a column gold"
            )
        matched.append(Sample(problem.id, problem.text, problem.answer, numbers[problem.id], sample.text))
        numbers[problem.id] += 1
    return tuple(matched)


def describe_file(path: Path) -> dict[str, str]:
    """Return the name and the hash of a file, for eval.json."""
    with open_regular_file(path) as file:
        return {"file": str(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def name_of(path: Path) -> str:
    return file_name(path.name.removesuffix(".gz").removesuffix(".zst").rpartition(".")[0] or path.name)
