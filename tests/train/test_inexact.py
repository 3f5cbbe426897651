"""Where the engine's arithmetic is not the trainer's, old log-probs are the trainer's own."""

import copy
from dataclasses import replace

import pytest
import torch

from fairlen.methods.compose import compose
from fairlen.methods.method import updates
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
    plan = method.weigh(next(iter(updates(method.score(batch.rollouts)))))
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
