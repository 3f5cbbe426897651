"""Invented problems in the exact schemas of public data sets, as Parquet and as JSON lines.

python tests/tasks/data_sets.py FOLDER

`SETS` has the rows of each; `write_sets` writes NAME.parquet and NAME.jsonl.
"""

import base64
import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: $Answer "
    "(without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
SUMS = [(f"Mara has {a} marbles and finds {b} more. How many has she?", a + b) for a, b in ((3, 4), (17, 25), (88, 12))]


def wrapped(question: str, gold: str, index: str) -> dict[str, Any]:
    """A row of DAPO-Math-17k as it was published for verl."""
    return {
        "data_source": "math_dapo", "prompt": [{"content": BEFORE + question + AFTER, "role": "user"}], "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"}, "extra_info": {"index": index},
    }  # fmt: skip


def unwrapped(question: str, gold: str, index: str) -> dict[str, Any]:
    """A row of its processed copy."""
    row = wrapped(question, gold, index)
    return {
        "prompt": question, "solution": gold, "data_source": row["data_source"], "source_prompt": row["prompt"],
        "ability": row["ability"], "reward_model": row["reward_model"], "extra_info": row["extra_info"],
    }  # fmt: skip


def pack(tests: list[dict[str, str]]) -> str:
    """Private tests as LiveCodeBench packs them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def livecodebench(number: int, date: str, function: str = "") -> dict[str, Any]:
    """A problem of LiveCodeBench: doubling a number, by a program or by a function."""
    kind = "functional" if function else "stdin"
    public = [{"input": "4", "output": "8", "testtype": kind}]
    private = [{"input": "-7", "output": "-14", "testtype": kind}, {"input": "0", "output": "0", "testtype": kind}]
    return {
        "question_title": f"Double {number}", "question_content": f"Task {number}: double the number given.",
        "platform": "leetcode" if function else "atcoder", "question_id": f"q{number}", "contest_id": f"c{number}",
        "contest_date": f"{date}T00:00:00",
        "starter_code": f"class Solution:\n    def {function}(self, x: int) -> int:\n        " if function else "",
        "difficulty": "easy", "public_test_cases": json.dumps(public),
        "private_test_cases": json.dumps(private) if number % 2 else pack(private),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }  # fmt: skip


SETS: dict[str, list[dict[str, Any]]] = {
    "dapo": [wrapped(q, str(a), f"u{i}") for _ in range(3) for i, (q, a) in enumerate(SUMS)],
    "dapo_processed": [unwrapped(q, str(a), f"u{i}") for i, (q, a) in enumerate(SUMS)],
    "polaris": [
        {"problem": q, "answer": str(a), "difficulty": f"{i + 3}/8"} for i, (q, a) in enumerate(SUMS)
    ],
    "deepmath": [
        {"question": "Find the limit of $1/n$.", "final_answer": "0", "difficulty": 4.5, "topic": "Mathematics -> Calculus",
         "r1_solution_1": "It is 0.", "r1_solution_2": "Zero.", "r1_solution_3": "0"},
        {"question": "Evaluate $\\int_0^1 x\\,dx$.", "final_answer": "\\dfrac{1}{2}", "difficulty": -1.0,
         "topic": "Mathematics -> Calculus", "r1_solution_1": "a", "r1_solution_2": "b", "r1_solution_3": "c"},
        {"question": "Is the empty set open?", "final_answer": "Yes", "difficulty": 3.0, "topic": "Mathematics -> Topology",
         "r1_solution_1": "a", "r1_solution_2": "b", "r1_solution_3": "c"},
    ],
    "deepmath_trl": [
        {"prompt": [{"role": "user", "content": "Find the limit of $1/n$."}], "solution": "$0$"},
        {"prompt": [{"role": "user", "content": "Evaluate $\\int_0^1 x\\,dx$."}], "solution": "\\boxed{\\frac{1}{2}}"},
    ],
    "open_code_reasoning": [
        {"id": "a1", "input": "-", "output": "<think>…</think>```python\nprint(1)\n```", "source": "codeforces",
         "license": "cc-by-4.0", "dataset": "taco", "split": "train", "difficulty": "EASY", "solution": "print(1)", "index": "7"},
    ],
    "aime_2024": [
        {"id": 60 + i, "problem": q, "solution": f"It is \\boxed{{{a:03}}}.", "answer": f"{a:03}",
         "url": "https://example.org/p", "year": "2024"}
        for i, (q, a) in enumerate(SUMS)
    ],
    "aime_2024_capitals": [
        {"ID": f"2024-I-{i + 1}", "Problem": q, "Solution": "Add.", "Answer": a} for i, (q, a) in enumerate(SUMS)
    ],
    "aime_2024_boxed": [
        {"id": i, "problem": q, "solution": f"First \\boxed{{1}}? No: \\boxed{{{a}}}.", "url": "https://example.org/p"}
        for i, (q, a) in enumerate(SUMS)
    ],
    "aime_2025": [
        {"problem_idx": i + 1, "problem": q, "answer": a, "problem_type": ["Algebra", "Number Theory"]}
        for i, (q, a) in enumerate(SUMS)
    ],
    "aime_by_year": [
        {"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "What is $2^5$?", "Answer": "32", "Part": None},
        {"ID": "2020-II-3", "Year": 2020, "Problem Number": 3, "Question": "Round 80.5 to a whole number.",
         "Answer": "080 or 081 (both were accepted)", "Part": "II"},
        {"ID": "2024-I-1", "Year": 2024, "Problem Number": 1, "Question": "What is $3^4$?", "Answer": "81", "Part": "I"},
    ],
    "math_500": [
        {"problem": "Convert $(0,3)$ to polar coordinates.", "solution": "It is $\\boxed{(3,\\pi/2)}$.",
         "answer": "\\left( 3, \\frac{\\pi}{2} \\right)", "subject": "Precalculus", "level": 2,
         "unique_id": "test/precalculus/1.json"},
        {"problem": "What is 1/3 of 1?", "solution": "$\\boxed{1/3}$", "answer": "\\frac13", "subject": "Prealgebra",
         "level": 1, "unique_id": "test/prealgebra/2.json"},
    ],
    "amc_2023": [{"id": i, "question": q, "answer": float(a), "url": "https://example.org/p"} for i, (q, a) in enumerate(SUMS)],
    "olympiadbench": [
        {"id": 1, "question": "Find all triples.", "solution": ["Count."], "final_answer": ["$(1,8,19), (2,7,13), (4,5,7)$"],
         "context": None, "modality": "Text-only", "difficulty": "Competition", "is_multiple_answer": True, "unit": None,
         "answer_type": "Tuple", "error": None, "question_type": "Open-ended", "subfield": "Number Theory",
         "subject": "Math", "language": "English"},
        {"id": 2, "question": "How long is it?", "solution": ["Measure."], "final_answer": ["3.14"],
         "context": "A rope of one turn.", "modality": "Text-only", "difficulty": "Competition", "is_multiple_answer": False,
         "unit": "m", "answer_type": "Numerical", "error": "1e-2", "question_type": "Open-ended", "subfield": "Geometry",
         "subject": "Math", "language": "English"},
        {"id": 3, "question": "See <image_1>.", "solution": ["Look."], "final_answer": ["1"], "context": None,
         "modality": "Multimodal", "difficulty": "Competition", "is_multiple_answer": False, "unit": None,
         "answer_type": "Numerical", "error": None, "question_type": "Open-ended", "subfield": "Geometry",
         "subject": "Math", "language": "English"},
    ],
    "minerva": [{"question": "What is the speed of light in m/s?", "answer": "3e8"},
                {"question": "Energy of rest?", "answer": "m c^{2}"}],
    "gsm8k": [
        {"question": q, "answer": f"She has <<{a - 1}+1={a}>>{a}.\n#### {a:,}"}
        for q, a in (*SUMS, ("A farm has 1,200 hens and buys 34. How many?", 1234))
    ],
    "gpqa": [
        {"Record ID": f"rec{i}", "Question": f"Which is {i}?", "Correct Answer": f"{i} \n", "Incorrect Answer 1": f"{i + 1}",
         "Incorrect Answer 2": f"{i + 2}", "Incorrect Answer 3": f"{i + 3}", "Subdomain": "Optics",
         "High-level domain": "Physics", "Explanation": "By counting."}
        for i in range(5)
    ],
    "livecodebench": [
        livecodebench(1, "2024-08-10"),
        livecodebench(2, "2024-09-30"),
        livecodebench(3, "2024-10-05", "double"),
        livecodebench(4, "2025-01-31", "double"),
    ],
    "verl_code": [
        {"data_source": "taco", "prompt": [{"role": "user", "content": "Print twice the number."}], "ability": "code",
         "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": ["4\n"], "outputs": ["8\n"]})},
         "extra_info": {"index": "0"}},
    ],
    "own_text": [{"prompt": q, "answer": str(a), "author": "M"} for q, a in SUMS],
    "own_messages": [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q}], "answer": str(a)}
        for q, a in SUMS
    ],
    "own_tests": [
        {"prompt": "Print twice the number.", "tests": [{"input": "4\n", "output": "8\n"}, {"input": "-1\n", "output": "-2\n"}]},
        {"prompt": "Print the number.", "tests": [{"input": "4\n", "output": "4\n"}]},
    ],
}  # fmt: skip


def write_sets(folder: Path) -> None:
    """All sets, each as Parquet and as JSON lines."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in SETS.items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    write_sets(Path(sys.argv[1]))


def write(folder: Path, name: str, rows: list[dict]) -> str:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def sums(start: int, count: int) -> list[dict]:
    return [{"prompt": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(start, start + count)]
