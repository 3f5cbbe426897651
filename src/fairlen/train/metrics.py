"""The numbers of one update, by the names of docs/metrics.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairlen.batch import Floats, Ints, Plan, Response, Responses, count_by, mean_by, mean_or_nan, sum_by
from fairlen.diagnostics.bins import length_bins
from fairlen.diagnostics.streams import stopping_pressure, stream_metrics
from fairlen.methods.method import Method, Scored
from fairlen.sampling.eqlen import EqLen, SurvivorReward
from fairlen.train.collect import Collected
from fairlen.train.step import StepResult

THIRDS = ("short", "middle", "long")
"""Of the sequences of an update, by length."""


def rollout_metrics(collected: Collected, scored: Scored, method: Method) -> dict[str, float]:
    """What one rollout batch is like and what it took."""
    everything = collected.rollouts.responses
    return (
        scored_metrics(scored, method)
        | verifier_metrics(everything)
        | {
            "prompts/extra_batches": float(collected.num_extra_batches),
            "tokens/generated": float(sum(response.length - response.inherited for response in everything)),
            "responses/verified": float(sum(response.status != "unverified" for response in everything)),
        }
    )


def scored_metrics(scored: Scored, method: Method) -> dict[str, float]:
    """What one rollout batch is like; rejected prompts included, unless a name says otherwise.

    Accuracies, rewards and lengths are over answers that started from their prompt, which are plain samples of the policy: a fork
    continues what survived, so that forks are longer than the policy's answers. Of these, graded ones are right or wrong.
    """
    responses = scored.responses.take(scored.responses.round == 0)
    trained = np.zeros(responses.num_prompts, np.bool_)
    trained[scored.responses.prompt[scored.segments.response[scored.trains]]] = True
    pairs = pair_metrics(method.sampling, scored) if isinstance(method.sampling, EqLen) else {}
    return (
        pairs
        | outcome_metrics(scored, method.mask_truncated)
        | {
            "length/mean": float(responses.length.mean()),
            "length/max": float(responses.length.max()),
            "length/truncated": float(responses.truncated.mean()),
            "length/variation": length_variation(responses),
            "responses/active": float(responses.active.mean()),
            "prompts/asked": float(responses.num_prompts),
            "prompts/kept": float(scored.kept.sum()),
            "prompts/skipped": float((~trained).mean()),
            "advantage/stopping": stopping_pressure(scored.responses, scored.segments, scored.advantage),
        }
    )


def outcome_metrics(scored: Scored, mask_truncated: bool) -> dict[str, float]:
    """Right and wrong among answers from their prompt with a verdict; truncated ones that the method leaves out have one too."""
    active = scored.responses.active | (scored.responses.truncated & mask_truncated)
    graded = active & (scored.responses.round == 0)
    responses, reward = scored.responses.take(graded), scored.reward[graded]
    right, num = responses.correct, scored.responses.num_prompts  # the last prompt may have no graded answer
    per_prompt, size = sum_by(responses.prompt, right, num), count_by(responses.prompt, num)
    return {
        "accuracy/mean": mean_or_nan(right),
        "outcome/mean": mean_or_nan(responses.outcome),
        "reward/mean": mean_or_nan(reward),
        "reward/std": float(reward.std()) if len(reward) else math.nan,
        "length/correct": mean_or_nan(responses.length[right]),
        "length/incorrect": mean_or_nan(responses.length[~right]),
        "prompts/all_correct": float(((per_prompt == size) & (size > 0)).mean()),
        "prompts/all_incorrect": float(((per_prompt == 0) & (size > 0)).mean()),
    }


def verifier_metrics(responses: Sequence[Response]) -> dict[str, float]:
    """Shares of graded responses that gave no answer, and that the verifier could not grade."""
    graded = [response.status for response in responses if response.status != "unverified"]
    return {f"verifier/{name}": graded.count(name) / max(len(graded), 1) for name in ("no_answer", "timeout", "error")}


def pair_metrics(sampling: EqLen, scored: Scored) -> dict[str, float]:
    """What the streams of one rollout batch did, and by how much `max` would value survivors above `halving`."""
    responses, segments = scored.responses, scored.segments
    found = stream_metrics(responses, segments, scored.value, scored.trains)
    rules: tuple[SurvivorReward, ...] = ("max", "halving")
    best, fair = (replace(sampling, survivor_reward=r).value(responses, segments, scored.reward) for r in rules)
    optimism = (best - fair)[segments.survivor]
    return found | {"pairs/optimism": mean_or_nan(optimism[np.isfinite(optimism)])}


def length_variation(responses: Responses) -> float:
    """Coefficient of variation of length within prompts, averaged over prompts (population std)."""
    num, length = responses.num_prompts, responses.length.astype(np.float64)
    mean = mean_by(responses.prompt, length, num)
    std = np.sqrt(mean_by(responses.prompt, (length - mean[responses.prompt]) ** 2, num))
    return float((std / np.maximum(mean, 1.0)).mean())


def update_metrics(plan: Plan, result: StepResult, learning_rate: float) -> dict[str, float]:
    """What one update did; means over trained tokens unless a name says otherwise."""
    tokens = {name: value / plan.num_tokens for name, value in result.tokens.items()}
    return mismatch_by_length(plan.length, result.mismatch) | {
        "loss/total": result.loss,
        "gradient/norm": result.gradient_norm,
        "learning_rate": learning_rate,
        "tokens/trained": float(plan.num_tokens),
        "tokens/forwarded": float(result.num_forwarded),
        "sequences/trained": float(len(plan)),
        "entropy/mean": tokens["entropy"],
        "ratio/mean": tokens["ratio"],
        "ratio/max": result.tokens["largest_ratio"],
        "ratio/clipped": tokens["clipped"],
        "ratio/inside": tokens["inside"],
        "sequences/clipped": float(result.clipped.mean()),
        "sequences/inside": float(result.inside.mean()),
        "kl/old": tokens["old_kl"],
        "mismatch/mean": float(result.mismatch.sum() / plan.num_tokens),
        "mismatch/max": result.tokens["largest_mismatch"],
        "mismatch/kl": tokens["mismatch_kl"],
        "weight/positive": signed_mass(plan, plan.advantage > 0),
        "weight/negative": signed_mass(plan, plan.advantage < 0),
        "coupling/sign_length": float((plan.advantage * plan.length).sum() / plan.num_tokens),
    }


def mismatch_by_length(length: Ints, mismatch: Floats) -> dict[str, float]:
    """Mean mismatch of a token in sequences of each third of lengths; sums over sequences and lengths come as [B].

    Sequences of one length are in one third; nan where a third has none.
    """
    bins = length_bins(length, num_bins=len(THIRDS), least=1)
    names = {1: THIRDS[1:2], 2: THIRDS[::2], 3: THIRDS}[len(bins)]
    found = {
        name: float(mismatch[bins.index == i].sum() / length[bins.index == i].sum()) for i, name in enumerate(names)
    }
    return {f"mismatch/{name}": found.get(name, float("nan")) for name in THIRDS}


def signed_mass(plan: Plan, rows: np.ndarray) -> float:
    """Sum of weight * |advantage| over the tokens of some sequences."""
    return float((plan.weight * np.abs(plan.advantage) * plan.length)[rows].sum())
