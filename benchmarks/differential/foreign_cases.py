"""Settings of other projects, beside the method of ours that should compute the same; record_foreign.py runs theirs.

Default settings of theirs are left out: clips of 0.2, no dual clip, token mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OURS = "ours"
"""Of an advantage: our plan's weight * advantage * trained tokens of the update, for a project's own token mean."""


@dataclass(frozen=True)
class Case:
    """Settings of theirs, and the method of ours that should compute the same."""

    name: str
    method: str
    overrides: tuple[str, ...] = ()
    advantage: str = ""
    """Which of the project's advantages, or OURS."""
    noise: float = 0.3
    binary: bool = False
    """Rewards are verdicts."""
    differs: tuple[str, ...] = ()
    """What is known not to agree: advantage, loss, gradient."""
    settings: dict[str, Any] = field(default_factory=dict)


BATCH_TOKENS = ("aggregation=TokenMean", "aggregation.scope=update")
GROUP_TOKENS = ("aggregation=TokenMean",)
HIGHER, DUAL = ("surrogate.clip_high=0.28",), ("surrogate.dual_clip=3.0",)
UNCLIPPED = ("surrogate.clip_low=1.0", "surrogate.clip_high=1e9")
WIDE_GSPO = ("surrogate.clip_low=0.05", "surrogate.clip_high=0.06")


def std(eps: str) -> tuple[str, ...]:
    """Bessel's correction, and what the project adds to the standard deviation."""
    return ("advantage.ddof=1", f"advantage.eps={eps}")


def openrlhf_cases() -> list[Case]:
    norm = std("1e-9")
    both = dict(clip_eps_low=0.05, clip_eps_high=0.06)
    tis = dict(enable_vllm_is_correction=True, vllm_is_truncated_threshold=[0.0, 2.0])
    return [
        Case("default", "grpo", (*norm, *BATCH_TOKENS), "group_norm"),
        Case("clip-higher, dual clip", "grpo", (*norm, *BATCH_TOKENS, *HIGHER, *DUAL), "group_norm", noise=1.0,
             settings=dict(clip_eps_high=0.28, dual_clip=3.0)),
        Case("mean of sequences", "grpo", norm, "group_norm", settings=dict(token_level_loss=False)),
        Case("gspo", "gspo", norm, "group_norm", noise=0.002,
             settings=dict(policy_loss_type="gspo", clip_eps_low=3e-4, clip_eps_high=4e-4)),
        Case("gspo, wide", "gspo", (*norm, *WIDE_GSPO), "group_norm", settings=dict(policy_loss_type="gspo", **both)),
        Case("rloo", "grpo", ("advantage=LeaveOneOut", *BATCH_TOKENS), "rloo"),
        Case("dr_grpo", "dr_grpo", BATCH_TOKENS, "dr_grpo"),
        Case("dr_grpo is not the paper's constant", "dr_grpo", (), "dr_grpo", differs=("loss", "gradient")),
        Case("tis", "grpo+mismatch", (*norm, *BATCH_TOKENS), "group_norm", settings=tis),
        Case("balanced by the advantage alone", "grpo+balanced", (), OURS),
    ]  # fmt: skip


def skyrl_cases() -> list[Case]:
    norm, grpo, ppo = std("1e-6"), "compute_grpo_outcome_advantage", "ppo_policy_loss"
    regular = dict(function=ppo, policy_loss_type="regular")
    return [
        Case("default", "grpo", (*norm, *BATCH_TOKENS), grpo, settings=dict(reduction="token_mean", **regular)),
        Case("sequence_mean", "grpo", norm, grpo, settings=dict(reduction="sequence_mean", **regular)),
        Case("prompt_mean, clip-higher", "grpo", (*norm, *GROUP_TOKENS, *HIGHER), grpo,
             settings=dict(reduction="prompt_mean", eps_clip_high=0.28, **regular)),
        Case("seq_mean_token_sum_norm", "dr_grpo", (), grpo + "+centred",
             settings=dict(reduction="seq_mean_token_sum_norm", **regular)),
        Case("dual_clip", "grpo", (*norm, *BATCH_TOKENS, *DUAL), grpo, noise=1.0,
             settings=dict(reduction="token_mean", function=ppo, policy_loss_type="dual_clip", clip_ratio_c=3.0)),
        Case("gspo", "gspo_token", norm, grpo, noise=0.002,
             settings=dict(function="gspo_policy_loss", reduction="sequence_mean", eps_clip_low=3e-4, eps_clip_high=4e-4)),
        Case("sapo", "sapo", norm, grpo, settings=dict(function="sapo_policy_loss", reduction="sequence_mean")),
        Case("cispo", "cispo", norm, grpo, noise=1.0,
             settings=dict(function="compute_policy_loss_cispo", reduction="token_mean")),
        Case("rloo", "grpo", ("advantage=LeaveOneOut", *BATCH_TOKENS), "compute_rloo_outcome_advantage",
             settings=dict(reduction="token_mean", **regular)),
        Case("tis", "grpo+mismatch", (*norm, *BATCH_TOKENS), grpo,
             settings=dict(reduction="token_mean", tis="token", **regular)),
        Case("balanced by the advantage alone", "grpo+balanced", (), OURS,
             settings=dict(reduction="token_mean", **regular)),
        Case("Tinker's importance_sampling", "grpo+balanced", UNCLIPPED, OURS,
             settings=dict(function="importance_sampling_loss", reduction="token_mean")),
    ]  # fmt: skip


def slime_cases() -> list[Case]:
    norm, tokens = std("1e-6"), dict(calculate_per_token_loss=True)
    return [
        Case("default", "grpo", norm, "grpo"),
        Case("per-token loss, clip-higher, dual clip", "grpo", (*norm, *BATCH_TOKENS, *HIGHER, *DUAL), "grpo", noise=1.0,
             settings=dict(eps_clip_high=0.28, eps_clip_c=3.0, **tokens)),
        Case("no std", "grpo+no_std", (), "no_std"),
        Case("gspo", "gspo", norm, "grpo", noise=0.002,
             settings=dict(advantage_estimator="gspo", eps_clip=3e-4, eps_clip_high=4e-4)),
        Case("cispo", "cispo", norm, "grpo", noise=1.0,
             settings=dict(advantage_estimator="cispo", eps_clip=1.0, eps_clip_high=4.0, **tokens)),
        Case("tis", "grpo+mismatch", norm, "grpo", settings=dict(use_tis=True)),
        Case("k3", "grpo+kl", (*norm, "terms.ReferenceKL.coefficient=0.04"), "grpo",
             settings=dict(use_kl_loss=True, kl_loss_coef=0.04, kl_loss_type="k3")),
        Case("balanced by the advantage alone", "grpo+balanced", (), OURS, settings=tokens),
        Case("fspo as custom_loss", "fspo", (), OURS, noise=0.03, settings=dict(loss_type="custom_loss", **tokens)),
    ]  # fmt: skip


def areal_cases() -> list[Case]:
    norm, ppo = std("1e-5"), dict(function="ppo_actor_loss_fn")
    wide = dict(importance_sampling_level="sequence", eps_clip=0.05, eps_clip_higher=0.06)
    clamp = dict(level="token", action="clamp", metric="ratio", upper=2.0, lower=None, agg="mean")
    return [
        Case("default", "grpo", (*norm, *BATCH_TOKENS), "grpo", settings=ppo),
        Case("clip-higher, dual clip", "grpo", (*norm, *BATCH_TOKENS, *HIGHER, *DUAL), "grpo", noise=1.0,
             settings=dict(eps_clip_higher=0.28, c_clip=3.0, **ppo)),
        Case("sequence level", "gspo", (*norm, *WIDE_GSPO, *BATCH_TOKENS), "grpo", settings=wide | ppo),
        Case("sequence level is not gspo", "gspo", (*norm, *WIDE_GSPO), "grpo", settings=wide | ppo,
             differs=("loss", "gradient")),
        Case("sapo", "sapo", (*norm, *BATCH_TOKENS), "grpo",
             settings=dict(function="sapo_loss_fn", tau_pos=1.0, tau_neg=1.05)),
        Case("rloo", "grpo", ("advantage=LeaveOneOut", *BATCH_TOKENS), "rloo", settings=ppo),
        Case("decoupled, clamped", "grpo+mismatch", (*norm, *BATCH_TOKENS), "grpo",
             settings=dict(rejection_sampling=clamp, **ppo)),
        Case("balanced by the advantage alone", "grpo+balanced", (), OURS, settings=ppo),
    ]  # fmt: skip


def prime_rl_cases() -> list[Case]:
    ours = ("filter=MixedRewards", *BATCH_TOKENS, *UNCLIPPED, "terms.ReferenceKL.estimator=k2")
    least = dict(config="DefaultLossConfig")
    return [
        Case("default, no token masked", "grpo+no_std+kl", (*ours, "terms.ReferenceKL.coefficient=0.002"), "grpo",
             noise=0.15, settings=least),
        Case("default, tokens masked", "grpo+no_std+kl", (*ours, "terms.ReferenceKL.coefficient=0.002"), "grpo",
             noise=1.0, settings=least, differs=("loss", "gradient")),
        Case("no mask", "grpo+no_std+kl", (*ours, "terms.ReferenceKL.coefficient=0.002"), "grpo", noise=1.0,
             settings=dict(dppo_mask_low=1.0, dppo_mask_high=1.0, **least)),
        Case("ipo, no token masked", "grpo+no_std+kl", (*ours, "terms.ReferenceKL.coefficient=0.02"), "grpo",
             noise=0.08, settings=dict(config="IPOLossConfig", kl_tau=0.01)),
        Case("balanced by the advantage alone", "grpo+balanced", ("filter=MixedRewards", *UNCLIPPED), OURS,
             settings=dict(dppo_mask_low=1.0, dppo_mask_high=1.0, kl_tau=0.0, **least)),
        Case("fspo as custom loss", "fspo", ("filter=MixedRewards",), OURS, noise=0.03,
             settings=dict(config="CustomLossConfig", import_path="ours")),
    ]  # fmt: skip


def nemo_cases() -> list[Case]:
    norm = std("1e-6")
    tis = dict(truncated_importance_sampling_type="tis", truncated_importance_sampling_ratio=2.0)
    gspo = dict(sequence_level_importance_ratios=True, token_level_loss=False, ratio_clip_min=3e-4, ratio_clip_max=4e-4)
    return [
        Case("group mean", "grpo", (*norm, *BATCH_TOKENS), "std"),
        Case("the std of the others", "grpo", ("advantage=LeaveOneOut", *BATCH_TOKENS), "loo+std",
             differs=("advantage", "loss", "gradient")),
        Case("rloo", "grpo", ("advantage=LeaveOneOut", "surrogate=PolicyGradient", *BATCH_TOKENS), "loo",
             settings=dict(disable_ppo_ratio=True)),
        Case("clip-higher, dual clip", "grpo", (*norm, *BATCH_TOKENS, *HIGHER, *DUAL), "std", noise=1.0,
             settings=dict(ratio_clip_max=0.28, ratio_clip_c=3.0)),
        Case("mean of sequences", "grpo", norm, "std", settings=dict(token_level_loss=False)),
        Case("gspo", "gspo", norm, "std", noise=0.002, settings=gspo),
        Case("cispo", "cispo", norm, "std", noise=1.0,
             settings=dict(use_cispo=True, ratio_clip_min=1.0, ratio_clip_max=4.0)),
        Case("tis", "grpo+mismatch", (*norm, *BATCH_TOKENS), "std",
             settings=dict(use_importance_sampling_correction=True, **tis)),
        Case("k3 with a score-function gradient", "grpo+kl", (*norm, *BATCH_TOKENS, "terms.ReferenceKL.coefficient=0.04"),
             "std", settings=dict(reference_policy_kl_penalty=0.04), differs=("gradient",)),
        Case("balanced by the advantage alone", "grpo+balanced", (), OURS),
    ]  # fmt: skip
