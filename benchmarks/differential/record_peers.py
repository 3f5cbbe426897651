"""Record what the rules of three projects compute beside their defaults: python benchmarks/differential/record_peers.py FOLDER

It writes tests/differential/peers.json, as record_foreign.py does and from the same checkouts: masks of prime-rl's losses,
SkyRL's masks on the engine's ratio, NeMo-RL's corrections and advantages. Everything is computed in float64.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/differential"))
import record_foreign
from foreign import GROUP, NAMED, PEERS, Batch
from foreign_cases import BATCH_TOKENS, Case
from record_foreign import (
    NEMO_MATHS,
    PROJECTS,
    REWARDS,
    nemo_loss,
    prime_rl_advantage,
    prime_rl_loss,
    skyrl_advantage,
    skyrl_loss,
)
from source import Source

NO_EPS = ("advantage.ddof=1", "advantage.eps=1e-6")


def rejects(level: str, low: float, high: float, *more: str) -> tuple[str, ...]:
    fields = (*([f"level={level}"] if level != "mean" else []), f"low={low}", f"high={high}", *more)
    return ("correction=SamplerRejection", *(f"correction.{one}" for one in fields))


def prime_rl_cases() -> list[Case]:
    least = dict(config="DefaultLossConfig")
    return [
        Case("default", "prime-rl:default", (), "grpo", noise=1.0, settings=least),
        Case("other bounds and strength", "prime-rl:grpo+dppo_mask_low=0.05+dppo_mask_high=0.1+kl_tau=0.05", (), "grpo",
             noise=1.0, settings=least | dict(dppo_mask_low=0.05, dppo_mask_high=0.1, kl_tau=0.05)),
        Case("ipo", "prime-rl:ipo", (), "grpo", noise=1.0, settings=dict(config="IPOLossConfig")),
        Case("max_rl", "prime-rl:max_rl", (), "max_rl", noise=1.0, settings=least),
        Case("linear length penalty", "prime-rl:linear", (), "linear", noise=1.0, settings=least),
    ]  # fmt: skip


def skyrl_cases() -> list[Case]:
    grpo = "compute_grpo_outcome_advantage"
    base = dict(function="ppo_policy_loss", policy_loss_type="regular", reduction="token_mean")

    def masks(name: str, level: str, low: float, high: float, **off: Any) -> Case:
        return Case(
            name, "grpo", (*NO_EPS, *BATCH_TOKENS, *rejects(level, low, high)), grpo, settings=base | {"off": off}
        )

    dppo = dict(function="dppo_policy_loss", reduction="token_mean")
    ours = ("surrogate.moved_from=sampled", "surrogate.cap=inf", "surrogate.value=ratio", "correction.cap=inf")
    return [
        masks("geometric", "mean", 0.9, 1.1, sequence_mask_metric="geometric", geo_mask_low=0.9, geo_mask_high=1.1),
        masks("product", "sequence", 0.4, 2.0, sequence_mask_metric="product", product_mask_low=0.4, product_mask_high=2.0),
        masks("outlier", "any", 0.5, 2.0, outlier_token_is_threshold_low=0.5, outlier_token_is_threshold_high=2.0),
        masks("token", "token", 0.8, 1.3, token_mask_is_threshold_low=0.8, token_mask_is_threshold_high=1.3),
        Case("dppo", "verl:dppo_tv+mismatch", (*ours, "surrogate.low=0.1"), grpo, noise=1.0,
             settings=dppo | {"dppo": dict(dppo_type="binary_tv", delta_low=0.1, delta_high=0.2)}),
        Case("dppo, kl", "verl:dppo_kl+mismatch", (*ours, "surrogate.low=0.02", "surrogate.high=0.05"), grpo,
             noise=1.0, settings=dppo | {"dppo": dict(dppo_type="binary_kl", delta_low=0.02, delta_high=0.05)}),
        Case("reinforce++", "verl:reinforce_plus_plus+clip_ratio_c=1e9", (),
             "compute_reinforce_plus_plus_outcome_advantage+whiten", settings=base),
    ]  # fmt: skip


def nemo_cases() -> list[Case]:
    is_, kl = dict(use_importance_sampling_correction=True), dict(reference_policy_kl_penalty=0.01)

    def corrected(kind: str, low: float, high: float) -> Case:
        bounds = dict(truncated_importance_sampling_ratio_min=low, truncated_importance_sampling_ratio=high)
        name = "+".join((f"nemo-rl:grpo+{kind}", *(f"{key}={value}" for key, value in bounds.items())))
        return Case(
            kind, name, (), "loo+std", settings=is_ | kl | bounds | dict(truncated_importance_sampling_type=kind)
        )

    def plain(name: str, words: str, advantage: str = "loo+std", noise: float = 0.3, **settings: Any) -> Case:
        return Case(name, f"nemo-rl:{words}", (), advantage, noise=noise, settings=kl | settings)

    outcomes = ("advantage.outcomes=correct=1,style=0.5",)
    return [
        plain("default", "grpo"),
        plain("no std", "grpo+normalize_rewards=false", "loo"),
        plain("the mean of the group", "grpo+use_leave_one_out_baseline=false", "std"),
        plain("another strength of the KL", "grpo+reference_policy_kl_penalty=0.2", reference_policy_kl_penalty=0.2),
        plain("clips", "grpo+ratio_clip_min=0.1+ratio_clip_max=0.28+ratio_clip_c=1.5", noise=1.0, ratio_clip_min=0.1,
              ratio_clip_max=0.28, ratio_clip_c=1.5),
        plain("mean of sequences", "grpo+token_level_loss=false", token_level_loss=False),
        plain("use_cispo", "grpo+use_cispo", noise=1.0, use_cispo=True),
        plain("disable_ppo_ratio", "grpo+disable_ppo_ratio", disable_ppo_ratio=True),
        plain("sequence_level_importance_ratios", "grpo+sequence_level_importance_ratios", token_level_loss=False,
              sequence_level_importance_ratios=True),
        plain("reinforce_plus_plus", "reinforce_plus_plus", "reinforce"),
        plain("without a baseline", "reinforce_plus_plus+minus_baseline=false", "reinforce-raw"),
        corrected("tis", 0.8, 1.3),
        corrected("icepop", 0.8, 1.3),
        corrected("seq-mask-tis", 0.9, 1.1),
        replace(plain("gdpo", "gdpo", "gdpo+loo"), overrides=outcomes),
        replace(plain("gdpo of the group", "gdpo", "gdpo"), overrides=(*outcomes, "advantage.baseline=group")),
    ]  # fmt: skip


def skyrl_any_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    """GRPO's, or by the function that whitens over tokens."""
    name, _, whiten = estimator.partition("+")
    if not whiten:
        return skyrl_advantage(source, batch, estimator)
    utils = record_foreign.SKYRL_UTILS
    maths = vars(source.load(utils + "torch_utils.py", "masked_mean"))
    found = source.load(utils + "ppo_utils.py", name, "masked_whiten", "masked_var", **maths)
    last = torch.arange(batch.mask.shape[1])[None] == batch.mask.sum(1)[:, None] - 1
    return getattr(found, name)(last * REWARDS[:, None], batch.mask.double(), gamma=1.0)[0][:, 0]


def nemo_any_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    """By the estimator of that name, in float64; "loo" is the baseline of the others."""
    utils = source.load("nemo_rl/algorithms/utils.py", *NEMO_MATHS, "get_gdpo_reward_component_keys", re=re)
    kinds = {"gdpo": "GDPOAdvantageEstimator", "reinforce": "ReinforcePlusPlusAdvantageEstimator"}
    kind = kinds.get(re.split("[+-]", estimator)[0], "GRPOAdvantageEstimator")
    found = source.load("nemo_rl/algorithms/advantage_estimator.py", kind, **vars(utils))
    flags = dict(use_leave_one_out_baseline="loo" in estimator, normalize_rewards=estimator != "loo")
    config = Names(**flags, minus_baseline="raw" not in estimator, reward_weights=[1.0, 0.5])
    loss = Names(use_kl_in_reward=False, reference_policy_kl_penalty=0.0, reference_policy_kl_type="k3")
    parts = {f"reward/{name}": torch.tensor(values, dtype=torch.float64) for name, values in NAMED.items()}
    given = (torch.tensor(GROUP)[:, None], REWARDS, batch.mask.double())
    return getattr(found, kind)(config, loss).compute_advantage(*given, repeated_batch=parts)[:, 0]


THEIRS = {
    "prime-rl": (prime_rl_advantage, prime_rl_loss, prime_rl_cases),
    "SkyRL": (skyrl_any_advantage, skyrl_loss, skyrl_cases),
    "NeMo-RL": (nemo_any_advantage, nemo_loss, nemo_cases),
}

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    Source.in_float64 = True
    record_foreign.write_cases(
        PEERS, {name: (PROJECTS[name][0], *found) for name, found in THEIRS.items()}, Path(sys.argv[1])
    )
