"""What is refused of data and models, and whether the message has the counts, the file and the remedy."""

import pytest
from data_sets import sums, write
from transformers import AutoTokenizer, Qwen3Config

from fairlen.playground import PATH
from fairlen.tasks.data_row import normalize
from fairlen.tasks.dataset import read_rows
from fairlen.tasks.load import load_task
from fairlen.tasks.source import read_source
from fairlen.tasks.task import is_held_out
from fairlen.train.run.config import TrainConfig


def test_too_little_data_is_refused(load, tokenizer):
    held = [row for row in sums(0, 60) if is_held_out(normalize(row["prompt"]))]
    trained = [row for row in sums(0, 60) if row not in held][:9]
    copy, blank = trained[0], {"prompt": "?", "answer": ""}
    for rows, why in (
        ({"a.jsonl": [*trained, copy, blank]},
         r"a\.jsonl: no problem is left to evaluate on \(a: 9 problems in 11 rows, 1 copy left out, 1 dropped: no answer; "
         r"9 to train on\); raise --max-prompt-length, .*or name others to evaluate on with --eval-data"),
        ({"a.jsonl": held[:2]}, r"left to train on \(a: 2 problems in 2 rows; 2 held out\); .* give more problems"),
        ({"a.jsonl": sums(0, 9), "eval.jsonl": sums(0, 9)},
         r"no problem is left \(a: 9 .*; 9 left out because evaluation has them\); .*others to evaluate on"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=why):
            load(rows)
    with pytest.raises(ValueError, match=r"--eval-data x: it goes with --data"):
        load_task(TrainConfig.of(eval_data=("x",)), tokenizer)


@pytest.mark.parametrize("data", [(), ("a.jsonl",)])
def test_a_model_without_a_tokenizer_is_refused(data, tmp_path, monkeypatch):
    """Of Qwen3's config.json alone, transformers makes a tokenizer that reads nothing."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "a.jsonl", sums(0, 40))
    Qwen3Config().save_pretrained("notok")
    config = TrainConfig.of(model="notok", random_init=True, data=data)
    with pytest.raises(ValueError, match=r"model=notok: its tokenizer does not read .*add tokenizer\.json"):
        load_task(config, AutoTokenizer.from_pretrained("notok"))


def test_the_playgrounds_model_does_not_read_text(tmp_path):
    place = write(tmp_path, "a.jsonl", sums(0, 40))
    why = r"model=playground: this shipped model .* 'What is 0 .*a language model with --model"
    with pytest.raises(ValueError, match=why):
        load_task(TrainConfig.of(data=(place,)), AutoTokenizer.from_pretrained(PATH))


def test_files_of_a_folder_are_read_by_their_own_columns(tmp_path):
    write(tmp_path, "a.jsonl", [{"prompt": "1+1?", "answer": "2"}])
    write(tmp_path, "b.jsonl", [{"problem": "Echo.", "tests": [{"input": "1", "output": "1"}]}])
    found = read_rows(read_source(str(tmp_path)))
    assert [(row.question, row.kind) for row in found.rows] == [("1+1?", "math"), ("Echo.", "code")]
    assert (found.schema, found.num_read) == ("prompt and answer, problem and tests", 2)
    write(tmp_path, "c.jsonl", [{"reply": "2"}])
    with pytest.raises(ValueError, match=r"file c\.jsonl: unknown columns reply; none is near"):
        read_rows(read_source(str(tmp_path)))


def test_a_filter_needs_its_column_in_one_file_of_a_folder(tmp_path):
    write(tmp_path, "a.jsonl", [{"prompt": "1+1?", "answer": "2", "year": 2020}])
    write(tmp_path, "b.jsonl", [{"prompt": "1+2?", "answer": "3"}])
    found = read_rows(read_source(f"{tmp_path}?year=2020"))
    assert [row.question for row in found.rows] == ["1+1?"] and found.num_filtered == 1  # no value never passes
    with pytest.raises(ValueError, match="no column 'month' to filter by; there are prompt, answer, year"):
        read_rows(read_source(f"{tmp_path}?month=1"))


def test_counts_add_up_where_nothing_is_left(tmp_path):
    """10 rows: 3 + 1 without an answer, of which 2 are copies; 2 with different answers; 4 of another year."""
    rows = [{"prompt": "a?", "answer": "", "year": 1}] * 3 + [{"prompt": "b?", "answer": None, "year": 1}]
    rows += [{"prompt": "c?", "answer": answer, "year": 1} for answer in "12"]
    rows += [{**row, "year": 2} for row in sums(0, 4)]
    place = write(tmp_path, "a.jsonl", rows)
    message = r"\(10 rows, 2 no answer, 2 copies with different answers, 2 copies of other rows, 4 filtered out\)"
    with pytest.raises(ValueError, match=message):  # 2 + 2 + 2 + 4 = 10
        read_rows(read_source(f"{place}?year=1"))


@pytest.mark.parametrize(
    ("name", "text"), [("a.jsonl", ""), ("a.jsonl", "\n"), ("a.json", "[]"), ("a.csv", "prompt,answer\n")]
)
def test_an_empty_file_is_called_empty(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"{name}: the file is empty"):
        read_rows(read_source(str(tmp_path / name)))
