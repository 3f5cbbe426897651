"""Whole jobs of verl on Ray with two workers and two rollout servers, started as a user starts them; a minute or two each.

They learn, workers and servers agree, plans are recomputed from the texts; and the same assertions fail where weights are not
pushed. Nothing waits for ever.
"""

import asyncio
import json

import numpy as np
import pytest
from verl_jobs import LISTENERS, OUTSIDE, SERVER, count_planned, records, run, run_and_kill

from fairlen.cli import main
from fairlen.report.run import read_run
from fairlen.tasks.playground import ALPHABET, SPECIALS, Playground, follow
from fairlen.tasks.task import Problem
from research.playground import read_chain

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
pytestmark = pytest.mark.ray

STEPS, WINDOW = {"streams": 4, "whole": 16}, 4
EOS = 1
"""Of the playground."""
SMALL = ("data.train_batch_size=4",)
NOTICED = 15.0
"""Seconds until a death is known."""
ENDING = 60.0
"""Seconds for ending a job, on a machine that others use too."""
GAP = 1e-4
"""Largest difference of a token's probability between a rollout server and the trainer."""
RISE = 0.12
"""By how much accuracy has to rise from the first four rollout batches to the last four; three times the noise of that."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


def run_validated(job, names, folders):
    return run(names, folders / job, STEPS[job], given=(f"trainer.test_freq={STEPS[job]}",))


@pytest.fixture(scope="module")
def streams(folders):
    return run_validated("streams", "eqlen+grpo", folders)


@pytest.fixture(scope="module")
def whole(folders):
    return run_validated("whole", "dapo+balanced", folders)


def assert_learns(metrics: list[dict]) -> None:
    found = [one["accuracy/mean"] for one in metrics]
    assert np.mean(found[-WINDOW:]) > np.mean(found[:WINDOW]) + RISE, found


def assert_servers_have_the_weights(metrics: list[dict]) -> None:
    gaps = [one["training/rollout_probs_diff_max"] for one in metrics]
    assert max(gaps[1:]) < GAP, gaps


def assert_trains(metrics: list[dict]) -> None:
    norms = [one["actor/grad_norm"] for one in metrics]
    assert min(norms) > 0, norms


def test_it_learns_and_servers_follow(streams, whole):
    assert_learns(whole)
    for metrics in (streams, whole):
        assert_servers_have_the_weights(metrics)
        assert_trains(metrics)


def test_nothing_listens_beyond_loopback(whole, folders):
    """As long as the job lasts: Ray, TransferQueue, which unpickles what comes, the store of torch.distributed, and gloo."""
    listeners = LISTENERS[folders / "whole"]
    commands = " ".join(listeners.found.values())
    for part in ("gcs_server", "raylet", "dashboard", "TransferQueueController", "SimpleStorageUnit", "WorkerDict"):
        assert part in commands, f"{part} was not seen: {commands}"
    assert not listeners.beyond_loopback()


@pytest.fixture(scope="module")
def unsynced(folders):
    """Weights are not pushed; then a rollout server dies. The first update has a rate of zero, hence four."""
    return run_and_kill("eqlen+grpo", folders / "unsynced", 4, SERVER, "broken_sync", SMALL)


@pytest.mark.nightly
def test_weights_that_are_not_pushed_are_noticed(unsynced):
    assert_trains(unsynced.metrics)
    with pytest.raises(AssertionError):
        assert_servers_have_the_weights(unsynced.metrics)


@pytest.mark.nightly
def test_a_dead_rollout_server_ends_the_job(unsynced):
    """It is named; whoever saw it first, verl or the launcher, ends the job."""
    assert unsynced.code != 0, unsynced.printed[-6000:]
    assert f"died: {SERVER}" in unsynced.printed
    assert unsynced.seconds < NOTICED + ENDING
    assert not unsynced.left


@pytest.mark.parametrize(("job", "names"), [("whole", "dapo+balanced"), ("streams", "eqlen+grpo")])
def test_plans_are_ours(job, names, request, folders):
    """Recomputed from the texts, verdicts by the playground's own verifier."""
    request.getfixturevalue(job)
    recorded = records(folders / job)
    assert len(recorded) == STEPS[job]
    assert count_planned(names, recorded, 128) > 100
    for rows, _ in recorded:
        for row in rows:
            ids = row["token_ids"]
            assert row["outcome"] == verdict(ids[: row["num_prompt"]], ids[row["num_prompt"] :])
            assert (row["finish"] == "length") == (ids[-1] != EOS)


def read_text(ids: list[int]) -> str:
    return "".join(ALPHABET[i - len(SPECIALS)] for i in ids if i >= len(SPECIALS))


def verdict(prompt_ids: list[int], response_ids: list[int]) -> float:
    """The playground's own, of a text that a job has graded."""
    question = read_text(prompt_ids)
    family, chain = read_chain(question)
    problem = Problem("", question, (0,), str(follow(family, chain.start, chain.moves)))
    return asyncio.run(Playground().verify(problem, read_text(response_ids))).outcome


def test_run_folders_are_read_as_our_own(streams, whole, folders, capsys):
    """By report, audit and compare, without a flag; every rollout batch and update, by the names of our own trainer's."""
    runs = [folders / "streams", folders / "whole"]
    for folder, verls in zip(runs, (streams, whole), strict=True):
        run, steps = read_run(folder), STEPS[folder.name]
        assert run.records and not run.left_out and len(np.unique(run.records.log.batch)) == steps
        assert [entry["update"] for entry in run.updates] == list(range(1, steps + 1))
        assert run.records.log.known >= {"trained", "truncated", "reward"}
        for ours, theirs in zip(run.updates, verls, strict=True):
            assert ours["accuracy/mean"] == theirs["accuracy/mean"] and ours["ratio/mean"] == theirs["ratio/mean"]
            assert ours["gradient/norm"] == theirs["actor/grad_norm"]
        (held_out,) = run.evaluations
        assert held_out["update"] == steps and 1 < held_out["eval/length"] <= 128
        assert held_out["eval/accuracy"] == pytest.approx(verls[-1]["val-core/playground/acc/mean@1"])
        assert main(["report", str(folder)]) == 0 and main(["audit", str(folder)]) == 0
        assert capsys.readouterr().out.count("fairlen records") == 1
    assert main(["compare", *map(str, runs)]) == 0
    assert all(str(run) in capsys.readouterr().out for run in runs[:1])


@pytest.mark.nightly
def test_a_stage_from_outside_the_package_trains_and_its_state_goes_on(folders):
    """Two updates a rollout batch: workers move the state, the driver shapes the next rewards with it; a resumed job goes on."""
    out = folders / "outside"
    given = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "trainer.save_freq=2",
        f"trainer.default_local_dir={out}/saved",
    )
    first, second = run(OUTSIDE, out, 2, given=given)
    assert (first["state/reward.0.seen"], second["state/reward.0.seen"]) == (2.0, 4.0)
    assert first["reward/mean"] == first["outcome/mean"] and second["reward/mean"] != second["outcome/mean"]
    shortest, longest = (kind(row["length"] for row in records(out)[0][0]) for kind in (min, max))
    assert shortest < first["state/reward.0.mean"] < longest
    saved = json.loads((out / "saved" / "global_step_2" / "fairlen.json").read_text())["state"]
    assert saved["reward.0.mean"] == second["state/reward.0.mean"]
    (third,) = run(OUTSIDE, out / "again", 3, given=(*given, "trainer.resume_mode=auto"), done=2)
    assert third["state/reward.0.seen"] == 6.0 and third["reward/mean"] != third["outcome/mean"]
