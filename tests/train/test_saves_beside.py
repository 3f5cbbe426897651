"""Checkpoints that are written beside what follows, as on a device: as whole, as safe and the same as those that are waited for.

The runs are on a CPU, whose weights and moments change in place while the writer waits.
"""

import json
import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from forked_runs import Whole, differences, digest, essence, settings, untimed, wait_until

from fairlen.train.run.checkpoint import Checkpoint, copy_to_host, list_checkpoints, verifies


def contents(folder: Path) -> dict[str, object]:
    """What each checkpoint of a run holds, but for times, by name and file."""
    found: dict[str, object] = {}
    for path in list_checkpoints(folder / "checkpoints"):
        assert verifies(path)
        found |= {f"{path.name}/{file.name}": digest(file) for file in path.glob("*.safetensors")}
        state = json.loads((path / "state.json").read_text())
        for part in (state, state.get("started", {})):
            for name in ("seconds", "facts", "sizes"):
                part.pop(name, None)
        for file in path.glob("*.parquet"):
            found[f"{path.name}/{file.name}"] = repr(pq.read_table(file).drop_columns(untimed(file)).to_pydict())
        found[f"{path.name}/state.json"] = state
    return found


def run(whole: Whole, folder: Path, how: str, **changes) -> int:
    return whole.forks.run(folder, f"beside:{how}", **whole.changes("fspo") | changes)


def settings_of(whole: Whole, folder: Path, **changes) -> dict:
    return settings(folder, **whole.changes("fspo") | changes)


def written(folder: Path) -> str:
    log = folder.with_suffix(".log")
    return log.read_text() if log.exists() else ""


def test_a_copy_is_of_its_moment():
    weight, state = torch.zeros(2), {"started": {"updates": {"loss": [1.0]}}}
    copied = copy_to_host(Checkpoint({"model": {"weight": weight}}, state))
    weight += 1
    state["started"]["updates"]["loss"].append(2.0)
    assert copied.tensors["model"]["weight"].tolist() == [0, 0]
    assert copied.state == {"started": {"updates": {"loss": [1.0]}}}


def test_they_hold_what_those_hold_that_are_waited_for(whole, tmp_path):
    """Eight checkpoints, each written for .3 s while updates of .1 s go on."""
    assert run(whole, tmp_path / "run", "late") == 0
    expected = contents(whole.make("fspo"))
    assert len(list_checkpoints(tmp_path / "run/checkpoints")) == 8
    assert contents(tmp_path / "run") == expected
    assert differences(essence(whole.make("fspo")), essence(tmp_path / "run")) == []


@pytest.mark.nightly
def test_without_copies_they_would_not(whole, tmp_path):
    """The negative control: updates change what is being written."""
    assert run(whole, tmp_path / "run", "shared") == 0
    expected = contents(whole.make("fspo"))
    found = contents(tmp_path / "run")
    assert any("model" in name for name in expected if found[name] != expected[name])


def test_training_goes_on_meanwhile_and_no_two_are_written_at_once(whole, tmp_path):
    """The second checkpoint is never done: the update after it is made, the third checkpoint waits; killed, nothing is lost."""
    folder = tmp_path / "run"
    pid = whole.forks.start(
        folder.with_suffix(".log"), patch="slow:down+beside:stuck", config=settings_of(whole, folder)
    )
    assert wait_until(lambda: written(folder).count("doing: learn") >= 3, 60), written(folder)
    time.sleep(1.5)
    os.kill(pid, signal.SIGKILL)
    assert whole.forks.wait() == -signal.SIGKILL
    log = written(folder)
    assert log.count("doing: learn") == 3 and log.count("writing:") == 2
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["batch-000000-update-000001"]
    assert run(whole, folder, "late") == 0
    assert differences(essence(whole.make("fspo")), essence(folder)) == []


def test_a_signal_waits_for_what_is_being_written(whole, tmp_path):
    """Three seconds of writing, and a signal in the middle: that checkpoint, then the one of the interruption, are whole."""
    folder = tmp_path / "run"
    pid = whole.forks.start(
        folder.with_suffix(".log"), patch="beside:slow", config=settings_of(whole, folder, save_every_updates=3)
    )
    assert wait_until(lambda: "writing: 1" in written(folder), 60), written(folder)
    os.kill(pid, signal.SIGTERM)
    assert whole.forks.wait() == 128 + signal.SIGTERM
    names = [path.name for path in list_checkpoints(folder / "checkpoints")]
    assert names[0] == "batch-000000-update-000003" and len(names) == 2
    assert run(whole, folder, "late", save_every_updates=1) == 0
    assert differences(essence(whole.make("fspo")), essence(folder)) == []


def test_what_nobody_expects_of_the_writer_ends_the_run(whole, tmp_path):
    assert run(whole, tmp_path / "run", "broken") == 1
    log = written(tmp_path / "run")
    assert log.count("writing:") == 1 and "RuntimeError: the writer broke" in log
