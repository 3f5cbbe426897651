"""Columns of options are a choice between letters, or refused; a list of answers says whether all are needed."""

from pathlib import Path
from typing import Any

import pytest
from data_sets import write
from loops import over

from fairlen.tasks.data_row import Answers, Choice
from fairlen.tasks.dataset import RowSet, read_rows
from fairlen.tasks.source import read_source

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
