"""Phase B: figures and numbers of seeds from runs by hand, and one run that is made once."""

import numpy as np
import pytest
from study_runs import kept_run

from fairlen.train.run.config import TrainConfig
from research.real.training import Arm, make_figures, run_arm
from research.study.evidence import load_evidence, write_kept
from research.study.power import seeds_needed


def test_gaps_of_methods_are_compared_by_seed(tmp_path):
    """Of 200 tokens of four responses incorrect ones have all: 2 of 100 are 200% of the mean of 50, 3 of 66.7 are 133.3%."""
    right = {"grpo": ((0, 0), (2, 2)), "dr_grpo": ((0, 0), (1, 1))}
    runs = [kept_run(seed, name, "smollm2", right=rows) for name, rows in right.items() for seed in (1, 2, 3)]
    write_kept(runs, tmp_path)
    found = {(row["pair"], row["what"]): row["value"] for row in make_figures(load_evidence(tmp_path))}
    assert found["sequence mean", "length_gap of grpo"] == pytest.approx(200)
    assert found["sequence mean", "length_gap"] == pytest.approx(200 - 400 / 3)
    assert found["sequence mean", "accuracy"] == 25 and found["sequence mean", "length"] == 0
    assert found["penalties", "length"] is None, "no run of it"


def test_a_spread_of_four_points_asks_for_eight_seeds():
    """Twice 2.5 points are seen by n seeds where (t.975 + t.80) s / sqrt n is below 5: 8 have 1.15 s."""
    assert seeds_needed(4.3, 2.5) == 8 and 1.15 * 4.3 < 5 < 1.15 * 4.4


@pytest.mark.slow
def test_a_run_is_kept_and_not_made_again(tmp_path):
    """On the playground: one rollout batch of two prompts, an evaluation of 4 problems before and after it."""
    config = TrainConfig.of(problems=4, samples=4, prompts_per_batch=2, eval_every=0, save_every=0, learning_rate=1e-4)
    arm = Arm("grpo", "slow", rollout_batches=1, share=0.2, shift=20)
    assert run_arm(arm, 3, config, tmp_path, "a" * 40) == "grpo-slow-b1-s3"
    kept = load_evidence(tmp_path / "cells/grpo-slow-b1-s3")
    (run,) = kept.runs
    assert (run.seed, run.label, run.rate, list(kept.altered())) == (3, "slow", pytest.approx(2e-5), [])
    table = kept.run_tables(0)
    assert len(table.evaluations["problem"]) == 8 and np.unique(table.sequences["rollout_batch"]).tolist() == [0]
    assert len(table.sequences["prompt"]) == 2 * 16, "16 responses to each prompt"
    assert run_arm(arm, 3, config, tmp_path, "another commit") and not (tmp_path / "running/grpo-slow-b1-s3").exists()
