"""Record what methods' authors' functions compute: python benchmarks/differential/record_authors.py FOLDER

It writes tests/differential/authors.json. FOLDER has a git checkout of each project under its name in PROJECTS, with the commit.
As in record_foreign.py nothing of theirs is installed or copied; DDCA is an advantage alone, without a loss.
tests/differential/test_other_projects.py compares.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace as Names
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/differential"))
from foreign import AUTHORS, BINARY, GROUP, GROUP_SIZE, LENGTH, Batch
from foreign_cases import BATCH_TOKENS, DUAL, Case, std
from record_foreign import REWARDS, N, Settings, prime_rl_advantage, prime_rl_loss, write_cases
from source import Source

ALGORITHMS, MATHS = "verl/trainer/ppo/core_algos.py", "verl/utils/torch_functional.py"
LAST = torch.arange(12)[None] == torch.tensor(LENGTH)[:, None] - 1
STD = std("1e-6")


def verl_advantage(source: Source, batch: Batch, estimator: str, **more: Any) -> Tensor:
    """By a function of a copy of verl that has been changed by its authors."""
    found = source.load(ALGORITHMS, estimator, defaultdict=defaultdict)
    rewards = (LAST * REWARDS[:, None]).clone()
    return getattr(found, estimator)(rewards, batch.mask.double(), np.array(GROUP), **more)[0][:, 0]


def verl_maths(source: Source, *names: str) -> dict[str, Any]:
    """What their algorithms import as verl_F."""
    return {"verl_F": Names(**vars(source.load(MATHS, "masked_mean", "masked_sum", *names)))}


def verl_loss(source: Source, batch: Batch, advantage: Tensor, function: str, maths: tuple[str, ...] = (), **more: Any):
    found = source.load(ALGORITHMS, function, "agg_loss", **verl_maths(source, *maths))
    return getattr(found, function)(batch.old, batch.now, batch.spread(advantage), batch.mask, **more)[0]


# CTPO -----------------------------------------------------------------------------------------------------------------


class ActorConfig(Settings):
    """Stands in for verl's: fields, and `get`."""

    global_batch_info: dict[str, Any] = {}  # noqa: RUF012

    def get(self, name: str, default: Any) -> Any:
        return getattr(self, name, default)


def ctpo_loss(source: Source, batch: Batch, advantage: Tensor, **settings: Any) -> Tensor:
    function = "_compute_policy_loss_cum_token_la_impl"
    found = source.load(ALGORITHMS, function, "agg_loss", **verl_maths(source), ActorConfig=ActorConfig)
    config = ActorConfig(**settings)
    return getattr(found, function)(batch.old, batch.now, batch.spread(advantage), batch.mask.double(), config=config)[
        0
    ]


def ctpo_cases() -> list[Case]:
    group = "compute_grpo_outcome_advantage"
    wide = dict(la_clip_low=0.2, la_clip_high=0.4, la_clip_c=0.6, clip_ratio_la_power=0.25)
    ours = {"width_low": 0.2, "width_high": 0.4, "dual_width": 0.6, "power": 0.25}
    return [
        Case("default", "ctpo", (), group, noise=0.03),
        Case("far from on-policy", "ctpo", (), group),
        Case(
            "other widths and power", "ctpo", tuple(f"surrogate.{k}={v}" for k, v in ours.items()), group, settings=wide
        ),
    ]


# MaxRL ----------------------------------------------------------------------------------------------------------------


def maxrl_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    return verl_advantage(source, batch, estimator, epsilon=0.0)  # by default 1e-6, of which ours has nothing


def maxrl_cases() -> list[Case]:
    settings = dict(function="compute_grpo_loss_objective", cliprange=0.2)
    return [
        Case("token mean, dual clip", "grpo+maxrl", (*BATCH_TOKENS, *DUAL), "compute_maxrl_outcome_advantage", noise=1.0,
             settings=settings),
        Case("mean of sequences", "grpo+maxrl", DUAL, "compute_maxrl_outcome_advantage", noise=1.0,
             settings=dict(loss_agg_mode="seq-mean-token-mean", **settings)),
    ]  # fmt: skip


# DDCA -----------------------------------------------------------------------------------------------------------------


def ddca_advantage(source: Source, batch: Batch, beta: str) -> Tensor:
    found = source.load("dca/advantage.py", "advantage_dca_grpo", "length_score_z_sigmoid", Optional=None)
    groups = (slice(start, start + GROUP_SIZE) for start in range(0, N, GROUP_SIZE))
    correct, length = np.array(BINARY) > 0, np.array(LENGTH)
    parts = [found.advantage_dca_grpo(correct[rows], length[rows], float(beta)) for rows in groups]
    return torch.from_numpy(np.concatenate(parts))


def ddca_cases() -> list[Case]:
    return [
        Case("their 0.2", "ddca", (), "0.2", binary=True),
        Case("strength 1", "ddca", ("advantage.alpha=1.0",), "1.0", binary=True),
    ]


# VL Norm --------------------------------------------------------------------------------------------------------------


def vl_advantage(source: Source, batch: Batch, alpha: str) -> Tensor:
    config = {"use_grpopp": True, "grpopp_config": {"alpha": float(alpha)}}
    return verl_advantage(source, batch, "compute_grpo_outcome_advantage", **config)


def vl_loss(source: Source, batch: Batch, advantage: Tensor, **settings: Any) -> Tensor:
    given = dict(cliprange=0.2, use_grpopp=True, maths=("masked_mean_allavg",), **settings)
    return verl_loss(source, batch, advantage, "compute_policy_loss", **given)


def vl_cases() -> list[Case]:
    """Their advantages hold the weights."""
    return [
        Case("alpha 0.75", "grpo+vl_norm", (*STD, *DUAL), "0.75", noise=1.0, differs=("advantage",)),
        Case("alpha 1", "grpo+vl_norm", (*STD, *DUAL, "aggregation.power=1.0"), "1", noise=1.0, differs=("advantage",)),
    ]


# prime-rl -------------------------------------------------------------------------------------------------------------


def prime_rl_cases() -> list[Case]:
    """Of prompts without variance it counts no tokens; lengths differ in all of ours, so that the penalty leaves none."""
    ours = (*BATCH_TOKENS, "surrogate.clip_low=1.0", "surrogate.clip_high=1e9")
    settings = dict(config="DefaultLossConfig", dppo_mask_low=1.0, dppo_mask_high=1.0, kl_tau=0.0)
    return [
        Case("max_rl", "grpo+maxrl", ("filter=MixedRewards", *ours), "max_rl", settings=settings),
        Case("length penalty", "grpo+solved_length+no_std", ours, "length_penalty", settings=settings),
    ]


PROJECTS = {
    "CTPO": ("acc40211dbeaa8cb37c2347a8b7ad64192b635c4", verl_advantage, ctpo_loss, ctpo_cases),
    "MaxRL": ("c0698ebb439a81ae1c6b01a842df3f2541816b4d", maxrl_advantage, verl_loss, maxrl_cases),
    "DDCA": ("75382a3fc4c7ede29a8221924453c8a956a43f1d", ddca_advantage, None, ddca_cases),
    "VL Norm": ("89da5b9dff1fbce4b3a08816e31cc63554341e9a", vl_advantage, vl_loss, vl_cases),
    "prime-rl": ("559b44772e471d1538537b8805cc77f3824a5e64", prime_rl_advantage, prime_rl_loss, prime_rl_cases),
}

if __name__ == "__main__":
    write_cases(AUTHORS, PROJECTS, Path(sys.argv[1]))
