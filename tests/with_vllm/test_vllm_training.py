"""Samplers, the loop and the correction of mismatch on real vLLM, unchanged."""

import asyncio
import json
import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from fairlen.methods.compose import compose
from fairlen.methods.stages.terms import SamplerMismatch
from fairlen.metrics import index_metrics
from fairlen.policy.pack import pack
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collected, Collector
from fairlen.train.run.config import TrainConfig
from fairlen.train.start import start_training

pytestmark = pytest.mark.vllm
DOCUMENTED = set(index_metrics())


def collect(policy, engine, method, max_response_length: int = 120, num_prompts: int = 6) -> Collected:
    task = Playground()
    sampling, grader = Sampling(max_response_length, seed=0), Grader(task, policy.decode)
    collector = Collector(engine.extend, grader, task.train, sampling, num_prompts, max_extra_batches=0, seed=1)
    return asyncio.run(collector(method, 0, 0, 0))


def test_pairs_of_eqlen_are_of_equal_length_and_share_what_came_before(policy, engine):
    before = engine.stats
    found = collect(policy, engine, compose("eqlen+grpo", ["sampling.streams=4"]))
    responses, segments = found.rollouts.responses, found.rollouts.segments
    pairs = [segments[i : i + 2] for i in range(0, len(segments), 2)]
    assert len(pairs) > 20 and len({pair[0].round for pair in pairs}) > 1
    for finisher, other in pairs:
        assert (finisher.start, finisher.stop, finisher.group) == (other.start, other.stop, other.group)
        ended, going = (responses[one.response].token_ids for one in (finisher, other))
        assert ended[: finisher.start] == going[: finisher.start] and ended[: finisher.stop] != going[: finisher.stop]
    forks = [response for response in responses if response.inherited]
    counts = engine.stats.since(before)
    assert forks and counts.num_prefix_tokens > counts.num_computed_tokens
    for response in forks:  # log-probs of inherited tokens are those that they were sampled with
        assert len(response.logprobs) == response.length > response.inherited


def ratios(policy, engine, method, found: Collected) -> tuple[torch.Tensor, torch.Tensor]:
    """(exp(trainer - engine), the factor of `method`) for every trained token, [T] each; the policy has the weights of now."""
    rollouts = found.rollouts
    plan = method.plan(method.score(rollouts))
    old = {}
    with torch.no_grad():
        for packed in pack(rollouts, plan, 4096):
            parts = policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
            old |= dict(zip(plan.rows[packed.rows].tolist(), parts, strict=True))
    micros = [packed.micro for packed in pack(rollouts, plan, 4096, is_on_policy=False, old_logprobs=old)]
    log_ratio = torch.cat([micro.old_logprobs - micro.rollout_logprobs for micro in micros])
    return log_ratio.exp(), torch.cat([method.correction(micro) for micro in micros])


def test_the_correction_is_one_where_weights_were_pushed(policy, engine):
    method = compose("grpo+mismatch", ["sampling.n=8"])
    ratio, factor = ratios(policy, engine, method, collect(policy, engine, method, num_prompts=16))
    assert float((ratio - 1).abs().max()) < 1e-3
    assert float((factor - 1).abs().max()) < 1e-3


def test_the_correction_weighs_by_the_ratio_where_they_were_not(policy, engine, moved):
    """Sampled by old weights: the mean of the ratio over tokens is 1, within 5 standard errors, and its cap is 2."""
    engine._has_weights = True  # as an engine that was never told of the moved weights
    method = compose("grpo+mismatch", ["sampling.n=16"])
    assert isinstance(method.correction, SamplerMismatch)
    ratio, factor = ratios(policy, engine, method, collect(policy, engine, method, num_prompts=16))
    error = float(ratio.std() / math.sqrt(len(ratio)))
    print(f"{len(ratio)} tokens: ratio {ratio.mean():.4f} +- {error:.4f}, largest {ratio.max():.1f}")
    assert float((ratio - 1).abs().max()) > 0.5
    assert abs(float(ratio.mean()) - 1) < 5 * error
    assert torch.equal(factor, ratio.clamp(max=2.0)) and float(factor.max()) == 2.0


def settings(out: Path, **changes) -> TrainConfig:
    small = {
        "engine": "vllm", "method": "grpo", "overrides": ("sampling.n=8",), "prompts_per_batch": 6, "rollout_batches": 3,
        "max_response_length": 120,
        "problems": 16, "samples": 2, "save_every": 0, "eval_every": 0, "threads": 1, "max_num_seqs": 48,
        "out": str(out),
    }  # fmt: skip
    return TrainConfig.of(**(small | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "grpo+mismatch", "updates_per_batch": 2},
        {"method": "eqlen+grpo", "overrides": ("sampling.streams=4",)},
    ],
)
def test_training_logs_accuracy_and_a_small_mismatch_of_short_and_long(tmp_path, changes):
    """Also in later updates of a rollout batch, where the trainer computes the old log-probs itself."""
    config = settings(tmp_path / "run", **changes)
    summary = start_training(config)
    assert summary.num_updates == 3 * config.update.updates_per_batch and summary.before.accuracy.value > 0.2
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {name for entry in entries for name in entry} <= DOCUMENTED
    learned = [entry for entry in entries if "loss/total" in entry]
    assert len(learned) == summary.num_updates
    for entry in learned:
        assert 0.0 <= entry["accuracy/mean"] <= 1.0 and 0.0 < entry["engine/occupancy"] <= 1.0
        assert 0.0 < entry["mismatch/mean"] < 1e-4 and entry["mismatch/max"] < 1e-2
        assert 0.0 <= entry["mismatch/kl"] < 1e-6
        assert all(0.0 < entry[f"mismatch/{name}"] < 1e-4 for name in ("short", "long"))
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert np.all([pq.read_table(path).num_rows > 0 for path in (tmp_path / "run" / "records").glob("responses-*")])


def test_resuming_pushes_the_weights_of_the_checkpoint(tmp_path):
    """A run that stops after a rollout batch and goes on has the mismatch of one engine and one policy, not of two."""
    start_training(settings(tmp_path / "run", rollout_batches=1, save_every=1, learning_rate=3e-3))
    start_training(settings(tmp_path / "run", rollout_batches=2, save_every=1, learning_rate=3e-3, resume=True))
    entries = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    learned = [entry for entry in entries if "loss/total" in entry]
    assert [entry["update"] for entry in learned] == [1, 2]
    assert all(entry["mismatch/max"] < 1e-2 for entry in learned)


def test_default_flags_train(tmp_path):
    """128 slots of prompts of 18 tokens are more than the 2,048 tokens that vLLM prefills in a step by default."""
    assert start_training(TrainConfig.of(engine="vllm", rollout_batches=1, out=str(tmp_path / "run"))).num_updates == 1
