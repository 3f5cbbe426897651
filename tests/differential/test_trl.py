"""Losses, gradients, advantages and rewards against the installed TRL: its own functions, on ragged random batches."""

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures import random_batch
from loops import over
from padded import Padded, agree, equal_groups, pad

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.advantage import GroupCentered, GroupNormalized, LeaveOneOut
from fairlen.methods.stages.aggregation import TokenMean
from fairlen.methods.stages.reward import SoftOverlong
from fairlen.methods.stages.surrogate import (
    DetachedClip,
    GeometricClip,
    SequenceClip,
    SequenceRatioClip,
    SoftGate,
    TokenClip,
)
from fairlen.methods.stages.terms import EntropyBonus, ReferenceKL, SamplerMismatch

pytest.importorskip("trl", reason="TRL is not installed (pip install 'fairlen[trl]')")
grpo_trainer = pytest.importorskip("trl.trainer.grpo_trainer")
rloo_trainer = pytest.importorskip("trl.trainer.rloo_trainer")
GRPOTrainer, RLOOTrainer = grpo_trainer.GRPOTrainer, rloo_trainer.RLOOTrainer

BUDGET = 12


def trainer_of(padded: Padded, loss_type: str, **settings) -> SimpleNamespace:
    """What `_compute_loss` reads of a trainer, with TRL's defaults; the model's log-probs come from a tensor."""
    args = SimpleNamespace(
        delta=None, use_bias_correction_kl=False, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05, vespo_k_pos=2.0,
        vespo_lambda_pos=3.0, vespo_k_neg=3.0, vespo_lambda_neg=2.0, steps_per_generation=1,
    )  # fmt: skip
    defaults = dict(
        _get_per_token_logps_and_entropies=lambda *_, **__: (padded.logprobs, padded.entropy, None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None,
        importance_sampling_level="token", beta=0.0, use_vllm=False, vllm_importance_sampling_correction=True,
        model=SimpleNamespace(training=True),
        epsilon_low=0.2, epsilon_high=0.2, current_gradient_accumulation_steps=1, max_completion_length=BUDGET,
        _entropy_bonus_enabled=False, use_adaptive_entropy=False, entropy_coef=0.0,
        accelerator=SimpleNamespace(
            gather=lambda x: x, reduce=lambda x, reduction: x, num_processes=1, sync_gradients=True
        ),
        get_gamma_weights=GRPOTrainer.get_gamma_weights, _metrics=defaultdict(lambda: defaultdict(list)),
    )  # fmt: skip
    changed = {key.removeprefix("args_"): value for key, value in settings.items() if key.startswith("args_")}
    own = {key: value for key, value in settings.items() if not key.startswith("args_")}
    return SimpleNamespace(args=SimpleNamespace(**vars(args) | changed), loss_type=loss_type, **defaults | own)


def inputs_of(padded: Padded) -> dict[str, torch.Tensor]:
    prompt = torch.ones(len(padded.advantages), 2, dtype=torch.int64)
    return dict(
        prompt_ids=prompt, prompt_mask=prompt, completion_ids=padded.mask, completion_mask=padded.mask,
        advantages=padded.advantages, old_per_token_logps=padded.old, ref_per_token_logps=padded.ref,
        num_items_in_batch=padded.mask.sum(), old_logps=(padded.old * padded.mask).sum(1),
    )  # fmt: skip


def trl(loss_type, trainer=GRPOTrainer, **settings):
    def loss(padded, batch):
        return trainer._compute_loss(trainer_of(padded, loss_type, **settings), None, inputs_of(padded))

    return loss


def with_surrogate(names, surrogate, **choices):
    """A base of ours for every prompt, since these batches keep whole groups, with the clips of this test."""
    return replace(compose(names), filter=Method().filter, reward=(), surrogate=surrogate, **choices)


def test_the_functions_we_compare_with_have_the_signature_we_know():
    for trainer in (GRPOTrainer, RLOOTrainer):
        assert list(inspect.signature(trainer._compute_loss).parameters) == ["self", "model", "inputs"]


@over("scale", [0.05, 0.3, 1.0])
@over("delta", [None, 1.6])
def test_grpo(scale, delta):
    method = with_surrogate("grpo", TokenClip(0.2, 0.28, delta=delta or math.inf))
    agree(method, trl("grpo", epsilon_high=0.28, args_delta=delta), scale=scale)


@over("scale", [0.05, 0.3])
def test_dapo_is_the_token_mean_of_the_update(scale):
    agree(with_surrogate("dapo_verl", TokenClip(0.2, 0.28)), trl("dapo", epsilon_high=0.28), scale=scale)


def test_dapo_is_not_the_token_mean_of_the_group():
    with pytest.raises(AssertionError):
        agree(with_surrogate("dapo", TokenClip(0.2, 0.28)), trl("dapo", epsilon_high=0.28))


def test_dr_grpo():
    agree(with_surrogate("dr_grpo", TokenClip()), trl("dr_grpo"))


@over("scale", [2e-3, 0.05])
def test_gspo_is_grpo_at_sequence_level(scale):
    settings = dict(importance_sampling_level="sequence", epsilon_low=3e-4, epsilon_high=4e-4)
    for name in ("gspo", "gspo_token"):
        agree(compose(name), trl("grpo", **settings), scale=scale)


@over("scale", [5e-3, 0.05])
def test_luspo(scale):
    agree(
        compose("luspo"),
        trl("luspo", importance_sampling_level="sequence", epsilon_low=2e-3, epsilon_high=2.5e-3),
        scale=scale,
    )


def test_cispo_with_its_bound_converted():
    # TRL holds the ratio at epsilon_high itself, ours at 1 + clip_high; neither has a lower bound
    agree(with_surrogate("cispo", DetachedClip(clip_high=0.3)), trl("cispo", epsilon_high=1.3))
    agree(compose("cispo"), trl("cispo", epsilon_high=5.0), scale=1.0)


@over("scale", [0.05, 0.5])
def test_sapo(scale):
    # TRL keeps its temperatures in float32 whatever the log-probs are: 1.05 is 5e-8 off there, 1.0625 is exact
    for positive, negative in ((1.0, 1.0625), (0.75, 1.5)):
        settings = dict(args_sapo_temperature_pos=positive, args_sapo_temperature_neg=negative)
        agree(with_surrogate("sapo", SoftGate(positive, negative)), trl("sapo", **settings), scale=scale)
    agree(compose("sapo"), trl("sapo"), scale=scale, tolerance=1e-4)


@over("scale", [0.02, 0.2])
def test_vespo_over_tokens(scale):
    # TRL divides by the tokens of the window; the paper and our preset sum tokens and average sequences
    agree(replace(compose("vespo"), aggregation=TokenMean("update")), trl("vespo"), scale=scale)


@over("scale", [0.2, 0.8])
def test_gmpo(scale):
    gmpo = pytest.importorskip("trl.experimental.gmpo")
    trainer = gmpo.GMPOTrainer
    agree(compose("gmpo"), trl("grpo", trainer, epsilon_low=0.4, epsilon_high=0.4), scale=scale)
    method = with_surrogate("gmpo", GeometricClip(0.1, 0.3))
    agree(method, trl("grpo", trainer, epsilon_low=0.1, epsilon_high=0.3), scale=scale)


@over("scale", [0.02, 0.1])
def test_rloo(scale):
    method = compose("rloo")
    assert method.surrogate == SequenceRatioClip(0.2, 0.2)
    agree(method, trl("rloo", RLOOTrainer), scale=scale)


@over("name, loss_type", [("grpo", "grpo"), ("dapo_verl", "dapo"), ("dr_grpo", "dr_grpo")])
def test_kl_to_the_reference_is_weighed_like_the_policy_loss(name, loss_type):
    method = with_surrogate(name, TokenClip(), terms=(ReferenceKL(0.04),))
    if loss_type == "dr_grpo":
        method = replace(method, advantage=GroupCentered())
    agree(method, trl(loss_type, beta=0.04))


def test_the_entropy_bonus_is_a_token_mean():
    # TRL's is over the tokens of the micro-batch whatever the loss; ours has the scope of its method
    method = with_surrogate("dapo_verl", TokenClip(), terms=(EntropyBonus(0.01),))
    agree(method, trl("dapo", _entropy_bonus_enabled=True, entropy_coef=0.01))


def block_of(function, marker: str) -> str:
    """Source of the innermost `if` of a function whose body holds the marker."""
    source = textwrap.dedent(inspect.getsource(function))
    found = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.If) and marker in "\n".join(ast.unparse(part) for part in node.body)
    ]
    assert found, f"TRL changed: no `if` with {marker!r} in {function.__name__}"
    return min((ast.unparse(ast.Module(node.body, [])) for node in found), key=len)


RATIO_BLOCK = "sequence_level_is ="


def test_gspo_with_importance_sampling_of_the_sequence():
    def loss(padded, batch):
        ratio = ((padded.old - padded.rollout) * padded.mask).sum(1, keepdim=True).exp().clamp(max=2.0)
        settings = dict(importance_sampling_level="sequence", epsilon_low=0.03, epsilon_high=0.04, use_vllm=True)
        inputs = inputs_of(padded) | {"importance_sampling_ratio": ratio}
        return GRPOTrainer._compute_loss(trainer_of(padded, "grpo", **settings), None, inputs)

    agree(with_surrogate("gspo", SequenceClip(0.03, 0.04), correction=SamplerMismatch("sequence")), loss)


@over("seed", range(4))
def test_advantages_with_trls_standard_deviation(seed):
    code = block_of(GRPOTrainer._generate_and_score_completions, "mean_grouped_rewards = torch.nanmean")
    batch, reward = equal_groups(seed)
    for scale, stage in (("group", compose("grpo+std_trl").advantage), ("none", GroupCentered())):
        rewards = torch.from_numpy(reward)[:, None]
        names = dict(
            self=SimpleNamespace(scale_rewards=scale, reward_weights=torch.ones(1)), torch=torch,
            nanstd=grpo_trainer.nanstd, rewards_per_func=rewards, device="cpu", num_generations=4,
            unscorable_mask=torch.zeros(len(reward), dtype=torch.bool),
        )  # fmt: skip
        exec(code, names)
        assert stage(batch.segments, reward) == pytest.approx(names["advantages"].numpy(), rel=1e-6, abs=1e-9)
    assert GroupNormalized()(batch.segments, reward) != pytest.approx(names["advantages"].numpy(), rel=1e-2)


@over("seed", range(4))
def test_leave_one_out_advantages(seed):
    source = inspect.getsource(RLOOTrainer._generate_and_score_completions)
    start, stop = source.index("grouped_rewards = rewards.view"), source.index("# Normalize advantages over")
    code = textwrap.dedent(" " * 8 + source[start:stop])
    batch, reward = equal_groups(seed)
    names = dict(rewards=torch.from_numpy(reward), num_generations=4, torch=torch, nanstd=rloo_trainer.nanstd)
    exec(code, names)
    assert LeaveOneOut()(batch.segments, reward) == pytest.approx(names["advantages"].numpy(), rel=1e-9, abs=1e-9)


@over("max_response_length, cache", [(20, 4), (100, 20), (100, 100)])
def test_soft_overlong_punishment(max_response_length, cache):
    rewards = pytest.importorskip("trl.rewards")
    lengths = np.arange(1, max_response_length + 1)
    theirs = rewards.get_soft_overlong_punishment(max_response_length, cache)([[1] * int(length) for length in lengths])
    table = replace(
        random_batch(0, num_prompts=1, num_tracks=max_response_length).responses,
        length=lengths,
        max_response_length=max_response_length,
    )
    assert SoftOverlong(margin=cache / max_response_length)(table, np.zeros(max_response_length)) == pytest.approx(
        theirs, abs=1e-12
    )


def test_padding_is_junk_and_no_token_of_it_reaches_a_loss():
    """The comparison itself: every gradient in the padding is 0, on both sides."""
    from fixtures import plan_of

    padded = pad(plan_of(compose("grpo"), random_batch(0)), 0, 0.3)
    theirs = torch.autograd.grad(trl("grpo")(padded, None), padded.logprobs)[0]
    assert not theirs[padded.mask == 0].any() and theirs[padded.mask == 1].any()
