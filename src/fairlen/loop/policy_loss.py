"""The loss of a micro-batch in any training loop, padded or packed. Shapes are fixed, nothing waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fairlen.loop.tally import count
from fairlen.methods.method import Method
from fairlen.methods.rows import RowPlan, brief, check_method
from fairlen.methods.stages.micro import Micro, Outputs, widen


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of one micro-batch, and the counts that `finish_update` reads."""

    total: Tensor
    """Scalar with gradient: a sum, to be divided by nothing, neither tokens nor micro-batches."""
    counts: Mapping[str, Tensor]
    """Sums on the device, by name."""


def policy_loss(
    method: Method,
    plan: RowPlan,
    logprobs: Tensor,
    old_logprobs: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    sequence: Tensor | None = None,
    rollout_logprobs: Tensor | None = None,
    ref_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
) -> PolicyLoss:
    """Return the loss of a micro-batch whose rows the plan has, tensors on the device of the log-probs.

    Padded: `logprobs` [N, L] with a `mask` [N, L] of what was generated. Packed: `logprobs` of any shape and as `sequence` which
    row of the plan each token belongs to, below 0 for prompts and padding. Log-probs are nats of the tokens that were sampled,
    under the present policy and the one that the rollout batch began with (`old_logprobs`, None where they are the same, in the
    first update: then every ratio is exactly 1); `rollout_logprobs` are the inference engine's own, where they differ,
    `ref_logprobs` and `entropy` are for methods with `+kl` and `+entropy`. Gradients flow into `logprobs` and `entropy` alone.
    An update's loss is the sum over its micro-batches and ranks: multiply by the number of ranks where gradients are averaged.
    Traces under torch.compile(fullgraph=True). Raises ValueError for arguments that do not fit the plan and each other. A row has
    the tokens that the plan counts; where seeing that would wait for a device, or is compiled, the loss is nan instead.
    """
    check_method(method)
    refuse_unfit(method, plan, logprobs=logprobs, mask=mask, sequence=sequence, old_logprobs=old_logprobs,
                 rollout_logprobs=rollout_logprobs, ref_logprobs=ref_logprobs, entropy=entropy)  # fmt: skip
    if not torch.compiler.is_compiling() and plan.method is not None and not is_same(plan.method, method):
        raise ValueError("plan: plan_rows made it with another method than `method`: give both the same one")
    row = find_rows(mask, sequence, len(plan))
    trained = (row >= 0) & plan.trains[row.clamp(min=0)]
    now, *fixed, uncertainty = (
        None if values is None else widen(values.flatten()).where(trained, 0.0)
        for values in (logprobs, old_logprobs, rollout_logprobs, ref_logprobs, entropy)
    )
    old, rollout, ref = (None if values is None else values.detach() for values in fixed)
    assert now is not None
    micro = build_micro(plan, row, trained, now.detach() if old is None else old, rollout, ref, old is None)
    outputs = Outputs(now, torch.full_like(now, torch.nan) if uncertainty is None else uncertainty)
    loss = method.loss(outputs, micro)
    if plan.length is not None:
        loss = replace(loss, total=loss.total.where(is_as_planned(plan, row, trained), torch.nan))
    return PolicyLoss(loss.total, count(method, outputs, micro, loss))


def is_same(planned: Method, method: Method) -> bool:
    """Return whether two methods differ in nothing but their state, which moves with every update."""
    return planned is method or (set(planned.state) == set(method.state) and planned.with_state(method.state) == method)


def is_as_planned(plan: RowPlan, row: Tensor, trained: Tensor) -> Tensor:
    """Return whether each row has no token here or as many as the plan counts. Raises ValueError where nothing waits for it."""
    tokens = plan.length.new_zeros(len(plan)).index_add(0, row.clamp(min=0), trained.to(plan.length.dtype))
    wrong = (tokens > 0) & (tokens != plan.length)
    if is_readable(tokens) and bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ValueError(
            f"row {place} has {int(tokens[place])} tokens in the mask or sequence and {int(plan.length[place])} in the plan: "
            "give plan_rows as `lengths` the tokens that train, and of the plan the rows of the micro-batch"
        )
    if is_readable(tokens) and bool(plan.trains.any()) and not bool(tokens.any()):
        raise ValueError(
            f"mask or sequence has no token, and the plan {int(plan.trains.sum())} rows that train: give the rows of this "
            "micro-batch, of a plan whose `lengths` are 0 for padding"
        )
    return ~wrong.any()


def build_micro(
    plan: RowPlan, row: Tensor, trained: Tensor, old: Tensor, rollout: Tensor | None, ref: Tensor | None,
    is_on_policy: bool,
) -> Micro:  # fmt: skip
    """Return the micro-batch of all tokens [T], given the row of each; those that do not train have a last row of weight 0."""
    row = row.where(trained, len(plan))

    def column(values: Tensor) -> Tensor:
        return torch.cat([values.detach(), values.new_zeros(1)])

    return Micro(
        length=row.new_zeros(len(plan) + 1).index_add(0, row, trained.to(row.dtype)).clamp(min=1),
        sequence=row,
        advantage=column(plan.advantage),
        weight=column(plan.weight),
        term_weight=column(plan.term_weight),
        bounded=None if plan.bounded is None else torch.cat([plan.bounded, plan.bounded.new_ones(1)]),
        old_logprobs=old,
        rollout_logprobs=old if rollout is None else rollout,
        is_on_policy=is_on_policy,
        ref_logprobs=ref,
        mask=trained,
    )


def find_rows(mask: Tensor | None, sequence: Tensor | None, num_rows: int) -> Tensor:
    """Return the row of each token, [T]: below 0 where a padded micro-batch's mask is 0, or where a packed one says so."""
    if sequence is not None and mask is None:
        if sequence.dtype == torch.bool or sequence.is_floating_point():
            raise ValueError(f"sequence of {sequence.dtype}: give whole numbers, each token's row; a mask is `mask`")
        if is_readable(sequence) and bool((sequence >= num_rows).any()):
            raise ValueError(f"sequence has row {int(sequence.max())}: the plan has {num_rows}, counted from 0")
        return sequence.flatten()
    if mask is None or sequence is not None:
        raise ValueError("give mask ([N, L], padded rows) or sequence (a row for every token, packed), one of them")
    if mask.ndim != 2 or len(mask) != num_rows:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} for a plan of {num_rows} rows: give [N, L], and of the plan these N rows"
        )
    if is_readable(mask) and bool((wrong := (mask != 0) & (mask != 1)).any()):
        raise ValueError(f"mask={mask[wrong][0].item()}: give 1 for a token that was generated, else 0")
    rows = torch.arange(num_rows, device=mask.device)[:, None]
    return rows.where(mask.bool(), -1).flatten()


def is_readable(values: Tensor) -> bool:
    """Return whether values can be looked at without waiting for a device, and are there: nothing is compiled."""
    return values.is_cpu and not torch.compiler.is_compiling()


def refuse_unfit(method: Method, plan: Any, logprobs: Any, **others: Any) -> None:
    """Raise ValueError for a plan of arrays, and for tensors that are none, have no number for each log-prob, or are missing."""
    if not isinstance(plan, RowPlan):
        raise ValueError(f"plan={brief(plan)}: give what plan_rows returns, and of it the rows of the micro-batch")
    if not isinstance(plan.weight, Tensor):
        raise ValueError("plan: it holds numpy arrays; give plan.to(device), and of it the rows of the micro-batch")
    for name, values in {"logprobs": logprobs, **others}.items():
        is_column = name in ("mask", "sequence")
        if values is None and name != "logprobs":
            continue
        if not isinstance(values, Tensor) or not (is_column or values.is_floating_point()) or values.is_complex():
            kind = f"tensor of {values.dtype}" if isinstance(values, Tensor) else brief(values)
            raise ValueError(f"{name}={kind}: give a tensor" + ("" if is_column else " of floating-point numbers"))
        if values.device != plan.weight.device:
            raise ValueError(f"{name} on {values.device}, plan on {plan.weight.device}: give plan.to({values.device})")
    for name, is_needed in (("ref_logprobs", method.needs_ref), ("entropy", method.needs_entropy)):
        if is_needed and others[name] is None:
            terms = ", ".join(type(term).__name__ for term in method.terms)
            raise ValueError(f"{name}=None: the method's terms ({terms}) need it for every token")
    for name, values in others.items():
        if values is not None and values.shape != logprobs.shape:
            raise ValueError(f"{name} of shape {tuple(values.shape)}: give that of logprobs, {tuple(logprobs.shape)}")
