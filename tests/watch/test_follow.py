"""`fairlen watch`: files that grow, a watch that is killed, exit codes."""

import json

import numpy as np
import pytest

from fairlen.cli import main
from fairlen.watch.follow import Follower


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """States of watches are kept in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def write_steps(path, steps, gap=1.0, mode="a"):
    """Append steps of 16 prompts with 8 responses each."""
    with path.open(mode) as file:
        for step in steps:
            rng = np.random.default_rng(step)
            for row in range(128):
                correct = bool(rng.random() < 0.5)
                tokens = int(np.exp(4 + rng.normal(0, 0.5) + (0 if correct else np.log(gap)))) + 1
                line = {
                    "step": step,
                    "prompt": f"{step}-{row // 8}",
                    "response": f"text {row} {tokens}",
                    "num_tokens": tokens,
                }
                file.write(json.dumps(line | {"reward": float(correct), "finish_reason": "stop"}) + "\n")


def test_a_step_is_read_when_a_later_one_has_begun(tmp_path):
    path, found = tmp_path / "rollouts.jsonl", []
    follower = Follower(path)
    assert list(follower.read()) == []  # not there yet
    for step in range(4):
        write_steps(path, [step])
        found.append([one.step for one in follower.read()])
    assert found == [[], [0], [1], [2]]
    assert [one.step for one in follower.read(is_over=True)] == [3]
    assert list(follower.read(is_over=True)) == []


def test_a_line_that_is_half_written_is_left_for_later(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    write_steps(path, [0, 1])
    text = path.read_bytes()
    path.write_bytes(text[:-20])
    follower = Follower(path)
    first = list(follower.read())
    path.write_bytes(text)
    rest = list(follower.read(is_over=True))
    assert [(one.step, len(one.lengths)) for one in first + rest] == [(0, 128), (1, 128)]


def test_chunks_smaller_than_a_step_change_nothing(tmp_path, monkeypatch):
    path = tmp_path / "rollouts.jsonl"
    write_steps(path, range(5))
    whole = list(Follower(path).read(is_over=True))
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", 1000)
    parts = list(Follower(path).read(is_over=True))
    assert [one.step for one in parts] == [one.step for one in whole] == [0, 1, 2, 3, 4]
    for one, other in zip(parts, whole, strict=True):
        np.testing.assert_array_equal(one.lengths, other.lengths)
        np.testing.assert_array_equal(one.outcomes, other.outcomes)


def test_tables_of_a_step_each_are_read_once(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(step):
        rng = np.random.default_rng(step)
        rows = {
            "step": [step] * 64,
            "prompt": [f"{step}-{i // 8}" for i in range(64)],
            "completion": [f"{i} a" * (i + 1) for i in range(64)],
        }
        pq.write_table(
            pa.table(rows | {"accuracy": (rng.random(64) < 0.5) * 1.0, "advantage": rng.normal(size=64)}),
            tmp_path / f"completions_{step:05}.parquet",
        )

    follower = Follower(tmp_path)
    for step in (1, 2, 3):
        write(step)
    found = [one.step for one in follower.read()]
    write(4)
    assert sorted(found + [one.step for one in follower.read(is_over=True)]) == [1, 2, 3, 4]


def test_the_command_fails_on_an_effect_and_goes_on_where_it_was(tmp_path, capsys):
    path = tmp_path / "rollouts.jsonl"
    write_steps(path, range(30))
    arguments = ["watch", str(path), "--once", "--fail-on", "effect", "--markdown", str(tmp_path / "table.md")]
    assert main(arguments) == 0
    assert "No alarm" in (tmp_path / "table.md").read_text()
    write_steps(path, range(30, 60), gap=1.6)
    assert main([*arguments, "--out", str(tmp_path / "page.html")]) == 1
    out = capsys.readouterr().out
    assert "30 steps so far" in out and out.count("ALARM effect") == 1
    assert "| effect |" in (tmp_path / "table.md").read_text() and (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--fail-on", "efect"], ("efect", "effect")), ([], ("no such file",)), (["--columns", "a"], ("ROLE=COLUMN",))],
)
def test_what_cannot_be_watched_is_said(tmp_path, arguments, words, capsys):
    assert main(["watch", str(tmp_path / "none.jsonl"), "--once", *arguments]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words)


def test_a_state_of_something_else_is_refused(tmp_path, capsys):
    path = tmp_path / "rollouts.jsonl"
    write_steps(path, [0])
    (tmp_path / "state.json").write_text("{}")
    assert main(["watch", str(path), "--once", "--state", str(tmp_path / "state.json")]) == 2
    assert "state.json" in capsys.readouterr().err


def test_a_folder_brings_no_state_of_its_own(tmp_path, capsys):
    """A stranger's file that says that all is read, and that there were no alarms, changes nothing."""
    folder = tmp_path / "rollouts"
    folder.mkdir()
    write_steps(folder / "rollouts.jsonl", range(30), gap=1.8)
    for name in (".fairlen-watch.json", ".rollouts.jsonl.fairlen-watch.json"):
        (folder / name).write_text(
            json.dumps({"watch": {}, "places": {str(folder / "rollouts.jsonl"): 1 << 40}, "bar": None})
        )
    assert main(["watch", str(folder), "--once", "--fail-on", "effect"]) == 1
    assert "ALARM effect" in capsys.readouterr().out


def test_lines_that_cannot_be_read_yet_wait_for_more(tmp_path, capsys):
    """A first line without a verdict is no rollout; with the next ones the step is whole."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(
        json.dumps({"step": 0, "prompt": "a", "response": "b", "num_tokens": 1, "finish_reason": "stop"}) + "\n"
    )
    follower = Follower(path)
    assert list(follower.read()) == [] and follower.places == {}
    write_steps(path, [0, 1])
    assert [len(one.lengths) for one in follower.read()] == [129]
    path.write_text("no rollouts\n")
    assert main(["watch", str(path), "--once"]) == 1
    assert "no rollouts were read" in capsys.readouterr().err
