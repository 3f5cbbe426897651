"""A file of responses that another program wrote, graded by its own references or by those of a data set."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import write_lines
from loops import over
from small_eval import write_set

from fairlen.cli import main
from fairlen.evaluate.folder import rescore_settings
from fairlen.evaluate.start import start_evaluation

ROWS = [
    {"problem": "1 + 1?", "text": r"so \boxed{2}", "gold": "2"},
    {"problem": "1 + 1?", "text": r"so \boxed{3}", "gold": 2},
    {"problem": "1 / 2?", "text": r"it is \boxed{\frac{1}{2}} then", "gold": 0.5},
    {"problem": "1 / 2?", "text": "it is 0.5", "gold": 0.5},
]


def grade(tmp_path: Path, file: Path, **changes) -> dict:
    summary = start_evaluation(rescore_settings(str(file), out=str(tmp_path / "out"), **changes))
    (found,) = summary["sets"].values()
    return found["scores"]


def test_texts_and_references_are_enough(tmp_path):
    """One of two is right in both problems: avg@2 = 1/2. The last has no box, so that it is incorrect."""
    found = grade(tmp_path, write_lines(tmp_path / "theirs.jsonl", *ROWS))
    assert (found["problems"], found["samples"], found["avg@2"]["value"]) == (2, 4, 1 / 2)
    assert (found["unit"], found["truncated"], found["without_verdict"]["kinds"]) == ("words", None, {})
    assert found["length"]["all"]["value"] == (2 + 2 + 4 + 3) / 4


def test_ids_tell_problems_apart(tmp_path):
    rows = [{"id": n, "text": r"\boxed{4}", "gold": str(4 + n)} for n in range(2)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "two.parquet")
    found = grade(tmp_path, tmp_path / "two.parquet")
    assert (found["problems"], found["avg@1"]["value"]) == (2, 1 / 2)


@over("column", ["problem", "id"])
def test_a_data_set_has_the_references(tmp_path_factory, column):
    """What is i + 1, for i from 0 to 3: only one of three is 2."""
    folder = tmp_path_factory.mktemp("graded")
    data = write_set(folder / "sums.jsonl", 1)
    ids = {"problem": [f"What is {i} + 1?" for i in range(3)], "id": []}
    if column == "id":
        data = write_lines(
            folder / "named.jsonl",
            *({"id": f"p{i}", "problem": f"What is {i} + 1?", "answer": str(i + 1)} for i in range(3)),
        )
        ids["id"] = [f"p{i}" for i in range(3)]
    rows = [{column: name, "text": r"\boxed{2}"} for name in ids[column]]
    found = grade(folder, write_lines(folder / "theirs.jsonl", *rows), data=(str(data),))
    assert found["avg@1"]["value"] == pytest.approx(1 / 3)


@over(
    "rows, message",
    [
        ([{"problem": "1+1?", "gold": "2"}], "no column text among problem, gold; give the columns"),
        ([{"problem": "1+1?", "text": "2"}], "no column gold among"),
        ([{"text": "2", "gold": "2"}], "no column problem or id among"),
        ([ROWS[0], ROWS[1] | {"text": None}], r"theirs.jsonl:2: text=None is not a text"),
        ([ROWS[0], ROWS[1] | {"gold": None}], r"theirs.jsonl:2: gold=None: no answer; give the reference"),
        ([ROWS[0], ROWS[0] | {"gold": "3"}], "has the references '2' and '3'"),
        ([ROWS[0] | {"problem": ""}], "theirs.jsonl:1: the row has neither problem nor id"),
    ],
)
def test_what_is_missing_is_named(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        grade(tmp_path, write_lines(tmp_path / "theirs.jsonl", *rows))
    assert not (tmp_path / "out").exists()


def test_a_problem_that_the_data_set_lacks_is_named(tmp_path):
    data = write_set(tmp_path / "sums.jsonl", 1)
    file = write_lines(tmp_path / "theirs.jsonl", {"problem": "What is 9 + 9?", "text": "18"})
    with pytest.raises(ValueError, match=r"'What is 9 \+ 9\?' is not in sums, by id or by question"):
        grade(tmp_path, file, data=(str(data),))


def test_the_command_prints_the_accuracy(tmp_path, capsys):
    file = write_lines(tmp_path / "theirs.jsonl", *ROWS)
    assert main(["eval", "--from-samples", str(file), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "theirs: 4 responses" in printed and "50.0%" in printed and "are words" in printed
    assert main(["eval", "--from-samples", str(file), "--temperature", "0.5", "--out", str(tmp_path / "other")]) == 2
    assert "the responses are there already" in capsys.readouterr().err


def test_thinking_is_not_graded(tmp_path):
    rows = [
        {"id": 1, "text": r"<think>\boxed{1}</think>\boxed{2}", "gold": "2"},
        {"id": 2, "text": r"<think>\boxed{2}", "gold": "2"},
    ]
    assert grade(tmp_path, write_lines(tmp_path / "a.jsonl", *rows))["avg@1"]["value"] == 1 / 2
