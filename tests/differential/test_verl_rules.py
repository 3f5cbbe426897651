"""Advantages, trust regions and rejection against the functions of the installed verl, in float64."""

import inspect
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures import make_batch, plan_of, random_batch, relative
from loops import over
from padded import agree, equal_groups, pad

from fairlen.batch import name_columns
from fairlen.methods.compose import compose
from fairlen.methods.method import Method, updates
from fairlen.methods.peers import read_peers
from fairlen.methods.stages.advantage import BatchNormalized, LengthCentered, OutcomeNormalized, ShareScaled
from fairlen.methods.stages.surrogate import PolicyGradient, TokenClip
from fairlen.methods.stages.terms import SamplerMismatch, SamplerRejection
from fairlen.methods.stages.trust_region import DivergenceMask

pytest.importorskip("verl", reason="verl is not installed (pip install '.[verl]')")
core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
from test_verl import MODES, config_of, outcomes, verl, with_choices  # noqa: E402

WHITENED = dict(eps=1e-8, over="tokens", ddof=1, eps_in="variance")
ADVANTAGES = {
    "opo": LengthCentered(),
    "gpg": ShareScaled(),
    "reinforce_plus_plus": BatchNormalized(baseline="none", **WHITENED),
    "reinforce_plus_plus_baseline": BatchNormalized(**WHITENED),
}


@over("seed", range(4))
@over("name", ADVANTAGES)
def test_advantages(name, seed):
    batch, reward = equal_groups(seed)
    scores, mask, index = outcomes(batch, reward)
    config = SimpleNamespace(gamma=1.0, get=lambda name, default: default)
    theirs, _ = core_algos.get_adv_estimator_fn(name)(
        token_level_rewards=scores, response_mask=mask.double(), index=index, config=config
    )
    ours = ADVANTAGES[name](replace(batch.segments, length=batch.responses.length), reward)
    assert ours == pytest.approx(theirs[:, 0].numpy(), rel=1e-9, abs=1e-9)


@over("seed", range(4))
def test_outcomes_that_are_normalised_each(seed):
    """verl makes them float32."""
    batch, reward = equal_groups(seed)
    other = np.random.default_rng(seed + 9).standard_normal(len(reward)).round(2)
    _, mask, index = outcomes(batch, reward)
    prompt = torch.ones(len(reward), 2, dtype=torch.int64)
    theirs, _ = core_algos.compute_gdpo_outcome_advantage(
        torch.zeros(mask.shape, dtype=torch.float64), mask, index, non_tensor_batch={"a": reward, "b": other},
        config={"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.25]},
        batch={"prompts": prompt, "attention_mask": torch.cat([prompt, mask], 1)},
    )  # fmt: skip
    stage = OutcomeNormalized("a=1,b=0.25", eps=1e-6, over="tokens", whole_eps=1e-8, whole_eps_in="variance")
    segments = replace(batch.segments, named=name_columns({"a": reward.tolist(), "b": other.tolist()}))
    assert stage(segments, reward) == pytest.approx(theirs[:, 0].numpy(), rel=1e-5, abs=2e-6)


LOSSES = {
    "dppo_tv": (DivergenceMask(0.02, 0.03, cap=1.3, value="logprob"), dict(clip_ratio_low=0.02, clip_ratio_high=0.03)),
    "dppo_kl": (
        DivergenceMask(0.002, 0.001, "kl", cap=1.3, value="logprob"),
        dict(clip_ratio_low=0.002, clip_ratio_high=0.001),
    ),
    "gpg": (PolicyGradient(), {}),
}


@over("name", LOSSES)
@over("mode", MODES)
def test_losses(name, mode):
    surrogate, settings = LOSSES[name]

    def theirs(padded, batch):
        config = config_of(clip_ratio_c=1.3)
        for key, value in settings.items():
            object.__setattr__(config, key, value)
        arguments = (padded.old, padded.logprobs, padded.one_advantage_a_token(), padded.mask)
        return core_algos.get_policy_loss_fn(name)(*arguments, mode, config)[0]

    agree(with_choices("grpo", surrogate, aggregation=MODES[mode]), theirs, scale=0.3, tolerance=1e-9)


def test_the_cap_and_the_masks_of_that_comparison_act():
    padded = pad(plan_of(Method(), random_batch(0)), 0, 0.3)
    for surrogate, _ in LOSSES.values():
        token = surrogate(padded.outputs().logprobs, padded.micro)
        assert not isinstance(surrogate, DivergenceMask) or (token.clipped.any() and (token.ratio > 1.3).any())


LEVELS = {"token": "token_k1", "sequence": "seq_sum_k1", "mean": "seq_mean_k1"}


@over("level", LEVELS)
@over("mode", MODES)
def test_rejection_counts_what_is_kept(level, mode):
    """verl bounds minus the log ratio, so that its lower bound is the inverse of our upper one."""
    low, high = {"token": (0.8, 1.25), "sequence": (0.5, 3.0), "mean": (0.9, 1.08)}[level]
    correction = SamplerRejection(level, low, high, recount=True)
    method = with_choices("grpo", TokenClip(0.2, 0.28), aggregation=MODES[mode], correction=correction)
    for seed in range(4):
        batch = random_batch(seed)
        (update,) = updates(method.score_tables(batch.responses, batch.segments))
        padded = pad(method.weigh(update), seed, 0.1)
        mask, _ = helper.compute_rollout_rejection_mask(
            padded.old - padded.rollout, padded.mask, LEVELS[level], f"{1 / high}_{1 / low}"
        )
        kept = padded.micro.sum_per_sequence(correction.keep(padded.micro).long())
        assert torch.equal(kept, mask.sum(1)) and 0 < kept.sum() < padded.num_tokens
        plan = method.weigh(update, kept.numpy())
        weight = torch.zeros(len(kept), dtype=torch.float64)
        weight[kept > 0] = torch.from_numpy(plan.weight)
        ours = method.loss(padded.outputs(), replace(padded.micro, weight=weight)).total
        arguments = (padded.old, padded.logprobs, padded.one_advantage_a_token(), mask)
        theirs = core_algos.get_policy_loss_fn("vanilla")(
            *arguments, mode, config_of(clip_ratio_low=0.2, clip_ratio_high=0.28)
        )[0]
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-7, abs=1e-9)  # verl adds 1e-8 to numbers of tokens
        gradients = [torch.autograd.grad(loss, padded.logprobs)[0] for loss in (ours, theirs)]
        assert relative(*gradients) < 1e-7


@over("name", ["vanilla", "gpg"])
def test_factors_that_are_masked_on_both_sides(name):
    """IcePop: the ratio to the engine where it lies within the bounds, else 0."""

    def weights(padded):
        ratio = (padded.old - padded.rollout).exp()
        return ratio.where((ratio >= 0.8) & (ratio <= 1.3), 0.0)

    surrogate = TokenClip() if name == "vanilla" else PolicyGradient()
    method = with_choices("dapo_verl", surrogate, correction=SamplerMismatch("token", "mask", 1.3, 0.8))
    agree(method, verl(name, weights=weights), tolerance=1e-9)


def test_a_baseline_of_tokens_couples_no_sign_with_length():
    """sum T A is 0 in every group under opo; under grpo it is not."""
    batch, reward = equal_groups(1)
    length = batch.responses.length
    ours = LengthCentered()(batch.segments, reward)
    assert np.bincount(batch.responses.prompt, ours * length) == pytest.approx(np.zeros(5), abs=1e-12)
    assert (
        np.abs(np.bincount(batch.responses.prompt, compose("grpo").advantage(batch.segments, reward) * length)).max()
        > 1
    )


WORDS = {word: one for word, one in read_peers()["verl"].words.items() if not one.refused and "rollout" not in one.sets}


@pytest.mark.slow
@over("word", WORDS)
def test_every_word_is_what_verl_does(word):
    """Advantages, loss and gradient by its functions with its settings by default; corrections are compared above."""
    estimator = word if word in core_algos.ADV_ESTIMATOR_REGISTRY else "grpo"
    loss = word if word in core_algos.POLICY_LOSS_REGISTRY else "vanilla"
    method, mode = compose(f"verl:{word}"), word if word in MODES else "token-mean"
    config = config_of(clip_ratio_c=3.0)
    object.__setattr__(config, "policy_loss", SimpleNamespace(dro_beta=0.05))
    given = {"norm_adv_by_std_in_grpo": False} if word.startswith("norm_adv") else {}
    for seed in range(3):
        batch, reward = equal_groups(seed)
        plan = method.plan(method.score_tables(batch.responses, batch.segments))
        padded = pad(plan, seed, 0.2)
        scores, mask, index = outcomes(batch, reward)
        algorithm = SimpleNamespace(gamma=1.0, get=lambda name, default: default)
        advantage, _ = core_algos.get_adv_estimator_fn(estimator)(
            token_level_rewards=scores, response_mask=mask.double(), index=index, config=algorithm, **given
        )
        arguments = (padded.old, padded.logprobs, advantage, padded.mask, mode, config)
        losses = method.loss(padded.outputs(), padded.micro).total, core_algos.get_policy_loss_fn(loss)(*arguments)[0]
        close = 1e-5 if word == "grpo_vectorized" else 2e-8  # in float32 there; 1e-8 is added to numbers of tokens
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=close, abs=close)
        assert relative(*(torch.autograd.grad(one, padded.logprobs)[0] for one in losses)) < close


def test_every_name_that_verl_has_is_a_word():
    modes = re.findall(r'"([a-z-]+)"', inspect.getsource(core_algos.agg_loss).partition('"""')[2].partition('"""')[2])
    rules = {str(getattr(name, "value", name)) for name in core_algos.ADV_ESTIMATOR_REGISTRY}
    names = {*rules, *core_algos.POLICY_LOSS_REGISTRY, *modes, *helper.SUPPORTED_ROLLOUT_RS_OPTIONS}
    assert len(names) > 40 and names <= set(read_peers()["verl"].words)


def test_the_tail_of_the_longest_response_has_no_baseline():
    """Why optimal_token_baseline is refused: rewards 1 and 1, lengths 2 and 4; up to token 2 the advantage is 0, then 1."""
    batch = make_batch([0, 0], [2, 4], [1, 1])
    scores, mask, index = outcomes(batch, batch.responses.outcome)
    nats, squares = torch.full(mask.shape, -1.0), torch.full(mask.shape, 0.2)
    found, _ = core_algos.compute_optimal_token_baseline_advantage(scores, mask, index, nats, squares)
    assert found[1].tolist() == pytest.approx([0, 0, 1, 1], abs=1e-6)
