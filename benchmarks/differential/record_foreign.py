"""Record what six other projects' functions compute: python benchmarks/differential/record_foreign.py FOLDER

It writes tests/differential/foreign.json.
FOLDER has a git checkout of each project under its name in PROJECTS, with the commit. Nothing of theirs is installed or copied:
their advantages and their losses run from the source of that commit on our one fixed batch (foreign.py there). Our settings that
should give the same stand beside theirs; tests/differential/test_other_projects.py compares.
"""

from __future__ import annotations

import asyncio
import enum
import json
import sys
from collections import defaultdict
from dataclasses import field
from itertools import chain
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Names
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/differential"))
from foreign import FIXTURE, GROUP, GROUP_SIZE, LENGTH, MAX_LENGTH, NUM_TOKENS, READ, REWARD, Batch, make_batch
from foreign_cases import OURS, Case, areal_cases, nemo_cases, openrlhf_cases, prime_rl_cases, skyrl_cases, slime_cases
from source import Source
from torch import Tensor, nn

from fairlen import RowPlan, compose, plan_rows, policy_loss

REWARDS = torch.tensor(REWARD, dtype=torch.float64)
N = len(LENGTH)


class Settings:
    """Stands in for a base class of configurations: the fields' defaults, then what is given."""

    def __init_subclass__(cls, **_: Any) -> None: ...

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def default(value: Any = None, **_: Any) -> Any:
    """Stands in for a configuration library's Field."""
    return value


LOGURU: Any = ModuleType("loguru")
LOGURU.logger = Names(warning=print)
sys.modules.setdefault("loguru", LOGURU)  # SkyRL imports it inside a function


def fspo_loss(advantage: Tensor, now: Tensor, old: Tensor, sequence: Tensor) -> Tensor:
    """Our second call inside their loss: rows of advantages that hold the weights already."""
    one = torch.ones_like(advantage)
    return policy_loss(compose("fspo"), RowPlan(one.bool(), advantage, one, one), now, old, sequence=sequence).total


# OpenRLHF -------------------------------------------------------------------------------------------------------------


def openrlhf_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    utils = source.load("openrlhf/models/utils.py", "compute_reward")
    names = [f"RemoteExperienceMaker.{name}" for name in ("compute_advantages_and_returns", "get_cumulative_returns")]
    maker = source.load(
        "openrlhf/trainer/ppo_utils/experience_maker.py", *names, itertools=Names(chain=chain),
        apply_length_penalties=lambda *_: None, compute_reward=utils.compute_reward,
    )  # fmt: skip
    args = Names(
        rollout=Names(n_samples_per_prompt=GROUP_SIZE), reward=Names(clip_range=None),
        algo=Names(advantage=Names(estimator=estimator, gamma=1.0, no_std_norm=False)),
    )  # fmt: skip
    trainer = Names(strategy=Names(args=args), advantage_estimator=estimator, kl_ctl=Names(value=0.0))
    trainer.get_cumulative_returns = lambda *values: maker.get_cumulative_returns(trainer, *values)
    experience = Names(
        index=list(range(N)), rewards=REWARDS, action_mask=batch.mask, kl=torch.zeros_like(batch.old), info={}
    )
    return maker.compute_advantages_and_returns(trainer, [experience])[0].advantages[:, 0]


def openrlhf_loss(source: Source, batch: Batch, advantage: Tensor, **settings: Any) -> Tensor:
    utils = source.load("openrlhf/models/utils.py", "masked_mean")
    losses = source.load(
        "openrlhf/models/loss.py", "PolicyLoss", "aggregate_loss", nn=nn, masked_mean=utils.masked_mean
    )
    info = source.load("openrlhf/utils/loss_utils.py", "get_loss_batch_info", "_get_dp_group", dist=torch.distributed)
    mask = batch.mask.double()
    return losses.PolicyLoss(**settings)(
        batch.now, batch.old, batch.spread(advantage), mask, batch.rollout, **info.get_loss_batch_info(None, mask)
    )[0]


# SkyRL ----------------------------------------------------------------------------------------------------------------

SKYRL_UTILS = "skyrl/backends/skyrl_train/utils/"


def skyrl_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    name, _, centred = estimator.partition("+")
    found = source.load(SKYRL_UTILS + "ppo_utils.py", name, defaultdict=defaultdict)
    last = torch.arange(MAX_LENGTH)[None] == torch.tensor(LENGTH)[:, None] - 1
    more = {"grpo_norm_by_std": False} if centred else {}
    return getattr(found, name)(last * REWARDS[:, None], batch.mask.double(), GROUP, **more)[0][:, 0]


def skyrl_loss(source: Source, batch: Batch, advantage: Tensor, function: str, reduction: str, **config: Any) -> Tensor:
    maths = vars(source.load(SKYRL_UTILS + "torch_utils.py", "masked_mean", "safe_exp_delta"))
    parts = ("apply_off_policy_correction", "compute_off_policy_correction", "off_policy_correction_enabled")
    parts += ("compute_outlier_token_mask", "compute_token_mask", "compute_sequence_mask")
    correction = source.load(SKYRL_UTILS + "off_policy_correction_utils.py", *parts, "compute_tis_ratio", **maths)
    names = (function, "reduce_loss", "apply_loss_reduction_to_advantages_minibatch")
    found = source.load(SKYRL_UTILS + "ppo_utils.py", *names, **maths | vars(correction))
    mask = batch.mask.double()
    bounds = [(start, start + GROUP_SIZE) for start in range(0, N, GROUP_SIZE)]
    scaled = batch.spread(advantage)
    if reduction != "sum":
        scaled = found.apply_loss_reduction_to_advantages_minibatch(scaled, mask, reduction, 4, MAX_LENGTH, bounds)
    off = dict.fromkeys(
        ("sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
         "token_mask_is_threshold_low", "token_mask_is_threshold_high")
    )  # fmt: skip
    off |= {"tis_ratio_type": config.pop("tis", None), "token_tis_ratio_clip_high": 2.0} | config.pop("off", {})
    parts = {"cispo": Names(cispo_anchor="old", cispo_eps_clip_low=1.0, cispo_eps_clip_high=4.0)}
    parts["dppo"] = Names(**config.pop("dppo", {}))
    values = {"loss_reduction": reduction, "eps_clip_low": 0.2, "eps_clip_high": 0.2, **config}
    parts |= {"sapo": Names(tau_pos=1.0, tau_neg=1.05), "off_policy_correction": Names(**off)}
    return getattr(found, function)(batch.now, batch.old, scaled, Names(**values, **parts), mask, batch.rollout)[0]


# slime ----------------------------------------------------------------------------------------------------------------


def slime_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    found = source.load("slime/ray/rollout.py", "RolloutManager._post_process_rewards")
    args = Names(
        advantage_estimator="grpo", rewards_normalization=True, n_samples_per_prompt=GROUP_SIZE,
        rollout_batch_size=N // GROUP_SIZE, grpo_std_normalization=estimator == "grpo",
    )  # fmt: skip
    samples = [Names(get_reward_value=lambda _, reward=reward: reward) for reward in REWARD]
    _, rewards = found._post_process_rewards(Names(args=args, custom_reward_post_process_func=None), samples)
    returns = source.load("slime/utils/ppo_utils.py", "get_grpo_returns").get_grpo_returns
    kl = [torch.zeros(length) for length in LENGTH]
    return torch.stack([values[0] for values in returns(torch.tensor(rewards, dtype=torch.float64), kl)])


def slime_loss(source: Source, batch: Batch, advantage: Tensor, **settings: Any) -> Tensor:
    now, old, ref = ([*batch.flat(v).split(LENGTH)] for v in (batch.now, batch.old, batch.rollout))
    row = torch.arange(N).repeat_interleave(torch.tensor(LENGTH))
    maths = ("compute_policy_loss", "compute_gspo_kl", "compute_cispo_loss", "compute_approx_kl")
    one = Names(get_context_parallel_world_size=lambda: 1, get_data_parallel_world_size=lambda with_context_parallel: 1)
    reducer = source.load("slime/backends/megatron_utils/cp_utils.py", "get_sum_of_sample_mean", mpu=one)
    found = source.load(
        "slime/backends/megatron_utils/loss.py", "policy_loss_function", "loss_function", "vanilla_tis_function",
        **vars(source.load("slime/utils/ppo_utils.py", *maths)), mpu=one,
        get_sum_of_sample_mean=reducer.get_sum_of_sample_mean, _maybe_capture_log_probs=lambda *_: None,
        get_log_probs_and_entropy=lambda *_, **__: (None, {"log_probs": now, "entropy": [v * 0.0 for v in now]}),
        get_rollout_top_p_logprob_kwargs=lambda *_: {}, all_gather_with_cp=lambda values, *_: values,
        load_function=lambda _: lambda args, data, *_: (fspo_loss(advantage, torch.cat(now), torch.cat(old), row), {}),
    )  # fmt: skip
    args = dict(
        loss_type="policy_loss", advantage_estimator="grpo", eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=None,
        calculate_per_token_loss=False, use_rollout_logprobs=False, use_opsm=False, get_mismatch_metrics=False,
        use_tis=False, custom_tis_function_path=None, tis_clip_low=0.0, tis_clip=2.0, entropy_coef=0.0,
        use_kl_loss=False, use_unbiased_kl=False, recompute_loss_function=False, allgather_cp=False,
        custom_loss_function_path="ours",
    )  # fmt: skip
    rows = [values.expand(length) for values, length in zip(advantage, LENGTH, strict=True)]
    data = dict(
        advantages=rows, log_probs=old, ref_log_probs=ref, rollout_log_probs=ref, unconcat_tokens=None,
        response_lengths=LENGTH, total_lengths=LENGTH, loss_masks=[torch.ones(length) for length in LENGTH],
        rollout_mask_sums=[torch.tensor(length) for length in LENGTH],
    )  # fmt: skip
    loss, normalizer, _ = found.loss_function(Names(**args | settings), data, 1, N, batch.now)
    return loss / normalizer


# AReaL ----------------------------------------------------------------------------------------------------------------


def areal_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    found = source.load("areal/utils/data.py", "Normalization", dist=torch.distributed)
    actor = source.load("areal/trainer/ppo/actor.py", "PPOActor._compute_advantages")
    levels = dict(mean_level="group", mean_leave1out=estimator == "rloo", group_size=GROUP_SIZE, eps=1e-5)
    std = dict(std_level="group" if estimator == "grpo" else None, std_unbiased=True)
    config = Names(overlong_reward_penalty=False, use_decoupled_loss=True, recompute_logprob=True)
    scales = dict(reward_bias=0.0, reward_scaling=1.0, reward_clip=20.0, discount=1.0, gae_lambda=1.0, kl_ctl=0.0)
    trainer = Names(
        config=config, reward_norm=found.Normalization(Names(**levels, **std)), adv_norm=None, mask_no_eos_with_zero=False,
        kl_estimator=lambda old, ref: old * 0.0, **scales,
    )  # fmt: skip
    response = torch.cat([torch.zeros(N, 1, dtype=torch.bool), batch.mask], 1)  # after a prompt of one token
    whole = torch.cat([torch.ones(N, 1, dtype=torch.bool), batch.mask], 1)
    data = dict(
        input_ids=whole.long(), attention_mask=whole, loss_mask=response, logprobs=whole.double(), rewards=REWARDS
    )
    found = actor._compute_advantages(trainer, data)
    advantage, mask = (
        found["advantages"].double(),
        found["loss_mask"].bool(),
    )  # one place to the left, as they keep them
    assert (advantage[:, :1] == advantage)[mask].all()
    return advantage[:, 0]


def areal_loss(source: Source, batch: Batch, advantage: Tensor, function: str, **settings: Any) -> Tensor:
    names = ("_compute_sequence_level_ratio_and_advantages", "_check_bounds", "RejectionSamplingResult")
    found = source.load("areal/utils/functional/functional.py", function, *names, "apply_rejection_sampling")
    if "rejection_sampling" in settings:
        settings["rejection_sampling"] = Names(**settings["rejection_sampling"])
    if function == "ppo_actor_loss_fn":
        settings = {"eps_clip": 0.2, "proximal_logprobs": batch.flat(batch.old), **settings}
        behave = batch.flat(batch.rollout)
    else:
        behave = batch.flat(batch.old)
    return getattr(found, function)(
        batch.flat(batch.now), old_logprobs=behave, advantages=batch.flat(batch.spread(advantage)),
        loss_mask=torch.ones(NUM_TOKENS, dtype=torch.bool),
        cu_seqlens=torch.tensor([0, *LENGTH]).cumsum(0), **settings,
    )[0]  # fmt: skip


# prime-rl -------------------------------------------------------------------------------------------------------------


def prime_rl_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    """By max_rl's algorithm or grpo's, which may have a length penalty of one term, or of three."""
    weights = {"length_penalty": (0.25, 0.0, 0.0), "linear": (0.25, 0.1, 0.1)}.get(estimator)
    fields = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")
    penalty = Names(**dict(zip(fields, weights, strict=True))) if weights else None
    file, kind = ("max_rl", "MaxRLAlgorithm") if estimator == "max_rl" else ("grpo", "GRPOAlgorithm")
    found = source.load(
        f"src/prime_rl/orchestrator/algo/{file}.py", f"{kind}.score_group",
        iter_trainable_traces=lambda episodes: [(None, trace) for trace in episodes],
        assign_advantages=lambda trace, value: setattr(trace, "advantage", value),
    )  # fmt: skip
    traces = [
        Names(reward=reward, num_output_tokens=length, num_total_tokens=length + read, num_turns=1)
        for reward, length, read in zip(REWARD, LENGTH, READ, strict=True)
    ]
    for start in range(0, N, GROUP_SIZE):
        asyncio.run(found.score_group(Names(length_penalty=penalty), traces[start : start + GROUP_SIZE]))
    return torch.tensor([trace.advantage for trace in traces], dtype=torch.float64)


def prime_rl_loss(source: Source, batch: Batch, advantage: Tensor, config: str, **settings: Any) -> Tensor:
    prune = source.load("src/prime_rl/orchestrator/train_sink.py", "_prune_zero_advantages")._prune_zero_advantages
    values = [[float(a)] * length for a, length in zip(advantage, LENGTH, strict=True)]
    samples = [
        Names(advantages=a, mask=[True] * len(a), rl_weights=None, ce_weights=None, ref_kl_weights=None) for a in values
    ]
    kept = [row for row, sample in enumerate(samples) if prune(sample)]
    configs = source.load(
        "packages/prime-rl-configs/src/prime_rl/configs/trainer.py", "DefaultLossConfig", "IPOLossConfig", "CustomLossConfig",
        BaseConfig=Settings, Field=default,
    )  # fmt: skip
    names = (
        "default_loss_fn",
        "ipo_loss_fn",
        "compute_importance_ratio_and_mismatch_kl",
        "_safe_mean",
        "LossInputs",
        "LossOutputs",
    )
    found = source.load(
        "src/prime_rl/trainer/rl/loss.py", "compute_loss", "setup_rl_loss_fn", "LossOutputs", *names, field=field,
        **vars(configs),
        import_object=lambda _: lambda one: Names(metrics={}, loss=fspo_loss(
            one.advantages[:1], one.trainer_logprobs, one.inference_logprobs, one.loss_mask.long() - 1)),
    )  # fmt: skip

    def rows(values: Tensor) -> list[Tensor]:
        return [values[row, : LENGTH[row]] for row in kept]

    return found.compute_loss(
        rows(batch.now), rows(batch.old), None, rows(batch.spread(advantage)), rows(batch.mask), None, None, None,
        rl_loss_fn=found.setup_rl_loss_fn(getattr(configs, config)(**{"kwargs": {}, **settings})),
        rl_scale=sum(LENGTH[row] for row in kept), ce_scale=1, ref_kl_scale=1,
    )[0]  # fmt: skip


# NeMo-RL --------------------------------------------------------------------------------------------------------------

NEMO_MATHS = ("masked_mean", "calculate_kl", "calculate_baseline_and_std_per_prompt")


def nemo_advantage(source: Source, batch: Batch, estimator: str) -> Tensor:
    maths = vars(source.load("nemo_rl/algorithms/utils.py", *NEMO_MATHS))
    found = source.load("nemo_rl/algorithms/advantage_estimator.py", "GRPOAdvantageEstimator", **maths)
    flags = dict(use_leave_one_out_baseline="loo" in estimator, normalize_rewards="std" in estimator)
    rewards = REWARDS.float()  # their products with a mask are float32
    prompts = torch.tensor(GROUP)[:, None]
    return (
        found.GRPOAdvantageEstimator(Names(**flags), None)
        .compute_advantage(prompts, rewards, batch.mask)[:, 0]
        .double()
    )


def nemo_loss(source: Source, batch: Batch, advantage: Tensor, **settings: Any) -> Tensor:
    kinds = source.load(
        "nemo_rl/algorithms/loss/interfaces.py", "LossType", "LossInputType", "MetricNormalizer", enum=enum
    )
    found = source.load(
        "nemo_rl/algorithms/loss/loss_functions.py", "ClippedPGLossFn", "ClippedPGLossConfig", BaseModel=Settings,
        LossFunction=object, **vars(kinds) | vars(source.load("nemo_rl/algorithms/utils.py", *NEMO_MATHS)),
    )  # fmt: skip

    def after_prompt(values: Tensor) -> Tensor:
        return torch.cat([torch.zeros(N, 1, dtype=values.dtype), values], 1)

    data = dict(
        token_mask=after_prompt(batch.mask.double()), sample_mask=torch.ones(N, dtype=torch.float64),
        advantages=after_prompt(batch.spread(advantage)), prev_logprobs=after_prompt(batch.old),
        generation_logprobs=after_prompt(batch.rollout), reference_policy_logprobs=after_prompt(batch.rollout),
    )  # fmt: skip
    config = found.ClippedPGLossConfig(**{"reference_policy_kl_penalty": 0.0, **settings})
    return found.ClippedPGLossFn(config)(batch.now, data, torch.tensor(N), torch.tensor(NUM_TOKENS))[0]


PROJECTS = {
    "OpenRLHF": ("3c3be6234e0cb353e76bb8019947db9dfe99fca7", openrlhf_advantage, openrlhf_loss, openrlhf_cases),
    "SkyRL": ("a9564572eb8e91076be43c1bd5e4615e3de17265", skyrl_advantage, skyrl_loss, skyrl_cases),
    "slime": ("624b824a898ab0ec1fcb4d373004c7f3852bf515", slime_advantage, slime_loss, slime_cases),
    "AReaL": ("4aef98d8d818af55b43621aaadba047ae10f4e77", areal_advantage, areal_loss, areal_cases),
    "prime-rl": ("559b44772e471d1538537b8805cc77f3824a5e64", prime_rl_advantage, prime_rl_loss, prime_rl_cases),
    "NeMo-RL": ("7ea279abfbeb698b092856d0dab61e7cf39bc909", nemo_advantage, nemo_loss, nemo_cases),
}


def our_advantage(case: Case) -> Tensor:
    """Our plan's weight * advantage, times the tokens that train, which a token mean divides by."""
    method = compose(case.method, case.overrides)
    plan = plan_rows(method, groups=GROUP, lengths=LENGTH, rewards=REWARD, max_response_length=MAX_LENGTH)
    return torch.from_numpy(plan.weight * plan.advantage) * int(np.dot(plan.trains, LENGTH))


def record(source: Source, case: Case, advantage_of: Any, loss_of: Any) -> dict[str, Any]:
    """Return a case with their advantages [N], and if they have a loss with it and its gradient by the tokens of responses."""
    batch = make_batch(case.noise)
    advantage = our_advantage(case) if case.advantage == OURS else advantage_of(source, batch, case.advantage)
    numbers = {"advantage": advantage}
    if loss_of:
        loss = loss_of(source, batch, advantage, **case.settings)
        (gradient,) = torch.autograd.grad(loss, batch.now)
        numbers |= {"loss": loss[None], "gradient": batch.flat(gradient)}
    theirs = {key: [float(f"{number:.12g}") for number in values.tolist()] for key, values in numbers.items()}
    return vars(case) | {"theirs": theirs}


def write_cases(file: Path, projects: dict[str, Any], folder: Path) -> None:
    """Write the cases of projects that lie in a folder, one a line."""
    found = []
    for name, (commit, advantage_of, loss_of, make_cases) in projects.items():
        source = Source(folder / name, commit)
        for case in make_cases():
            found.append({"project": name, "commit": commit} | record(source, case, advantage_of, loss_of))
            print(f"{name}: {case.name}")
    file.write_text("[\n" + ",\n".join(json.dumps(case) for case in found) + "\n]\n")


if __name__ == "__main__":
    write_cases(FIXTURE, PROJECTS, Path(sys.argv[1]))
