"""A stage with state and a sampler of three tracks, each in one file outside the package, train in TRL as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
from trl_runs import ScriptedFair, problems, scripted, weights_of

OUTSIDE = Path(__file__).parents[1] / "methods/outside"
STAGE, SAMPLER = f"{OUTSIDE}/moving_clip.py:MovingClip", f"{OUTSIDE}/triples.py:Triples"


def train(folder, method: str, **settings):
    """A finished trainer, and how far its weights moved."""
    trainer = ScriptedFair(**scripted(folder, **settings), method=method)
    start = weights_of(trainer)
    trainer.train()
    return trainer, float((weights_of(trainer) - start).abs().max())


def test_a_stage_with_state_moves_once_per_off_policy_update_and_is_resumed(tmp_path):
    settings = {"num_iterations": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 4}
    trainer, moved = train(tmp_path, f"grpo+{STAGE}", **settings)
    assert moved > 1e-6
    state = trainer.method.state
    assert state["surrogate.num_updates"] == 2  # of four updates
    widths = [entry["state/surrogate.width"] for entry in trainer.state.log_history if "loss/total" in entry]
    assert widths[0] == widths[1] == 0.2 != widths[2] == widths[3]  # what an update was made with
    again = ScriptedFair(**scripted(tmp_path, **settings), method=f"grpo+{STAGE}")
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.method.state == state


def test_a_sampler_of_three_tracks_trains_equal_lengths(tmp_path):
    trainer, moved = train(tmp_path, f"grpo+{SAMPLER}", num_generations=6, per_device_train_batch_size=12)
    assert trainer.method.sampling.num_tracks == 6
    assert moved > 1e-6
    trained = [entry["triples/trained"] for entry in trainer.state.log_history if "triples/trained" in entry]
    assert len(trained) == 2 and all(0 < number <= 8 for number in trained)  # 4 prompts of 2 triples


def test_the_rows_of_three_tracks_are_what_all_of_them_wrote(tmp_path):
    trainer = ScriptedFair(
        **scripted(tmp_path, num_generations=6, per_device_train_batch_size=12), method=f"grpo+{SAMPLER}"
    )
    trainer.model.train()
    output = trainer._generate_and_score_completions([row for row in problems(4) for _ in range(6)])
    trains = output["fair_trains"]
    length = (output["completion_mask"] * output["tool_mask"]).sum(1)[trains].numpy().reshape(-1, 3)
    assert len(length) > 0 and (length == length[:, :1]).all()
    shares = (output["fair_advantage"][trains].numpy().reshape(-1, 3)).sum(1)
    assert shares == pytest.approx(np.zeros(len(shares)), abs=1e-9)


def test_a_number_of_responses_that_a_sampler_cannot_have_is_refused_in_its_words(tmp_path):
    with pytest.raises(ValueError, match="num_generations=4: Triples needs a multiple of 3 responses"):
        ScriptedFair(**scripted(tmp_path), method=f"grpo+{SAMPLER}")
