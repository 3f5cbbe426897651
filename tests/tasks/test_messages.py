"""Prompts as messages: contents in parts, JSON texts, and parts that cannot be shown."""

import json
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_tokenizers import CHATML, make_tokenizer
from lines import write_lines
from loops import over

from fairlen.tasks.data_row import UnusableRow
from fairlen.tasks.dataset import DataTask, read_rows
from fairlen.tasks.load import load_task
from fairlen.tasks.schemas import read_question
from fairlen.tasks.source import read_source

TEXT = {"type": "text", "text": "What is 1 + 1?"}
BRIEF = {"type": "text", "text": "Be brief."}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


def user(content):
    return {"role": "user", "content": content}


@over(
    "prompt, question",
    [
        ("What is 1 + 1?", "What is 1 + 1?"),
        ([user("What is 1 + 1?")], "What is 1 + 1?"),
        ([user([TEXT])], "What is 1 + 1?"),
        ([user([TEXT, BRIEF])], "What is 1 + 1?\nBe brief."),
        ([user(["What is 1 + 1?"])], "What is 1 + 1?"),
        ([user(TEXT)], "What is 1 + 1?"),
        ([user(json.dumps([TEXT]))], "What is 1 + 1?"),
        ([user([TEXT | {"image_url": None}])], "What is 1 + 1?"),  # as a table fills parts up
        (json.dumps([user("What is 1 + 1?")]), "What is 1 + 1?"),
        (json.dumps({"messages": [user([TEXT])]}), "What is 1 + 1?"),
        (user("What is 1 + 1?"), "What is 1 + 1?"),
        ([TEXT], "What is 1 + 1?"),
        ("[1, 2] has which sum?", "[1, 2] has which sum?"),
        ('{"a": 1} has which value at "a"?', '{"a": 1} has which value at "a"?'),
    ],
)
def test_the_question_of_a_prompt(prompt, question):
    assert read_question(prompt) == (question, ())


def test_messages_before_the_question_are_joined_too():
    prompt = [{"role": "system", "content": [BRIEF]}, user([TEXT])]
    assert read_question(prompt) == ("What is 1 + 1?", (("system", "Be brief."),))


@over(
    "prompt, reason",
    [
        ([user([TEXT, IMAGE])], r"a part that is not text \(image_url\)"),
        ([user([{"type": "image"}, TEXT])], r"not text \(image\)"),
        ([user([{"type": "input_audio", "input_audio": {}}])], r"not text \(input_audio\)"),
        ([user([IMAGE]), user("What is it?")], r"not text \(image_url\)"),
        ([user([3])], r"not text \(int\)"),
        ([user(3)], "content is int"),
        (str([user("What is 1 + 1?")]), "looks like messages, but is not JSON"),
        (json.dumps([user("What is 1 + 1?")])[:-1], "looks like messages, but is not JSON"),
        ("<image>What is it?", "<image>"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, user("?")], "tool calls"),
        ([user("1 + 1?"), {"role": "assistant", "content": [TEXT]}], "does not end with the user"),
        ([user([])], "no question"),
    ],
)
def test_what_cannot_be_shown_is_left_out(prompt, reason):
    with pytest.raises(UnusableRow, match=reason):
        read_question(prompt)


def test_rows_that_cannot_be_shown_are_counted(tmp_path):
    rows = [{"prompt": [user([TEXT])], "answer": "2"}, {"prompt": [user([TEXT, IMAGE])], "answer": "2"}]
    found = read_rows(read_source(str(write_lines(tmp_path / "a.jsonl", *rows))))
    assert [row.question for row in found.rows] == ["What is 1 + 1?"]
    assert "dropped: a message with a part that is not text (image_url)" in found.line
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    table = read_rows(read_source(str(tmp_path / "a.parquet")))
    assert [row.question for row in table.rows] == ["What is 1 + 1?"]
    assert sum(table.dropped.values()) == 1


def test_verls_files_have_the_same_questions(tmp_path):
    pytest.importorskip("verl")
    from fairlen.integrations.verl.data import data_rows

    rows = [{"prompt": [user([TEXT])], "answer": "2"}, {"prompt": [user([TEXT, IMAGE])], "answer": "2"}]
    (row,) = data_rows((str(write_lines(tmp_path / "a.jsonl", *rows)),))
    (message,) = row["prompt"]
    assert message["content"].startswith("What is 1 + 1?\n\n")


def test_trls_rows_have_the_same_questions(tmp_path):
    """Those of the recipe, whose problems are the tasks' of fairlen's own trainer; the row with an image is left out."""
    pytest.importorskip("trl")
    from recipes.trl_verified import TrlConfig, data_of

    texts = [f"What is {number} + 1?" for number in range(16)]
    rows = [{"prompt": [user([{"type": "text", "text": text}, BRIEF])], "answer": "2"} for text in texts]
    data = write_lines(tmp_path / "a.jsonl", *rows, {"prompt": [user([TEXT, IMAGE])], "answer": "2"})
    config = TrlConfig.of(data=(str(data),))
    with closing(load_task(config, make_tokenizer(CHATML), 0)) as task:
        assert isinstance(task, DataTask)
        columns = data_of([task.train(index) for index in range(task.num_train)])
    asked = [text for text in texts for row in columns["prompt"] if f"{text}\nBe brief." in row]
    assert len(asked) == len(set(asked)) == len(columns) >= 12  # about one in eight is held out
    assert not any("'type'" in row for row in columns["prompt"])
