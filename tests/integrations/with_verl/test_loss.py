"""A rollout batch in verl: verdicts, warnings, padding.

The trainer and the loss run in one process, on log-probs that are given (in_process.py).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
from in_process import EOS, Batch, make_trainer, train, whole_row

from fairlen.rollouts import Response, Rollouts, whole_segments

LIMIT = 12


def make_rollouts(seed: int, num_prompts: int = 6, num_tracks: int = 4) -> Rollouts:
    """Random texts: one without a verdict, one that ends with EOS on the last possible token, others truncated there."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(num_prompts * num_tracks):
        length = LIMIT if number in (2, 3) else int(rng.integers(1, LIMIT + 1))
        finish = "length" if length == LIMIT and number != 2 else "stop"
        text = [*map(int, rng.integers(1, 9, length - 1)), EOS if finish == "stop" else 5]
        status = (
            "timeout" if number == 5 else ("correct", "incorrect")[int(rng.integers(0, 2)) if number > 1 else number]
        )
        rows.append(Response(
            number // num_tracks, (7, 8, *text), 2, tuple(-1.5 + 0.3 * rng.standard_normal(length)), finish, seed=number,
            outcome=float(status == "correct"), status=status, active=status != "timeout",
        ))  # fmt: skip
    return Rollouts(tuple(rows), whole_segments(rows), LIMIT)


class Model:
    """Log-probs of responses that differ from those of the sampler by a number for each token id, and by what is drawn."""

    def __init__(self, rollouts: Rollouts, scale: float) -> None:
        self.theta = torch.zeros(9, dtype=torch.float64, requires_grad=True)
        rng = np.random.default_rng(9)
        self.rows = [
            (torch.tensor(r.token_ids[r.num_prompt :]), torch.tensor(r.logprobs, dtype=torch.float64))
            for r in rollouts.responses
        ]
        self.drawn = [torch.from_numpy(scale * rng.standard_normal(len(ids))) for ids, _ in self.rows]

    def __call__(self, row: int) -> torch.Tensor:
        ids, old = self.rows[row]
        return old + self.drawn[row] + self.theta[ids]


def bypassed(trainer):
    """A trainer for which the first update has ratios too."""
    trainer.config.algorithm.rollout_correction.bypass_mode = True
    return trainer


def test_a_rank_with_padding_alone_still_runs_backward(monkeypatch):
    """Micro-batches of one row, the last three of padding: each has a loss of 0 with a gradient of 0."""
    rollouts = make_rollouts(2)
    model = Model(rollouts, 0.2)
    rows = [whole_row(response) for response in rollouts.responses]
    trainer = make_trainer("grpo+entropy", limit=LIMIT, prompts=6)
    workers, metrics, queue = train(
        trainer, rows, model, [model.theta], monkeypatch, micro_rows=1, num_padding=3
    )  # fmt: skip
    assert queue.columns["plan_trains"].flatten().tolist()[-3:] == [False] * 3
    total, _ = workers.loss_fn(*workers.micro_batch([26]))
    total.backward()
    assert float(total) == 0.0 and metrics["sequences/trained"] == 23.0  # one has no verdict


def test_several_outputs_of_one_trajectory_are_refused():
    """As rows of their own each would count as a response."""
    trainer = make_trainer("grpo", limit=LIMIT, prompts=1)
    with pytest.raises(ValueError, match="several AgentLoopOutputs of one trajectory"):
        trainer._compute_advantage(Batch(["uid_0_0", "uid_0_1"], [{}, {}]), {})


@pytest.mark.parametrize("correct_threshold, correct", [(None, 2), (0.0, 3), (-2.0, 4)])
def test_a_verdict_decides_above_a_threshold_and_none_counts_nowhere(correct_threshold, correct, monkeypatch):
    """Five responses of one prompt: verdicts 1, .9, .1, -1 and none, by `acc`; rewards are .3, and 1 for the last."""
    drawn = make_rollouts(0, 1, 5).responses
    rows = [whole_row(replace(response, outcome=0.3)) for response in drawn]
    for row, accuracy in zip(rows, (1.0, 0.9, 0.1, -1.0, 1.0), strict=True):
        row["extra_fields"] = {"reward_extra_info": {"acc": accuracy, "verdict": float(row is not rows[4])}}
    rows[4]["rm_scores"][-1] = 1.0
    given = {} if correct_threshold is None else {"correct_threshold": correct_threshold}
    model = Model(Rollouts(drawn, whole_segments(drawn), LIMIT), 0.1)
    trainer = make_trainer("grpo", ["sampling.n=5"], limit=LIMIT, prompts=1, **given)
    _, metrics, queue = train(trainer, rows, model, [model.theta], monkeypatch)
    found = [metrics[name] for name in ("accuracy/mean", "responses/active", "outcome/mean")]
    assert found == pytest.approx([correct / 4, 4 / 5, 0.3])
    assert queue.columns["plan_trains"].flatten().tolist() == [True] * 4 + [False]


@pytest.mark.parametrize(
    "names, rewards, expected, remedy",
    [
        ("grpo", (0.0, 0.0), "nothing was trained in 3 rollout batches (12 responses: 0 correct, 12", "give easier problems"),
        ("grpo+dynamic", (-3.0, -1.0), "12 incorrect", "set +algorithm.fairlen.correct_threshold"),
        ("fspo", (1.0, 0.0), "every ratio of 3 rollout batches was 1", "actor.ppo_epochs=2"),
    ],
)  # fmt: skip
def test_jobs_that_learn_nothing_warn_after_some_rollout_batches(names, rewards, expected, remedy, monkeypatch, capsys):
    """Four rows in a rollout batch and two of verl's padding, which are no responses."""
    warnings = run_batches(make_trainer(names, ["sampling.n=2"], limit=LIMIT, prompts=2), rewards, monkeypatch, capsys)
    assert len(warnings) == 1 and expected in warnings[0] and remedy in warnings[0]


def test_jobs_with_several_updates_or_the_servers_log_probs_are_not_warned(monkeypatch, capsys):
    two = make_trainer("fspo", ["sampling.n=2"], limit=LIMIT, prompts=2)
    two.config.actor_rollout_ref.actor.ppo_epochs = 2
    for trainer in (two, bypassed(make_trainer("fspo", ["sampling.n=2"], limit=LIMIT, prompts=2))):
        assert run_batches(trainer, (1.0, 0.0), monkeypatch, capsys) == []


def run_batches(trainer, rewards, monkeypatch, capsys) -> list[str]:
    """What a job says in four rollout batches of two prompts whose two responses have these rewards."""
    drawn = make_rollouts(0, 2, 2).responses
    model = Model(Rollouts(drawn, whole_segments(drawn), LIMIT), 0.1)
    rows = [whole_row(replace(r, outcome=rewards[number % 2], active=True)) for number, r in enumerate(drawn)]
    for row in rows:
        row["extra_fields"] = {}
    for _ in range(4):
        train(trainer, rows, model, [model.theta], monkeypatch, num_padding=2)
    return [line for line in capsys.readouterr().err.splitlines() if "rollout batches" in line]
