"""Rules of the installed TRL beside its defaults: a floor, several outcomes, the spread of the batch, a KL with a ratio."""

import inspect
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from loops import over
from padded import agree, equal_groups

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
from test_trl import (
    RATIO_BLOCK,
    GRPOTrainer,
    RLOOTrainer,
    block_of,
    grpo_trainer,
    inputs_of,
    trainer_of,
    trl,
    with_surrogate,
)

from fairlen.batch import name_columns
from fairlen.methods.compose import compose
from fairlen.methods.peers import read_peers
from fairlen.methods.stages.advantage import BatchNormalized, GroupCentered, OutcomeNormalized
from fairlen.methods.stages.surrogate import TokenClip
from fairlen.methods.stages.terms import ReferenceKL, SamplerMismatch


@over("loss_type, name", [("dapo", "dapo_verl"), ("grpo", "grpo")])
def test_the_kl_whose_gradient_is_that_of_the_divergence(loss_type, name):
    method = with_surrogate(name, TokenClip(), terms=(ReferenceKL(0.04, ratio_to="old"),))
    agree(method, trl(loss_type, beta=0.04, args_use_bias_correction_kl=True), tolerance=1e-9)


@over("level", ["token", "sequence"])
@over("above", ["truncate", "mask"])
@over("floor", [None, 0.8])
def test_importance_sampling_of_the_engine(level, above, floor):
    """TRL's own lines for the factor, run on our numbers; its default is a sequence's product, masked above 3."""
    code = block_of(GRPOTrainer._generate_and_score_completions, RATIO_BLOCK)

    def loss(padded, batch):
        settings = dict(
            use_vllm=True, vllm_importance_sampling_mode=f"{level}_{above}", vllm_importance_sampling_clip_min=floor,
            vllm_importance_sampling_clip_max=1.5,
        )  # fmt: skip
        trainer = trainer_of(padded, "dapo", **settings)
        names = dict(
            self=trainer, torch=torch, math=math, tool_mask=None, completion_mask=padded.mask,
            old_per_token_logps=padded.old, sampling_per_token_logps=padded.rollout,
        )  # fmt: skip
        exec(code, names)
        inputs = inputs_of(padded) | {"importance_sampling_ratio": names["vllm_importance_sampling_ratio"]}
        return GRPOTrainer._compute_loss(trainer, None, inputs)

    correction = SamplerMismatch(level, above, 1.5, floor or 0.0)
    agree(with_surrogate("dapo_verl", TokenClip(), correction=correction), loss, tolerance=1e-9)


def advantages(marker: str, rewards: torch.Tensor, weights: list[float], scale: str) -> np.ndarray:
    """TRL's own lines for the advantages of rewards by function, [R, F], in groups of four."""
    code = block_of(GRPOTrainer._generate_and_score_completions, marker)
    trainer = SimpleNamespace(
        scale_rewards=scale, reward_funcs=weights, reward_weights=torch.tensor(weights, dtype=torch.float64)
    )
    names = dict(
        self=trainer, torch=torch, nanstd=grpo_trainer.nanstd, rewards_per_func=rewards, device="cpu", num_generations=4,
        unscorable_mask=torch.zeros(len(rewards), dtype=torch.bool),
    )  # fmt: skip
    torch.set_default_dtype(torch.float64)  # its Bessel's correction, of whole numbers, has the default type
    exec(code, names)
    torch.set_default_dtype(torch.float32)
    return names["advantages"].numpy()


@over("seed", range(4))
def test_outcomes_that_are_normalised_each(seed):
    """The second does not apply to two responses of a group, nor to any of another."""
    batch, reward = equal_groups(seed)
    other = np.random.default_rng(seed + 9).standard_normal(len(reward)).round(2)
    other[[5, 6, *range(12, 16)]] = np.nan
    theirs = advantages("mean_k = torch.nanmean", torch.from_numpy(np.stack([reward, other], 1)), [1.0, 0.25], "group")
    segments = replace(batch.segments, named=name_columns({"a": reward.tolist(), "b": other.tolist()}))
    assert OutcomeNormalized("a=1,b=0.25")(segments, reward) == pytest.approx(theirs, rel=1e-9, abs=1e-9)


SPREADS = {
    "group": compose("grpo+std_trl").advantage,
    "none": GroupCentered(),
    "batch": BatchNormalized(1e-4, spread="value", ddof=1),
}


@over("seed", range(4))
@over("scale", SPREADS)
def test_advantages_by_what_they_are_divided_by(scale, seed):
    batch, reward = equal_groups(seed)
    theirs = advantages("mean_grouped_rewards = torch.nanmean", torch.from_numpy(reward)[:, None], [1.0], scale)
    assert SPREADS[scale](batch.segments, reward) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


RUNS = {
    "dapo": trl("dapo"), "grpo": trl("grpo"), "dr_grpo": trl("dr_grpo"), "cispo": trl("cispo", epsilon_high=5.0),
    "sapo": trl("sapo"), "luspo": trl("luspo", importance_sampling_level="sequence"), "vespo": trl("vespo"),
    "importance_sampling_level=sequence": trl("dapo", importance_sampling_level="sequence"), "rloo": trl("rloo", RLOOTrainer),
    "dapo+epsilon=0.1+epsilon_high=0.3+delta=1.5": trl("dapo", epsilon_low=0.1, epsilon_high=0.3, args_delta=1.5),
    "dapo+beta=0.04": trl("dapo", beta=0.04, args_use_bias_correction_kl=True),
    "vespo+vespo_k_pos=1.5+vespo_lambda_neg=3": trl("vespo", args_vespo_k_pos=1.5, args_vespo_lambda_neg=3.0),
}  # fmt: skip
ELSEWHERE = {"gmpo", "mask_truncated_completions", "normalize_then_sum", "sum_then_normalize"}
"""Words of rules that other tests compare."""


@over("words", RUNS)
def test_every_word_of_a_loss_is_what_trl_does(words):
    agree(
        compose(f"trl:{words}"), RUNS[words], scale=0.2, tolerance=1e-4 if words == "sapo" else 1e-9
    )  # in float32 there


def test_every_name_that_trl_has_is_a_word():
    """Of the settings that choose a rule: what its trainer compares them with."""
    settings = "loss_type|scale_rewards|vllm_importance_sampling_mode|multi_objective_aggregation"
    code, words = inspect.getsource(GRPOTrainer), read_peers()["trl"].words
    asked = re.findall(rf"\.({settings}) (?:==|in|not in) (\[[^]]*\]|\"\w+\")", code)
    names = {(setting, name) for setting, text in asked for name in re.findall(r'"(\w+)"', text)}
    assert len(names) > 15 and not [one for one in names if not {one[1], "=".join(one)} & set(words)]


def test_every_word_is_compared():
    words = {word for word, one in read_peers()["trl"].words.items() if not one.refused}
    corrections = {word for word in words if "sampling_mode" in read_peers()["trl"].words[word].sets}
    assert words <= {*RUNS, *ELSEWHERE, *corrections, *(f"scale_rewards={kind}" for kind in ("group", "batch", "none"))}
    assert compose("trl:").advantage == compose("std_trl").advantage
