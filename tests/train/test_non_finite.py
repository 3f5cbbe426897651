"""Numbers that are not finite, put into a run at eight points: nothing of them is saved, the batch is dumped, the run ends."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loops import first_quickly
from runs import metrics, small
from safetensors.torch import load_file

from fairlen.engine.generation import Sequence
from fairlen.loop.update import NonFiniteError
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import GroupNormalized
from fairlen.policy.model import Policy
from fairlen.rollouts import Response
from fairlen.train.run.faults import Guard, require_finite
from fairlen.train.start import start_training
from fairlen.train.step import Learner

REWARD = """
import math
calls = []
def parity(prompts, completions, completion_ids, **columns):
    calls.append(1)
    return [math.nan if BAD and len(calls) > 60 else float(sum(ids) % 2) for ids in completion_ids]
"""
POINTS = {
    "outcome": None, "advantage": (GroupNormalized, "__call__"), "rollout_logprobs": (Sequence, "so_far"),
    "logprobs": (Policy, "forward"), "ref_logprobs": (Learner, "with_reference"), "loss": (Method, "loss"),
    "gradient": (Policy, "forward"), "weights": (torch.optim.AdamW, "step"),
}  # fmt: skip
"""What is broken, and the function that returns it."""
FINE = 2
"""Updates before it breaks."""


def damage(point: str, found, owner):
    """What a function returned, no longer finite."""
    if point == "advantage":
        return np.where(np.arange(len(found)) == 0, np.inf, found)
    if point == "rollout_logprobs":
        return replace(found, logprobs=(float("nan"), *found.logprobs[1:]))
    if point == "ref_logprobs":
        return replace(found, ref_logprobs=found.ref_logprobs * float("inf"))
    if point == "loss":
        return replace(found, total=found.total * float("nan"))
    if point == "logprobs":
        return replace(found, logprobs=torch.cat([found.logprobs[:-1], found.logprobs[-1:] - float("inf")]))
    if point == "gradient":
        found.logprobs.requires_grad and found.logprobs.register_hook(lambda gradient: gradient * float("inf"))
    if point == "weights":
        with torch.no_grad():
            owner.param_groups[0]["params"][0].view(-1)[0] = float("inf")
    return found


def read_numbers(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every file of a run."""
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{path.relative_to(folder)}:{name}": tensor for path in files for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("point", first_quickly(POINTS))
def test_nothing_non_finite_is_saved_and_the_run_ends(tmp_path, monkeypatch, point):
    (tmp_path / "reward.py").write_text(REWARD.replace("BAD", str(point == "outcome")))
    num_steps = []
    step = torch.optim.AdamW.step

    def count_steps(self, *args):
        num_steps.append(1)
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", count_steps)
    if POINTS[point]:
        kind, name = POINTS[point]
        function = getattr(kind, name)

        def broken(self, *args):
            found = function(self, *args)
            return damage(point, found, self) if len(num_steps) >= FINE + (point == "weights") else found

        monkeypatch.setattr(kind, name, broken)
    method = "grpo+kl" if point == "ref_logprobs" else "grpo"
    config = small(
        tmp_path / "run", method=method, overrides=("sampling.n=6",), prompts_per_batch=4, max_response_length=16,
        updates_per_batch=1, rollout_batches=9,
        rewards=(f"{tmp_path}/reward.py:parity",), verifier_weight=0.0, problems=4, samples=1, eval_every=0,
        try_memory="off",
    )  # fmt: skip
    with pytest.raises(NonFiniteError, match=f"^{point} was not finite in .*nothing non-finite was saved"):
        start_training(config)
    run, times = tmp_path / "run", 1 if point == "weights" else 3
    assert [e["update"] for e in metrics(run) if "loss/total" in e] == [1, 2]
    assert [e["update/skipped"] for e in metrics(run) if "update/skipped" in e] == [point] * (times - 1)
    dumps = sorted((run / "debug").iterdir())
    assert [path.name for path in dumps] == [f"update-000002-{point}-{k}.jsonl" for k in range(1, times + 1)]
    assert all(len(path.read_text().splitlines()) == 24 for path in dumps)  # 4 prompts x 6
    numbers = read_numbers(run)
    assert any(name.startswith("checkpoints/") for name in numbers) and not (run / "model").exists()
    assert all(torch.isfinite(tensor).all() for tensor in numbers.values() if tensor.is_floating_point())


def test_an_update_in_between_breaks_the_row(tmp_path):
    guard = Guard(folder=tmp_path / "debug")
    for _ in range(3):
        assert not guard.allows("loss", 7, ()) and not guard.allows("loss", 7, ())
        guard.passed()
    assert guard.num_skipped == 6 and len(list((tmp_path / "debug").iterdir())) == 6
    assert not guard.allows("loss", 8, ()) and not guard.allows("gradient", 8, ())
    with pytest.raises(NonFiniteError, match=r"advantage was not finite in 3 updates in a row: .* after update 8"):
        guard.allows("advantage", 8, ())


def test_a_dump_is_json_whatever_its_responses_hold(tmp_path):
    ids = np.array([2, 5], np.int32).tobytes()
    response = Response(
        0,
        (1, 2, 3),
        1,
        (math.nan, -math.inf),
        "stop",
        0,
        outcome=math.inf,
        supports=(ids, b""),
        outcomes={"own": math.nan},
    )
    assert not Guard(folder=tmp_path).allows("outcome", 1, [response])
    (path,) = tmp_path.iterdir()
    row = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert (row["logprobs"], row["outcome"], row["outcomes"]) == (["NaN", "-Infinity"], "Infinity", {"own": "NaN"})
    assert row["supports"] == [[2, 5], []]


def test_a_dump_that_cannot_be_written_is_said_and_no_more(capsys):
    assert not Guard(folder=Path("/proc/nothing")).allows("loss", 1, ())
    assert "responses of a skipped update could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_moments_are_looked_at_before_they_are_saved(value):
    good = {"model": {"a": torch.zeros(3)}, "streams": {"torch": torch.zeros(3, dtype=torch.uint8)}}
    require_finite(good)
    with pytest.raises(NonFiniteError, match=r"optimizer b\|exp_avg is not finite and was not saved"):
        require_finite(good | {"optimizer": {"a|exp_avg": torch.zeros(2), "b|exp_avg": torch.tensor([0.0, value])}})


def test_a_model_that_overflows_in_evaluation_ends_the_run_in_one_line(tmp_path):
    with pytest.raises(NonFiniteError, match=r"held-out evaluation: .*--resume"), Guard(folder=tmp_path).evaluating():
        raise FloatingPointError("logits are not finite")
