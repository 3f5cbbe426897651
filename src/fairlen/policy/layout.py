"""The layout of an update's sequences: padded rows, or trees where the model can read them.

A model can if causal attention is its only memory, which its configuration and a small tree against rows show once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairlen.batch import Plan
from fairlen.engine.cache import heads_of
from fairlen.engine.engine import find_state, tolerance
from fairlen.policy.model import Policy, output_embeddings
from fairlen.policy.pack import pack, sort_spans, split_rows
from fairlen.policy.tree import NAME, NO_KERNEL, find_kernel
from fairlen.rollouts import Response, Rollouts, whole_segments

LIKE_DEFAULT = {"default", "linear", "yarn", "llama3", "proportional"}
"""Rotary embeddings that depend on a position alone; others depend on the length of the input."""
MAX_SHARE = 0.95  # of the positions of rows up to which trees are taken: their attention costs more a position


@dataclass(frozen=True)
class Layout:
    kind: Literal["trees", "rows"]
    reason: str
    always: bool = True  # False: an update takes rows unless trees have fewer positions

    def takes_trees(self, rollouts: Rollouts, plan: Plan, max_tokens: int) -> bool:
        if self.always or self.kind == "rows" or not len(plan):
            return self.kind == "trees"
        spans = [rollouts.segments[row] for row in plan.rows]
        found = sort_spans(rollouts, spans)
        widths = np.array([span.stop - 1 for span in spans])
        in_rows = sum(len(part) * int(widths[part].max()) for part in split_rows(widths + 1, max_tokens))
        in_trees = sum(len(found.forest(part)) for part in found.split(max_tokens))
        return in_trees <= MAX_SHARE * in_rows

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


ROWS = Layout("rows", "the default")


def choose_layout(wanted: Literal["auto", "trees", "rows"], policy: Policy, longest: int) -> Layout:
    """Choose the layout for sequences of at most `longest` tokens, and install its attention.

    Raises ValueError for trees where the model cannot read them.
    """
    model = policy.model
    if wanted == "rows":
        install_for_rows(policy)
        return Layout("rows", "as asked")
    if obstacle := find_state(model) or find_unlike(model, longest):
        install_for_rows(policy)
    else:
        model.set_attn_implementation(NAME)
        if obstacle := probe(policy):
            model.set_attn_implementation("sdpa")
    if obstacle and wanted == "trees":
        raise ValueError(f"layout=trees: {obstacle}; give layout=auto or layout=rows")
    if obstacle:
        return Layout("rows", obstacle)
    return Layout("trees", "shared tokens are computed once", always=wanted == "trees")


def install_for_rows(policy: Policy) -> None:
    """Install, for sdpa, attention that is always float32 on a CPU, and on CUDA in float32 without a quadratic kernel."""
    is_sdpa = policy.model.config.get_text_config()._attn_implementation == "sdpa"
    if is_sdpa and (policy.device.type == "cuda" or policy.autocast):
        policy.model.set_attn_implementation(NAME)


def find_unlike(model: PreTrainedModel, longest: int) -> str:
    """Why a model of attention alone cannot read trees of sequences up to `longest`; empty where it can."""
    name, config = type(model).__name__, model.config.get_text_config()
    if config._attn_implementation not in ("sdpa", NAME):
        return f"{name} runs with attention {config._attn_implementation}, and trees stand in for sdpa"
    kinds = getattr(config, "layer_types", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None)
    if slides and window is not None and window < longest:
        return f"{name} has a sliding window of {window} tokens, and sequences have up to {longest}"
    ropes: Any = getattr(config, "rope_parameters", None) or {}
    ropes = [ropes] if "rope_type" in ropes else [part for part in ropes.values() if isinstance(part, dict)]
    unknown = {str(part.get("rope_type", "default")) for part in ropes} - LIKE_DEFAULT
    if unknown:
        return f"{name} has rotary embeddings of type {', '.join(sorted(unknown))}, which depend on the length of a row"
    state = torch.empty(0, heads_of(config)[2], dtype=torch.promote_types(model.dtype, torch.float32))
    return "" if torch.cuda.is_available() or find_kernel(state, state) else NO_KERNEL.format(state.shape[1])


def probe(policy: Policy) -> str:
    """Compare a small tree with rows: in training mode, where dropout shows, on CUDA backward too. Empty if they are alike."""
    model, (rollouts, plan) = policy.model, small_batch(policy)
    was_training = model.training
    try:
        rows, trees = (read(policy, rollouts, plan, as_trees) for as_trees in (False, True))
        if trees.requires_grad:
            torch.autograd.grad(trees.sum(), min(policy.trained().values(), key=Tensor.numel), allow_unused=True)
    except Exception as error:  # compilers raise errors of any class
        return f"{type(model).__name__} cannot read trees: {(str(error).strip() or repr(error)).splitlines()[0]}"
    finally:
        model.train(was_training)
    error = float((rows - trees.detach()).abs().max() / rows.std())
    if not error <= (limit := tolerance(model, policy.autocast)):
        return (
            f"log-probs of {type(model).__name__} from a tree differ from those of rows by {error:.1e} "
            f"of their spread (tolerance {limit:.1e})"
        )
    return ""


def small_batch(policy: Policy) -> tuple[Rollouts, Plan]:
    """Sequences that fork twice, one of them within another."""
    draws = np.random.default_rng(0).integers(0, output_embeddings(policy.model).weight.shape[0], 60).tolist()
    trunk = draws[:16]
    rows = [trunk, trunk[:10] + draws[20:30], trunk + draws[30:34], trunk[:14] + draws[40:46]]
    return build_batch(rows, 1)


def build_batch(rows: Sequence[Sequence[int]], num_prompt: int) -> tuple[Rollouts, Plan]:
    """A rollout batch of these tokens, of which the first `num_prompt` are the prompt, and a plan that trains on all others."""
    responses = tuple(
        Response(i, tuple(row), num_prompt, (0.0,) * (len(row) - num_prompt), "length", seed=i)
        for i, row in enumerate(rows)
    )
    length, ones = np.array([response.length for response in responses]), np.ones(len(rows))
    plan = Plan(np.arange(len(rows)), length, ones, ones / length.sum(), ones)
    return Rollouts(responses, whole_segments(responses), int(length.max())), plan


def read(policy: Policy, rollouts: Rollouts, plan: Plan, trees: bool) -> Tensor:
    """Log-probs of the plan's tokens, row by row; of trees in training mode, and on CUDA with gradients."""
    policy.model.train(trees)
    found: dict[int, Tensor] = {}
    with torch.set_grad_enabled(trees and policy.device.type == "cuda"):
        for packed in pack(rollouts, plan, 1 << 20, trees=trees, device=policy.device):
            parts = policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
            found |= dict(zip(packed.rows.tolist(), parts, strict=True))
    return torch.cat([found[row] for row in range(len(plan))])
