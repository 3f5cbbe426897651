"""Samples on disk, ours and of others: what of them is read, and what of them cannot be."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import write_lines
from loops import over
from small_eval import write_set

from fairlen.evaluate.config import EvalConfig
from fairlen.evaluate.folder import rescore_settings
from fairlen.evaluate.samples import (
    Sample,
    SampleProgress,
    file_name,
    find_files,
    is_ours,
    read_foreign,
    read_samples,
    read_tokens,
    sample_path,
    write_samples,
)
from fairlen.evaluate.start import start_evaluation

ROWS = [
    {"question": "1+1?", "completion": "so \\boxed{2}", "gold": "2"},
    {"question": "1+1?", "completion": "so \\boxed{3}", "gold": "2"},
    {"question": "1/2+0?", "completion": "it is \\boxed{\\frac{1}{2}}", "gold": 0.5},
    {"question": "1/2+0?", "completion": "it is 0.5", "gold": 0.5},
]


def scores(tmp_path: Path, place: Path, **changes) -> dict:
    summary = start_evaluation(rescore_settings(str(place), out=str(tmp_path / "out"), **changes))
    (found,) = summary["sets"].values()
    return found["scores"]


def test_texts_and_answers_are_enough(tmp_path):
    """One of two is right in both problems: avg@2 = 1/2; the last has no box and so no answer, but a verdict."""
    found = scores(tmp_path, write_lines(tmp_path / "theirs.jsonl", *ROWS))
    assert (found["problems"], found["samples"], found["avg@2"]["value"]) == (2, 4, 1 / 2)
    assert found["unit"] == "words" and found["truncated"] is None
    assert found["without_verdict"]["kinds"] == {}
    assert found["length"]["all"]["value"] == (2 + 2 + 3 + 3) / 4


def test_a_column_of_texts_and_one_of_answers(tmp_path):
    """Without a question every row is a problem of its own."""
    path = tmp_path / "two.parquet"
    pq.write_table(pa.table({"text": ["\\boxed{4}", "\\boxed{5}"], "answer": ["4", "4"]}), path)
    assert not is_ours(path)
    found = scores(tmp_path, path)
    assert (found["problems"], found["avg@1"]["value"]) == (2, 1 / 2)


def test_verls_rollouts(tmp_path):
    rows = [{"input": "1+1?", "output": f"\\boxed{{{n}}}", "gts": "2", "score": 0.0, "step": 1} for n in (2, 2, 7)]
    with gzip.open(tmp_path / "1.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    found = scores(tmp_path, tmp_path / "1.jsonl.gz")
    assert (found["avg@3"]["value"], found["maj@3"]["value"]) == (pytest.approx(2 / 3), 1.0)


def test_tokens_and_finish_reasons_are_used(tmp_path):
    rows = [
        ROWS[0] | {"completion_tokens": 9, "finish_reason": "stop"},
        ROWS[1] | {"completion_tokens": 5, "finish_reason": "length"},
    ]
    (first, second) = read_foreign(write_lines(tmp_path / "a.jsonl", *rows))
    assert (first.length, first.finish, second.length, second.finish) == (9, "stop", 5, "length")
    found = scores(tmp_path, tmp_path / "a.jsonl")
    assert (found["unit"], found["length"]["correct"]["value"], found["truncated"]["value"]) == ("tokens", 9, 1 / 2)


def test_problems_are_found_by_their_questions_in_a_data_set(tmp_path):
    data = write_set(tmp_path / "sums.jsonl", 1)
    rows = [{"prompt": f"What is {i} + 1?", "response": "\\boxed{2}"} for i in range(3)]
    found = scores(tmp_path, write_lines(tmp_path / "theirs.jsonl", *rows), data=(str(data),))
    assert found["avg@1"]["value"] == pytest.approx(1 / 3)  # only 1 + 1 is 2


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "1+1?", "gold": "2"}], "no column of texts among gold, question"),
        ([{"question": "1+1?", "text": "2"}], "no reference answer for '1\\+1\\?'"),
        ([{"question": "1+1?", "text": None, "gold": "2"}, ROWS[0]], "theirs.jsonl:1: the text is missing"),
        ([ROWS[0], ROWS[1] | {"completion": 0}], "theirs.jsonl:2: the text 0 is a number, not text"),
        ([ROWS[0], ROWS[0] | {"gold": "3"}], "the answers '2' and '3' for '1\\+1\\?'"),
    ],
)
def test_what_cannot_be_judged_is_named(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        scores(tmp_path, write_lines(tmp_path / "theirs.jsonl", *rows))


def test_a_problem_of_no_set_is_named(tmp_path):
    data = write_set(tmp_path / "sums.jsonl", 1)
    rows = [{"prompt": "What is 0 + 1?", "response": "\\boxed{1}"}, {"prompt": "Why?", "response": "\\boxed{1}"}]
    with pytest.raises(ValueError, match="problem 'Why\\?' is not in sums"):
        scores(tmp_path, write_lines(tmp_path / "theirs.jsonl", *rows), data=(str(data),))
    with pytest.raises(ValueError, match="is in none of sums"):
        scores(tmp_path, write_lines(tmp_path / "others.jsonl", *rows[1:]), data=(str(data),))


def test_places_without_samples(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        find_files(str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="no samples there"):
        find_files(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        start_evaluation(EvalConfig.of(from_samples=str(tmp_path / "nothing")))


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ValueError, match=r"--from-samples .*pipe\.jsonl: a pipe: give a regular file"):
        find_files(str(tmp_path / "pipe.jsonl"))


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "aime.jsonl").write_text(
            '{"problem": "1+1?", "response": "\\\\boxed{2}", "answer": "2"}\n'
        )
    with pytest.raises(ValueError, match=r"a/aime\.jsonl and .*b/aime\.jsonl are of one name"):
        find_files(str(tmp_path))


DRAWN = Sample(
    "s/1", "What?", "2", 0, "\\boxed{2}", 1.0, "correct", "2", 0.25, (1, 2, 3), 1, 2, "stop", 2**62, 0.6, True
)
READ = Sample("s/2", "", "2", 0, "", status="timeout")


def test_samples_come_back_as_they_were(tmp_path):
    path = tmp_path / "samples" / "s.parquet"
    write_samples([DRAWN, READ], path)
    assert read_samples(path) == (replace(DRAWN, token_ids=None), READ)
    assert read_tokens(path).to_pylist() == [[1, 2, 3], None]
    write_samples([replace(DRAWN, token_ids=None), READ], path, read_tokens(path))
    assert read_tokens(path).to_pylist() == [[1, 2, 3], None]


def test_parts_are_put_in_order_and_removed(tmp_path):
    """Problems b and a are done in this order, each with its samples in another; the set has a first."""
    path = tmp_path / "samples" / "s.parquet"
    first = SampleProgress(path)
    first.add([replace(DRAWN, problem_id="b", sample=1), replace(DRAWN, problem_id="b", sample=0)])
    again = SampleProgress(path)
    again.add([replace(DRAWN, problem_id="a", sample=n, token_ids=(9, n)) for n in (1, 0)])
    found = again.finish({"a": 0, "b": 1})
    assert [(s.problem_id, s.sample) for s in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert read_samples(path) == found
    assert read_tokens(path).to_pylist() == [[9, 0], [9, 1], [1, 2, 3], [1, 2, 3]]
    assert [file.name for file in path.parent.iterdir()] == ["s.parquet"]


def test_a_damaged_file_is_an_error(tmp_path):
    path = tmp_path / "s.parquet"
    write_samples([DRAWN], path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"s\.parquet: .*not a whole table of samples"):
        read_samples(path)


@over(
    "name, file", [("aime_2025-train", "aime_2025-train"), ("../../etc/x", "etc-x"), ("a b:c", "a-b-c"), ("..", "set")]
)
def test_names_of_sets_stay_in_the_folder(tmp_path, name, file):
    assert file_name(name) == file
    assert sample_path(tmp_path, name).parent == tmp_path / "samples"
