"""Surrogates, terms and corrections of the user's own, tried on the tokens of a small update."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fairlen.methods.method import Method
from fairlen.methods.plugins import is_foreign, run_stage
from fairlen.methods.stages.micro import MicroWithRef, Outputs, TokenLoss

LENGTH = (3, 1, 5, 2)
ADVANTAGE = (1.0, -0.5, 0.25, -1.0)
WEIGHT = (0.1, 0.2, 0.05, 0.4)


def make_micro(rows: list[int], on_policy: bool = False) -> tuple[Outputs, MicroWithRef]:
    """Some sequences of the update, with log ratios between -0.35 and 0.35."""
    length = torch.tensor(LENGTH)[rows]
    first = [sum(LENGTH[:row]) for row in rows]
    tokens = torch.cat([torch.arange(start, start + LENGTH[row]) for start, row in zip(first, rows, strict=True)])
    logprobs = (-0.5 - 0.13 * tokens.double()).requires_grad_()
    ratio = 0.0 if on_policy else 0.35 * torch.sin(1.7 * tokens.double() + 1.0)
    entropy = 1.0 - 0.3 * logprobs
    micro = MicroWithRef(
        length=length,
        sequence=torch.repeat_interleave(torch.arange(len(rows)), length),
        advantage=torch.tensor(ADVANTAGE, dtype=torch.float64)[rows],
        weight=torch.tensor(WEIGHT, dtype=torch.float64)[rows],
        term_weight=torch.tensor(WEIGHT, dtype=torch.float64)[rows],
        old_logprobs=logprobs.detach() - ratio,
        rollout_logprobs=logprobs.detach() - ratio + 0.01,
        is_on_policy=on_policy,
        ref_logprobs=logprobs.detach() - 0.1,
    )
    return Outputs(logprobs, entropy), micro


def try_loss(method: Method, name: str) -> None:
    """Raises ValueError naming the stage and what is wrong with it."""
    outputs, micro = make_micro([0, 1, 2, 3])
    if is_foreign(method.surrogate):
        try_surrogate(method, name, outputs, micro)
    for term in filter(is_foreign, method.terms):
        for need in ("needs_ref", "needs_entropy"):
            if not isinstance(getattr(term, need, None), bool):
                raise ValueError(f"method {name}: term {type(term).__name__} has no {need}; set it to True or False")
        check_tokens(name, "term", term, run_stage(name, "term", term, lambda term=term: term(outputs, micro)))
    if is_foreign(method.correction):
        stage = method.correction
        check_tokens(name, "correction", stage, run_stage(name, "correction", stage, lambda: stage(micro)))
    for path, learner in method.stateful():
        if is_foreign(learner):
            try_state(name, path.partition(".")[0], learner)
    whole = gradient(method, name, [0, 1, 2, 3])
    parts = torch.cat([gradient(method, name, [0, 1]), gradient(method, name, [2, 3])])
    if not torch.allclose(whole, parts, rtol=1e-9, atol=1e-12):
        raise ValueError(
            f"method {name}: its gradient changes where an update is split into micro-batches: a loss is one number for each "
            "token, and depends on the sequence of that token alone"
        )


def try_surrogate(method: Method, name: str, outputs: Outputs, micro: MicroWithRef) -> None:
    """One loss for each token, and the policy gradient at ratio 1."""
    stage = method.surrogate
    found = run_stage(name, "surrogate", stage, lambda: stage(outputs.logprobs, micro))
    if not isinstance(found, TokenLoss):
        raise ValueError(
            f"method {name}: surrogate {type(stage).__name__} returned {type(found).__name__}: give a TokenLoss"
        )
    for part in ("loss", "ratio", "clipped", "inside"):
        check_tokens(name, f"surrogate's {part},", stage, getattr(found, part))
    fresh, on_policy = make_micro([0, 1, 2, 3], on_policy=True)
    total = run_stage(name, "surrogate", stage, lambda: stage(fresh.logprobs, on_policy)).loss.sum()
    slope = torch.autograd.grad(total, fresh.logprobs)[0] if total.requires_grad else torch.zeros_like(fresh.logprobs)
    wanted = -on_policy.per_token(on_policy.advantage)
    if not torch.allclose(slope, wanted, rtol=1e-6, atol=1e-9):
        raise ValueError(
            f"method {name}: surrogate {type(stage).__name__} has slope {slope[0]:.3g} at ratio 1 where the advantage is "
            f"{-wanted[0]:.3g}: the derivative of the summed loss by each log-prob is minus the advantage there"
        )


def try_state(name: str, choice: str, stage: Any) -> None:
    """What a stage observes are sums, and what they move it to is a stage of its kind."""
    who = f"method {name}: {choice} {type(stage).__name__}"
    if not (callable(getattr(stage, "observe", None)) and callable(getattr(stage, "update", None))):
        raise ValueError(
            f"{who} has fields made by `state` and no observe and update; write both, as methods/stages/micro.py says"
        )

    def observe(rows: list[int]) -> dict[str, float]:
        return run_stage(
            name, choice, stage, lambda: {k: float(v) for k, v in stage.observe(*make_micro(rows)).items()}
        )

    whole, parts = observe([0, 1, 2, 3]), (observe([0, 1]), observe([2, 3]))
    for key, value in whole.items():
        total = sum(part.get(key, math.nan) for part in parts)
        if not math.isclose(value, total, rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError(
                f"{who}: observe gives {key}={value:g}, its parts {total:g}: give sums, under names that never change"
            )
    moved = run_stage(name, choice, stage, lambda: stage.update(whole))
    if type(moved) is not type(stage):
        raise ValueError(f"{who}: update returned {moved!r:.40}; return replace(self, …)")


def check_tokens(name: str, choice: str, stage: Any, found: Any) -> None:
    """Raises ValueError where a stage does not give one finite number for each token."""
    who, tokens = f"method {name}: {choice} {type(stage).__name__} returned", sum(LENGTH)
    if not isinstance(found, Tensor) or found.shape != (tokens,):
        got = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else f"{found!r:.40}"
        raise ValueError(f"{who} {got}: give one number for each token, a tensor of shape ({tokens},)")
    if not found.detach().double().isfinite().all():
        raise ValueError(f"{who} numbers that are not finite")


def gradient(method: Method, name: str, rows: list[int]) -> Tensor:
    """Of the loss of some sequences by their log-probs, [T]."""
    outputs, micro = make_micro(rows)
    total = run_stage(name, "loss", method, lambda: method.loss(outputs, micro).total)
    return torch.autograd.grad(total, outputs.logprobs)[0]
