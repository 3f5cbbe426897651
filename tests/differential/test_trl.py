"""Losses, gradients, advantages and rewards against the installed TRL: its own functions, on ragged random batches."""

import ast
import inspect
import textwrap
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures import random_batch
from loops import over
from padded import Padded, agree, pad

from fairlen.methods.compose import compose
from fairlen.methods.method import Method
from fairlen.methods.stages.aggregation import TokenMean
from fairlen.methods.stages.reward import SoftOverlong
from fairlen.methods.stages.surrogate import DetachedClip, SoftGate, TokenClip
from fairlen.methods.stages.terms import EntropyBonus, ReferenceKL

pytest.importorskip("trl", reason="TRL is not installed (pip install '.[trl]')")
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


SEQUENCE = dict(importance_sampling_level="sequence")
LOSSES = {
    "grpo": (with_surrogate("grpo", TokenClip(0.2, 0.28)), trl("grpo", epsilon_high=0.28), (0.05, 0.3, 1.0)),
    "grpo, delta": (
        with_surrogate("grpo", TokenClip(0.2, 0.28, delta=1.6)),
        trl("grpo", epsilon_high=0.28, args_delta=1.6),
        (0.05, 0.3, 1.0),
    ),
    "dapo": (with_surrogate("dapo_verl", TokenClip(0.2, 0.28)), trl("dapo", epsilon_high=0.28), (0.05, 0.3)),
    "dr_grpo": (with_surrogate("dr_grpo", TokenClip()), trl("dr_grpo"), (0.3,)),
    **{
        name: (compose(name), trl("grpo", **SEQUENCE, epsilon_low=3e-4, epsilon_high=4e-4), (2e-3, 0.05))
        for name in ("gspo", "gspo_token")
    },
    "luspo": (compose("luspo"), trl("luspo", **SEQUENCE, epsilon_low=2e-3, epsilon_high=2.5e-3), (5e-3, 0.05)),
    # TRL holds the ratio at epsilon_high itself, ours at 1 + clip_high; neither has a lower bound
    "cispo": (compose("cispo"), trl("cispo", epsilon_high=5.0), (1.0,)),
    "cispo, clip": (with_surrogate("cispo", DetachedClip(clip_high=0.3)), trl("cispo", epsilon_high=1.3), (0.3,)),
    # TRL keeps its temperatures in float32 whatever the log-probs are: 1.05 is 5e-8 off there, 1.0625 is exact
    "sapo": (with_surrogate("sapo", SoftGate(1.0, 1.0625)), trl("sapo", args_sapo_temperature_neg=1.0625), (0.05, 0.5)),
    # TRL divides by the tokens of the window; the paper and our preset sum tokens and average sequences
    "vespo": (replace(compose("vespo"), aggregation=TokenMean("update")), trl("vespo"), (0.02, 0.2)),
    "rloo": (compose("rloo"), trl("rloo", RLOOTrainer), (0.02, 0.1)),
    **{
        f"{name}, KL": (
            with_surrogate(name, TokenClip(), terms=(ReferenceKL(0.04),)),
            trl(loss_type, beta=0.04),
            (0.3,),
        )
        for name, loss_type in (("grpo", "grpo"), ("dapo_verl", "dapo"), ("dr_grpo", "dr_grpo"))
    },
    # TRL's bonus is over the tokens of the micro-batch whatever the loss; ours has the scope of its method
    "dapo, entropy": (
        with_surrogate("dapo_verl", TokenClip(), terms=(EntropyBonus(0.01),)),
        trl("dapo", _entropy_bonus_enabled=True, entropy_coef=0.01),
        (0.3,),
    ),
}
"""Our method, TRL's loss, and the sizes of log ratios."""


@over("name", LOSSES)
def test_losses(name):
    method, theirs, scales = LOSSES[name]
    for scale in scales:
        agree(method, theirs, scale=scale)


@over("scale", [0.2, 0.8])
def test_gmpo(scale):
    trainer = pytest.importorskip("trl.experimental.gmpo").GMPOTrainer
    agree(compose("gmpo"), trl("grpo", trainer, epsilon_low=0.4, epsilon_high=0.4), scale=scale)


def test_dapo_is_not_the_token_mean_of_the_group():
    with pytest.raises(AssertionError):
        agree(with_surrogate("dapo", TokenClip(0.2, 0.28)), trl("dapo", epsilon_high=0.28))


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
