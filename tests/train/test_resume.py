"""A run that was stopped anywhere goes on as if it had not been: the same weights, metrics, evaluations and records."""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from forked_runs import METHODS, NUM_UPDATES, Forks, alive, differences, essence, settings, wait_until

from fairlen.train import start
from fairlen.train import state as run_state
from fairlen.train.run.checkpoint import list_checkpoints, load_newest
from fairlen.train.run.config import TrainConfig, find_changes, hash_configuration


def test_a_run_goes_on_within_a_rollout_batch(whole, tmp_path):
    """After 7 of 8 updates, the third of four in its rollout batch: the second epoch has begun, and FSPO's band has moved."""
    folder = whole.stopped_at("fspo", 6, tmp_path / "run")
    (newest,) = list_checkpoints(folder / "checkpoints")[-1:]
    assert newest.name == "batch-000001-update-000007-5"  # 2 and the 3 updates of the started batch
    state = json.loads((newest / "state.json").read_text())
    assert state["started"]["done"] == 3 and state["method_state"] != {} and state["next_problem"] == 6
    assert whole.differences("fspo", 6, tmp_path / "again") == []


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", range(NUM_UPDATES - 1))
def test_it_goes_on_from_every_update(whole, tmp_path, name, place):
    assert whole.differences(name, place, tmp_path / "run") == []


FORGOTTEN = {
    "schedule": 1, "python stream": 3, "streams": 3, "position": 3, "drift": 5, "optimizer": 5, "started batch": 5, "weights": 5,
    "logs": 5,
}  # fmt: skip
"""By part the checkpoint to go on from: within the warm-up, between rollout batches, within one."""


@pytest.mark.parametrize(("part", "place"), FORGOTTEN.items(), ids=list(FORGOTTEN))
def test_a_part_that_is_forgotten_is_noticed(whole, tmp_path, part, place):
    """The negative controls."""
    assert whole.differences("fspo", place, tmp_path / "run", f"forget:{part}") != []


def live(forks: Forks, folder: Path, chance: random.Random, changes: dict) -> int:
    """One life of a run, killed at a random moment: while it starts, or about when it has made some lines of its log."""
    log, metrics = folder.with_suffix(".log"), folder / "metrics.jsonl"

    def count_lines() -> int:
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0

    resumed = log.read_text().count("resumed from") if log.exists() else 0
    pid = forks.start(log, config=settings(folder, **changes))
    more = chance.choice([0, 1, 1, 2, 3])
    if more:
        wait_until(lambda: (log.exists() and log.read_text().count("resumed from") > resumed) or count_lines() > 0)
        first = count_lines()
        wait_until(lambda: count_lines() >= first + more or not alive(pid))
    time.sleep(chance.random() * (0.15 if more else 1.0))
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
    return forks.wait()


def kill_again_and_again(forks: Forks, folder: Path, num_kills: int, changes: dict) -> int:
    """How many lives were ended before the run was left alone."""
    chance, kills = random.Random(0), 0
    while kills < num_kills:
        ended = live(forks, folder, chance, changes)
        if ended != -signal.SIGKILL:
            assert ended == 0, folder.with_suffix(".log").read_text()[-2000:]
            break
        kills += 1
    assert forks.run(folder, **changes) == 0
    return kills


def test_a_run_that_is_killed_a_few_times_is_the_same_run(whole, tmp_path):
    name, folder = "fspo", tmp_path / "run"
    changes = whole.changes(name) | {"keep_checkpoints": 2}
    assert kill_again_and_again(whole.forks, folder, 3, changes) == 3
    assert differences(essence(whole.make(name)), essence(folder)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_killed_25_times_is_the_same_run(whole, tmp_path, name):
    forks = whole.forks
    changes = METHODS[name] | {"rewards": [whole.rewards], "rollout_batches": 12}
    assert forks.run(tmp_path / "whole", **changes) == 0
    assert kill_again_and_again(forks, tmp_path / "killed", 25, changes) == 25
    assert differences(essence(tmp_path / "whole"), essence(tmp_path / "killed")) == []


def test_a_finished_run_can_be_made_longer(whole, tmp_path):
    """As if it had been that long from the start: its last evaluation is taken back."""
    changes = whole.changes("fspo")
    assert whole.forks.run(tmp_path / "run", **changes | {"rollout_batches": 1}) == 0
    assert whole.forks.run(tmp_path / "run", **changes) == 0
    assert "resumed with rollout_batches: 1 -> 2 (harmless)" in (tmp_path / "run.log").read_text()
    assert differences(essence(whole.make("fspo")), essence(tmp_path / "run")) == []
    assert json.loads((tmp_path / "run/run.json").read_text())["resumed"] == [["rollout_batches: 1 -> 2 (harmless)"]]


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(whole, tmp_path):
    folder = whole.stopped_at("fspo", 0, tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    assert whole.forks.run(folder, **whole.changes("fspo")) == 0
    assert "no checkpoint was made yet: the run starts again" in folder.with_suffix(".log").read_text()
    assert differences(essence(whole.make("fspo")), essence(folder)) == []


def test_a_checkpoint_of_another_configuration_is_refused(whole, tmp_path):
    folder = whole.stopped_at("fspo", 3, tmp_path / "run")
    description = json.loads((folder / "run.json").read_text())
    description["config"]["learning_rate"] = 0.5
    (folder / "run.json").write_text(json.dumps(description))
    assert whole.forks.run(folder, **whole.changes("fspo") | {"learning_rate": 0.5}) == 1
    assert "its checkpoint is of configuration" in folder.with_suffix(".log").read_text()


def test_counters_and_the_size_of_micro_batches_come_back(whole, tmp_path, monkeypatch):
    """Skipped updates, those in a row, and the micro-batch that memory was found to have room for."""
    folder = whole.stopped_at("fspo", 5, tmp_path / "run")
    path, checkpoint = load_newest(folder / "checkpoints")
    assert checkpoint.state["skipped"] == [0, 0] and checkpoint.state["max_tokens_per_microbatch"] == [16384, 16384]
    state = checkpoint.state | {"skipped": [3, 1], "max_tokens_per_microbatch": [16384, 512]}
    monkeypatch.setattr(run_state, "load_newest", lambda folder: (path, replace(checkpoint, state=state)))
    found = []

    async def look(trainer) -> None:
        found.append(trainer)
        raise InterruptedError

    monkeypatch.setattr(start, "run_to_end", look)
    for given, expected in ((16384, 512), (4096, 4096)):  # what the user now asks for counts more than what was found
        config = settings(folder, **whole.changes("fspo") | {"max_tokens_per_microbatch": given})
        with pytest.raises(InterruptedError):
            start.start_training(
                TrainConfig.of(**{k: tuple(v) if isinstance(v, list) else v for k, v in config.items()})
            )
        trainer = found.pop()
        assert (trainer.guard.num_skipped, trainer.guard.num_in_a_row) == (3, 1)
        assert trainer.learner.max_tokens == expected
        assert trainer.started.num_done == 2 and trainer.progress.update == 6
    state.pop("format")  # as earlier versions wrote them
    with pytest.raises(
        ValueError, match=r"its checkpoint has format 1, and this version of fairlen goes on from format 2"
    ):
        start.start_training(TrainConfig.of(**{k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}))


DESCRIPTION = {
    "config": {"learning_rate": 0.1, "rollout_batches": 3, "threads": 1, "method": "grpo", "overrides": []},
    "method": {"name": "grpo", "hash": "aa"},
    "data": {"sets": [{"name": "train", "fingerprint": "f0"}]},
}


def described(**changes) -> dict:
    return DESCRIPTION | {"config": DESCRIPTION["config"] | changes}


def test_changes_are_harmless_or_round_differently_or_are_refused():
    allowed = {"rollout_batches": 5, "threads": 2}
    assert find_changes(DESCRIPTION, described(**allowed)) == [
        "threads: 1 -> 2 (rounds differently)",
        "rollout_batches: 3 -> 5 (harmless)",
    ]
    listed = r"(?s)learning_rate: 0.1 -> 0.2 \(changes the mathematics\).*threads: 1 -> 2.*: 3 -> 5.*leave out"
    with pytest.raises(ValueError, match=listed):
        find_changes(DESCRIPTION, described(learning_rate=0.2, **allowed))


def test_what_is_refused_is_what_the_hash_is_made_of():
    before = hash_configuration(DESCRIPTION)
    assert hash_configuration(described(rollout_batches=5, threads=2, save_every_updates=1)) == before
    assert hash_configuration(described(learning_rate=0.2)) != before
    assert hash_configuration(DESCRIPTION | {"method": {"name": "grpo", "hash": "bb"}}) != before
    assert hash_configuration(DESCRIPTION | {"data": {"sets": [{"name": "train", "fingerprint": "f1"}]}}) != before


def test_problems_and_methods_are_compared_as_the_values_that_they_are():
    now = DESCRIPTION | {"data": {"sets": [{"name": "train", "fingerprint": "f1"}]}}
    with pytest.raises(ValueError, match="problems of train: f0 -> f1"):
        find_changes(DESCRIPTION, now)
    assert find_changes(DESCRIPTION, described(overrides=["sampling.n=16"])) == []
    with pytest.raises(ValueError, match=r"method: grpo \(aa\) -> grpo \(bb\)"):
        find_changes(DESCRIPTION, DESCRIPTION | {"method": {"name": "grpo", "hash": "bb"}})
