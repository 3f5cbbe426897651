"""A stage with state and a sampler of three tracks, in a file outside the package, train in TRL as they are."""

from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from trl_runs import ScriptedFair, scripted, weights_of

OUTSIDE = Path(__file__).parents[1] / "methods/outside.py"
STAGE, SAMPLER = f"grpo+{OUTSIDE}:RunningLength", f"grpo+{OUTSIDE}:Trio"
TRIOS = {"num_generations": 6, "per_device_train_batch_size": 12}
"""4 prompts of 2 streams of 3 tracks."""


def train(folder, method: str, **settings):
    """A finished trainer, and how far its weights moved."""
    trainer = ScriptedFair(**scripted(folder, **settings), method=method)
    start = weights_of(trainer)
    trainer.train()
    return trainer, float((weights_of(trainer) - start).abs().max())


@pytest.mark.slow
def test_a_stage_with_state_moves_once_per_update_and_is_resumed(tmp_path):
    settings = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2, "shuffle_dataset": False}
    trainer, moved = train(tmp_path, STAGE, **settings)
    assert moved > 1e-6
    updates = [entry for entry in trainer.state.log_history if "loss/total" in entry]
    assert [entry["state/reward.0.seen"] for entry in updates] == [1, 2, 3]  # after each update
    lengths = [entry["tokens/trained"] / entry["sequences/trained"] for entry in updates]
    mean = (lengths[0] + lengths[1]) / 2  # rate 1/2, the first as it is
    assert updates[1]["state/reward.0.mean"] == pytest.approx(mean, rel=1e-12)
    assert trainer.method.state["reward.0.mean"] == pytest.approx((mean + lengths[2]) / 2, rel=1e-12)
    again = ScriptedFair(**scripted(tmp_path, **settings), method=STAGE)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.method.state["reward.0.seen"] == 3
    assert again.method.state == pytest.approx(trainer.method.state)


@pytest.mark.slow
def test_a_sampler_of_three_tracks_and_a_fork_trains(tmp_path):
    trainer, moved = train(tmp_path, SAMPLER, **TRIOS)
    assert trainer.method.sampling.num_tracks == 6 and moved > 1e-6
    batches = [entry for entry in trainer.state.log_history if "trio/forked" in entry]
    assert len(batches) == 2 and any(entry["trio/forked"] > 0 for entry in batches)
