"""Formats of other programs: twelve that need no flag and two that need one, and what each says of truncation and failures.

The fixtures' answers have 3 1 8 6 and 1 8 1 8 words, of which the 1st, 2nd and 5th are correct (tests/fixtures_formats/make.py).
"""

import json
import runpy
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from lines import read_one, write_lines

from fairlen.audit.readers import read
from fairlen.cli import main
from fairlen.files.archives import read_pickle

FORMATS = Path(__file__).parents[1] / "fixtures_formats"
WORDS = [3, 1, 8, 6, 1, 8, 1, 8]
RIGHT = [1, 1, 0, 0, 1, 0, 0, 0]


def columns(folder: str, name: str) -> list:
    """A column of all Parquet files of a fixture, without the missing ones."""
    tables = [pq.read_table(path) for path in sorted((FORMATS / folder).rglob("*.parquet"))]
    return [one for table in tables if name in table.column_names for one in table[name].to_pylist() if one is not None]


def mean(values: list) -> float:
    return sum(values) / len(values)


CASES = {
    # format, unit, responses, dropped ones, accuracy, mean length, share that was truncated
    "verl": ("verl", "words", 24, 0, 3 / 8, 4.5 + 1, None),  # a word more in each of three steps: 4.5, 5.5 and 6.5
    "prime_rl": ("prime_rl", "tokens", 18, 2, 3 / 8, 4.5 + 0.5, 3 / 8),
    "verifiers": ("verifiers", "tokens", 9, 1, 3 / 8, 4.5, 3 / 8),
    "openrlhf": ("generic", "words", 8, 0, 3 / 8, 4.5, None),
    "skyrl": ("skyrl", "words", 18, 2, 3 / 8, 4.5, 3 / 8),
    "slime": ("slime", "tokens", 18, 2, 3 / 8, 4.5 + 0.5, 3 / 8),
    "lm_eval": ("lm_eval", "words", 4, 0, 2 / 4, (3 + 8 + 1 + 1) / 4, None),  # every other answer
    "inspect/inspect.json": ("inspect", "tokens", 9, 1, 3 / 8, 4.5, 3 / 8),
    "inspect/inspect.eval": ("inspect", "tokens", 9, 1, 3 / 8, 4.5, 3 / 8),
    "generic/answers.jsonl": ("generic", "words", 8, 0, 3 / 8, 4.5, 5 / 8),  # whose incorrect ones were truncated
    "table/answers.csv": ("generic", "words", 8, 0, 3 / 8, 4.5, 5 / 8),
    "parquet": ("generic", "tokens", 8, 0, 3 / 8, 9.0, 5 / 8),
}


def audited(capsys, path: Path, *flags: str) -> tuple:
    assert main(["audit", str(path), "--json", *flags]) == 0
    (log,) = json.loads(capsys.readouterr().out)["logs"]
    shown, count = log["lengths"] | log["selection"], log["counts"]["responses"]
    dropped = round(log["selection"]["dropped"]["value"] * count)
    numbers = (shown[name]["value"] for name in ("accuracy", "mean", "truncated"))
    return log["format"], log["unit"], count, dropped, *(None if n is None else pytest.approx(n) for n in numbers)


def test_twelve_formats_need_no_flag_and_two_need_one(tmp_path, capsys):
    for name, expected in CASES.items():
        assert audited(capsys, FORMATS / name) == expected, name
    own = columns("fairlen", "length"), columns("fairlen", "finish"), columns("fairlen", "outcome")
    truncated = mean([word == "length" for word in own[1]])
    assert audited(capsys, FORMATS / "fairlen") == ("fairlen", "tokens", 128, 0, mean(own[2]), mean(own[0]), truncated)
    texts = [len(text) for text in columns("trl", "completion")]  # the playground's, without spaces
    accuracy = mean(columns("trl", "accuracy_reward"))
    assert audited(capsys, FORMATS / "trl")[:6] == ("trl", "characters", 24, 0, accuracy, mean(texts))

    table = [{"ask": p, "said": t, "mark": r, "num_tokens": len(t.split())} for p, t, r in answers()]
    path = write_lines(tmp_path / "own.jsonl", *table)
    flag = "--columns", "prompt=ask,response=said,reward=mark"
    assert audited(capsys, path, *flag) == ("generic", "tokens", 8, 0, 3 / 8, 4.5, None)
    path = write_lines(
        tmp_path / "usual.jsonl", *({"prompt": r["ask"], "response": r["said"], "score": r["mark"]} | r for r in table)
    )
    assert audited(capsys, path, "--max-response-length", "8") == ("generic", "tokens", 8, 0, 3 / 8, 4.5, 3 / 8)


def answers() -> list[tuple[str, str, int]]:
    return runpy.run_path(str(FORMATS / "make.py"))["rows"](0)


@pytest.mark.parametrize("name", ["verifiers", "skyrl", "slime", "inspect/inspect.eval", "inspect/inspect.json"])
def test_what_a_framework_dropped_is_a_row_that_does_not_count(name):
    log = read_one(FORMATS / name).log
    order = np.lexsort((log.line, log.responses.prompt))  # Inspect writes one epoch after the other
    rows, steps = log.responses.take(order), len(log) // 9
    assert np.flatnonzero(~rows.active).tolist() == [9 * step + 8 for step in range(steps)]
    assert rows.prompt.tolist() == [2 * step + n for step in range(steps) for n in (0, 0, 0, 0, 1, 1, 1, 1, 1)]
    assert log.correct[order][rows.active].tolist() == RIGHT * steps
    if name != "slime":
        assert rows.truncated[rows.active].tolist() == [n == 8 for n in WORDS] * steps
        assert rows.length[rows.active].tolist() == WORDS * steps
    assert not log.malformed


def test_slime_counts_the_tokens_that_the_loss_reaches():
    """Two tokens of a tool are in `response_length` and not in the mask; the second rollout's answers are a word longer."""
    source = read_one(FORMATS / "slime")
    active = source.log.responses.active
    assert source.log.responses.length[active].tolist() == WORDS + [n + 1 for n in WORDS]
    assert source.log.batch.tolist() == [0] * 9 + [1] * 9
    assert source.notes == ("correct or not is what `acc` says",)
    assert source.log.responses.truncated[active].tolist() == [n >= 8 for n in [*WORDS, *(n + 1 for n in WORDS)]]


def slime_row(**changes) -> dict:
    row = {
        "prompt": "q", "response": "a b", "response_length": 2, "loss_mask": None, "reward": 1.0, "status": "completed",
    }  # fmt: skip
    return row | changes


def test_slimes_samples_as_lines(tmp_path):
    """A number is the reward, without a mask all tokens count, and a reward without `score` is none."""
    path = write_lines(
        tmp_path / "s.jsonl",
        slime_row(),
        slime_row(loss_mask=[0, 0], reward=-1.0, status="truncated"),
        slime_row(status="failed", reward=None),
        slime_row(reward={"pred": "5"}),
        slime_row(loss_mask="11"),
    )
    log = read_one(path).log
    assert log.responses.length[:2].tolist() == [2, 2] and log.unit == "tokens"
    assert log.responses.truncated.tolist() == [False, True, False, False]
    assert log.responses.active.tolist() == [True, True, False, False]
    assert [(row.line, row.reason.partition(":")[0]) for row in log.malformed] == [
        (5, "not as slime samples are written")
    ]


def verifiers_row(**changes) -> dict:
    row = {"example_id": 0, "prompt": [], "completion": [{"role": "assistant", "content": "a b c"}], "reward": 0.5}
    return row | {"metrics": {}, "is_truncated": False, "stop_condition": None} | changes


def test_what_ends_a_rollout_of_verifiers(tmp_path):
    """One turn ends by `max_turns_reached` whatever it says; limits of tokens and time truncate; tools do not count."""
    talk = [
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "name": "f"}]},
        {"role": "tool", "content": "forty two words of a tool"},
        {"role": "assistant", "content": "yes"},
    ]
    path = write_lines(
        tmp_path / "results.jsonl",
        verifiers_row(stop_condition="max_turns_reached"),
        verifiers_row(stop_condition="max_total_completion_tokens_reached"),
        verifiers_row(stop_condition="timeout_reached", reward=0.0),
        verifiers_row(is_truncated=True),
        verifiers_row(error={"error": "ModelError"}, completion=None, reward=0.0),
        verifiers_row(completion=talk, reward=1.0),
    )
    source = read_one(path)
    assert source.log.responses.truncated.tolist() == [False, True, True, True, False, False]
    assert source.log.responses.active.tolist() == [True] * 4 + [False, True]
    assert source.log.unit == "words" and source.log.responses.length.tolist()[-1] == len(['[{"name":', '"f"}]']) + 1
    assert "correct" not in source.log.known  # no metric is named like a verdict


def test_a_metric_named_like_a_verdict_is_one_only_where_it_is_0_or_1(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", *(verifiers_row(metrics={"speed": 0, "accuracy": v}) for v in (1, 0, 1.0)))
    assert read_one(path).log.correct.tolist() == [True, False, True]
    path = write_lines(tmp_path / "b.jsonl", *(verifiers_row(metrics={"accuracy": v}, reward=v) for v in (1, 0.25, 0)))
    source = read_one(path)
    assert "correct" not in source.log.known
    assert source.notes[-1].endswith("neither 0 nor 1: correct is the upper half of the outcomes' range: 3")


def test_rewards_beside_each_other_are_metrics_of_older_files(tmp_path):
    rows = [verifiers_row(metrics=None, reward=r, exact_match=m) for r, m in ((0.4, 1.0), (0.3, 0.0), (1.0, 1.0))]
    assert read_one(write_lines(tmp_path / "a.jsonl", *rows)).log.correct.tolist() == [True, False, True]


def test_one_metric_is_the_verdict_of_all_rows(tmp_path):
    """By a whole word of its name; where it is .5, another one says nothing about that row."""
    for metrics in (
        [{"incorrect_tool_calls": 1 - right, "judge": right} for right in (0, 1, 1)],
        [{"accuracy": right, "exact_match": 1.0} for right in (0, 0.5, 1)],
        [{"correct_format": right, "num_correct": 1 - right} for right in (0, 1, 1)],
    ):
        source = read_one(write_lines(tmp_path / "a.jsonl", *(verifiers_row(metrics=one) for one in metrics)))
        assert "correct" not in source.log.known
        assert not any(name in note for note in source.notes for name in ("incorrect", "exact_match", "format", "num_"))


def test_skyrls_steps_are_in_the_names_of_folders(tmp_path):
    source = read_one(FORMATS / "skyrl")
    assert source.log.batch.tolist() == [0] * 9 + [10] * 9
    assert source.log.responses.outcome[source.log.responses.active].tolist() == RIGHT * 2
    row = {"input_prompt": "q", "output_response": "a b", "score": 1.0, "stop_reason": "stop"}
    log = read_one(write_lines(tmp_path / "sft_step_900" / "global_step_10_evals" / "a.jsonl", row)).log
    assert log.batch.tolist() == [10], "the last one"
    reading = read([str(FORMATS / "skyrl")])
    assert [Path(text.partition(":")[0]).name for text in reading.skipped] == ["aggregated_results.jsonl"] * 2


def inspect_log(path: Path, *samples: dict) -> Path:
    path.write_text(
        json.dumps({"version": 2, "status": "success", "eval": {"model": "m"}, "samples": list(samples)}, indent=2)
    )
    return path


def inspect_row(value=1.0, stop="stop", **changes) -> dict:
    message = {"role": "assistant", "content": "a b c", "source": "generate"}
    output = {"model": "m", "choices": [{"message": message, "stop_reason": stop}], "usage": {"output_tokens": 7}}
    row = {"id": 1, "epoch": 1, "input": "q", "messages": [{"role": "user", "content": "q"}, message], "output": output}
    return row | {"scores": {"match": {"value": value}}} | changes


@pytest.mark.parametrize(
    ("value", "reward", "correct"),
    [("C", 1.0, True), ("I", 0.0, False), ("P", 0.5, False), ("N", 0.0, False), (True, 1.0, True), (0, 0.0, False),
     ({"a": "C", "b": 0}, 1.0, True)],
)  # fmt: skip
def test_grades_of_inspect(tmp_path, value, reward, correct):
    log = read_one(inspect_log(tmp_path / "log.json", inspect_row(value))).log
    assert log.responses.outcome.tolist() == [reward] and log.correct.tolist() == [correct]
    assert "correct" in log.known


def test_inspect_says_what_was_truncated_dropped_and_not_graded(tmp_path):
    path = inspect_log(
        tmp_path / "log.json",
        inspect_row("C", "max_tokens"),
        inspect_row("C", "model_length"),
        inspect_row("I", limit={"type": "token", "limit": 10}),
        inspect_row("I", limit={"type": "custom", "limit": 10}),
        inspect_row("C", scores=None, error={"message": "down"}),
        inspect_row("C", scores=None, limit={"type": "operator", "limit": 1}),
        inspect_row(float("nan")),
        inspect_row("C", scores={}),
        inspect_row(["C", "I"]),
        inspect_row("I", scores={"match": {"value": "C"}, "judge": {"value": "I"}}),
    )
    source = read_one(path)
    log = source.log
    assert log.responses.truncated[log.responses.active].tolist() == [True, True, True, False, False]
    assert log.responses.active.tolist() == [True] * 4 + [False] * 4 + [True]
    assert [row.line for row in log.malformed] == [9]
    assert "outcome: `match`, the first of several scorers" in source.notes
    assert log.correct[-1]  # as the first scorer says


def test_tokens_of_several_turns_are_those_of_the_model(tmp_path):
    """Few-shot answers of the input are not the model's; what it is billed for in the sample is."""
    shot = {"role": "assistant", "content": "a shot with many many words", "source": "input"}
    turn = {"role": "assistant", "content": [{"type": "text", "text": "x y"}], "source": "generate"}
    usage = {"m": {"output_tokens": 40}, "judge": {"output_tokens": 900}}
    path = inspect_log(
        tmp_path / "log.json",
        inspect_row(messages=[shot, turn]),
        inspect_row(messages=[shot, turn, turn], model_usage=usage),
    )
    assert read_one(path).log.responses.length.tolist() == [7, 40]
    assert read_one(path, unit="words").log.responses.length.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("used", "model"),
    [(["org/m"], "m-2026-01-02"), (["org/m", "org/m-mini", "org/judge"], "m-mini-2026"), (["host/org/m", "judge"], "org/m"),
     (["org/m-latest"], "m-2026")],
)  # fmt: skip
def test_the_model_that_used_tokens_may_have_another_name_in_its_answer(tmp_path, used, model):
    """A log of Inspect names models as they were asked for, and an answer as the provider calls it."""
    name = "org/m-mini" if "mini" in model else used[0]
    row = inspect_row(model_usage={one: {"output_tokens": 40 if one == name else 900} for one in used})
    row["output"]["model"] = model
    log = read_one(inspect_log(tmp_path / "log.json", row | {"messages": row["messages"][1:] * 2})).log
    assert (log.unit, log.responses.length.tolist()) == ("tokens", [40])


@pytest.mark.parametrize(
    ("name", "package"), [("verifiers", "verifiers.legacy"), ("lm_eval", "lm_eval"), ("inspect", "inspect_ai")]
)
def test_the_installed_writers_still_write_that(tmp_path, name, package):
    """In environments that have them; the keys of every row, and what is read."""
    pytest.importorskip(package)
    runpy.run_path(str(FORMATS / "make.py"))[f"make_{name}"](tmp_path)
    for path in (path for path in (tmp_path / name).iterdir() if path.suffix == ".jsonl"):
        kept = (FORMATS / name / path.name).read_text().splitlines()
        assert [list(json.loads(line)) for line in path.read_text().splitlines()] == [
            list(json.loads(line)) for line in kept
        ]
    made, kept = read_one(tmp_path / name).log, read_one(FORMATS / name).log
    assert made.responses.length.tolist() == kept.responses.length.tolist()
    assert made.correct.tolist() == kept.correct.tolist()


def test_slimes_fixture_is_what_the_script_makes(tmp_path):
    pytest.importorskip("torch")
    runpy.run_path(str(FORMATS / "make.py"))["make_slime"](tmp_path)
    for path in (tmp_path / "slime").iterdir():
        assert read_pickle(path) == read_pickle(FORMATS / "slime" / path.name)
