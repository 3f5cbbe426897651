"""`fairlen watch`: files that grow, a watch that is killed, exit codes."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlen.cli import main
from fairlen.watch.follow import Follower


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """States of watches are kept in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def write_steps(path, steps, gap=1.0):
    """Append steps of 16 prompts with 8 responses each."""
    with path.open("a") as file:
        for step in steps:
            rng = np.random.default_rng(step)
            for row in range(128):
                correct = bool(rng.random() < 0.5)
                tokens = int(np.exp(4 + rng.normal(0, 0.5) + (0 if correct else np.log(gap)))) + 1
                line = {"step": step, "prompt": f"{step}-{row // 8}", "response": f"{row} {tokens}"}
                line |= {"num_tokens": tokens, "reward": float(correct), "finish_reason": "stop"}
                file.write(json.dumps(line) + "\n")


def numbers(found):
    """The steps that were read, and how many responses each has."""
    return [(step, len(table)) for step, table, *_ in found]


def test_a_step_is_read_when_a_later_one_has_begun(tmp_path, monkeypatch):
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    assert list(follower.read()) == []  # not there yet
    write_steps(path, [0])
    assert list(follower.read()) == []
    write_steps(path, [1])
    text = path.read_bytes()
    path.write_bytes(text[:-20])  # a line that is half written is left for later
    assert numbers(follower.read()) == [(0, 128)]
    path.write_bytes(text)
    assert list(follower.read()) == []  # it may go on, until nothing has come for a while
    monkeypatch.setattr("fairlen.watch.follow.QUIET", 0.0)
    assert numbers(follower.read()) == [(1, 128)] and list(follower.read()) == []


def test_writers_side_by_side_are_one_batch_in_chunks_of_any_size(tmp_path, monkeypatch):
    for rank in (0, 1):
        write_steps(tmp_path / f"rank{rank}.jsonl", range(4))
    whole = list(Follower(tmp_path).read(is_over=True))
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", 1000)
    parts = list(Follower(tmp_path).read(is_over=True))
    assert numbers(parts) == numbers(whole) == [(step, 256) for step in range(4)]
    contents = [[sorted(zip(one.length, one.correct, strict=True)) for _, one, *_ in found] for found in (parts, whole)]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["rollouts.jsonl", ".", "*.jsonl"])
def test_files_of_the_current_folder_are_read_once(tmp_path, monkeypatch, name):
    """Whatever the chunks are, and going on where it was: 4 steps of 128 responses, then one more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", 1000)
    write_steps(path := Path("rollouts.jsonl"), range(4))
    follower = Follower(Path(name))
    assert numbers(follower.read(is_over=True)) == [(step, 128) for step in range(4)]
    assert follower.places == {"rollouts.jsonl": path.stat().st_size}
    write_steps(path, [4])
    assert numbers(follower.read(is_over=True)) == [(4, 128)]


def write_completions(folder, step, drawn=None, size=64, missing=()):
    """Write a step of TRL's completions, to prompts that were drawn for it or for an earlier one."""
    prompts = [f"{drawn or step}-{row // 8}" for row in range(size)]
    rows = [{"step": step, "prompt": prompt, "completion": "a " * row} for row, prompt in enumerate(prompts)]
    rewards = [float("nan") if row in missing else row % 3 % 2 for row in range(size)]
    rows = [row | {"accuracy": float(reward), "advantage": 0.5} for row, reward in zip(rows, rewards, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows), folder / f"completions_{step:05}.parquet")


def test_tables_of_a_step_each_are_read_once(tmp_path):
    follower = Follower(tmp_path)
    for step in (1, 2, 3):
        write_completions(tmp_path, step)
    found = list(follower.read())
    write_completions(tmp_path, 4)
    assert numbers([*found, *follower.read(is_over=True)]) == [(step, 64) for step in (1, 2, 3, 4)]


def test_what_cannot_be_told_is_said(tmp_path):
    """Rows without a step, and those that come after their step was counted, are left out; two folders are no run."""
    write_steps(tmp_path / "a.jsonl", [0, 1])
    follower = Follower(tmp_path / "a.jsonl")
    assert numbers(follower.read(is_over=True)) == [(0, 128), (1, 128)]
    write_steps(tmp_path / "a.jsonl", [1])
    assert list(follower.read()) == [] and "after their step was counted" in follower.notes[-1]

    (tmp_path / "b.jsonl").write_text('{"prompt": "p", "response": "r", "reward": 1}\n')
    follower = Follower(tmp_path / "b.jsonl")
    assert list(follower.read(is_over=True)) == [] and "no column of steps" in follower.notes[-1]

    (tmp_path / "other").mkdir()
    write_steps(tmp_path / "other" / "c.jsonl", [0])
    with pytest.raises(ValueError, match="of 2 kinds"):
        list(Follower(tmp_path).read())


def test_another_run_in_place_of_the_first_is_told(tmp_path, monkeypatch):
    """Longer lines of the same name are no more steps of it; of a table that is replaced its steps were counted."""
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    write_steps(path, range(2))
    assert len(list(follower.read(is_over=True))) == 2
    path.unlink()
    write_steps(path, range(5, 9))
    with pytest.raises(ValueError, match="written anew since the last look"):
        list(Follower(path, **json.loads(json.dumps(follower.state()))).read())
    path.unlink()

    follower = Follower(tmp_path)
    write_completions(tmp_path, 1)
    assert numbers(follower.read(is_over=True)) == [(1, 64)]
    write_completions(tmp_path, 1, drawn=7, size=96)
    assert list(follower.read(is_over=True)) == [] and "after their step was counted" in follower.notes[-1]

    monkeypatch.setattr("fairlen.watch.follow.find_files", lambda paths: [(tmp_path / "gone.jsonl", "")])
    assert list(Follower(tmp_path).read()) == []


def test_a_buffer_that_trl_logs_again_counts_once_whenever_it_is_looked_at(tmp_path):
    """Two logs of a buffer, and of the next one: the steps that repeat the one before bring no response."""
    follower, found = Follower(tmp_path), []
    for step, drawn in ((1, 1), (2, 1), (3, 3), (4, 3)):
        write_completions(tmp_path, step, drawn)
        found += follower.read(is_over=True)
        follower = Follower(tmp_path, **json.loads(json.dumps(follower.state())))
    assert numbers(found) == [(1, 64), (3, 64)]


def test_a_reward_that_is_nan_is_no_verdict_and_what_is_left_out_is_told(tmp_path):
    write_completions(tmp_path, 1, missing=(3, 5))
    ((_, table, *_),) = Follower(tmp_path).read(is_over=True)
    assert np.flatnonzero(~table.active).tolist() == [3, 5]
    write_steps(tmp_path / "a.jsonl", [0])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(
            '{"step": 0, "prompt": "0-0", "response": "x", "num_tokens": 3, "reward": "n/a", "finish_reason": "stop"}\n'
        )
    follower = Follower(tmp_path / "a.jsonl")
    assert numbers(follower.read(is_over=True)) == [(0, 128)]
    assert any("left out, such as" in note and "the reward 'n/a'" in note for note in follower.notes)


def test_a_last_row_without_the_end_of_its_line_is_read_where_it_is_whole(tmp_path):
    """Two files of 8 rows, joined by line ends alone, of which the last is the longest: 1 to 8 tokens, in the mean 4.5."""
    for step in (0, 1):
        rows = [{"step": step, "prompt": f"q{row // 4}", "num_tokens": row + 1, "reward": row % 2} for row in range(8)]
        (tmp_path / f"{step}.jsonl").write_text("\n".join(json.dumps(row | {"response": "a"}) for row in rows))
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('\n{"step": 1, "prompt": "q1", "num_to')
    found = list(Follower(tmp_path).read(is_over=True))
    assert [(step, len(table), float(table.length.mean())) for step, table, *_ in found] == [(0, 8, 4.5), (1, 8, 4.5)]


def test_the_bar_of_a_correct_response_is_half_of_the_range_of_all_rewards_so_far(tmp_path):
    """Half of 0 to .1 is .05; with 1.1 it is over .5, above which .1 for a format is not, whatever the batches after are: one
    without 1.1, an easy one, half of whose own range is 1, and one with a penalty of -9, which the range leaves out."""
    path, found = tmp_path / "rollouts.jsonl", []
    follower = Follower(path)
    for step, rewards in enumerate(([0, 0.1], [0.1, 1.1, 0], [0, 0.1], [1, 0.9, 1.1], [-9, 0, 0], [0, 1])):
        row = {"step": step, "prompt": f"q{step}", "response": "a", "num_tokens": 3, "finish_reason": "stop"}
        with path.open("a") as file:
            file.writelines(json.dumps(row | {"reward": reward}) + "\n" for reward in rewards)
        found += [table.correct.tolist() for _, table, *_ in follower.read(is_over=True)]
        follower = Follower(path, **json.loads(json.dumps(follower.state())))
    assert found == [[0, 1], [0, 1, 0], [0, 0], [1, 1, 1], [0, 0, 0], [0, 1]]
    at_once = Follower(path)
    list(at_once.read(is_over=True))
    assert at_once.rewards == follower.rewards and sum(follower.rewards.values()) == 15


def test_lengths_in_another_unit_than_before_end_the_watch(tmp_path):
    """One row of the second look has no number of tokens, so that all of it would be measured in words."""
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    write_steps(path, [0, 1])
    assert len(list(follower.read(is_over=True))) == 2
    write_steps(path, [2])
    with path.open("a") as file:
        file.write('{"step": 2, "prompt": "2-0", "response": "a b", "reward": 0.0, "finish_reason": "stop"}\n')
    with pytest.raises(ValueError, match="lengths in tokens, then in words: give --unit or --tokenizer"):
        list(follower.read(is_over=True))


def test_ages_are_read_and_the_older_long_ones_told(tmp_path, capsys):
    """From step 3 on, the longest eighth is 8 updates old, the others 0: of the longest quarter 4 on average."""
    lines = []
    for step, row in product(range(8), range(64)):
        line = {"step": step, "prompt": f"{step}-{row // 8}", "num_tokens": 10 + row, "reward": row * 7 % 5 % 2}
        lines.append(json.dumps(line | {"finish_reason": "stop", "staleness": 8 * (step >= 3 and row >= 56)}))
    (tmp_path / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    assert main(["watch", str(tmp_path), "--once", "--fail-on", "staleness"]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if "ALARM staleness" in line]
    assert len(told) == 1 and "1.3 updates older" in told[0]  # 4 in one of three steps


def test_the_command_fails_on_an_effect_and_goes_on_where_it_was(tmp_path, capsys):
    path, table = tmp_path / "rollouts.jsonl", tmp_path / "table.md"
    write_steps(path, range(30))
    arguments = ["watch", str(path), "--once", "--fail-on", "effect", "--markdown", str(table)]
    assert main(arguments) == 0 and "No alarm" in table.read_text()
    write_steps(path, range(30, 60), gap=1.6)
    assert main([*arguments, "--out", str(tmp_path / "page.html")]) == 1
    assert main(arguments) == 1  # the alarm is kept, and is not told again
    out = capsys.readouterr().out
    assert "going on after 30 steps" in out and out.count("ALARM effect") == 1
    assert "| effect |" in table.read_text() and "ALARM" not in table.read_text()
    assert (tmp_path / "page.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "efect"], ("efect", "effect")), ([], ("no such file",)), (["--columns", "a"], ("ROLE=COLUMN",)),
        (["--max-response-length", "-1"], ("--max-response-length -1",)),
    ],
)  # fmt: skip
def test_what_cannot_be_watched_is_said(tmp_path, arguments, words, capsys):
    assert main(["watch", str(tmp_path / "none.jsonl"), "--once", *arguments]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words) and "not its state" not in told


def test_only_a_state_of_ours_is_gone_on_from(tmp_path, capsys):
    """Not from another file, and not from one that a stranger's folder brings, which says that all is read."""
    folder, state = tmp_path / "rollouts", tmp_path / "state.json"
    folder.mkdir()
    write_steps(folder / "rollouts.jsonl", range(30), gap=1.8)
    brought = {"watch": {}, "follower": {"places": {str(folder / "rollouts.jsonl"): 1 << 40}, "last": 99, "bar": None}}
    (folder / ".fairlen-watch.json").write_text(json.dumps(brought))
    assert main(["watch", str(folder), "--once", "--fail-on", "effect"]) == 1
    assert "ALARM effect" in capsys.readouterr().out
    state.write_text("{}")
    assert main(["watch", str(folder), "--once", "--state", str(state)]) == 2
    assert "state.json" in capsys.readouterr().err
    state.unlink()
    assert main(["watch", str(folder), "--once", "--state", str(state)]) == 0
    assert main(["watch", str(tmp_path), "--once", "--state", str(state)]) == 2
    assert f"it is of {folder}" in capsys.readouterr().err, "and not of the folder above"


def test_lines_that_cannot_be_read_yet_wait_for_more(tmp_path, capsys):
    """A first line without a verdict is no rollout; with the next ones the step is whole."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"step": 0, "prompt": "a", "response": "b", "num_tokens": 1, "finish_reason": "stop"}\n')
    follower = Follower(path)
    assert list(follower.read()) == [] and follower.places == {}
    write_steps(path, [0, 1])
    assert numbers(follower.read()) == [(0, 129)]
    path.write_text("no rollouts\n")
    assert main(["watch", str(path), "--once"]) == 1
    assert "no rollouts were read" in capsys.readouterr().err
