"""Anybody's rollouts: containers, rows of many shapes, columns of each file, lengths and truncation that files do not say."""

import gzip
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from lines import read_one, write_lines

from fairlen.audit import readers
from fairlen.audit.conclusion import within_log
from fairlen.audit.readers import LogReading, Options, Source, read
from fairlen.cli import main
from fairlen.files.formats import Unreadable

ROWS = [{"prompt": f"q{n // 4}", "response": "a b c " * (n + 1), "reward": float(n % 2)} for n in range(8)]
LENGTHS = [3 * (n + 1) for n in range(8)]


def is_rows(source: Source) -> bool:
    """Whether these are ROWS and nothing is wrong with them."""
    log = source.log
    assert log.malformed == () and log.responses.length.tolist() == LENGTHS
    assert log.responses.prompt.tolist() == [0] * 4 + [1] * 4
    return log.responses.outcome.tolist() == [0.0, 1.0] * 4


# ------------------------------------------------------------------------------------------------------------ containers


def lines(rows: list[dict]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def arrow(path: Path, rows: list[dict], file: bool, **options) -> None:
    table = pa.Table.from_pylist(rows)
    new = ipc.new_file if file else ipc.new_stream
    with new(str(path), table.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.json", json.dumps({"rows": ROWS, "version": 2})),
        ("indented.json", json.dumps({"meta": {"n": 8}, "data": ROWS}, indent=1)),
        ("no_suffix", json.dumps({"samples": ROWS}, indent=4)),
        ("one_row_a_line.json", '{"rows": [\n' + ",\n".join(map(json.dumps, ROWS)) + "\n]}"),
        ("lines.json", lines(ROWS).decode()),
        ("array.json", json.dumps(ROWS)),
        ("packed.jsonl.gz", gzip.compress(lines(ROWS))),
        ("packed.jsonl.zst", pa.Codec("zstd").compress(lines(ROWS), asbytes=True)),
        ("packed_object.json.zst", pa.Codec("zstd").compress(json.dumps({"rows": ROWS}).encode(), asbytes=True)),
        ("gzip_of_another_name.jsonl", gzip.compress(lines(ROWS))),
        ("zstd_of_another_name", pa.Codec("zstd").compress(lines(ROWS), asbytes=True)),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_containers_of_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert is_rows(read_one(tmp_path / name))
    assert is_rows(read_one(tmp_path))


@pytest.mark.parametrize("file", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow(tmp_path, file, compression):
    arrow(tmp_path / "rows", ROWS, file, compression=compression)
    source = read_one(tmp_path / "rows")
    assert is_rows(source) and source.log.line.tolist() == list(range(1, 9))


@pytest.mark.parametrize("file", [True, False], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_that_is_damaged_is_named(tmp_path, file, compression):
    """Cut anywhere, and with any word of it changed, it is read in part, or refused: an offset is never followed outside."""
    path = tmp_path / "rows.arrow"
    arrow(path, ROWS, file, compression=compression)
    whole = path.read_bytes()
    changed = [whole[:place] + b"\xff\xff\xff\x7f" + whole[place + 4 :] for place in range(8, len(whole), 36)]
    refused = 0
    for content in [*(whole[:stop] for stop in range(16, len(whole), 64)), *changed]:
        path.write_bytes(content)
        try:
            reading = read([str(path)])
        except Unreadable as error:
            reading = LogReading((), (str(error),), ())
        assert all(str(path) in said for said in reading.unreadable)
        assert all(len(source.log) <= 8 for source in reading.sources)
        refused += not reading.sources
    assert refused > len(whole) // 192


def test_a_folder_of_save_to_disk(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS)
    data.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"train": data, "test": data}).save_to_disk(str(tmp_path / "two"))
    reading = read([str(tmp_path / "one")])
    assert is_rows(reading.sources[0]) and reading.skipped == reading.unreadable == ()
    reading = read([str(tmp_path / "two")])
    assert [Path(source.folder).name for source in reading.sources] == ["test", "train"]
    assert all(map(is_rows, reading.sources)) and reading.skipped == reading.unreadable == ()


def test_what_save_to_disk_writes_without_the_library(tmp_path):
    arrow(tmp_path / "data-00000-of-00001.arrow", ROWS, file=False)
    for name in ("state.json", "dataset_info.json"):
        (tmp_path / name).write_text('{\n  "_split": null\n}')
    reading = read([str(tmp_path)])
    assert is_rows(reading.sources[0]) and reading.skipped == reading.unreadable == ()
    (tmp_path / "data-00000-of-00001.arrow").rename(tmp_path / "other.arrow")
    assert len(read([str(tmp_path)]).skipped) == 2


def test_one_object_of_many_or_of_messages_is_a_row(tmp_path):
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a b"}]
    (tmp_path / "a.json").write_text(json.dumps({"messages": chat, "reward": 1}, indent=1))
    assert read_one(tmp_path / "a.json").log.responses.length.tolist() == [2]


def test_simulations_beside_their_tasks(tmp_path):
    """Messages that begin with the assistant's, a reward in an object, and why the conversation ended."""
    chats = [[{"role": role, "content": text} for role, text in zip(("assistant", "user", "assistant"), said, strict=True)]
             for said in (("hi", "some help", "a b c"), ("hi", "some", "d"))]  # fmt: skip
    runs = [
        {"id": f"x{n}", "task_id": "3", "messages": chat, "reward_info": {"basis": [], "reward": n}, "termination_reason": end}
        for n, (chat, end) in enumerate(zip(chats, ("max_steps", "user_stop"), strict=True))
    ]  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps({"info": {}, "tasks": [{"id": "3"}], "simulations": runs}, indent=1))
    log = read_one(tmp_path / "a.json").log
    assert log.responses.length.tolist() == [4, 2] and log.responses.num_turns.tolist() == [2, 2]
    assert log.responses.truncated.tolist() == [True, False] and log.correct.tolist() == [False, True]
    assert log.responses.num_prompts == 1


# ------------------------------------------------------------------------------------------------- columns, files, steps


def test_files_of_other_columns_in_one_folder_are_both_read(tmp_path):
    write_lines(tmp_path / "a.jsonl", *ROWS)
    write_lines(
        tmp_path / "b.jsonl", *({"question": r["prompt"], "output": r["response"], "score": r["reward"]} for r in ROWS)
    )
    reading = read([str(tmp_path)])
    assert len(reading.sources) == 2 and all(map(is_rows, reading.sources))
    assert [source.notes[0] for source in reading.sources] == [
        "columns: prompt = `prompt`, response = `response`, reward = `reward`",
        "columns: prompt = `question`, response = `output`, reward = `score`",
    ]
    given = read([str(tmp_path)], Options(columns={"prompt": "question", "response": "output", "reward": "score"}))
    assert [Path(source.files[0]).name for source in given.sources] == ["b.jsonl"] and is_rows(given.sources[0])
    assert len(given.skipped) == 1 and "a.jsonl: --columns prompt=question: no column 'question'" in given.skipped[0]


def test_a_column_that_begins_late_leaves_a_run_one_log(tmp_path):
    """The first 10 rows, by which a file is recognised, have a finish reason in one of two."""
    write_lines(tmp_path / "a.jsonl", *ROWS * 2, *(row | {"finish_reason": "stop"} for row in ROWS))
    write_lines(tmp_path / "b.jsonl", *(row | {"finish_reason": "stop"} for row in ROWS))
    assert len(read_one(tmp_path).log) == 8 * 4


def test_runs_of_trl_with_other_reward_functions_are_apart(tmp_path):
    for step, name in enumerate(("accuracy_reward", "math_reward")):
        columns = {"step": [step] * 2, "prompt": ["q"] * 2, "completion": ["a b", "c"], name: [1.0, 0.0]}
        columns |= {"advantage": [1.0, -1.0]}
        pq.write_table(pa.table(columns), tmp_path / f"completions_{step:05d}.parquet")
    reading = read([str(tmp_path)])
    assert [source.log.responses.outcome.tolist() for source in reading.sources] == [[1.0, 0.0]] * 2
    assert all(source.log.responses.active.all() for source in reading.sources)


def test_each_argument_is_a_log_and_a_pattern_or_folder_one(tmp_path):
    a, b = write_lines(tmp_path / "a.jsonl", *ROWS), write_lines(tmp_path / "b.jsonl", *ROWS)
    assert [s.files for s in read([str(a), str(b)]).sources] == [(str(a),), (str(b),)]
    assert read_one(tmp_path).files == read_one(tmp_path / "*.jsonl").files == (str(a), str(b))
    twice = read([str(tmp_path), str(b)])  # a file that is named is a log of its own, and never two
    assert [s.files for s in twice.sources] == [(str(a),), (str(b),)]


def test_files_that_a_framework_writes_one_a_step_are_one_log(tmp_path):
    """As a shell gives them that expands a pattern."""
    row = {"input": "q", "output": "a b", "gts": "1", "score": 1.0}
    paths = [write_lines(tmp_path / f"{step}.jsonl", *([row | {"step": step}] * 2)) for step in (1, 2)]
    assert read_one(*paths).log.batch.tolist() == [1, 1, 2, 2]
    other = [write_lines(tmp_path / name, row | {"step": 1}) for name in ("before.jsonl", "after.jsonl")]
    assert len(read([str(path) for path in other]).sources) == 2


def test_without_steps_files_with_the_same_prompts_are_steps(tmp_path):
    for step in (10, 2, 1):
        write_lines(tmp_path / f"rollouts_{step}.jsonl", *ROWS)
    source = read_one(tmp_path)
    assert [Path(name).stem for name in source.files] == ["rollouts_1", "rollouts_2", "rollouts_10"]
    assert source.log.batch.tolist() == [1] * 8 + [2] * 8 + [10] * 8
    assert source.log.responses.num_prompts == 6 and len(set(source.log.problem)) == 2
    assert any("the number in the path of a file is its step" in note for note in source.notes)


def test_files_with_one_response_to_each_prompt_are_runs_of_one_step(tmp_path):
    """As lm-eval writes them, one for each seed."""
    for seed, row in enumerate(ROWS[:4]):
        write_lines(tmp_path / f"seed_{seed}.jsonl", *[row | {"prompt": question} for question in "abc"])
    source = read_one(tmp_path)
    assert set(source.log.batch) == {0} and source.log.responses.num_prompts == 3 and len(source.log) == 12
    assert not any("is a step" in note for note in source.notes)


def test_folders_with_a_number_are_steps_and_files_with_one_response_each_are_told(tmp_path):
    for step in (100, 200):
        for place in (tmp_path / "folders" / f"step_{step}" / "a.jsonl", tmp_path / "files" / f"eval_{step}.jsonl"):
            write_lines(place, *[{"prompt": question, "response": "a b", "reward": step // 200} for question in "abc"])
    assert read_one(tmp_path / "folders").log.batch.tolist() == [100] * 3 + [200] * 3
    assert any("compared as samples of one policy" in note for note in read_one(tmp_path / "files").notes)


def test_files_with_steps_other_prompts_or_parts_of_one_set_are_no_steps(tmp_path):
    for name in ("a", "b"):
        write_lines(tmp_path / "steps" / f"{name}.jsonl", *(row | {"step": 7} for row in ROWS))
        write_lines(tmp_path / "other" / f"{name}.jsonl", *(row | {"prompt": row["prompt"] + name} for row in ROWS))
    for part in (0, 1):
        write_lines(tmp_path / "parts" / f"rows-0000{part}-of-00002.jsonl", *ROWS)
    for folder, step in (("steps", 7), ("other", 0), ("parts", 0)):
        source = read_one(tmp_path / folder)
        assert set(source.log.batch) == {step} and not any("is a step" in note for note in source.notes)


def test_without_steps_a_prompt_that_comes_back_is_in_another_step(tmp_path):
    """q0 q0 q0 q0 q1 q1 q1 q1, twice, then two more of q1; single rows in turn are one step, for nobody knows which."""
    source = read_one(write_lines(tmp_path / "a.jsonl", *(ROWS * 2 + ROWS[:2] + ROWS[4:6])))
    assert source.log.batch.tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert source.log.responses.prompt.tolist() == [n // 4 for n in range(16)] + [4, 4, 5, 5]
    assert len(set(source.log.problem)) == 2 and any("each visit to one is a step" in note for note in source.notes)
    source = read_one(write_lines(tmp_path / "b.jsonl", *(ROWS[n // 2 + 4 * (n % 2)] for n in range(8))))
    assert source.log.responses.prompt.tolist() == [0, 1] * 4 and not any("is a step" in note for note in source.notes)
    source = read_one(write_lines(tmp_path / "c.jsonl", *(row | {"step": 3} for row in ROWS * 2)))
    assert source.log.responses.num_prompts == 2 and set(source.log.batch) == {3}


def test_steps_of_episodes_are_said_to_begin_anew(tmp_path):
    rows = [row | {"step": n % 2} for n, row in enumerate(ROWS * 3)]
    assert any("steps begin anew" in note for note in read_one(write_lines(tmp_path / "a.jsonl", *rows)).notes)
    rows = [row | {"step": n % 12} for n, row in enumerate(ROWS * 3)]  # a run that was started again
    assert not any("steps begin anew" in note for note in read_one(write_lines(tmp_path / "b.jsonl", *rows)).notes)


def test_ids_of_what_has_many_problems_are_no_prompts(tmp_path):
    """A contest has problems of one response each: the next contest's are not compared with each other either."""
    rows = [row | {"prompt": f"p{n}", "contest_id": n // 4} for n, row in enumerate(ROWS)]
    assert read_one(write_lines(tmp_path / "a.jsonl", *rows)).log.responses.num_prompts == 8
    named = [{("task_id" if name == "contest_id" else name): cell for name, cell in row.items()} for row in rows]
    assert read_one(write_lines(tmp_path / "b.jsonl", *named)).log.responses.num_prompts == 2


def test_copies_of_the_responses_are_no_other_candidates(tmp_path):
    rows = [
        {"problem_id": r["prompt"], "decoded": r["response"], "raw": r["response"], "reward": r["reward"]} for r in ROWS
    ]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert is_rows(source) and any("response = `decoded`" in note for note in source.notes)


# ------------------------------------------------------------------------------------------------------------------ rows


def test_messages_hold_prompt_and_response(tmp_path):
    def chat(question: str, *turns: str) -> list[dict]:
        before = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "first"},
                  {"role": "assistant", "content": "an example"}, {"role": "user", "content": question}]  # fmt: skip
        return [*before, *({"role": "assistant", "content": turn} for turn in turns)]

    rows = [{"messages": chat(r["prompt"], r["response"]), "reward": r["reward"]} for r in ROWS]
    assert is_rows(read_one(write_lines(tmp_path / "a.jsonl", *rows)))
    several = [{"messages": chat("q", "a b", "c"), "reward": 1}, {"messages": chat("q"), "reward": 0}]
    log = read_one(write_lines(tmp_path / "b.jsonl", *several)).log
    assert log.responses.length.tolist() == [
        3
    ]  # all turns since the last question; a chat without an answer is no response
    assert [(row.line, row.reason) for row in log.malformed] == [(2, "the response is missing")]


def test_lists_of_objects_are_rows_by_the_flag_that_is_told(tmp_path):
    rows = [
        {"question": g[0]["prompt"], "solved": True, "rollouts": [{"text": r["response"], "correct": r["reward"] > 0} for r in g]}
        for g in (ROWS[:4], ROWS[4:])
    ]  # fmt: skip
    path = write_lines(tmp_path / "a.jsonl", *rows)
    (said,) = read([str(path)]).unreadable
    assert said.endswith("--columns prompt=question,response=rollouts.text,reward=rollouts.correct")
    source = read_one(path, columns={"response": "rollouts.text", "reward": "rollouts.correct"})
    assert is_rows(source) and source.log.correct.tolist() == [False, True] * 4  # not whether any was


def listed(**names: str) -> list[dict]:
    groups = [ROWS[:4], ROWS[4:]]
    return [
        {"prompt": g[0]["prompt"]} | {name: [row[role] for row in g] for role, name in names.items()} for g in groups
    ]


@pytest.mark.parametrize(
    ("response", "reward"), [("completions", "rewards"), ("responses", "scores"), ("response", "correct")]
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_in_a_row_are_rows(tmp_path, response, reward, suffix):
    rows, path = listed(response=response, reward=reward), tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        write_lines(path, *rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    source = read_one(path)
    assert is_rows(source) and source.log.line.tolist() == [1] * 4 + [2] * 4


def test_a_table_of_tokens_is_counted_and_its_advantages_are_not(tmp_path):
    """One number a token: their number is a length, but no advantage."""
    columns = {
        "completion_ids": [list(range(n + 2)) for n in range(8)],
        "advantages": [[0.5] * (n + 2) for n in range(8)],
    }
    pq.write_table(pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]} | columns), tmp_path / "a.parquet")
    log = read_one(tmp_path / "a.parquet").log
    assert (log.unit, log.responses.length.tolist()) == ("tokens", list(range(2, 10)))
    assert "advantage" not in log.known and log.advantage is None


def test_lists_without_a_prompt_are_of_one(tmp_path):
    rows = [
        {name: values for name, values in row.items() if name != "prompt"}
        for row in listed(response="completions", reward="rewards")
    ]
    assert is_rows(read_one(write_lines(tmp_path / "a.jsonl", *rows)))


def test_a_table_written_by_columns_is_rows(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}))
    assert is_rows(read_one(tmp_path / "a.json"))


def test_lists_of_other_lengths_are_rejected_with_both(tmp_path):
    good = listed(response="completions", reward="rewards")
    lists = ((["a", "b"], [1.0]), ("a", [1.0, 0.0]), (["a", "b"], 1.0), ([], []))
    bad = [{"prompt": "q", "completions": texts, "rewards": rewards} for texts, rewards in lists]
    log = read_one(write_lines(tmp_path / "a.jsonl", *good, *bad)).log
    assert len(log) == 8
    assert sorted((row.line, row.reason) for row in log.malformed) == [
        (3, "lists of 2 for response, 1 for reward"), (4, "lists of 1 for response, 2 for reward"),
        (5, "the response ['a', 'b'] is list, not text"), (6, "lists of 0 for response, 0 for reward"),
    ]  # fmt: skip


def test_every_response_of_a_list_has_its_own_end_and_length(tmp_path):
    row = {"prompt": "q", "completions": ["a b", "c"], "rewards": [1, 0], "finish_reason": ["stop", "length"]}
    log = read_one(write_lines(tmp_path / "a.jsonl", row | {"num_tokens": [7, 9]})).log
    assert (log.unit, log.responses.length.tolist()) == ("tokens", [7, 9])
    assert log.responses.truncated.tolist() == [False, True]
    log = read_one(write_lines(tmp_path / "a.jsonl", row | {"num_tokens": 16})).log
    assert (log.unit, log.responses.length.tolist()) == ("words", [2, 1])  # 16 is of both


PARTS = {
    "reward: `accuracy` + `format` + `bonus`, unweighted": lambda r: {"rewards": {"accuracy": r, "format": 0.5, "bonus": None}},
    "reward_accuracy+reward_format": lambda r: {
        "reward_accuracy": r, "reward_format": 0.5, "reward_std": 9.0, "reward_model": "m"
    },
    "rewards/accuracy/mean+rewards/format/mean": lambda r: {"rewards/accuracy/mean": r, "rewards/format/mean": 0.5},
    "accuracy_reward+format_reward": lambda r: {"accuracy_reward": r, "format_reward": 0.5},
}  # fmt: skip


def test_lists_of_named_rewards_and_of_one(tmp_path):
    named = [{"accuracy": 1.0, "format": 0.5}, {"accuracy": 0.0, "format": 0.5}]
    rows = [
        {"prompt": "q", "responses": ["a b", "c"], "rewards": named},
        {"prompt": "q", "responses": "d", "rewards": [1.5]},
    ]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert source.log.responses.outcome.tolist() == [1.5, 0.5, 1.5] and source.log.malformed == ()
    assert "reward: `accuracy` + `format`, unweighted" in source.notes


@pytest.mark.parametrize("note", PARTS)
def test_named_rewards_are_added_up_and_named(tmp_path, note):
    rows = [{"prompt": r["prompt"], "response": r["response"]} | PARTS[note](r["reward"]) for r in ROWS]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert source.log.responses.outcome.tolist() == [0.5, 1.5] * 4
    assert any(note in said for said in source.notes), source.notes


def test_a_column_reward_goes_before_its_parts(tmp_path):
    assert is_rows(read_one(write_lines(tmp_path / "a.jsonl", *(row | {"reward_format": 0.5} for row in ROWS))))


WORDS = "incorrect correct,fail pass,no Yes,wrong right,false TRUE,I C, failed passed"


@pytest.mark.parametrize("words", [pair.rsplit(" ", 1) for pair in WORDS.split(",")], ids=lambda words: words[1])
@pytest.mark.parametrize("name", ["reward", "correct"])
def test_rewards_and_verdicts_as_words(tmp_path, words, name):
    rows = [{"prompt": r["prompt"], "response": r["response"], name: words[int(r["reward"])]} for r in ROWS]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert is_rows(source) and "correct" in source.log.known
    assert source.log.correct.tolist() == [False, True] * 4


def test_rows_without_a_reward_stay_and_count_nothing(tmp_path):
    rows = [row | ({"reward": None} if place % 4 == 0 else {}) for place, row in enumerate(ROWS)]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows, rows[1] | {"reward": "much"}))
    log = source.log
    assert log.responses.active.tolist() == [False, True, True, True] * 2
    assert log.correct[log.responses.active].tolist() == [True, False, True] * 2
    assert "rows without a reward are kept, but count as responses without a verdict: 2" in source.notes
    assert [row.reason for row in log.malformed] == ["the reward 'much' is not a finite number"]


# --------------------------------------------------------------------------------------------------------------- lengths


def test_texts_without_spaces_are_counted_in_characters(tmp_path):
    rows = [row | {"response": "一二三四五六七八九十" * (place + 3)} for place, row in enumerate(ROWS)]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert (source.log.unit, source.log.responses.length.tolist()) == ("characters", [10 * (n + 3) for n in range(8)])
    assert any("lengths are characters" in note for note in source.notes)
    words = read_one(tmp_path / "a.jsonl", unit="words")
    assert (words.log.unit, set(words.log.responses.length)) == ("words", {1})


SCRIPTS = {
    "Chinese": "首先计算这个数然后把它加到另一个数上再检查结果是否正确因此答案是",
    "Thai": "ก่อนอื่นเราคำนวณจำนวนนี้แล้วบวกกับอีกจำนวน",
    "Japanese": "まずこの数を計算して別の数に足してから結果を確かめます",
    "mixed": "首先计算 the sum 然后把它加到 x 上 再检查结果 is it 是否正确",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.04])
@pytest.mark.parametrize("script", SCRIPTS)
def test_where_some_texts_have_no_spaces_words_are_not_compared(tmp_path, script, share):
    """Those texts are half as many characters long, and half as often correct; within a script length says nothing."""
    rng, rows = np.random.default_rng(3), []
    for n in range(960):
        has_script, words = rng.random() < share, int(rng.lognormal(4.8, 0.3))
        letters = SCRIPTS[script] * (3 * words // len(SCRIPTS[script]) + 1)
        text = letters[: 3 * words] if has_script else " ".join(rng.choice(("first", "add", "then", "check"), words))
        rows.append(
            {"prompt": f"p{n // 8}", "response": text, "reward": float(rng.random() < (0.3 if has_script else 0.6))}
        )
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    low, high = within_log(source.log).gap.interval(0.95)
    assert source.log.unit == "characters" and low < 0 < high and abs(low) < 0.15
    assert any("--tokenizer" in note for note in source.notes) and any("not compared" in note for note in source.notes)


@pytest.mark.parametrize("text", ["42", "x = 1, y = 2 and so on", "https://example.org/a/long/path is the answer here"])
def test_texts_with_spaces_and_short_ones_are_counted_in_words(tmp_path, text):
    assert read_one(write_lines(tmp_path / "a.jsonl", *(row | {"response": text} for row in ROWS))).log.unit == "words"


def test_a_tokenizer_of_the_cache_a_file_or_none(tmp_path, monkeypatch):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    letters = Tokenizer(WordLevel({"?": 0}, unk_token="?"))
    letters.pre_tokenizer = Split("", "isolated")  # type: ignore[assignment]
    commit = tmp_path / "hub" / "models--some--model" / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    (commit.parents[1] / "refs").mkdir()
    (commit.parents[1] / "refs" / "main").write_text("0" * 40)
    letters.save(str(commit / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    path = write_lines(tmp_path / "a.jsonl", *ROWS)
    for name in ("some/model", str(commit), str(commit / "tokenizer.json")):
        log = read_one(path, tokenizer=name).log
        assert (log.unit, log.responses.length.tolist()) == ("tokens", [len(row["response"]) for row in ROWS])
    for name in ("other/model", str(tmp_path / "none"), "a b c/d/e"):
        with pytest.raises(ValueError, match=r"no tokenizer\.json there, nor in the cache of the hub") as error:
            read_one(path, tokenizer=name)
        assert str(error.value).startswith(f"--tokenizer {name}: ") and "\n" not in str(error.value)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=rf"--tokenizer {tmp_path}: "):
        read_one(path, tokenizer=str(tmp_path))


# ------------------------------------------------------------------------------------------------------------ truncation


def rollouts(path: Path, seed: int = 0, limit: int = 10**9, own: int = 0, column: str = "num_tokens") -> Path:
    """60 prompts with 8 responses, half of them correct; of the lengths above the limit, less `own` of each prompt, none is."""
    rng = np.random.default_rng(seed)
    rows = []
    for row in range(480):
        most = limit - own * (row // 8)
        length = int(rng.lognormal(5, 0.5))
        reward = float(rng.random() < 0.5 and length < most)
        rows.append({"prompt": f"q{row // 8}", "reward": reward, "response": "a"} | {column: min(length, most)})
    if column != "num_tokens":
        rows = [row | {"response": ("x " if column == "words" else "x") * row[column]} for row in rows]
    return write_lines(path, *rows)


@pytest.mark.parametrize(
    ("column", "unit"), [("num_tokens", "tokens"), ("words", "words"), ("characters", "characters")]
)
def test_lengths_that_pile_up_at_the_largest_are_truncated(tmp_path, column, unit):
    source = read_one(rollouts(tmp_path / "a.jsonl", limit=250, column=column))
    log, at = source.log, source.log.responses.length == 250
    assert log.unit == unit and "truncated" in log.known and at.sum() > 20
    assert np.array_equal(log.responses.truncated, at)
    assert any(f"250 {unit} and more" in note and note.endswith(f": {at.sum()}") for note in source.notes)


def test_a_limit_of_each_prompt_is_seen_where_many_share_their_largest(tmp_path):
    source = read_one(rollouts(tmp_path / "a.jsonl", limit=220, own=1))
    log = source.log
    limit = 220 - log.responses.prompt
    at = log.responses.length == limit
    assert "truncated" in log.known and (np.bincount(log.responses.prompt[at], minlength=60) > 1).sum() > 20
    # the single one at the limit of its prompt cannot be told from one that just is the longest: those of every prompt
    longest = log.responses.length.reshape(60, 8).max(1)
    assert np.array_equal(log.responses.truncated, log.responses.length == longest[log.responses.prompt])
    assert log.responses.truncated[at].all() and any(
        "longest responses of every prompt" in note for note in source.notes
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row | {"reward": float(row["num_tokens"] == 250)},  # the only ones that are correct
        lambda row: row | {"num_tokens": row["num_tokens"] // 20},  # 12 tokens are no limit
        lambda row: row | {"num_tokens": row["num_tokens"] // 10 * 10},  # lengths nearby are as frequent
        lambda row: row | {"finish_reason": "stop"},  # the file says it
    ],
    ids=["correct", "short", "rounded", "said"],
)
def test_what_only_looks_like_a_limit_is_none(tmp_path, change):
    path = rollouts(tmp_path / "a.jsonl", limit=250)
    rows = [change(json.loads(row)) for row in path.read_text().splitlines()]
    if (
        "finish_reason" not in rows[0]
        and rows[0]["num_tokens"] > 20
        and all(row["num_tokens"] % 10 == 0 for row in rows)
    ):
        rows = [row | {"num_tokens": 240} if row["num_tokens"] == 250 and n % 2 else row for n, row in enumerate(rows)]
    log = read_one(write_lines(path, *rows)).log
    assert not log.responses.truncated.any()


@pytest.mark.parametrize("own", [0, 1])
def test_incorrect_responses_of_one_length_by_nature_are_not_truncated(tmp_path, own):
    """Correct ones have 100 words less, incorrect ones always the same, or the same for each prompt."""
    sizes = [300 - 100 * (row % 2) + own * (row // 8) for row in range(480)]
    rows = [
        {"prompt": f"q{n // 8}", "reward": n % 2, "response": "a", "num_tokens": size} for n, size in enumerate(sizes)
    ]
    assert "truncated" not in read_one(write_lines(tmp_path / "a.jsonl", *rows)).log.known


def test_a_limit_that_is_given_goes_before_a_pile(tmp_path):
    log = read_one(rollouts(tmp_path / "a.jsonl", limit=250), max_response_length=200).log
    assert np.array_equal(log.responses.truncated, log.responses.length >= 200)


@pytest.mark.parametrize(("limit", "is_doubted"), [(300, False), (3000, True)])
def test_a_limit_far_above_every_response_is_doubted(tmp_path, limit, is_doubted):
    """They have 101 to 250 tokens."""
    rows = [{"prompt": f"q{n // 8}", "reward": n % 2, "response": "a", "num_tokens": 101 + n % 150} for n in range(480)]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows), max_response_length=limit)
    assert ("none has more than 250: is the limit lower?" in " ".join(source.notes)) == is_doubted


# ------------------------------------------------------------------------------------------------ what cannot be read


NO_FLAG = "and no other columns lead to a verdict: each row needs a prompt, a response and its reward"


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({"q": "p", "essay": "a b c", "note": "x", "points": 1.5}, NO_FLAG),
        ({"response": "a b", "rewrd": 1, "age": 3}, NO_FLAG),
        ({"loss": 1.0}, NO_FLAG),
        (
            {"q": "p", "turn": {"output": "a b"}, "eval": {"ms": 2.5, "passed": True}},
            "name them: --columns response=turn.output,reward=eval.passed",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_the_flag_that_would(tmp_path, row, flag):
    path = write_lines(tmp_path / "a.jsonl", *([row] * 4))
    (said,) = read([str(path)]).unreadable
    assert said.endswith(flag)


def junk(folder: Path) -> None:
    (folder / "README.md").write_text("# Rollouts\n\nSome text, with a comma.\n")
    (folder / "shot.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
    (folder / "config.yaml").write_text("lr: 1e-6\nlist:\n  - a\n")
    (folder / "empty.jsonl").write_text("")
    (folder / "log.txt").write_text("INFO step 1\nINFO step 2\n")
    (folder / "half.parquet").write_bytes(b"PAR1")
    (folder / "half.jsonl").write_text('{"prompt": "q", "resp')
    (folder / "metrics.json").write_text('{\n "loss": 1.0\n}')


def test_junk_beside_rollouts_costs_one_line(tmp_path, capsys):
    junk(tmp_path)
    path = write_lines(tmp_path / "rollouts.jsonl", *ROWS)
    with path.open("a") as file:
        file.write('{"prompt": "q", "resp')
    assert main(["audit", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    assert len([line for line in shown.out.splitlines() if line.startswith("skipped")]) == 1
    reading = read([str(tmp_path)])
    assert len(reading.skipped) == 8 and not reading.unreadable
    assert [row.line for row in reading.sources[0].log.malformed] == [9]


def test_only_what_was_named_or_everything_fails(tmp_path, capsys):
    junk(tmp_path)
    assert main(["audit", str(tmp_path)]) == 1  # nothing at all
    path = write_lines(tmp_path / "rollouts.jsonl", *ROWS)
    assert main(["audit", str(path), str(tmp_path / "empty.jsonl")]) == 1
    assert "empty.jsonl: the file is empty" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "*")]) == 0  # a pattern names no file


def test_a_file_of_a_folder_that_breaks_off_is_a_note_of_its_log(tmp_path):
    whole = gzip.compress(
        lines([row | {"response": f"{n} " + os.urandom(20).hex()} for n in range(1500) for row in ROWS])
    )
    write_lines(tmp_path / "a.jsonl", *ROWS)
    (tmp_path / "b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    reading = read([str(tmp_path)])
    assert not reading.unreadable
    assert any("b.jsonl.gz: " in note and "was not finished" in note for note in reading.sources[0].notes)
    assert len(reading.sources[0].log) > 8


# -------------------------------------------------------------------------------------------------- several processes


def of_folder(folder: Path, processes: int) -> dict[str, Any]:
    """Everything that is read of a folder."""
    (source,), told = (reading := read([str(folder)], Options(processes=processes))).sources, reading.unreadable
    table = source.log.responses
    columns = {name: np.nan_to_num(values, nan=-1.0).tolist() for name, values in table.columns().items()}
    places = {"file": source.log.file.tolist(), "line": source.log.line.tolist()}
    return columns | places | {"malformed": source.log.malformed, "notes": source.notes, "told": told}


@pytest.fixture
def large_folder(tmp_path, monkeypatch) -> Path:
    """Five files of the same eight rows; in one a line is broken, in one a reward is none."""
    monkeypatch.setattr(readers, "LARGE", 0)
    for number in range(5):
        rows = [row | {"step": number, "reward": {"a": row["reward"], "b": 0.0}} for row in ROWS]
        rows[3]["reward"] = None if number == 2 else rows[3]["reward"]
        text = lines(rows) + (b"{broken\n" if number == 1 else b"")
        (tmp_path / f"{number}.jsonl").write_bytes(text)
    return tmp_path


def test_several_processes_read_what_one_does(large_folder):
    one, several = (of_folder(large_folder, processes) for processes in (1, 3))
    assert several == one and len(one["length"]) == 40
    assert len(one["malformed"]) == 1 and any("without a reward" in note for note in one["notes"])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_several_processes_share_a_large_file(tmp_path, monkeypatch, form):
    """Of 10,000 rows, three chunks, every process reads one; a reward of nothing is in the second, a broken line in the last."""
    monkeypatch.setattr(readers, "LARGE", 0)
    rows = [row | {"prompt": f"{row['prompt']} {number}", "step": number} for number in range(1250) for row in ROWS]
    rows[5000]["reward"] = None
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "all.parquet")
    else:
        (tmp_path / "all.jsonl").write_bytes(lines(rows) + b"{broken\n" + lines(ROWS))
    one, several = (of_folder(tmp_path, processes) for processes in (1, 3))
    assert several == one and len(one["length"]) >= 10_000
    assert any("without a reward" in note for note in one["notes"]) and len(one["malformed"]) == (form == "jsonl")


@pytest.mark.slow
def test_processes_that_share_a_file_go_by_its_first_filter(tmp_path, monkeypatch):
    """10,000 rows of lm-eval, of which the first 5,000 are of the filter that counts."""
    monkeypatch.setattr(readers, "LARGE", 0)
    row = {"doc_id": 0, "doc": {}, "target": "1", "arguments": [["q"]], "resps": [["a b"]], "filtered_resps": ["a b"]}
    rows = [row | {"doc_id": n % 5000, "filter": "ab"[n // 5000], "exact_match": float(n % 2)} for n in range(10_000)]
    (tmp_path / "samples_x.jsonl").write_bytes(lines(rows))
    one, several = (of_folder(tmp_path, processes) for processes in (1, 3))
    assert several == one and len(one["length"]) == 5000


def test_where_the_system_ends_a_fork_one_process_reads_all(large_folder, monkeypatch):
    here, whole = os.getpid(), of_folder(large_folder, 1)
    read_file = readers.read_file

    def ends(*given):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_file(*given)

    monkeypatch.setattr(readers, "read_file", ends)
    assert of_folder(large_folder, 2) == whole
