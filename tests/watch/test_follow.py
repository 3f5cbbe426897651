"""`fairlen watch`: files that grow, a watch that is killed, exit codes."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlen.cli import main
from fairlen.watch.command import FileWatch, WatchConfig
from fairlen.watch.follow import Follower, LateRows, NewRun, StepRows
from fairlen.watch.growing import Restart, find_restart


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


def numbers(events):
    """Return number and size of each step; "new run" if another run begins; of late rows their number."""
    kinds = {
        StepRows: lambda event: (event.number, len(event.table)),
        LateRows: lambda event: event.number,
        NewRun: lambda event: "new run",
    }
    return [kinds[type(event)](event) for event in events]


def restart(follower):
    """Return a follower that continues from the state of another one, as after a kill."""
    return Follower(follower.path, follower.options, **json.loads(json.dumps(follower.state())))


def test_a_step_is_read_when_a_later_one_has_begun(tmp_path):
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    assert list(follower.read()) == []  # there is no file yet
    write_steps(path, [0])
    assert list(follower.read()) == []
    write_steps(path, [1])
    text = path.read_bytes()
    path.write_bytes(text[:-20])  # the last line is half written
    assert numbers(follower.read()) == [(0, 128)]
    path.write_bytes(text)
    assert list(follower.read()) == []  # step 1 may still grow, however long nothing comes
    assert numbers(follower.read(is_over=True)) == [(1, 128)]
    assert list(follower.read(is_over=True)) == []


def test_long_responses_that_end_late_belong_to_their_step(tmp_path):
    """40 of 64 responses come first, the other 24 later, with no look in between that ends the step."""
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    rows = [
        json.dumps(
            {"step": step, "prompt": f"{step}-{row // 8}", "response": "a", "num_tokens": 5 + row, "reward": row % 2}
        )
        for step in (1, 2)
        for row in range(64)
    ]
    path.write_text("\n".join(rows[:40]) + "\n")
    assert list(follower.read()) == []
    path.write_text("\n".join(rows[:64]) + "\n")
    assert list(follower.read()) == []
    path.write_text("\n".join(rows) + "\n")
    assert numbers(follower.read()) == [(1, 64)]
    assert follower.skipped == {}


def test_writers_side_by_side_are_one_batch_in_chunks_of_any_size(tmp_path, monkeypatch):
    for rank in (0, 1):
        write_steps(tmp_path / f"rank{rank}.jsonl", range(4))
    whole = list(Follower(tmp_path).read(is_over=True))
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", 1000)
    parts = list(Follower(tmp_path).read(is_over=True))
    assert numbers(parts) == numbers(whole) == [(step, 256) for step in range(4)]
    contents = [
        [sorted(zip(event.table.length, event.table.correct, strict=True)) for event in events]
        for events in (parts, whole)
    ]
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", ["rollouts.jsonl", ".", "*.jsonl"])
def test_files_of_the_current_folder_are_read_once(tmp_path, monkeypatch, name):
    """Whatever the chunks are, and going on where it was: 4 steps of 128 responses, then one more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", 1000)
    write_steps(path := Path("rollouts.jsonl"), range(4))
    follower = Follower(Path(name))
    assert numbers(follower.read(is_over=True)) == [(step, 128) for step in range(4)]
    assert follower.files["rollouts.jsonl"].place == path.stat().st_size
    write_steps(path, [4])
    assert numbers(follower.read(is_over=True)) == [(4, 128)]


def write_completions(folder, step, drawn=None, size=64, missing=()):
    """Write a step of TRL's completions, to prompts that were drawn for it or for an earlier one."""
    prompts = [f"{drawn or step}-{row // 8}" for row in range(size)]
    rows = [{"step": step, "prompt": prompt, "completion": "a " * (row + 1)} for row, prompt in enumerate(prompts)]
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


def test_rollouts_without_a_step_are_not_counted_and_two_folders_are_not_one_run(tmp_path):
    (tmp_path / "b.jsonl").write_text('{"prompt": "p", "response": "r", "reward": 1}\n')
    follower = Follower(tmp_path / "b.jsonl")
    assert list(follower.read(is_over=True)) == []
    assert "no column of steps" in follower.notes[-1]
    assert follower.skipped == {"rollouts without a step": 1}

    (tmp_path / "other").mkdir()
    write_steps(tmp_path / "a.jsonl", [0])
    write_steps(tmp_path / "other" / "c.jsonl", [0])
    with pytest.raises(ValueError, match="of 2 kinds"):
        list(Follower(tmp_path).read())


def test_late_rows_are_counted_once(tmp_path):
    """Step 1 was counted with 128 rows. 20 further rows of it come with step 2, and 10 more with step 3: 30 rows late."""
    path, other = tmp_path / "rollouts.jsonl", tmp_path / "step1.jsonl"
    follower = Follower(path)
    write_steps(path, [0, 1, 2])
    assert numbers(follower.read()) == [(0, 128), (1, 128)]
    write_steps(other, [1])
    late = other.read_text().splitlines(keepends=True)
    with path.open("a") as file:
        file.writelines(late[:20])
    assert numbers(follower.read()) == [], "these rows may be the start of another run"
    follower = restart(follower)
    write_steps(path, [3])
    with path.open("a") as file:
        file.writelines(late[20:30])
    write_steps(path, [4])
    assert numbers(follower.read()) == [(2, 128), (3, 128), 20 + 10]
    assert numbers(follower.read(is_over=True)) == [(4, 128)]
    assert follower.skipped == {"rows that came after their step was counted": 30}


def write_run(path, seed, steps, mode="a", rows=64):
    """Append the steps of a run; another seed is another run with the same numbers of steps."""
    with path.open(mode) as file:
        for step in steps:
            rng = np.random.default_rng([seed, step])
            for row in range(rows):
                line = {"step": step, "prompt": f"{seed}-{step}-{row // 8}", "response": "a"}
                line |= {"num_tokens": int(rng.integers(5, 500)), "reward": float(rng.random() < 0.5)}
                file.write(json.dumps(line) + "\n")


@pytest.mark.parametrize("chunk", [2000, 8 << 20])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_that_is_appended_to_another_is_a_new_run(tmp_path, monkeypatch, chunk, is_killed):
    """Whether both runs are there at the first look or not, the steps of the two are never mixed."""
    monkeypatch.setattr("fairlen.watch.follow.CHUNK", chunk)
    path = tmp_path / "rollouts.jsonl"
    write_run(path, 1, range(1, 6))
    write_run(path, 2, range(1, 4))
    first, second = [(step, 64) for step in range(1, 6)], [(step, 64) for step in range(1, 4)]
    assert numbers(Follower(path).read(is_over=True)) == [*first, "new run", *second]

    path.unlink()
    write_run(path, 1, range(1, 6))
    follower = Follower(path)
    events = list(follower.read())
    if is_killed:
        follower = restart(follower)
    write_run(path, 2, range(1, 4))
    events += follower.read(is_over=True)
    assert numbers(events) == [*first, "new run", *second]
    assert follower.skipped == {}
    places, spans = follower.list_run()
    assert places == [(path, str(path))]
    lines = path.read_bytes()[spans[path][0] :].splitlines()
    assert len(lines) == 3 * 64, "the page is about the second run only"


@pytest.mark.parametrize("number", [1, 3, 8])
def test_a_file_that_is_written_again_is_a_new_run(tmp_path, number):
    """The second run is shorter than the first, as long, or longer."""
    path, follower = tmp_path / "rollouts.jsonl", Follower(tmp_path / "rollouts.jsonl")
    write_run(path, 1, range(1, 6))
    assert numbers(follower.read()) == [(step, 64) for step in range(1, 5)]
    write_run(path, 2, range(1, number + 1), mode="w")
    follower = restart(follower)
    assert numbers(follower.read(is_over=True)) == ["new run", *((step, 64) for step in range(1, number + 1))]


def test_tables_that_are_written_again_are_a_new_run_and_those_of_the_first_are_not_counted(tmp_path):
    """The first run has six tables; the second has replaced three of them so far, then the fourth."""
    follower = Follower(tmp_path)
    for step in range(1, 7):
        write_completions(tmp_path, step)
    assert numbers(follower.read()) == [(step, 64) for step in range(1, 6)]
    follower = restart(follower)
    for step in range(1, 4):
        write_completions(tmp_path, step, drawn=100 + step, size=96)
    assert numbers(follower.read()) == [(6, 64), "new run", (1, 96), (2, 96)]
    follower = restart(follower)
    assert list(follower.read()) == []
    write_completions(tmp_path, 4, drawn=104, size=96)
    assert numbers(follower.read(is_over=True)) == [(3, 96), (4, 96)]
    assert sorted(file.name for file, _ in follower.list_run()[0]) == [
        f"completions_{n:05}.parquet" for n in range(1, 5)
    ]


def test_tables_that_are_older_than_those_of_earlier_steps_are_skipped_and_said(tmp_path):
    """Without a state nothing is known of the first run but its time: its steps 4 to 6 are an hour older."""
    for step in range(1, 7):
        write_completions(tmp_path, step)
        if step > 3:
            path = tmp_path / f"completions_{step:05}.parquet"
            before = path.stat().st_mtime - 3600
            os.utime(path, (before, before))
    follower = Follower(tmp_path)
    assert numbers(follower.read(is_over=True)) == [(1, 64), (2, 64), (3, 64)]
    (reason,) = follower.skipped
    assert "3 files" in reason and "earlier run" in reason


def test_a_table_that_grows_by_steps_is_one_run(tmp_path):
    """A program writes all of its rows again with each step."""
    path, follower, rows, events = tmp_path / "rollouts.json", Follower(tmp_path / "rollouts.json"), [], []
    for step in range(1, 4):
        rows += [
            {"step": step, "prompt": f"{step}-{row // 4}", "response": "a", "num_tokens": row + step, "reward": row % 2}
            for row in range(16)
        ]
        path.write_text(json.dumps(rows))
        events += follower.read()
        follower = restart(follower)
    events += follower.read(is_over=True)
    assert numbers(events) == [(1, 16), (2, 16), (3, 16)]
    assert follower.skipped == {}


def test_a_file_that_disappears_is_looked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr("fairlen.watch.follow.find_files", lambda paths: [(tmp_path / "gone.jsonl", "")])
    assert list(Follower(tmp_path).read()) == []


@pytest.mark.parametrize("steps", [range(1, 4), range(50, 53)])
@pytest.mark.parametrize("late", [1, 8, 24, 40])
def test_late_responses_are_not_taken_for_a_new_run(steps, late):
    """Of a step of 64 responses some come after the next step has begun; then the next steps go on."""
    first, second, third = steps
    parts = [(first, 64), (second, 64 - late), (third, 5), (second, late), (third, 59)]
    order = np.concatenate([np.full(rows, step) for step, rows in parts])
    assert find_restart(order, {}) is None
    undecided = find_restart(order[:-59], {})
    assert undecided == Restart(64 + 64 - late + 5, is_new_run=False)


@pytest.mark.parametrize("rows", [16, 32, 64, 200])
def test_whole_steps_that_come_again_are_a_new_run(rows):
    """After five steps of 64 responses, a run whose steps have a quarter, half, as many or more responses."""
    order = np.concatenate([np.full(rows, step) for step in (1, 2)])
    assert find_restart(order, dict.fromkeys(range(1, 6), 64)) == Restart(0, is_new_run=True)


def test_a_buffer_that_trl_logs_again_counts_once_whenever_it_is_looked_at(tmp_path):
    """Two logs of a buffer, and of the next one: the steps that repeat the one before bring no response."""
    follower, found = Follower(tmp_path), []
    for step, drawn in ((1, 1), (2, 1), (3, 3), (4, 3)):
        write_completions(tmp_path, step, drawn)
        found += follower.read(is_over=True)
        follower = restart(follower)
    assert numbers(found) == [(1, 64), (3, 64)]


def test_a_reward_that_is_nan_is_no_verdict_and_what_is_left_out_is_told(tmp_path):
    write_completions(tmp_path, 1, missing=(3, 5))
    (step,) = Follower(tmp_path).read(is_over=True)
    assert np.flatnonzero(~step.table.active).tolist() == [3, 5]
    write_steps(tmp_path / "a.jsonl", [0])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(
            '{"step": 0, "prompt": "0-0", "response": "x", "num_tokens": 3, "reward": "n/a", "finish_reason": "stop"}\n'
        )
    follower = Follower(tmp_path / "a.jsonl")
    assert numbers(follower.read(is_over=True)) == [(0, 128)]
    assert any("are skipped, such as" in note and "the reward 'n/a'" in note for note in follower.notes)
    assert follower.skipped == {"rows that could not be read": 1}


def test_a_last_row_without_the_end_of_its_line_is_read_where_it_is_whole(tmp_path):
    """Two files of 8 rows, joined by line ends alone, of which the last is the longest: 1 to 8 tokens, in the mean 4.5."""
    for step in (0, 1):
        rows = [{"step": step, "prompt": f"q{row // 4}", "num_tokens": row + 1, "reward": row % 2} for row in range(8)]
        (tmp_path / f"{step}.jsonl").write_text("\n".join(json.dumps(row | {"response": "a"}) for row in rows))
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('\n{"step": 1, "prompt": "q1", "num_to')
    found = list(Follower(tmp_path).read(is_over=True))
    assert numbers(found) == [(0, 8), (1, 8)]
    assert [float(event.table.length.mean()) for event in found] == [4.5, 4.5]


def test_the_bar_of_a_correct_response_is_half_of_the_range_of_all_rewards_so_far(tmp_path):
    """Half of 0 to .1 is .05; with 1.1 it is over .5, above which .1 for a format is not, whatever the batches after are: one
    without 1.1, an easy one, half of whose own range is 1, and one with a penalty of -9, which the range leaves out."""
    path, found = tmp_path / "rollouts.jsonl", []
    follower = Follower(path)
    for step, rewards in enumerate(([0, 0.1], [0.1, 1.1, 0], [0, 0.1], [1, 0.9, 1.1], [-9, 0, 0], [0, 1])):
        row = {"step": step, "prompt": f"q{step}", "response": "a", "num_tokens": 3, "finish_reason": "stop"}
        with path.open("a") as file:
            file.writelines(json.dumps(row | {"reward": reward}) + "\n" for reward in rewards)
        found += [event.table.correct.tolist() for event in follower.read(is_over=True)]
        follower = restart(follower)
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
    assert len(told) == 1 and "1.0 updates older" in told[0]  # 4 in one of four steps: those have 32 prompts


def test_the_command_fails_on_an_effect_and_continues_where_it_was(tmp_path, capsys):
    path, table = tmp_path / "rollouts.jsonl", tmp_path / "table.md"
    write_steps(path, range(30))
    arguments = ["watch", str(path), "--once", "--state", str(tmp_path / "state.json")]
    arguments += ["--fail-on", "effect", "--markdown", str(table)]
    assert main(arguments) == 0 and "No alarm" in table.read_text()
    write_steps(path, range(30, 60), gap=1.6)
    assert main([*arguments, "--out", str(tmp_path / "page.html")]) == 1
    assert main(arguments) == 1, "the state has the alarm"
    out = capsys.readouterr().out
    assert "continuing after 29 steps" in out, "step 29 was open"
    assert out.count("ALARM effect") == 2, "each call shows it"
    assert "| effect |" in table.read_text() and "ALARM" not in table.read_text()
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_many_late_responses_raise_an_alarm(tmp_path, capsys):
    """Of each step 98 of 128 responses come in time, and 30 after the next step has begun: 23% are late."""
    path = tmp_path / "rollouts.jsonl"
    watched, late = FileWatch(WatchConfig(str(path), fail_on="verdicts")), []
    for step in range(1, 13):
        write_run(tmp_path / "step.jsonl", 1, [step], mode="w", rows=128)
        lines = (tmp_path / "step.jsonl").read_text().splitlines(keepends=True)
        for part in (lines[:98], late):
            with path.open("a") as file:
                file.writelines(part)
            watched.look()
        late = lines[98:]
    assert watched.watch.num_late == 10 * 30, "those of step 11 are in question until step 13"
    assert watched.fails(["verdicts"])
    assert "ALARM verdicts" in capsys.readouterr().out


def test_no_effect_is_tested_while_it_is_unknown_which_responses_are_one_policys(tmp_path, capsys):
    """A column varies within prompts, with length and outcome: two policies, or a consequence? Named, it is either."""
    path, rng = tmp_path / "rollouts.jsonl", np.random.default_rng(5)
    with path.open("w") as file:
        for step in range(1, 31):
            for row in range(128):
                second = bool(rng.random() < 0.5)
                line = {"step": step, "prompt": f"{step}-{row // 8}", "response": "a", "blip": "xy"[second]}
                line |= {"num_tokens": int((150 if second else 50) * np.exp(rng.normal(0, 0.3)))}
                line |= {"reward": float(rng.random() < (0.8 if second else 0.3)), "finish_reason": "stop"}
                file.write(json.dumps(line) + "\n")
    assert main(["watch", str(path), "--once", "--fail-on", "effect"]) == 1
    printed = capsys.readouterr()
    assert "ALARM effect" not in printed.out
    assert "blip" in printed.err and "--group-by" in printed.err
    assert main(["watch", str(path), "--once", "--fail-on", "effect", "--group-by", "blip"]) == 0
    assert main(["watch", str(path), "--once", "--fail-on", "effect", "--ignore-columns", "blip"]) == 1
    assert "ALARM effect" in capsys.readouterr().out


def test_no_effect_is_tested_while_it_is_unknown_who_wrote_a_part_of_the_responses(tmp_path, capsys):
    """Incorrect responses hold 200 words that a tool returned, correct ones 40; what the policy wrote has one length."""
    path, rng = tmp_path / "rollouts.jsonl", np.random.default_rng(5)
    with path.open("w") as file:
        for step, row in product(range(1, 21), range(128)):
            correct = bool(rng.random() < 0.5)
            reading = "lorem " * (40 if correct else 200)
            text = f"I look. <tool_output>{reading}</tool_output> " + "so " * int(rng.integers(20, 60))
            line = {"step": step, "prompt": f"{step}-{row // 8}", "response": text, "reward": float(correct)}
            file.write(json.dumps(line) + "\n")
    assert main(["watch", str(path), "--once", "--fail-on", "effect"]) == 1
    printed = capsys.readouterr()
    assert "ALARM effect" not in printed.out
    assert "--means tool_output=read" in printed.err
    assert main(["watch", str(path), "--once", "--fail-on", "effect", "--means", "tool_output=read"]) == 0


def test_columns_that_are_not_understood_are_said_at_once(tmp_path):
    rows = [{"aufgabe": f"a{row // 4}", "antwort": "b " * row, "mal": row} for row in range(32)]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    follower = Follower(tmp_path)
    assert list(follower.read()) == []
    assert any("rollouts.jsonl" in note for note in follower.notes)


def test_once_keeps_nothing(tmp_path, capsys):
    """A second call reads the same files again, and shows the same alarm."""
    write_steps(tmp_path / "rollouts.jsonl", range(30), gap=1.8)
    for _ in range(2):
        assert main(["watch", str(tmp_path / "rollouts.jsonl"), "--once", "--fail-on", "effect"]) == 1
        assert capsys.readouterr().out.count("ALARM effect") == 1
    assert not list((tmp_path / "state").rglob("*.json"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("gaps", [(1.8, 1.0), (1.0, 1.8)])
def test_a_folder_of_two_runs_answers_for_the_run_that_is_in_it(tmp_path, kind, gaps, capsys):
    """The effect is in the first run or in the second; each run is watched by the same command with the same state."""
    folder, state = tmp_path / "out", tmp_path / "state.json"
    folder.mkdir()
    for number, gap in enumerate(gaps):
        for step in range(1, 31):
            write_rollouts_of_step(folder, kind, [number, step], step, gap, is_first=step == 1)
        code = main(["watch", str(folder), "--once", "--state", str(state), "--fail-on", "effect"])
        assert code == (gap > 1)
    assert "another run begins" in capsys.readouterr().out


def write_rollouts_of_step(folder, kind, seed, step, gap, is_first):
    """Write a step as TRL does, a Parquet file for each, or into one file of lines that the run's first step replaces."""
    rng, rows = np.random.default_rng(seed), []
    for row in range(128):
        correct = bool(rng.random() < 0.5)
        tokens = int(np.exp(4 + rng.normal(0, 0.5) + (0 if correct else np.log(gap)))) + 1
        line = {"step": step, "prompt": f"{step}-{row // 8}", "response": "a " * 3, "num_tokens": tokens}
        rows.append(line | {"reward": float(correct), "finish_reason": "stop"})
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / f"completions_{step:05}.parquet")
        return
    with (folder / "rollouts.jsonl").open("w" if is_first else "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def test_a_damaged_file_is_not_an_all_clear(tmp_path, capsys):
    """A gzip file that ends too early: what it holds is counted, and the exit code says that something is missing."""
    for step in range(3):
        write_steps(tmp_path / f"{step}.jsonl", [step])
    packed = gzip.compress((tmp_path / "2.jsonl").read_bytes())
    (tmp_path / "2.jsonl").unlink()
    (tmp_path / "2.jsonl.gz").write_bytes(packed)
    assert main(["watch", str(tmp_path), "--once"]) == 0
    (tmp_path / "2.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    assert main(["watch", str(tmp_path), "--once"]) == 1
    assert "2.jsonl.gz" in capsys.readouterr().err


def test_a_sparse_file_and_a_log_without_rollouts_take_little_memory(tmp_path):
    """50 GB of zeros beside the rollouts, and a log of 64 MB that grows: each is looked at once, and only its start again."""
    write_steps(tmp_path / "rollouts.jsonl", [0, 1])
    with (tmp_path / "sparse.jsonl").open("wb") as file:
        file.truncate(50 * 10**9)
    line = json.dumps({"time": 1.5, "message": "x" * 1000}) + "\n"
    (tmp_path / "server.jsonl").write_text(line * 64_000)
    follower, events = Follower(tmp_path), []
    tracemalloc.start()
    for step in (2, 3, 4):
        events += follower.read()
        with (tmp_path / "server.jsonl").open("a") as file:
            file.write(line)
        write_steps(tmp_path / "rollouts.jsonl", [step])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers(events) == [(0, 128), (1, 128), (2, 128)]
    assert peak < 64e6


def test_a_line_without_end_after_rollouts_stops_only_its_file(tmp_path):
    write_steps(tmp_path / "rollouts.jsonl", [0, 1, 2])
    with (tmp_path / "rollouts.jsonl").open("ab") as file:
        file.truncate(10**10)
    follower = Follower(tmp_path)
    assert numbers(follower.read(is_over=True)) == [(0, 128), (1, 128), (2, 128)]
    (reason,) = follower.skipped
    assert "a line of more than 64 MiB" in reason


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_the_watch_with_its_page(tmp_path, number):
    write_steps(tmp_path / "rollouts.jsonl", range(3))
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "fairlen", "watch", str(tmp_path / "rollouts.jsonl"), "--out", str(page)]
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    state = tmp_path / "state"
    while not list(state.rglob("*.json")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    printed = process.communicate(timeout=120)[0]
    assert process.returncode == 0
    assert "the same command continues" in printed
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail-on", "efect"], ("efect", "effect")), ([], ("no such file",)), (["--columns", "a"], ("ROLE=COLUMN",)),
        (["--max-response-length", "-1"], ("--max-response-length -1",)),
    ],
)  # fmt: skip
def test_settings_that_are_wrong_are_named(tmp_path, arguments, words, capsys):
    assert main(["watch", str(tmp_path / "none.jsonl"), "--once", *arguments]) == 2
    told = capsys.readouterr().err
    assert all(word in told for word in words) and "not its state" not in told


@pytest.mark.parametrize("options", [[], ["--once"]])
@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("", "empty"),
        ("rolouts", "rollouts"),
        ("none/*.jsonl", "no such file"),
        ("pipe", "pipe"),
        ("/dev/zero", "device"),
    ],
)
def test_a_path_at_which_nothing_can_appear_is_refused(tmp_path, monkeypatch, capsys, options, path, word):
    (tmp_path / "rollouts").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    assert main(["watch", path, *options]) == 2
    assert word in capsys.readouterr().err or (options and path == "rolouts")


def test_without_a_home_folder_a_state_must_be_named(tmp_path, monkeypatch, capsys):
    write_steps(tmp_path / "rollouts.jsonl", [0, 1])
    monkeypatch.delenv("XDG_STATE_HOME")

    def find_no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", find_no_home)
    assert main(["watch", str(tmp_path / "rollouts.jsonl")]) == 2
    assert "--state" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "rollouts.jsonl"), "--once"]) == 0


def test_a_state_of_another_path_is_refused(tmp_path, capsys):
    """A folder cannot bring a state of its own, and a state names the path that it belongs to."""
    folder, state = tmp_path / "rollouts", tmp_path / "state.json"
    folder.mkdir()
    write_steps(folder / "rollouts.jsonl", range(30), gap=1.8)
    (folder / ".fairlen-watch.json").write_text('{"watch": {}, "follower": {"last": 99}}')
    assert main(["watch", str(folder), "--once", "--fail-on", "effect"]) == 1
    assert "ALARM effect" in capsys.readouterr().out
    state.write_text("{}")
    assert main(["watch", str(folder), "--once", "--state", str(state)]) == 2
    assert "state.json" in capsys.readouterr().err
    state.unlink()
    assert main(["watch", str(folder), "--once", "--state", str(state)]) == 0
    assert main(["watch", str(tmp_path), "--once", "--state", str(state)]) == 2
    assert f"it belongs to {folder}" in capsys.readouterr().err


def test_lines_that_cannot_be_read_yet_wait_for_more(tmp_path, capsys):
    """A first line without a verdict is no rollout; with the next ones the step is whole."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"step": 0, "prompt": "a", "response": "b", "num_tokens": 1, "finish_reason": "stop"}\n')
    follower = Follower(path)
    assert list(follower.read()) == [] and follower.files == {}
    write_steps(path, [0, 1])
    assert numbers(follower.read()) == [(0, 129)]
    path.write_text("no rollouts\n")
    assert main(["watch", str(path), "--once"]) == 1
    assert "no rollouts were read" in capsys.readouterr().err
