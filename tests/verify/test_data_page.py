"""grading.md, the rules of docs/data.md on answers and outputs: every cell is graded as its column says."""

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from asking import compare, find_answer
from loops import over

from fairlen.verify.answer_pool import AnswerPool
from fairlen.verify.execution import USUAL, Limits, find_interpreter
from fairlen.verify.outputs import same_text, same_value
from fairlen.verify.program import extract_code

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
RULES = (Path(__file__).parent / "grading.md").read_text()
SPAN = re.compile(r"(?<!`)(`+)(?!`) ?(.*?) ?(?<!`)\1(?!`)")


def table(head: str) -> list[list[list[str]]]:
    """Rows of the table with that head, each a list of cells, each a list of its code spans as they are written."""
    begin = RULES.index(f"| {head} |\n")
    rows = RULES[begin:].partition("\n\n")[0].strip().splitlines()[2:]
    assert len(rows) >= 2
    return [[spans(cell) for cell in row.strip("| ").split(" | ")] for row in rows]


def spans(cell: str) -> list[str]:
    return [text for _, text in SPAN.findall(cell)]


def unescape(text: str) -> str:
    return text.replace(r"\r", "\r").replace(r"\n", "\n")


@over("response, answer", table("response | answer"))
def test_the_box_that_counts(response: list[str], answer: list[str]) -> None:
    assert [find_answer(response[0])] == (answer or [None])


@over("responses, letter", table("response | choice"))
def test_the_option_that_counts(responses: list[str], letter: list[str]) -> None:
    assert [find_answer(response, "ABCD") for response in responses] == (letter or [None]) * len(responses)


@pytest.mark.slow
def test_verdicts_on_answers() -> None:
    asked = [
        (gold, answer, status)
        for _, (gold,), same, other in table("rule | reference | the same | not the same")
        for answers, status in ((same, "correct"), (other, "incorrect"))
        for answer in answers
    ]
    assert len(asked) > 120 and {status for *_, status in asked} == {"correct", "incorrect"}
    with closing(AnswerPool(workers=2, deadline=20.0)) as pool, ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda row: compare(pool, row[0], row[1]), asked)
        wrong = [(*row, status) for row, status in zip(asked, found, strict=True) if row[2] != status]
    assert not wrong


@over("response, code", table("response | code"))
def test_the_block_that_counts(response: list[str], code: list[str]) -> None:
    assert [extract_code(unescape(response[0]))] == ([unescape(code[0])] if code else [None])


@over("expected, same, other", table("expected | the same | not the same"))
def test_outputs(expected: list[str], same: list[str], other: list[str]) -> None:
    assert same and all(same_text(unescape(text), unescape(expected[0])) for text in same)
    assert other and not any(same_text(unescape(text), unescape(expected[0])) for text in other)


@over("expected, same, other", table("expected value | the same | not the same"))
def test_values(expected: list[str], same: list[str], other: list[str]) -> None:
    assert same and all(same_value(text.encode(), expected[0]) for text in same)
    assert other and not any(same_value(text.encode(), expected[0]) for text in other)


def test_programs_run_on_the_systems_python_with_what_is_installed_there(tmp_path: Path) -> None:
    found = find_interpreter()
    if os.access(USUAL[0], os.X_OK):
        assert USUAL[0] in PAGE and found.path == os.path.realpath(USUAL[0])
    file = tmp_path / "program.py"
    file.write_text("import numpy\n")
    command = found.command(str(file), Limits(30.0, cpu_seconds=30, memory_mib=2048), 0)
    done = subprocess.run(command, env=found.environment(), capture_output=True, timeout=60)
    installed = any((Path(folder) / "numpy").is_dir() for folder in found.packages)
    assert (done.returncode == 0) is installed, done.stderr
