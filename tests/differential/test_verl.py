"""Losses, gradients, advantages and rewards against the installed verl: its own functions, on ragged random batches."""

import inspect
from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import torch
from fixtures import make_batch
from loops import over
from padded import agree, equal_groups

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import GroupCentered, LeaveOneOut
from fairlen.methods.stages.aggregation import ConstantBudget, SequenceMean, TokenMean, TokenSum
from fairlen.methods.stages.surrogate import DetachedClip, SequenceTokenClip, TokenClip
from fairlen.methods.stages.terms import EntropyBonus, ReferenceKL, SamplerMismatch

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
OmegaConf = pytest.importorskip("omegaconf").OmegaConf
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
ActorConfig = pytest.importorskip("verl.workers.config").ActorConfig

BUDGET = 12
MODES = {
    "token-mean": TokenMean("update"),
    "seq-mean-token-sum": TokenSum(),
    "seq-mean-token-mean": SequenceMean(),
    "seq-mean-token-sum-norm": ConstantBudget(),
}


def config_of(**settings):
    """verl's own configuration; batches are not split, so it needs no global counts but the constant of one mode."""
    return ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=1,
        global_batch_info={"loss_scale_factor": BUDGET}, **{"clip_ratio_c": 1e9} | settings,
    )  # fmt: skip


def verl(name: str, mode: str = "token-mean", weights=None, **settings):
    def loss(padded, batch):
        arguments = (padded.old, padded.logprobs, padded.one_advantage_a_token(), padded.mask)
        factor = weights(padded) if weights else None
        return core_algos.get_policy_loss_fn(name)(*arguments, mode, config_of(**settings), factor)[0]

    return loss


def with_choices(names, surrogate, **choices):
    return replace(compose(names), filter=Method().filter, reward=(), surrogate=surrogate, **choices)


def test_the_functions_we_compare_with_have_the_signature_we_know():
    expected = [
        "old_log_prob", "log_prob", "advantages", "response_mask", "loss_agg_mode", "config", "rollout_is_weights",
    ]  # fmt: skip
    for name in ("vanilla", "gspo", "sapo", "geo_mean", "cispo"):
        assert list(inspect.signature(core_algos.get_policy_loss_fn(name)).parameters) == expected


def test_the_token_mean_is_the_default():
    """2605.04077, section 4.2: of the loss, of the actor's configuration and of the file that a job starts from."""
    default = inspect.signature(core_algos.get_policy_loss_fn("vanilla")).parameters["loss_agg_mode"].default
    shipped = OmegaConf.load(resources.files("verl") / "trainer/config/actor/actor.yaml")
    assert {default, config_of().loss_agg_mode, shipped.loss_agg_mode} == {"token-mean"}


@over("mode", MODES)
@over("scale", [0.05, 0.4])
def test_token_clip_with_every_aggregation(mode, scale):
    method = with_choices("grpo", TokenClip(0.2, 0.28), aggregation=MODES[mode])
    agree(method, verl("vanilla", mode, clip_ratio_low=0.2, clip_ratio_high=0.28), scale=scale)


@over("scale", [0.4, 1.0])
def test_dual_clip(scale):
    method = with_choices("dapo_verl", TokenClip(0.2, 0.28, dual_clip=1.5))
    agree(method, verl("vanilla", clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=1.5), scale=scale)


@over("name", ["vanilla", "gspo", "cispo"])
def test_truncated_importance_sampling(name):
    surrogate = {"vanilla": TokenClip(), "gspo": SequenceTokenClip(0.2, 0.2), "cispo": DetachedClip(0.2, 0.2)}[name]

    def weights(padded):
        return (padded.old - padded.rollout).exp().clamp(max=2.0)

    method = with_choices("dapo_verl", surrogate, correction=SamplerMismatch())
    agree(method, verl(name, weights=weights))


@over("mode", MODES)
def test_the_weights_of_terms_are_verls_modes(mode):
    """KL and entropy are aggregated by the same function, so a term is portable where its weight is one of these."""

    def loss(padded, batch):
        kl = core_algos.kl_penalty(padded.logprobs, padded.ref, "low_var_kl")
        policy = verl("vanilla", mode)(padded, batch)
        sums = [core_algos.agg_loss(part, padded.mask, mode, loss_scale_factor=BUDGET) for part in (kl, padded.entropy)]
        return policy + 0.04 * sums[0] - 0.01 * sums[1]

    terms = (ReferenceKL(0.04), EntropyBonus(0.01))
    agree(with_choices("grpo", TokenClip(), aggregation=MODES[mode], terms=terms), loss)


@over("estimator, theirs", [("k1", "kl"), ("k2", "mse"), ("k3", "low_var_kl")])
def test_kl_estimates(estimator, theirs):
    def loss(padded, batch):
        kl = core_algos.kl_penalty(padded.logprobs, padded.ref, theirs)
        return verl("vanilla")(padded, batch) + 0.1 * core_algos.agg_loss(kl, padded.mask, "token-mean")

    agree(with_choices("dapo_verl", TokenClip(), terms=(ReferenceKL(0.1, estimator),)), loss)


def outcomes(batch, reward):
    """Rewards on the last token of each row, the mask, and the group of each, as verl wants them."""
    length = batch.responses.length
    mask = torch.from_numpy(np.arange(length.max())[None] < length[:, None]).long()
    scores = torch.zeros(mask.shape, dtype=torch.float64)
    scores[torch.arange(len(length)), torch.from_numpy(length) - 1] = torch.from_numpy(reward)
    return scores, mask, batch.responses.prompt


@over("seed", range(4))
@over("by_std", [True, False])
def test_grpo_advantages(seed, by_std):
    batch, reward = equal_groups(seed)
    scores, mask, index = outcomes(batch, reward)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(scores, mask, index, norm_adv_by_std_in_grpo=by_std)
    stage = compose("grpo+std_verl").advantage if by_std else GroupCentered()
    assert stage(batch.segments, reward) == pytest.approx(theirs[:, 0].numpy(), rel=1e-6, abs=1e-9)


@over("seed", range(4))
def test_leave_one_out_advantages(seed):
    batch, reward = equal_groups(seed)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(*outcomes(batch, reward))
    assert LeaveOneOut()(batch.segments, reward) == pytest.approx(theirs[:, 0].numpy(), rel=1e-9, abs=1e-9)


def test_a_response_alone_differs_by_design():
    """verl gives a lone response its own score as advantage; there is nothing to compare it with, so ours is 0."""
    batch = make_batch([0, 1, 1], [2, 3, 4], [1, 1, 0])
    theirs, _ = core_algos.compute_grpo_outcome_advantage(*outcomes(batch, batch.responses.outcome))
    ours = compose("grpo+std_verl").advantage(batch.segments, batch.responses.outcome)
    assert theirs[0, 0] == pytest.approx(1 / (1 + 1e-6)) and ours[0] == 0.0
    assert ours[1:] == pytest.approx(theirs[1:, 0].numpy(), rel=1e-6)
