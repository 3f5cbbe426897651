"""Foreign rollouts: which format a file has, what its numbers are, and what happens to rows and files that cannot be read.

The fixtures' answers have 3 1 8 6 and 1 8 1 8 words, of which the 1st, 2nd and 5th are right (tests/fixtures_formats/make.py).
"""

import gzip
import json
import math
import os
import runpy
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lines import read_one, write_lines

from fairlen.audit.readers import Options, find_files, read
from fairlen.audit.readers.messages import content_of, text_of
from fairlen.audit.readers.rows import Found, make_log, read_rows
from fairlen.audit.readers.spent import make_meter
from fairlen.console import visible
from fairlen.files.formats import Chunk, Unreadable

FORMATS = Path(__file__).parents[1] / "fixtures_formats"
WORDS = [3, 1, 8, 6, 1, 8, 1, 8]
RIGHT = [1, 1, 0, 0, 1, 0, 0, 0]


def verl_row(**changes) -> dict:
    return {"input": "q", "output": "one two", "gts": "1", "score": 1.0, "step": 1} | changes


@pytest.mark.parametrize(
    ("folder", "name", "unit", "lengths", "known"),
    [
        ("verl", "verl", "words", WORDS + [n + 1 for n in WORDS] + [n + 2 for n in WORDS], {"correct", "reward"}),
        ("verl_v1", "verl", "words", WORDS + [n + 1 for n in WORDS] + [n + 2 for n in WORDS], {"reward"}),
        ("trl_messages", "trl", "words", WORDS, {"correct", "reward", "advantage"}),
        ("prime_rl", "prime_rl", "tokens", WORDS + [n + 1 for n in WORDS], {"reward", "advantage", "truncated"}),
        ("lm_eval", "lm_eval", "words", WORDS[::2], {"correct", "reward"}),
        ("generic", "generic", "words", WORDS, {"reward", "truncated"}),
        ("table", "generic", "words", WORDS, {"reward", "truncated"}),
        ("parquet", "generic", "tokens", [9] * 8, {"reward", "truncated"}),
    ],
)
def test_every_format_by_hand(folder, name, unit, lengths, known):
    log = read_one(FORMATS / folder).log
    assert (log.format, log.unit) == (name, unit)
    active = log.responses.active  # all but traces that ended with an error
    assert log.responses.length[active].tolist() == lengths
    steps = len(lengths) // 8 or 1
    assert log.correct[active].tolist() == (RIGHT[::2] if folder == "lm_eval" else RIGHT * steps)
    assert log.known == known
    assert log.malformed == ()
    assert np.array_equal(log.segments.response, np.arange(len(log)))
    assert np.array_equal(log.segments.length, log.responses.length)


def test_groups_are_equal_prompts_of_one_step():
    log = read_one(FORMATS / "verl").log
    assert log.responses.prompt.tolist() == [place // 4 for place in range(24)]
    assert np.array_equal(log.segments.group, log.responses.prompt)
    assert log.batch.tolist() == [1] * 8 + [2] * 8 + [3] * 8
    assert log.columns["duplicate"].tolist() == [0, 0, 0, 0, 0, 0, 0, 1] * 3  # "it is 7 times 8 which is 54" twice
    assert log.responses.outcome.tolist() == [2.0 * r - 1.0 for r in RIGHT] * 3


def test_steps_are_read_in_their_order(tmp_path):
    for step in (2, 10, 1):
        write_lines(tmp_path / f"{step}.jsonl", verl_row(step=step))
    assert [path.name for path, _ in find_files([str(tmp_path)])] == ["1.jsonl", "2.jsonl", "10.jsonl"]


def test_trl_adds_up_its_reward_functions_and_keeps_advantages():
    source = read_one(FORMATS / "trl")
    table = pa.concat_tables([pq.read_table(path) for path in sorted((FORMATS / "trl").iterdir())])
    verdict, brevity = (table[name].to_numpy() for name in ("accuracy_reward", "brevity_reward"))
    log = source.log
    assert np.allclose(log.responses.outcome, verdict + brevity)
    assert np.array_equal(log.responses.correct, verdict == 1.0)
    assert np.array_equal(log.advantage, table["advantage"].to_numpy())
    assert "reward: `accuracy_reward` + `brevity_reward`" in source.notes[0]
    letters = read_one(FORMATS / "trl", unit="characters").log
    assert letters.responses.length.tolist() == [len(text) for text in table["completion"].to_pylist()]
    assert letters.unit == "characters"


def test_trl_counts_a_buffer_that_was_logged_twice_once(tmp_path):
    for step in (1, 2, 3):
        shutil.copy(FORMATS / "trl" / "completions_00001.parquet", tmp_path / f"{step}.parquet")
        table = pq.read_table(tmp_path / f"{step}.parquet")
        pq.write_table(table.set_column(0, "step", pa.array([step] * len(table))), tmp_path / f"{step}.parquet")
    source = read_one(tmp_path)
    assert len(source.log) == 8
    assert "rows of steps that repeat the step before are counted once: 16" in source.notes


def test_a_reward_function_that_did_not_apply_counts_nothing(tmp_path):
    rows = {"step": [1, 1], "prompt": ["a", "a"], "completion": ["x", "y z"], "math": [1.0, None], "code": [None, None],
            "advantage": [1.0, -1.0]}  # fmt: skip
    pq.write_table(pa.table(rows), tmp_path / "c.parquet")
    source = read_one(tmp_path)
    assert source.log.responses.active.tolist() == [True, False]
    assert source.log.responses.outcome[0] == 1.0
    assert "rows without a reward are kept, but count as responses without a verdict: 1" in source.notes


def test_fairlens_own_records():
    log = read_one(FORMATS / "fairlen").log
    responses = [pq.read_table(FORMATS / "fairlen" / "records" / f"responses-00000{i}.parquet") for i in (0, 1)]
    segments = [pq.read_table(FORMATS / "fairlen" / "records" / f"segments-00000{i}.parquet") for i in (0, 1)]
    assert log.unit == "tokens" and log.responses.max_response_length == 60
    assert log.responses.length.tolist() == [n for table in responses for n in table["length"].to_pylist()]
    assert log.responses.truncated.sum() == sum(table["finish"].to_pylist().count("length") for table in responses)
    assert len(np.unique(log.responses.prompt)) == 8  # four prompts in each of two batches
    assert log.known == {"correct", "truncated", "advantage", "reward", "trained"}
    assert len(log.trained)
    told = [
        (s, n)
        for table in segments
        for s, n in zip(table["log_ratio"].to_pylist(), table["update"].to_pylist(), strict=True)
    ]
    assert len(log.trained) == sum(len(s) for s, _ in told)
    assert log.trained.log_ratio.tolist() == [x for s, _ in told for x in s]
    assert log.trained.update.tolist() == [int(x) for _, n in told for x in n]
    assert [log.trained.segment.tolist().count(row) for row in range(len(told))] == [len(s) for s, _ in told]


def test_fairlens_pairs_have_streams():
    log = read_one(FORMATS / "fairlen_pairs").log
    assert "streams" in log.known
    assert 0 < log.segments.survivor.sum() <= log.segments.num_groups  # two that end together have no survivor
    assert (log.segments.length <= log.responses.length[log.segments.response]).all()
    assert np.array_equal(np.bincount(log.segments.group), np.full(log.segments.num_groups, 2))


def test_records_without_their_other_half_are_left_out(tmp_path):
    records = FORMATS / "fairlen" / "records"
    shutil.copy(records / "responses-000000.parquet", tmp_path)
    reading = read([str(tmp_path)])
    assert reading.sources == ()
    assert f"{tmp_path}/responses-000000.parquet: rollout batch 0: responses without segments" in reading.unreadable[0]
    shutil.copy(records / "segments-000001.parquet", tmp_path)
    reading = read([str(tmp_path)])
    assert reading.sources == () and len(reading.unreadable) == 2
    assert "segments-000001.parquet: rollout batch 1: segments without responses" in reading.unreadable[1]
    shutil.copy(records / "responses-000001.parquet", tmp_path)
    reading = read([str(tmp_path)])
    assert "rollout batch 0: responses without segments" in reading.sources[0].notes[0]
    assert not reading.unreadable and set(reading.sources[0].log.batch) == {1}


@pytest.mark.parametrize(
    ("kind", "name", "values", "message"),
    [
        ("responses", "length", [5, 0], "row 2 has a length below 1"),
        ("responses", "length", [5, None], "nothing in some rows of length"),
        ("responses", "outcome", [0.0, math.inf], "row 2 counts, with an outcome that is not finite"),
        ("responses", "length", ["long", "longer"], "Failed to parse"),
        ("segments", "stop", [1000, 0], "row 2 has its stop before its first token"),
        ("segments", "weight", [[], [0.1] * 9], "more updates in one column than in another"),
        ("segments", "response", [0, 10**6], "rollout batch 0: segments of responses that are not there"),
        ("segments", "response", [-1, 0], "rollout batch 0: segments of responses that are not there"),
    ],
)
def test_records_that_no_run_writes_are_named_and_the_others_read(tmp_path, kind, name, values, message):
    """Two rows of the first of two rollout batches are changed."""
    shutil.copytree(FORMATS / "fairlen" / "records", tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"{kind}-000000.parquet"
    table = pq.read_table(path)
    kept = table[name].to_pylist()[2:]
    column = [*values, *(map(str, kept) if isinstance(values[0], str) else kept)]
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(column)), path)
    reading = read([str(tmp_path)])
    assert not reading.unreadable
    assert reading.sources[0].notes[0].startswith(f"{path}: ") and message in reading.sources[0].notes[0]
    assert set(reading.sources[0].log.batch) == {1}


def test_prime_rl_knows_tokens_truncation_and_credit():
    source = read_one(FORMATS / "prime_rl")
    log, active = source.log, source.log.responses.active
    assert log.responses.truncated[active].tolist() == [n >= 8 for n in WORDS] + [
        n + 1 >= 8 and not r for n, r in zip(WORDS, RIGHT, strict=True)
    ]
    assert log.advantage is not None and log.advantage[active].tolist() == [r - 0.5 for r in RIGHT] * 2
    assert log.responses.prompt[active].tolist() == [place // 4 for place in range(16)]
    assert np.flatnonzero(~active).tolist() == [8, 17]  # the last of each step ended with an error
    assert log.responses.prompt[~active].tolist() == [1, 3]
    assert source.notes == ()


def prime_rl_rows() -> list[dict]:
    path = FORMATS / "prime_rl" / "rollouts" / "step_0" / "train" / "all" / "traces.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_traces_without_tokens_are_counted_by_the_provider_or_in_words(tmp_path):
    rows = prime_rl_rows()
    for row in rows:
        for node in row["traces"][0]["nodes"]:
            node["mask"] = []
    log = read_one(write_lines(tmp_path / "t.jsonl", *rows)).log
    assert (log.unit, log.responses.length.tolist()) == ("tokens", [*WORDS, 1])  # the last one was dropped
    for row in rows:
        row["traces"][0]["calls"] = []
    log = read_one(write_lines(tmp_path / "t.jsonl", *rows)).log
    assert (log.unit, log.responses.length.tolist()) == ("words", [*WORDS, 1])


FIELDS = {
    "verl": ("input", "output", "gts", "score", "step", "acc"),
    "trl_messages": ("step", "prompt", "completion", "accuracy_reward", "gold", "advantage"),
    "lm_eval": ("doc_id", "doc", "arguments", "resps", "filter", "metrics", "exact_match", "prompt_hash"),
    "prime_rl": ("run", "group", "traces", "task"),
    "generic": ("question", "response", "score", "finish_reason", "global_step"),
}
INSIDE = ("nodes", "calls", "rewards", "metrics", "agent", "stop_condition", "task")
ODD = (
    None, 3, -1.5, True, "", "text", [], [1], [None], [[]], {}, {"a": 1}, [{"role": 3, "content": [4]}],
    [{"mask": 2, "sampled": 1}], 2**70,
)  # fmt: skip


@pytest.mark.parametrize("folder", FIELDS)
def test_rows_of_any_shape_are_read_or_rejected(tmp_path, folder):
    """Each row has one field of another type: all of them are answers or named as malformed, left out ones are noted."""
    if folder == "trl_messages":
        good = pq.read_table(next((FORMATS / folder).iterdir())).to_pylist()[0]
    else:
        good = json.loads(next((FORMATS / folder).rglob("*.jsonl")).read_text().splitlines()[0])
    rows = [good | {name: odd} for name in FIELDS[folder] for odd in ODD]
    if folder == "prime_rl":
        trace = good["traces"][0]
        rows += [good | {"traces": [trace | {name: odd}]} for name in INSIDE for odd in ODD]
        rows += [
            good | {"traces": [trace | {"nodes": [trace["nodes"][1] | {name: odd}]}]}
            for name in trace["nodes"][1]
            for odd in ODD
        ]
    source = read_one(write_lines(tmp_path / "rows.jsonl", good, *rows))
    assert len(source.log) > 1 and source.log.malformed
    told = [note.rpartition(": ") for note in source.notes if "left out" in note or "counted once" in note]
    no_traces = 1 if folder == "prime_rl" else 0  # an episode may have none
    assert len(source.log) + len(source.log.malformed) + sum(int(n) for *_, n in told) == 1 + len(rows) - no_traces


def test_agents_that_are_not_trained_are_left_out_and_bare_traces_read(tmp_path):
    rows = [row["traces"][0] for row in prime_rl_rows()]
    rows[0]["agent"]["trainable"] = False
    source = read_one(write_lines(tmp_path / "t.jsonl", *rows))
    assert source.log.responses.length.tolist() == [*WORDS[1:], 1]
    assert "traces of agents that are not trained are left out: 1" in source.notes


def test_lm_eval_reads_the_answers_of_one_filter():
    source = read_one(FORMATS / "lm_eval")
    assert "rows of filters other than `strict-match` repeat its responses and are left out: 4" in source.notes
    assert "outcome: `exact_match`" in source.notes


def test_lm_eval_rows_that_say_too_little(tmp_path):
    row = {"doc_id": 0, "doc": {}, "filter": "none", "metrics": ["acc"], "acc": 1.0, "resps": [["yes"]]}
    path = write_lines(
        tmp_path / "s.jsonl",
        row,
        row | {"resps": [[[-3.0, False]], [[-4.0, False]]]},
        row | {"resps": [["a", "b"]]},
        row | {"metrics": ["bypass"], "bypass": 999, "acc": None},
        row | {"resps": [["a", "b"]], "acc": [1.0, 0.0]},
    )
    log = read_one(path).log
    assert log.correct.tolist() == [True, True, False]
    assert [(m.line, m.reason) for m in log.malformed] == [
        (2, "no generated text: a task of log-likelihoods"),
        (3, "one score for 2 responses: nothing says which of them was correct"),
        (4, "no metric that is a number"),
    ]


def test_malformed_rows_are_named_by_line_with_the_reason(tmp_path):
    path = write_lines(
        tmp_path / "1.jsonl", verl_row(), '{"input": "q", "output": "cut', "", verl_row(score=None), verl_row(score="high"),
        verl_row(score=math.nan), verl_row(output=None), verl_row(step="first"), verl_row(step=1.5), "[1, 2]",
        verl_row(output="x"), verl_row(score=True), verl_row(score=-1e300),
    )  # fmt: skip
    log = read_one(path).log
    assert log.responses.outcome[log.responses.active].tolist() == [1.0, 1.0, 1.0]
    assert log.line[~log.responses.active].tolist() == [4, 6], "nan is TRL's word for no reward"
    reasons = {row.line: row.reason for row in log.malformed}
    assert reasons.pop(2).startswith("not JSON: ")
    assert reasons == {
        5: "the reward 'high' is not a finite number", 7: "the response is missing",
        8: "the step 'first' is not a whole number from 0 to 2**53",
        9: "the step 1.5 is not a whole number from 0 to 2**53",
        10: "not an object but list", 13: "the reward -1e+300 is no number from -1e+100 to 1e+100",
    }  # fmt: skip
    assert all(row.file == str(path) for row in log.malformed)


def test_a_row_without_a_step_is_left_out_where_others_have_one(tmp_path):
    """A null is not step 0: of three rows two are left, and of one with a step but no reward that one."""
    rows = [{"prompt": "q", "num_tokens": 9, "reward": 1.0, "step": step} for step in (0, None, 3)]
    source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
    assert source.log.batch.tolist() == [0, 3] and source.log.line.tolist() == [1, 3] and source.has_steps
    assert "rows without a step, where others have one, are left out: 1" in source.notes
    graded = read_one(write_lines(tmp_path / "a.jsonl", rows[0] | {"reward": None}, *rows[1:2]))
    assert graded.log.responses.active.tolist() == [False]


def test_a_row_without_a_verdict_has_none_where_half_have_one(tmp_path):
    """Two of four have one: the others count nowhere; one of four: the bar goes over all, half of .2 to .8, that is .5."""
    for verdicts, active, correct, note in (
        ((1, 0, None, None), [1, 1, 0, 0], [1, 0, 0, 0], "which most have, are kept, but not compared: 2"),
        ((1, None, None, None), [1, 1, 1, 1], [0, 1, 0, 1], "correct is the upper half of the outcomes' range: 4"),
    ):
        pairs = zip((0.2, 0.8, 0.4, 0.6), verdicts, strict=True)
        rows = [{"prompt": "q", "num_tokens": 9, "reward": reward, "correct": one} for reward, one in pairs]
        source = read_one(write_lines(tmp_path / "a.jsonl", *rows))
        assert source.log.responses.active.tolist() == active and source.log.correct.tolist() == correct
        assert source.notes[-1].endswith(note)


def test_a_file_of_malformed_rows_only_is_unreadable(tmp_path):
    reading = read([str(write_lines(tmp_path / "1.jsonl", verl_row(score=None), verl_row(output=3)))])
    assert not reading.sources
    assert "not one row could be read" in reading.unreadable[0] and "1.jsonl:1: no reward" in reading.unreadable[0]


def test_empty_answers_are_excluded_and_counted(tmp_path):
    """Two of three responses are empty: they have no verdict, and the sentence of the verdict counts them."""
    rows = verl_row(output=""), verl_row(output="  "), verl_row(output="it is 7")
    source = read_one(write_lines(tmp_path / "1.jsonl", *rows))
    assert source.log.responses.active.tolist() == [False, False, True]
    assert source.log.caveats == ("2 empty or failed responses (67%) are excluded",)
    reading = read([str(write_lines(tmp_path / "2.jsonl", *rows[:2]))])
    assert "an empty or failed response" in reading.unreadable[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rollout_1.pt", b"PK\x03\x04rest", "not a zip file; the file is damaged"),
        ("data.pkl", b"\x80\x04\x95rest", "reading one runs whatever code is in it"),
        ("c.parquet", b"PAR1 and no more", "damaged or was not finished"),
        ("c.jsonl.gz", b"\x1f\x8b\x08\x00half", "damaged"),
        ("c.jsonl", b"", "the file is empty"),
        ("c.bin", b"\x00\x01\x02", "not a file of rows"),
        ("c.jsonl", b'{"loss": 1.0}\n', "each row needs a prompt, a response and its reward"),
        ("c.jsonl", b'{"loss": \n', "no object in its first lines"),
    ],
)
def test_unreadable_files_are_named_with_the_fix(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    reading = read([str(tmp_path / name)])
    assert not reading.sources
    assert name in reading.unreadable[0]
    assert message in reading.unreadable[0]


def test_paths_where_nothing_is(tmp_path):
    with pytest.raises(Unreadable, match="no such file or folder"):
        read([str(tmp_path / "nothing*.jsonl")])
    with pytest.raises(Unreadable, match="an empty path: name a file"):
        read([""])
    (tmp_path / "empty" / ".hidden").mkdir(parents=True)
    with pytest.raises(Unreadable, match=rf"{tmp_path}/empty: no file in this folder"):
        read([str(tmp_path / "empty")])
    write_lines(tmp_path / "1.jsonl", verl_row())
    assert len(read([str(tmp_path / "*")]).sources) == 1  # a pattern that an empty folder fits too


def test_errors_about_the_current_folder_name_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("1.jsonl", "2.jsonl"):
        write_lines(Path(name), verl_row(score=None))
    (said,) = read(["."]).unreadable
    assert said.startswith("1.jsonl and 1 more: verl rollouts, but not one row could be read: 1.jsonl:1: no reward")
    Path("empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(Unreadable, match=rf"{tmp_path}/empty: no file in this folder"):
        read(["."])


def test_a_file_that_breaks_off_keeps_what_came_before(tmp_path):
    whole = gzip.compress("".join(json.dumps(verl_row(output=f"a {n}" * 20)) + "\n" for n in range(12_000)).encode())
    (tmp_path / "1.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    reading = read([str(tmp_path / "1.jsonl.gz")])
    assert "damaged or was not finished" in reading.unreadable[0]
    assert 4096 <= len(reading.sources[0].log) < 12_000


def test_formats_are_told_by_columns_not_names(tmp_path):
    shutil.copy(FORMATS / "trl" / "completions_00001.parquet", tmp_path / "1.jsonl")
    shutil.copy(FORMATS / "verl" / "1.jsonl", tmp_path / "completions_00001.parquet")
    reading = read([str(tmp_path)])
    assert {source.log.format: source.files[0] for source in reading.sources} == {
        "trl": str(tmp_path / "1.jsonl"), "verl": str(tmp_path / "completions_00001.parquet")
    }  # fmt: skip


def test_gzip_json_arrays_and_separators(tmp_path):
    rows = [verl_row(), verl_row(output="a b c")]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    assert read_one(tmp_path / "a.jsonl.gz").log.responses.length.tolist() == [2, 3]
    (tmp_path / "a.json").write_text(json.dumps([*rows, 3], indent=1))
    log = read_one(tmp_path / "a.json").log
    assert log.responses.length.tolist() == [2, 3]
    assert [(row.line, row.reason) for row in log.malformed] == [(3, "not an object but int")]
    (tmp_path / "a.tsv").write_text('\ufeffprompt\tcompletion\treward\nq\t"a\nb"\t1\nq\tc\t0\textra\nq\tc\tso\n')
    log = read_one(tmp_path / "a.tsv").log
    assert log.responses.length.tolist() == [2]
    assert {row.line: row.reason for row in log.malformed} == {
        4: "4 cells for 3 columns", 5: "the reward 'so' is not a finite number"
    }  # fmt: skip


def test_columns_by_name_sums_and_paths(tmp_path):
    rows = [
        {"q": "a", "reply": [{"role": "assistant", "content": "x y"}], "r1": 1.0, "r2": 0.5, "info": {"n": 7}},
        {"q": "a", "reply": "z", "r1": 0.0, "r2": None, "info": {"n": 9}},
    ]
    path = write_lines(tmp_path / "a.jsonl", *rows)
    given = {"prompt": "q", "response": "reply", "reward": "r1+r2", "tokens": "info.n"}
    log = read_one(path, columns=given).log
    assert log.responses.outcome.tolist() == [1.5, 0.0]
    assert (log.unit, log.responses.length.tolist()) == ("tokens", [7, 9])
    assert log.responses.prompt.tolist() == [0, 0]
    wrong = read([str(path)], Options(columns=given | {"response": "replay"})).unreadable[0]
    assert "--columns response=replay: no column 'replay': did you mean 'reply'?" in wrong
    wrong = read([str(path)], Options(columns=given | {"correct": "r1>half"})).unreadable[0]
    assert "--columns correct=r1>half: 'half' is no number to compare with" in wrong


def test_texts_of_messages():
    assert text_of([{"role": "user", "content": "no"}, {"role": "assistant", "content": "a"}]) == "a"
    assert text_of([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]) == "a"
    assert content_of({"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}) == '[{"name": "f"}]'
    assert text_of(3) is None and text_of([3]) is None


def test_what_terminals_obey_is_written_out():
    assert visible("a\x1b[31mb\x07\u202ec\u2066") == "a\\x1b[31mb\\x07\\u202ec\\u2066"
    assert visible("größer → 3") == "größer → 3"


def same_columns(made: Path, kept: Path) -> None:
    """Both folders have the same files with the same columns, and they are read as one format."""
    for path in sorted(kept.iterdir()):
        one, other = (
            pq.read_schema(p).names if p.suffix == ".parquet" else [list(json.loads(line)) for line in p.read_text().splitlines()]
            for p in (made / path.name, path)
        )  # fmt: skip
        assert one == other, path.name
    assert read_one(made).log.format == read_one(kept).log.format


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "names"), [("verl.trainer.ppo.ray_trainer", ("verl", "verl_v1")), ("trl", ("trl", "trl_messages"))]
)
def test_the_installed_framework_still_writes_that(tmp_path, module, names):
    pytest.importorskip(module)
    runpy.run_path(str(FORMATS / "make.py"))[f"make_{names[0]}"](tmp_path)
    for name in names:
        same_columns(tmp_path / name, FORMATS / name)


def test_the_other_fixtures_are_what_the_script_makes(tmp_path):
    script = runpy.run_path(str(FORMATS / "make.py"))
    for name in ("prime_rl", "skyrl", "openrlhf", "generic"):
        script[f"make_{name}"](tmp_path)
    for path in (path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".parquet"):
        assert path.read_text() == (FORMATS / path.relative_to(tmp_path)).read_text()


def test_right_is_the_upper_half_whatever_the_scale(tmp_path):
    for scores, right in (
        ([0, 1, 1, 0], [0, 1, 1, 0]), ([-1, 0, 0, -1], [0, 1, 1, 0]), ([-2, -1, -2, -1], [0, 1, 0, 1]),
        ([-1, 1, 1, -1], [0, 1, 1, 0]), ([0, 0, 0, 0], [0, 0, 0, 0]), ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([0, 1] * 3 + [0, 100] + [0, 1] * 146, [0, 1] * 150),  # one large reward does not make all others incorrect
    ):  # fmt: skip
        log = read_one(write_lines(tmp_path / "1.jsonl", *(verl_row(score=score) for score in scores))).log
        assert log.correct.astype(int).tolist() == right


def problems_of(path: Path) -> tuple[str, ...]:
    """One text for each file that could not be read; an exception that nobody should see is one too."""
    try:
        return read([str(path)]).unreadable
    except (StopIteration, RuntimeError, ValueError) as error:
        return (f"{type(error).__name__}: {error}" if type(error) is not Unreadable else str(error),)


def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    held = os.open(tmp_path / "pipe.jsonl", os.O_RDWR)  # so that nothing waits for a writer
    os.write(held, b'{"output": 1}\n' * 999)
    try:
        assert problems_of(tmp_path / "pipe.jsonl") == (f"{tmp_path}/pipe.jsonl: a pipe: give a regular file",)
    finally:
        os.close(held)
    assert problems_of(Path("/dev/null")) == ("/dev/null: a device: give a regular file",)


def test_half_of_a_character_is_named_by_line(tmp_path):
    rows = [
        json.dumps(verl_row()),
        '{"input": "q", "output": "\\ud83d x", "score": 0, "step": 1}',
        json.dumps(verl_row(output="\U0001f600")),
    ]
    half = "'\\ud83d' is half of a character (a lone surrogate)"
    for name, text in (("a.jsonl", "\n".join(rows)), ("a.json", f"[{', '.join(rows)}]")):
        (tmp_path / name).write_text(text)
        log = read_one(tmp_path / name).log
        assert [(row.line, row.reason) for row in log.malformed] == [(2, half)]
        assert len(log) == 2


def test_a_cell_that_is_not_utf_8_is_named_by_line(tmp_path):
    (tmp_path / "a.csv").write_bytes("prompt,answer,reward\nq,é,1\n".encode() + b"q,\xe9,1\n")
    log = read_one(tmp_path / "a.csv").log
    assert [(row.line, row.reason) for row in log.malformed] == [(3, "not UTF-8")]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("byte.jsonl", b'{"a": "\xe9"}\n', "line 1: not UTF-8 (invalid continuation byte)"),
        ("number.jsonl", b'{"a": ' + b"9" * 5000 + b"}\n", "line 1: a number of more than 4,300 digits"),
        ("deep.jsonl", b'\n{"a": ' + b"[" * 200_000 + b"\n", "line 2: brackets nested too deeply to be read"),
        ("num.json", b"42\n", "line 1: not an object but int"),
        ("deep.json", b"[" * 200_000, "deep.json: brackets nested too deeply to be read (more than 64); mend the array"),
        ("long.json", b"[" + b"9" * 5000 + b"]", "long.json: a number of more than 4,300 digits; mend the array"),
        ("byte.json", b'[\n{"a": "\xe9"}]', "byte.json: not UTF-8 (line 2, invalid continuation byte); mend the array"),
    ],
)  # fmt: skip
def test_the_true_reason_is_given_for_what_comes_first(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    (said,) = problems_of(tmp_path / name)
    assert reason in said
    assert "damaged" not in said and "sys." not in said and "\n" not in said


def test_an_answer_that_is_a_number_is_not_called_missing(tmp_path):
    rows = [{"prompt": "p0", "completion": text, "reward": 1} for text in ("a", 0, None, True)]
    assert [(row.line, row.reason) for row in read_one(write_lines(tmp_path / "a.jsonl", *rows)).log.malformed] == [
        (2, "the response 0 is a number, not text"), (3, "the response is missing"), (4, "the response True is bool, not text")
    ]  # fmt: skip


def test_a_file_that_breaks_off_before_a_row_is_told_once(tmp_path):
    packed = gzip.compress((json.dumps(verl_row()) + "\n").encode() * 999)
    (tmp_path / "two.jsonl.gz").write_bytes(packed + b"trailing")
    said = read([str(tmp_path / "two.jsonl.gz")]).unreadable
    assert len(said) == 1 and "damaged" in said[0], said


def test_of_a_run_folder_the_records_are_read(tmp_path):
    """evaluations.jsonl has a column `correct`, and is no table of rollouts; what lies beside a run is read."""
    run = tmp_path / "runs" / "x"
    (run / "records").mkdir(parents=True)
    for name in ("run.json", "evaluations.jsonl", "metrics.jsonl", "records/rollouts-000000.parquet"):
        (run / name).write_text("{}\n")
    (tmp_path / "runs" / "others.jsonl").write_text("{}\n")
    found = [path.name for path, _ in find_files([str(tmp_path)])]
    assert found == ["others.jsonl", "rollouts-000000.parquet"]
    assert [path.name for path, _ in find_files([str(run / "evaluations.jsonl")])] == ["evaluations.jsonl"]


def test_a_prompt_keeps_its_number_and_every_row_its_place(tmp_path):
    write_lines(tmp_path / "1.jsonl", verl_row(input="a"), "", verl_row(input="b", step=1))
    write_lines(
        tmp_path / "2.jsonl", verl_row(input="b", step=2), verl_row(input="b", output=3), verl_row(input="a", step=2)
    )
    source = read_one(tmp_path)
    log = source.log
    assert log.responses.prompt.tolist() == [0, 1, 2, 3]  # of each step its own
    assert (log.problem == log.problem[[0, 1, 1, 0]]).all() and len(set(log.problem)) == 2
    assert [Path(source.files[file]).name for file in log.file] == ["1.jsonl", "1.jsonl", "2.jsonl", "2.jsonl"]
    assert log.line.tolist() == [1, 3, 1, 3]


def test_runs_of_fairlens_are_never_pooled(tmp_path):
    """Prompt 0 of one run is another one's prompt 5: their records are two logs, also where other formats' are one."""
    for name in "ab":
        shutil.copytree(FORMATS / "fairlen" / "records", tmp_path / name / "records")
        write_lines(tmp_path / f"verl_{name}" / "1.jsonl", verl_row())
    reading = read([str(tmp_path)], Options(pool=True))
    assert sorted(one.format.name for one in reading.sources) == ["fairlen", "fairlen", "verl"]


def test_hidden_folders_are_no_rollouts(tmp_path):
    for path in (tmp_path / "1.jsonl", tmp_path / ".ipynb_checkpoints" / "1-checkpoint.jsonl"):
        write_lines(path, verl_row())
    assert len(read_one(tmp_path).log) == 1


def test_a_problem_of_fairlens_own_is_the_same_in_all_rollout_batches(tmp_path):
    shutil.copytree(FORMATS / "fairlen" / "records", tmp_path / "records")
    paths = sorted((tmp_path / "records").glob("responses-*"))
    tables = [pq.read_table(path) for path in paths]
    ids = [name for table in tables for name in table["problem_id"].to_pylist()]
    source = read_one(tmp_path)
    assert len(set(source.log.problem)) == len(set(ids))
    assert len(set(zip(source.log.problem.tolist(), ids, strict=True))) == len(set(ids))
    where = [(Path(source.files[f]).name, line) for f, line in zip(source.log.file, source.log.line, strict=True)]
    assert where == [(path.name, row + 1) for path, t in zip(paths, tables, strict=True) for row in range(len(t))]
    for path, table in zip(paths, tables, strict=True):
        pq.write_table(table.drop_columns(["problem_id"]), path)
    assert not len(read_one(tmp_path).log.problem)


def test_records_of_another_version_are_refused_by_their_columns(tmp_path):
    table = pq.read_table(FORMATS / "fairlen" / "records" / "responses-000000.parquet").drop_columns(["num_turns"])
    pq.write_table(table, tmp_path / "responses-000000.parquet")
    (said,) = read([str(tmp_path)]).unreadable
    assert said.endswith("no column num_turns: not written by this version of fairlen")


def test_what_fairlen_could_not_grade_stays_in_and_does_not_count(tmp_path):
    shutil.copytree(FORMATS / "fairlen" / "records", tmp_path / "records")
    path = tmp_path / "records" / "responses-000000.parquet"
    table = pq.read_table(path)
    for name, value in (("status", "timeout"), ("active", False), ("outcome", math.nan)):
        column = [value, *table[name].to_pylist()[1:]]
        table = table.set_column(table.column_names.index(name), name, pa.array(column))
    pq.write_table(table, path)
    log = read_one(tmp_path).log
    assert len(log) == len(read_one(FORMATS / "fairlen").log)
    assert log.responses.active.tolist() == [False] + [True] * (len(log) - 1)
    assert not log.segments.active[log.segments.response == 0].any()


def test_dropped_rows_stay_in_and_do_not_count():
    chunk = Chunk("f", [1, 2, 3, 4], {
        "prompt": ["q"] * 4, "response": ["a b", None, "c", "d e f"], "reward": [1.0, None, "odd", 0.0],
        "dropped": [False, True, True, None], "advantage": [1.0, None, None, -1.0], "truncated": [False, None, True, True],
    })  # fmt: skip
    found = Found()
    rows = read_rows(chunk, make_meter(None, ""), found)
    log = make_log("generic", rows, make_meter(None, ""), found, Options())
    assert log.malformed == () and log.responses.length.tolist() == [2, 1, 1, 3]
    assert log.responses.active.tolist() == log.segments.active.tolist() == [True, False, False, True]
    assert log.correct[log.responses.active].tolist() == [True, False]
    assert log.known == {"reward", "advantage", "truncated"}
