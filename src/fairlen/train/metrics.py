"""The numbers of one update, by the names of docs/metrics.md."""

from __future__ import annotations

import numpy as np

from fairlen.batch import Floats, Plan, Responses, count_by, mean_by, sum_by
from fairlen.method import Scored
from fairlen.train.collect import Collected
from fairlen.train.step import StepResult


def rollout_metrics(collected: Collected, scored: Scored) -> dict[str, float]:
    """What one rollout batch is like; all responses, rejected prompts included, unless a name says otherwise."""
    responses, reward = scored.responses, scored.reward
    right = responses.correct
    per_prompt = sum_by(responses.prompt, right, responses.num_prompts)
    size = count_by(responses.prompt, responses.num_prompts)
    return {
        "accuracy/mean": float(right.mean()),
        "outcome/mean": float(responses.outcome.mean()),
        "reward/mean": float(reward.mean()),
        "reward/std": float(reward.std()),
        "length/mean": float(responses.length.mean()),
        "length/right": mean_or_nan(responses.length[right]),
        "length/wrong": mean_or_nan(responses.length[~right]),
        "length/max": float(responses.length.max()),
        "length/truncated": float(responses.truncated.mean()),
        "length/variation": length_variation(responses),
        "responses/active": float(responses.active.mean()),
        "prompts/asked": float(responses.num_prompts),
        "prompts/kept": float(collected.num_kept),
        "prompts/refills": float(collected.num_refills),
        "prompts/all_right": float((per_prompt == size).mean()),
        "prompts/all_wrong": float((per_prompt == 0).mean()),
        "tokens/generated": float(responses.length.sum()),
    }


def length_variation(responses: Responses) -> float:
    """Coefficient of variation of length within prompts, averaged over prompts (population std)."""
    num, length = responses.num_prompts, responses.length.astype(np.float64)
    mean = mean_by(responses.prompt, length, num)
    std = np.sqrt(mean_by(responses.prompt, (length - mean[responses.prompt]) ** 2, num))
    return float((std / np.maximum(mean, 1.0)).mean())


def update_metrics(plan: Plan, result: StepResult, learning_rate: float) -> dict[str, float]:
    """What one update did; means over trained tokens unless a name says otherwise."""
    tokens = {name: value / plan.num_tokens for name, value in result.tokens.items()}
    return {
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
        "mismatch/mean": tokens["mismatch"],
        "mismatch/max": result.tokens["largest_mismatch"],
        "weight/positive": signed_mass(plan, plan.advantage > 0),
        "weight/negative": signed_mass(plan, plan.advantage < 0),
        "coupling/sign_length": float((plan.advantage * plan.length).sum() / plan.num_tokens),
    }


def signed_mass(plan: Plan, rows: np.ndarray) -> float:
    """Sum of weight * |advantage| over the tokens of some sequences."""
    return float((plan.weight * np.abs(plan.advantage) * plan.length)[rows].sum())


def mean_or_nan(values: Floats | np.ndarray) -> float:
    """The mean, nan of nothing."""
    return float(values.mean()) if len(values) else float("nan")
