"""Reward functions that hang, wait, raise or draw: in order, in time, and never in the way of others."""

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlen import hangs
from fairlen.hangs import DeadlineError, SideThread, TrainingStopped
from fairlen.rollouts import Response
from fairlen.settings import RewardSettings
from fairlen.tasks.grader import Grader, WeightedReward
from fairlen.tasks.playground import Playground
from fairlen.tasks.task import Verdict

TASK = Playground()
PROBLEM = TASK.train(0)


@dataclass
class Rewards:
    """Functions that remember who called them."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def quick(self, prompts, completions, **_):
        self.calls.append((completions[0], threading.current_thread().name))
        return [float(len(completions[0]))]

    def hangs_on_b(self, prompts, completions, **_):
        if completions[0] == "b":
            self.release.wait()
        return self.quick(prompts, completions)

    def yields(self, prompts, completions, **_):
        yield from self.hangs_on_b(prompts, completions)

    async def waits(self, prompts, completions, **_):
        await asyncio.sleep(99 if completions[0] == "b" else 0)
        return self.quick(prompts, completions)

    async def goes_on(self, prompts, completions, **_):
        with suppress(asyncio.CancelledError):
            await self.waits(prompts, completions)
        return self.quick(prompts, completions)


def respond(number: int) -> Response:
    return Response(0, (*PROBLEM.token_ids, number), len(PROBLEM.token_ids), (0.0,), "stop", seed=number)


def grade_all(grader: Grader, texts: str) -> list[Response]:
    """Responses whose texts are the letters, all at once."""
    grader.decode = lambda ids: texts[ids[0]]

    async def run() -> list[Response]:
        return await asyncio.gather(*(grader(PROBLEM, respond(i)) for i in range(len(texts))))

    try:
        return asyncio.run(run())
    finally:
        grader.watchdog.close()


@dataclass
class SlowTask:
    """A task whose verifier takes a while for each text, many at a time; it notes how long."""

    took: list[float] = field(default_factory=list)

    async def verify(self, problem, text):
        begun = time.monotonic()
        await asyncio.sleep(0.2)
        self.took.append(time.monotonic() - begun)
        return Verdict("correct", 1.0)


def test_the_verifier_is_busy_once_however_many_texts_it_has():
    """Ten texts of 0.2 s at once, and ten more later, are 0.4 s, not 4. On a busy machine each text waits for it too."""
    task = SlowTask()
    grader = Grader(task, str)
    for _ in range(2):
        grade_all(grader, "abcdefghij")
    assert 0.4 <= grader.seconds < sum(task.took) / 2 and len(task.took) == 20


@pytest.mark.parametrize("name", ["hangs_on_b", "yields", "waits", "goes_on"])
def test_past_the_deadline_there_is_no_verdict_and_others_have_theirs(name, capsys):
    rewards = Rewards()
    grader = Grader(TASK, str, [WeightedReward(name, getattr(rewards, name))], RewardSettings(reward_deadline=0.5))
    start = time.monotonic()
    found = grade_all(grader, "abcdbe")
    assert time.monotonic() - start >= 0.5
    assert [r.status for r in found] == ["no_answer", "timeout", "no_answer", "no_answer", "timeout", "no_answer"]
    assert [r.active for r in found] == [True, False, True, True, False, True]
    assert [r.outcome for r in found] == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]  # each text has one letter
    told = capsys.readouterr().err
    assert told.count("no answer within 0.5 s") == 1 and f"on problem {PROBLEM.id}" in told
    rewards.release.set()


def test_a_function_that_raises_what_a_deadline_raises_has_not_missed_one():
    """What it waits for gave up, which says nothing about the response, and would be without a verdict for each of them."""

    def plain(prompts, completions, **_) -> list[float]:
        raise TimeoutError("the service is away")

    async def waiting(prompts, completions, **_) -> list[float]:
        return plain(prompts, completions)

    for function in (plain, waiting):
        grader = Grader(TASK, str, [WeightedReward("x", function)], RewardSettings(reward_deadline=30.0))
        with pytest.raises(ValueError, match="reward x raised TimeoutError: the service is away"):
            grade_all(grader, "a")


def test_without_a_verdict_a_response_may_count_as_wrong():
    rewards = Rewards()
    settings = RewardSettings(without_verdict="incorrect", reward_deadline=0.3)
    grader = Grader(TASK, str, [WeightedReward("x", rewards.hangs_on_b)], settings)
    assert [(r.outcome, r.active) for r in grade_all(grader, "ab")] == [(1.0, True), (0.0, True)]
    rewards.release.set()


def test_calls_are_made_in_order_in_one_other_thread():
    rewards = Rewards()
    grade_all(Grader(TASK, str, [WeightedReward("quick", rewards.quick)]), "qwertyuiop")
    assert [text for text, _ in rewards.calls] == list("qwertyuiop")
    assert {thread for _, thread in rewards.calls} == {"fairlen-rewards"}


@pytest.mark.slow
def test_a_deadline_begins_when_the_turn_comes_and_not_in_the_queue():
    side = SideThread("slow")

    async def run() -> list[int]:
        calls = (side.call(lambda i=i: time.sleep(0.1) or i, deadline=0.9) for i in range(20))  # 2 s in all
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == list(range(20))
    assert side.left_behind == []


def test_a_thread_that_was_left_behind_takes_no_more_calls_and_ends():
    side, release = SideThread("hangs"), threading.Event()

    async def run() -> str:
        with pytest.raises(DeadlineError, match=r"no answer within 0\.2 s"):
            await side.call(release.wait, 0.2)
        first = side.left_behind[0]
        release.set()
        name = await side.call(lambda: threading.current_thread(), 5.0)
        first.join(5.0)
        assert not first.is_alive() and name is not first
        return "done"

    assert asyncio.run(run()) == "done"


def test_too_many_threads_left_behind_end_the_run(monkeypatch):
    monkeypatch.setattr(hangs, "MAX_LEFT_BEHIND", 3)
    rewards = Rewards()
    grader = Grader(TASK, str, [WeightedReward("x", rewards.hangs_on_b)], RewardSettings(reward_deadline=0.1))
    with pytest.raises(TrainingStopped, match=r"3 calls were given up after 0.1 s each and still go on"):
        grade_all(grader, "bbbbbb")
    rewards.release.set()


@pytest.mark.slow
def test_a_hanging_reward_in_a_run_is_passed_over_and_counted(tmp_path):
    from runs import metrics, small

    from fairlen.train.start import start_training

    path = Path(tmp_path / "mine.py")
    path.write_text(
        "import time\n"
        "calls = []\n"
        "def hangs(prompts, completions, **_):\n"
        "    calls.append(1)\n"
        "    if len(calls) in (9, 14):\n"  # two of the start-up, four of the first evaluation: both are of the first collection
        "        time.sleep(2)\n"
        "    return [float(len(calls) % 2)]\n"
    )
    start_training(
        small(tmp_path / "run", method="grpo", rollout_batches=1, updates_per_batch=1, problems=2, eval_every=0,
              rewards=(f"{path}:hangs",), reward_deadline=0.5)
    )  # fmt: skip
    (update,) = [entry for entry in metrics(tmp_path / "run") if "loss/total" in entry]
    assert update["verifier/timeout"] == 2 / 24  # 4 prompts x 6
    assert update["responses/active"] == 22 / 24
