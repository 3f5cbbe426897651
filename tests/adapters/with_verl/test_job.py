"""Whole jobs of verl on Ray with two workers and two rollout servers, started as a user starts them; a minute or two each.

They learn, workers and servers agree, plans are recomputed from the texts; and the same assertions fail where weights are not
pushed or the loss is zero. Nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import psutil
import pytest

from fairlen.batch import Response, Rollouts, whole_segments
from fairlen.compose import compose
from fairlen.method import updates
from fairlen.tasks.playground import ALPHABET, SPECIALS, Playground, follow, read_chain
from fairlen.tasks.task import Problem

pytest.importorskip("verl", reason="verl is not installed (pip install 'fairlen[verl]')")
pytestmark = pytest.mark.ray

STEPS, WINDOW = 16, 4
SETTINGS = {"eqlen+grpo": "sampling.streams=4"} | dict.fromkeys(("dapo+balanced", "grpo", "fspo"), "sampling.n=8")
HARD_LIMIT = 900.0
"""Seconds for a job, on a machine that others use too."""
GAP = 1e-4
"""Largest difference of a token's probability between a rollout server and the trainer."""
RISE = 0.12
"""By how much accuracy has to rise from the first four rollout batches to the last four; three times the noise of that."""


def command(names: str, out: Path, *given: str, limits=("600", "240")) -> list[str]:
    return [
        sys.executable, "-m", "fairlen", "verl", "--method", names, "--set", SETTINGS[names], "--cpu", "--out", str(out),
        "--start-limit", limits[0], "--step-limit", limits[1], "--", *given,
    ]  # fmt: skip


def run(names: str, out: Path, steps: int, broken: str = "", given: tuple[str, ...] = (), done: int = 0) -> list[dict]:
    """Runs a job from `done` steps to its end; its metrics, one dict a rollout batch."""
    env = os.environ | {"VERL_USE_EXTERNAL_MODULES": broken, "PYTHONPATH": str(Path(__file__).parent)}
    more = (f"trainer.total_training_steps={steps}", f"+algorithm.fairlen.record={out / 'plans'}")
    job = subprocess.run(
        command(names, out, *more, *given), env=env, capture_output=True, text=True, timeout=HARD_LIMIT, check=False
    )
    assert job.returncode == 0, job.stdout[-6000:] + job.stderr[-1000:]
    metrics = [json.loads(line)["data"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == steps - done
    return metrics


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def streams(folders):
    return run("eqlen+grpo", folders / "streams", STEPS)


@pytest.fixture(scope="module")
def whole(folders):
    return run("dapo+balanced", folders / "whole", STEPS)


def accuracy(metrics: list[dict]) -> list[float]:
    """Of the texts of each rollout batch."""
    return [one.get("fairlen/outcome/mean", one["critic/score/mean"]) for one in metrics]


def assert_learns(metrics: list[dict]) -> None:
    found = accuracy(metrics)
    assert np.mean(found[-WINDOW:]) > np.mean(found[:WINDOW]) + RISE, found


def assert_servers_have_the_weights(metrics: list[dict]) -> None:
    gaps = [one["training/rollout_probs_diff_max"] for one in metrics]
    assert max(gaps[1:]) < GAP, gaps


def assert_trains(metrics: list[dict]) -> None:
    norms = [one["actor/grad_norm"] for one in metrics]
    assert min(norms) > 0, norms


@pytest.mark.parametrize("job", ["streams", "whole"])
def test_it_learns_and_servers_follow(job, request):
    metrics = request.getfixturevalue(job)
    assert_learns(metrics)
    assert_servers_have_the_weights(metrics)
    assert_trains(metrics)


@pytest.mark.parametrize("job", ["streams", "whole"])
def test_adapter_code_takes_little_of_a_step(job, request):
    """Seconds in our loss, of each of two ranks, and of verl's whole step of advantages, of which our plan is a part."""
    metrics = request.getfixturevalue(job)[1:]  # the first rollout batch warms up
    plan = sum(one["timing_s/adv"] for one in metrics)
    loss = sum(one["actor/fairlen/seconds"] * one["fairlen_micro_batches"] for one in map(with_micro_batches, metrics))
    step = sum(one["timing_s/step"] for one in metrics)
    print(
        f"\n{job}: plan at most {plan / step:.2%} and loss {loss / step:.2%} of verl's step of {step / len(metrics):.1f} s"
    )
    assert (plan + loss) / step < 0.03


def with_micro_batches(one: dict) -> dict:
    """The same with the number of micro-batches of a rank: all trained tokens over the mean of a micro-batch, over two ranks."""
    if "fairlen/tokens/trained" in one:
        tokens = one["fairlen/tokens/trained"]
    else:
        tokens = one["response_length/mean"] * 128  # 16 prompts of 8 responses
    return one | {"fairlen_micro_batches": tokens / one["actor/fairlen/tokens"] / 2}


def test_weights_that_are_not_pushed_are_noticed(folders):
    metrics = run("grpo", folders / "broken-sync", 5, "broken_sync")
    assert_trains(metrics)
    with pytest.raises(AssertionError):
        assert_servers_have_the_weights(metrics)


def test_a_loss_of_zero_is_noticed(folders):
    metrics = run("grpo", folders / "broken-loss", 2 * WINDOW, "broken_loss")
    assert_servers_have_the_weights(metrics)
    for check in (assert_learns, assert_trains):
        with pytest.raises(AssertionError):
            check(metrics)


def plans(folder: Path) -> list[list[dict]]:
    return [
        [json.loads(line) for line in path.read_text().splitlines()] for path in sorted(folder.glob("plan-*.jsonl"))
    ]  # fmt: skip


def folded_by_segment(names: str, rollouts: Rollouts) -> dict[tuple[int, int], float]:
    """What fairlen's own trainer would train: weight * advantage by (response, end of the segment)."""
    method, found = compose(names, [SETTINGS[names]]), {}
    for update in updates(method.score(rollouts)):
        plan = method.weigh(update)
        for row, weight, advantage in zip(plan.rows, plan.weight, plan.advantage, strict=True):
            segment = rollouts.segments[row]
            stop = segment.stop - rollouts.responses[segment.response].num_prompt
            found[segment.response, stop] = weight * advantage
    return found


def test_plans_of_responses_are_ours(whole, folders):
    recorded = plans(folders / "whole" / "plans")
    assert len(recorded) == STEPS
    for rows in recorded:
        prompts = list(dict.fromkeys(row["prompt"] for row in rows if row["length"]))
        order = sorted(
            (i for i, row in enumerate(rows) if row["length"]), key=lambda i: prompts.index(rows[i]["prompt"])
        )
        responses = tuple(
            Response(
                prompts.index(rows[i]["prompt"]), (2, *([4] * int(rows[i]["length"]))), 1, (-1.0,) * int(rows[i]["length"]),
                "length" if rows[i]["length"] >= 128 else "stop", seed=i, outcome=rows[i]["outcome"],
                status="correct" if rows[i]["outcome"] > 0.5 else "incorrect",
            )
            for i in order
        )  # fmt: skip
        expected = folded_by_segment("dapo+balanced", Rollouts(responses, whole_segments(responses), 128))
        for place, i in enumerate(order):
            ours = expected.get((place, int(rows[i]["length"])), 0.0)
            assert rows[i]["folded"] == pytest.approx(ours, rel=1e-9, abs=1e-15)
    assert sum(row["folded"] != 0 for rows in recorded for row in rows) > 100


def read_text(ids: list[int]) -> str:
    return "".join(ALPHABET[i - len(SPECIALS)] for i in ids if i >= len(SPECIALS))


def verdict(prompt_ids: list[int], response_ids: list[int]) -> float:
    """The playground's own, of a text that a job has judged."""
    question = read_text(prompt_ids)
    family, chain = read_chain(question)
    problem = Problem("", question, (0,), str(follow(family, chain.start, chain.moves)))
    return asyncio.run(Playground().verify(problem, read_text(response_ids))).outcome


def test_plans_of_streams_are_ours_and_siblings_have_their_own_values(streams, folders):
    recorded = plans(folders / "streams" / "plans")
    assert len(recorded) == STEPS
    distinct = 0
    for rows in recorded:
        rows = [row for row in rows if row["real"]]
        prompts = list(dict.fromkeys(row["prompt"] for row in rows))
        ends = [row for row in rows if row["piece"]["is_end"]]
        ends.sort(key=lambda row: (prompts.index(row["prompt"]), row["piece"]["stream"], row["piece"]["track"]))
        responses = []
        for row in ends:
            piece, ids = row["piece"], (*row["prompt_ids"], *row["response_ids"])
            assert piece["outcome"] == verdict(row["prompt_ids"], row["response_ids"])
            length = len(row["response_ids"])
            responses.append(Response(
                prompts.index(row["prompt"]), ids, len(row["prompt_ids"]), (-1.0,) * length,
                "length" if piece["truncated"] else "stop", seed=len(responses), stream=piece["stream"], track=piece["track"],
                round=piece["track_round"], outcome=piece["outcome"], status="correct" if piece["correct"] else "incorrect",
            ))  # fmt: skip
        method = compose("eqlen+grpo", [SETTINGS["eqlen+grpo"]])
        rollouts = Rollouts(tuple(responses), method.sampling.cut(tuple(responses)), 128)
        expected = folded_by_segment("eqlen+grpo", rollouts)
        number = {(r.prompt, r.stream, r.track): i for i, r in enumerate(responses)}
        for row in rows:
            piece = row["piece"]
            track = number[prompts.index(row["prompt"]), piece["stream"], piece["track"]]
            assert row["folded"] == pytest.approx(expected.get((track, piece["stop"]), 0.0), rel=1e-9, abs=1e-15)
        outcomes = defaultdict(set)
        for row in ends:
            outcomes[row["prompt"], row["piece"]["stream"]].add(row["piece"]["outcome"])
        distinct += sum(len(found) > 1 for found in outcomes.values())
    assert distinct > 10 * STEPS
    assert min(one["fairlen/pairs/distinct"] for one in streams) > 0


def test_a_moving_state_reaches_workers_and_checkpoints(folders):
    """FSPO with two updates a rollout batch: the second is off-policy and moves the drift; a resumed job goes on from it."""
    out = folders / "state"
    given = (
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",  # else the first rollout batch has a rate of 0, and nothing moves
        "trainer.save_freq=2",
        f"trainer.default_local_dir={out}/saved",
    )
    first = run("fspo", out, 2, given=given)
    assert [one["fairlen/state/num_updates"] for one in first] == [1.0, 2.0]
    assert first[0]["fairlen/state/variance_average"] > 0
    assert first[0]["actor/fairlen/moved/tokens"] < first[0]["actor/fairlen/tokens"]  # the first update is on-policy
    saved = json.loads((out / "saved" / "global_step_2" / "fairlen.json").read_text())
    assert saved["variance_average"] == first[1]["fairlen/state/variance_average"]
    again = run("fspo", out / "again", 3, given=(*given, "trainer.resume_mode=auto"), done=2)
    assert again[0]["fairlen/state/num_updates"] == 3.0


def test_a_dead_worker_does_not_hang_the_job(folders):
    """The process that asks rollout servers is killed in its first steps: verl waits for ever, the launcher does not."""
    limit = 45.0
    given = ["trainer.total_training_steps=400"]
    job = subprocess.Popen(
        command("grpo", folders / "killed", *given, limits=("600", str(limit))), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    try:
        for line in job.stdout or ():
            if "step:2 - " in line:
                break
        family = psutil.Process(job.pid).children(recursive=True)
        (victim,) = [one for one in family if "AgentLoopWorkerTQ" in " ".join(one.cmdline())[:40]]
        victim.kill()
        begun = time.monotonic()
        rest, _ = job.communicate(timeout=limit + 240)
    finally:
        job.kill()
    assert job.returncode == 124, rest[-3000:]
    assert f"within {limit:g} s" in rest and time.monotonic() - begun < limit + 180
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
