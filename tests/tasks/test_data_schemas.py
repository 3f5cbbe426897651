"""Every schema of public data sets, from Parquet and JSON lines: what is asked, what is correct, and columns of options."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_sets import SETS, SUMS, write
from loops import over

from fairlen.tasks.data_row import Answers, Choice, Program, normalize
from fairlen.tasks.dataset import RowSet, read_rows
from fairlen.tasks.schemas import choose_schema, read_answer, read_olympiad, shuffle_options, unpack_cases
from fairlen.tasks.source import read_source

QUESTIONS = tuple(question for question, _ in SUMS)
LIMITS = ("Find the limit of $1/n$.", "Evaluate $\\int_0^1 x\\,dx$.")
GOLDS = tuple(str(answer) for _, answer in SUMS)  # 7, 42, 100

EXPECTED = {
    "dapo": ("verl", QUESTIONS, GOLDS),
    "dapo_processed": ("verl", QUESTIONS, GOLDS),
    "polaris": ("problem and answer", QUESTIONS, GOLDS),
    "deepmath": ("DeepMath", (*LIMITS, "Is the empty set open?"), ("0", "\\dfrac{1}{2}", "Yes")),
    "deepmath_trl": ("prompt and solution", LIMITS, ("0", "\\frac{1}{2}")),
    "aime_2024": ("problem and answer", QUESTIONS, ("007", "042", "100")),
    "aime_2024_capitals": ("Problem and Answer", QUESTIONS, GOLDS),
    "aime_2024_boxed": ("problem and solution", QUESTIONS, GOLDS),
    "aime_2025": ("problem and answer", QUESTIONS, GOLDS),
    "aime_by_year": (
        "AIME by year",
        ("What is $2^5$?", "Round 80.5 to a whole number.", "What is $3^4$?"),
        ("32", "080", "81"),
    ),
    "math_500": (
        "problem and answer",
        ("Convert $(0,3)$ to polar coordinates.", "What is 1/3 of 1?"),
        ("\\left( 3, \\frac{\\pi}{2} \\right)", "\\frac13"),
    ),
    "amc_2023": ("question and answer", QUESTIONS, GOLDS),
    "olympiadbench": (
        "OlympiadBench",
        ("Find all triples.", "A rope of one turn.\n\nHow long is it?\n\nThe unit of the answer is m; leave it out."),
        ("(1,8,19), (2,7,13), (4,5,7)", "3.14"),
    ),
    "minerva": ("question and answer", ("What is the speed of light in m/s?", "Energy of rest?"), ("3e8", "m c^{2}")),
    "gsm8k": ("question and answer", (*QUESTIONS, "A farm has 1,200 hens and buys 34. How many?"), (*GOLDS, "1234")),
    "own_text": ("prompt and answer", QUESTIONS, GOLDS),
    "own_messages": ("prompt and answer", QUESTIONS, GOLDS),
}
"""Schema, questions and answers of each set with mathematical answers."""


@pytest.fixture
def load(sets):
    return lambda name, query="": read_rows(read_source(f"{sets}/{name}.parquet{query}"))


@over("name", EXPECTED)
def test_questions_and_answers(load, name):
    schema, questions, answers = EXPECTED[name]
    found = load(name)
    assert found.schema == schema or (name == "polaris" and found.schema == "problem and answer")
    assert tuple(row.question for row in found.rows) == questions
    assert tuple(row.reference.shown for row in found.rows) == answers
    assert {row.kind for row in found.rows} == {"math"}
    assert len({row.id for row in found.rows}) == len(found.rows)
    assert all(row.id.startswith(f"{name}/") and row.dataset == name for row in found.rows)


@over("name", sorted(set(SETS) - {"open_code_reasoning"}))
def test_a_set_is_the_same_whatever_file_it_came_in(sets, name):
    one, other = (read_rows(read_source(f"{sets}/{name}.{kind}")) for kind in ("parquet", "jsonl"))
    assert [row.reference for row in one.rows] == [row.reference for row in other.rows]
    assert [row.id for row in one.rows] == [row.id for row in other.rows]
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 64


def test_copies_are_counted(load):
    found = load("dapo")
    assert (found.num_read, found.num_copies, len(found.rows)) == (9, 6, 3)  # 3 problems, 3 times each
    assert found.line == "dapo: 3 problems in 9 rows, 6 copies left out"


def test_ids_are_those_of_the_source(load):
    assert [row.id for row in load("dapo").rows] == ["dapo/u0", "dapo/u1", "dapo/u2"]
    assert load("math_500").rows[0].id == "math_500/test/precalculus/1.json"
    ids = [f"aime_by_year/{i}" for i in ("1983-1", "2020-II-3", "2024-I-1")]
    assert [row.id for row in load("aime_by_year").rows] == ids


def test_columns_are_handed_on(load):
    assert [row.columns["difficulty"] for row in load("polaris").rows] == ["3/8", "4/8", "5/8"]
    assert load("math_500").rows[0].columns == {"subject": "Precalculus", "level": 2}
    assert load("aime_2025").rows[0].columns == {"problem_type": ["Algebra", "Number Theory"]}
    assert load("aime_by_year").rows[1].columns == {"year": 2020, "problem_number": 3, "part": "II"}
    assert load("deepmath").rows[1].columns == {"difficulty": -1.0, "topic": "Mathematics -> Calculus"}
    assert load("own_text").rows[0].columns == {"author": "M"}
    assert load("gpqa").rows[0].columns == {"subdomain": "Optics", "high_level_domain": "Physics"}


def test_years_are_filtered(load):
    found = load("aime_by_year", "?Year=..2023")
    assert [row.columns["year"] for row in found.rows] == [1983, 2020]
    assert found.num_filtered == 1 and found.rows[1].reference == Answers(("080",), ("081",))
    with pytest.raises(ValueError, match=r"no column 'year' to filter by; there are ID, Year"):
        load("aime_by_year", "?year=..2023")
    with pytest.raises(ValueError, match=r"no problem is left \(3 rows, 3 filtered out\)"):
        load("aime_by_year", "?Year=2030..")


def test_olympiadbench_has_parts_tolerances_and_pictures(load):
    found = load("olympiadbench")
    assert found.rows[0].reference == Answers(("(1,8,19)", "(2,7,13)", "(4,5,7)"))
    assert found.rows[1].reference == Answers(("3.14",), tolerance=0.01)
    errors = ("1e-1", "1E-3", ".01", "0.5,1E-2", "")
    assert [read_olympiad("1", {"error": text}).tolerance for text in errors] == [0.1, 0.001, 0.01, 0.01, 0.0]
    assert found.dropped == {"images": 1}
    assert "1 dropped: images" in found.line


def test_gpqa_options_are_shuffled_by_the_question_alone(load):
    rows = load("gpqa").rows
    for number, row in enumerate(rows):
        question, _, options = row.question.partition("\n\n")
        assert question == f"Which is {number}?"
        by_letter = dict(line.split(") ") for line in options.splitlines())
        assert isinstance(row.reference, Choice)
        assert by_letter[row.reference.letter] == str(number)
        assert sorted(by_letter.values()) == sorted(str(number + k) for k in range(4))
    options = {"Correct Answer": "a", **{f"Incorrect Answer {number}": str(number) for number in (1, 2, 3)}}
    places = Counter(shuffle_options({"Question": f"question {i}"} | options).index("a") for i in range(4000))
    assert all(abs(places[place] - 1000) < 150 for place in range(4))  # 5 standard deviations of sqrt(4000 * 3/16) = 27


def test_livecodebench_tests_are_unpacked(load):
    rows = load("livecodebench").rows
    assert [row.reference.function for row in rows] == ["", "", "double", "double"]
    for row in rows:
        assert isinstance(row.reference, Program)
        assert unpack_cases(row.reference) == (("4", "8"), ("-7", "-14"), ("0", "0"))
    assert rows[2].question.endswith("```python\nclass Solution:\n    def double(self, x: int) -> int:\n```")
    assert rows[0].question == "Task 1: double the number given."
    window = load("livecodebench", "?contest_date=2024-09-01..2025-01-31").rows
    assert [row.id.rpartition("/")[2] for row in window] == ["q2", "q3", "q4"]
    assert rows[0].columns == {
        "question_title": "Double 1", "platform": "atcoder", "contest_id": "c1", "contest_date": "2024-08-10T00:00:00",
        "difficulty": "easy",
    }  # fmt: skip


def test_programs_and_messages_of_other_schemas(load):
    assert load("own_messages").rows[0].earlier == (("system", "Be brief."),)
    assert load("verl_code").rows[0].reference == Program((("4\n", "8\n"),))
    first, second = load("own_tests").rows
    assert first.reference == Program((("4\n", "8\n"), ("-1\n", "-2\n")))
    assert second.reference == Program((("4\n", "4\n"),))


def test_open_code_reasoning_is_refused(load):
    why = r"unknown columns .*rename columns to prompt and answer, or to prompt and tests"
    with pytest.raises(ValueError, match=why):
        load("open_code_reasoning")


def test_unknown_columns_are_named_with_the_nearest_schema(tmp_path):
    place = write(tmp_path, "x.jsonl", [{"problem": "1+1?", "reply": "2"}])
    with pytest.raises(ValueError, match=r"unknown columns problem, reply; nearest is .*, without answer; rename"):
        read_rows(read_source(place))
    with pytest.raises(ValueError, match=r"unknown columns a, b; none is near"):
        choose_schema("x", ["a", "b"])


def test_rows_without_an_answer_are_counted(tmp_path):
    cells = [("a?", ""), ("b?", None), (" ", "1"), ("c?", "$ $"), ("d?", "2"), ("e?", float("nan"))]
    rows = [{"problem": question, "answer": answer} for question, answer in cells]
    found = read_rows(read_source(write(tmp_path, "x.jsonl", rows)))
    assert [row.question for row in found.rows] == ["d?"]
    assert found.dropped == {"no answer": 4, "no question": 1}
    with pytest.raises(ValueError, match=r"no problem is left \(4 rows, 3 no answer, 1 no question\)"):
        read_rows(read_source(write(tmp_path, "x.jsonl", rows[:4])))


def test_copies_that_contradict_each_other_are_left_out(tmp_path):
    rows = [{"problem": "a?", "answer": "1"}, {"problem": "a ?", "answer": "2"}, {"problem": "b?", "answer": "27"},
            {"problem": "b?", "answer": "27.0"}, {"problem": "$b$?", "answer": "\\frac{54}{2}"}]  # fmt: skip
    found = read_rows(read_source(write(tmp_path, "x.jsonl", rows)))
    assert [row.question for row in found.rows] == ["b?"]
    assert found.dropped == {"copies with different answers": 2}
    assert found.num_copies == 2


def test_a_question_after_other_messages_is_another_problem(tmp_path):
    """Three conversations that end alike, of which the third is a copy of the first."""
    rows = [
        {"prompt": [{"role": "user", "content": f"Ann has {n} and 1."}, {"role": "assistant", "content": "Yes."},
                    {"role": "user", "content": "How many?"}], "answer": n + 1}
        for n in (2, 4, 2)
    ]  # fmt: skip
    found = read_rows(read_source(write(tmp_path, "x.jsonl", rows)))
    assert sorted(row.reference.shown for row in found.rows) == ["3", "5"] and found.num_copies == 1


@over(
    "one, other, same",
    [("a  b\n", "ab", True), ("$x$ and\\, $y$", "x and y", True), ("\\dfrac12", "\\frac12", True),
     ("x+1", "x-1", False), ("A", "a", False), ("\\left(1\\right)", "(1)", True), ("\\leftarrow", "arrow", False)],
)  # fmt: skip
def test_what_counts_as_the_same_question(one, other, same):
    assert (normalize(one) == normalize(other)) is same


@over(
    "value, expected",
    [(True, "True"), (False, "False"),
     (27.0, "27"), (0.5, "0.5"), (-3, "-3"), ("27.0", "27"), ("$12$", "12"), ("$$12$$", "12"), ("$1$ or $2$", "$1$ or $2$"),
     ("x \\boxed{1} y \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"), ("a\n#### 1,234", "1234"), (10**30, "1" + "0" * 30)],
)  # fmt: skip
def test_answers_are_cleaned(value, expected):
    assert read_answer(value) == expected


def test_parts_are_split_at_commas_outside_brackets():
    listed = read_olympiad("$1$, $[2,3)$, \\{4,5\\}, f(x, y)", {"is_multiple_answer": True})
    assert listed.parts == ("1", "[2,3)", "\\{4,5\\}", "f(x, y)")


@over(
    "name, data, message",
    [
        ("x.jsonl", b'{"problem": "a?", "answer": "1"}\n{"problem": ', r"x.jsonl, line 2: not JSON"),
        ("x.json", b"[{]", r"x\.json: not JSON: .*line 1 column 3"),
        ("x.csv", b"problem,answer\na?,1,2\n", r"x.csv, line 2: 3 cells for 2 columns"),
        ("x.jsonl.gz", gzip.compress(b'{"problem": "a?"}\n' * 9999, mtime=0)[:50], r"damaged or was not finished"),
        ("x.jsonl", b"{}\n", r"unknown columns \(none\)"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_rows(read_source(str(tmp_path / name)))
    (tmp_path / name).unlink()


def test_columns_that_nobody_needs_are_not_read(tmp_path):
    table = pa.table({"question": ["1+1?"], "final_answer": ["2"], "r1_solution_1": ["x" * 100]})
    pq.write_table(table, tmp_path / "x.parquet")
    schema = choose_schema("x", table.column_names)
    assert schema.columns(table.column_names) == ["question", "final_answer"]


COLOURS = ["red", "blue", "green", "grey"]


def read(folder: Path, *rows: dict[str, Any]) -> RowSet:
    return read_rows(read_source(write(folder, "x.jsonl", [*rows])))


SETS: dict[str, dict[str, Any]] = {
    "MMLU": {"question": "The sky?", "subject": "colours", "choices": COLOURS, "answer": 1},
    "MMLU-Pro": {"question_id": 7, "question": "The sky?", "options": COLOURS, "answer": "B", "answer_index": 1},
    "MMLU as CSV": {"question": "The sky?"} | dict(zip("ABCD", COLOURS, strict=True)) | {"answer": "B"},
    "CMMLU": {"Question": "The sky?"} | dict(zip("ABCD", COLOURS, strict=True)) | {"Answer": "B", "Year": 1},
    "ARC": {"question": "The sky?", "choices": {"text": COLOURS, "label": ["1", "2", "3", "4"]}, "answerKey": "2"},
    "OpenBookQA": {"question_stem": "The sky?", "choices": {"text": COLOURS, "label": [*"ABCD"]}, "answerKey": "B"},
    "CommonsenseQA": {"question": "The sky?", "choices": {"label": [*"ABCD"], "text": COLOURS}, "answerKey": "B"},
    "HellaSwag": {"ctx": "The sky?", "endings": COLOURS, "label": "1"},
    "AQuA": {"question": "The sky?", "options": ["A)red", "B)blue", "C)green", "D)grey"], "correct": "B"},
    "RACE": {"question": "The sky?", "options": COLOURS, "answer": "B"},
    "MedQA": {"question": "The sky?", "options": dict(zip("ABCD", COLOURS, strict=True)), "answer": "blue"},
    "objects": {"problem": "The sky?", "answer": "B",
                "options": [{"key": key, "value": text} for key, text in zip("ABCD", COLOURS, strict=True)]},
    "SuperGPQA": {"question": "The sky?", "options": COLOURS, "answer": "blue", "answer_letter": "B"},
    "own": {"prompt": "The sky?", "choices": COLOURS, "answer": "(B)"},
    "floats": {"prompt": "The sky?", "choices": COLOURS, "answer": 1.0},
    "solutions": {"problem": "The sky?", "options": COLOURS, "solution": "It is blue: \\boxed{B}."},
    "option_a": {"question": "The sky?", "answer": "B"}
    | {f"option_{letter}": text for letter, text in zip("abcd", COLOURS, strict=True)},
}  # fmt: skip


def test_columns_of_options_are_a_choice_between_letters(tmp_path):
    """`\\boxed{B}` is correct, `\\boxed{1}` is none of the letters; the options stand under the question."""
    for name, row in SETS.items():
        (found,) = read(tmp_path, row).rows
        assert found.reference == Choice("B", "ABCD"), name
        assert found.question == "The sky?\n\nA) red\nB) blue\nC) green\nD) grey", name


REFUSED: dict[str, dict[str, Any]] = {
    "a letter beyond the options": {"answer": "E", "choices": COLOURS},
    "a text that is none": {"answer": "azure", "choices": COLOURS},
    "two that contradict each other": {"answer": "B", "answer_index": 2, "choices": COLOURS},
    "a text that two options have": {"answer": "red", "choices": ["red", "red"]},
    "a digit that is a text and a number": {"answer": "1", "choices": ["1", "2", "3"]},
    "no list": {"answer": "B", "choices": "red, blue"},
    "texts that are lists": {"answer": "B", "options": [["red"], ["blue"]]},
    "several letters": {"answer": ["A", "B"], "choices": COLOURS},
}


def test_options_that_nobody_can_tell_are_refused(tmp_path):
    kept = {"question": "1+1?", "answer": "2"}
    for name, row in REFUSED.items():
        found = read(tmp_path, kept, {"question": "The sky?"} | row)
        assert [one.question for one in found.rows] == ["1+1?"] and sum(found.dropped.values()) == 1, name


def test_numbers_that_count_from_one_are_refused_for_all_rows(tmp_path):
    """Of four options the fourth has the number 3; one 4 says that all other numbers mean the option before."""
    rows = [{"question": f"{number}?", "choices": COLOURS, "answer": number} for number in (1, 2, 4)]
    with pytest.raises(ValueError, match="counted from 0"):
        read(tmp_path, *rows)


def test_a_question_with_other_options_is_another_problem(tmp_path):
    other = {"question": "The sky?", "choices": ["blue", "red"], "answer": 0}
    assert len(read(tmp_path, SETS["MMLU"], other).rows) == 2


def test_a_set_without_options_in_some_rows_is_graded_by_its_answers(tmp_path):
    found = read(tmp_path, {"question": "1+1?", "options": [], "answer": "2"}, SETS["RACE"])
    assert [row.reference for row in found.rows] == [Answers(("2",)), Choice("B", "ABCD")]


@over(
    "row, reference",
    [
        ({"answer": ["8", "eight"], "is_multiple_answer": False}, Answers(("8",), ("eight",))),
        ({"answer": ["8", "9"], "is_multiple_answer": True}, Answers(("8", "9"))),
        ({"answer": ["8"]}, Answers(("8",))),
        ({"answer": '["8"]'}, Answers(("8",))),  # a list as text
        ({"answer": "8", "aliases": ["eight", "VIII"]}, Answers(("8",), ("eight", "VIII"))),
        ({"final_answer": ["8", "eight"], "is_multiple_answer": False}, Answers(("8",), ("eight",))),
    ],
)
def test_a_list_of_answers_says_whether_all_are_needed(tmp_path, row, reference):
    assert read(tmp_path, {"question": "How many?"} | row).rows[0].reference == reference


@over("answer", [["8", "eight"], '["8", "eight"]', [["8", "eight"]], {"value": "8", "aliases": ["eight"]}, []])
def test_a_list_of_which_nobody_knows_is_refused(tmp_path, answer):
    """Both of `["8", "eight"]` can be given by nobody, and one of `["8", "9"]` may be half of the answer."""
    found = read(tmp_path, {"question": "1+1?", "answer": "2"}, {"question": "How many?", "answer": answer})
    assert [row.question for row in found.rows] == ["1+1?"]
