"""Where the engine's arithmetic is not the trainer's, old log-probs are the trainer's own."""

import copy
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch

from fairlen.cli import main
from fairlen.methods.compose import compose
from fairlen.policy.engines import is_exact
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import build_learner


@pytest.mark.slow
def test_bfloat16_computes_old_logprobs_anew(policy, batch):
    """A second update on the same rollouts starts from ratios of 1 by the trainer's arithmetic, not by the engine's."""
    low = replace(
        policy.with_model(copy.deepcopy(policy.model)), autocast=True
    )  # bfloat16 over float32 weights, as on CUDA
    assert is_exact(TrainConfig(), policy) and not is_exact(TrainConfig(), low)
    method = compose("grpo", ["sampling.n=8"])
    plan = method.plan(method.score(batch.rollouts))
    config = TrainConfig.of(learning_rate=1e-12, warmup_updates=0)
    own, engines = build_learner(config, low, method), build_learner(config, low, method)
    old = own.old_logprobs(batch.rollouts, plan)
    assert sorted(old) == sorted(plan.rows.tolist())
    for row in old:
        span = batch.rollouts.segments[row]
        response = batch.rollouts.responses[span.response]
        assert len(old[row]) == span.stop - span.start
        assert (old[row] - torch.tensor(response.logprobs)[-len(old[row]) :]).abs().max() < 0.5  # the same tokens
    by_own = own.step(method, batch.rollouts, plan, old, is_on_policy=False)
    by_engine = engines.step(method, batch.rollouts, plan, {}, is_on_policy=False)
    assert by_own.counts["ratio/max"] < 1 + 1e-3 < by_engine.counts["ratio/max"]


@pytest.mark.slow
def test_denominators_count_what_the_correction_keeps(tmp_path, monkeypatch):
    """An engine that is taken for inexact differs by rounding, so that some sequences lie below ratio 1 and are rejected.

    The weights of a token mean over the kept tokens add up to 1; those of all tokens would have a sum below 1.
    """
    monkeypatch.setattr("fairlen.train.start.is_exact", lambda config, policy: False)
    method, bounds = "verl:grpo+seq_mean_k1", ["correction.low=1", "correction.high=2"]
    flags = ["--method", method, *(text for bound in ["sampling.n=6", *bounds] for text in ("--set", bound))]
    sizes = "--rollout-batches 1 --prompts-per-batch 4 --problems 4 --samples 1 --max-response-length 24 --updates-per-batch 2"
    assert main(["train", *flags, *sizes.split(), "--out", str(tmp_path / "run")]) == 0
    rows = pq.read_table(tmp_path / "run/records/segments-000000.parquet").to_pylist()
    assert len(rows) == 24
    for update in (1, 2):
        own = [row for row in rows if update in row["update"]]
        kept = [row["weight"][row["update"].index(update)] * (row["stop"] - row["start"]) for row in own]
        assert 0 < len(own) < 12 and sum(kept) == pytest.approx(1.0)
