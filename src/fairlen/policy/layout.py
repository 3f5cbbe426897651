"""How the sequences of an update are laid out for a model: padded rows, or trees where the model can read them.

Whether a model's only memory is causal attention is found out once, by its configuration and by a small tree against rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.engine.engine import find_state
from fairlen.policy.model import Policy, body, output_embeddings
from fairlen.policy.pack import pack, sort_spans, split_rows
from fairlen.policy.tree import NAME, find_kernel

LIKE_DEFAULT = {"default", "linear", "yarn", "llama3", "proportional"}
"""Rotary embeddings that depend on a position alone; others depend on the length of what is read."""


@dataclass(frozen=True)
class Layout:
    """What a run takes, and why."""

    kind: Literal["trees", "rows"]
    reason: str
    always: bool = True
    """False: an update takes rows where trees would not cost less."""
    pair_cost: float = 0.0
    """What attention from one token to one other costs where a tree has a mask, in positions; 0 where it has none."""

    def takes_trees(self, rollouts: Rollouts, plan: Plan, max_tokens: int) -> bool:
        """Return whether the sequences of this update are packed as trees."""
        if self.always or self.kind == "rows" or not len(plan):
            return self.kind == "trees"
        spans = [rollouts.segments[row] for row in plan.rows]
        found = sort_spans(rollouts, spans)
        widths = np.array([span.stop - 1 for span in spans])
        rows = [(len(part), int(widths[part].max())) for part in split_rows(widths + 1, max_tokens)]
        trees = [found.tree_sizes(part) for part in found.split(max_tokens)]
        cost_of_rows = sum(number * width * (1 + self.pair_cost * width / 2) for number, width in rows)
        cost_of_trees = sum(size * (1 + self.pair_cost * size) for sizes in trees for size in sizes)
        return cost_of_trees < cost_of_rows

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


ROWS = Layout("rows", "the default")


def choose_layout(wanted: Literal["auto", "trees", "rows"], policy: Policy, longest: int) -> Layout:
    """The layout for a run whose sequences have at most `longest` tokens; installs attention along trees where it is taken.

    Raises ValueError for trees where the model cannot read them.
    """
    if wanted == "rows":
        return Layout("rows", "as asked")
    model = policy.model
    obstacle = find_state(model) or find_unlike(model, longest)
    if not obstacle:
        model.set_attn_implementation(NAME)
        obstacle = probe(policy)
        if obstacle:
            model.set_attn_implementation("sdpa")
    if obstacle and wanted == "trees":
        raise ValueError(f"layout=trees: {obstacle}; give layout=auto or layout=rows")
    if obstacle:
        return Layout("rows", obstacle)
    if has_kernel(policy):
        return Layout("trees", "shared tokens are computed once", always=wanted == "trees")
    reason = "shared tokens are computed once, with one mask a tree"
    return Layout("trees", reason, wanted == "trees", estimate_pair_cost(policy))


def find_unlike(model: PreTrainedModel, longest: int) -> str:
    """Return what a model of attention alone does that trees of sequences up to `longest` cannot, or nothing."""
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
    return ""


def probe(policy: Policy) -> str:
    """Return what goes wrong with a small tree, or nothing. It is read in training mode, in which dropout shows."""
    model, (rollouts, plan) = policy.model, small_batch(policy)
    was_training = model.training
    try:
        rows, trees = (read(policy, rollouts, plan, as_trees) for as_trees in (False, True))
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        return f"{type(model).__name__} cannot read trees: {str(error).strip().splitlines()[0]}"
    finally:
        model.train(was_training)
    error = float((rows - trees).abs().max() / rows.std())
    tolerance = 2 * torch.finfo(torch.bfloat16 if policy.autocast else torch.float32).eps ** 0.5
    if not error <= tolerance:
        return (
            f"log-probs of {type(model).__name__} from a tree differ from those of rows by {error:.1e} "
            f"of their spread (tolerance {tolerance:.1e})"
        )
    return ""


def small_batch(policy: Policy) -> tuple[Rollouts, Plan]:
    """Return sequences that fork twice, one of them within another."""
    draws = np.random.default_rng(0).integers(0, output_embeddings(policy.model).weight.shape[0], 60).tolist()
    trunk = draws[:16]
    rows = [trunk, trunk[:10] + draws[20:30], trunk + draws[30:34], trunk[:14] + draws[40:46]]
    responses = tuple(Response(0, tuple(row), 1, (0.0,) * (len(row) - 1), "stop", 0) for row in rows)
    segments = tuple(Segment(i, 1, len(row), 0) for i, row in enumerate(rows))
    numbers = np.ones(len(rows))
    plan = Plan(np.arange(len(rows)), np.array([len(row) - 1 for row in rows]), numbers, numbers, numbers)
    return Rollouts(responses, segments, len(trunk) + 4), plan


@torch.no_grad()
def read(policy: Policy, rollouts: Rollouts, plan: Plan, trees: bool) -> Tensor:
    """Return log-probs of the plan's tokens, row by row; trees are read in training mode."""
    policy.model.train(trees)
    found: dict[int, Tensor] = {}
    for packed in pack(rollouts, plan, 1 << 20, trees=trees, device=policy.device):
        parts = policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
        found |= dict(zip(packed.rows.tolist(), parts, strict=True))
    return torch.cat([found[row] for row in range(len(plan))])


def has_kernel(policy: Policy) -> bool:
    """Return whether attention along trees runs without masks."""
    state = torch.empty(0, shape_of_heads(policy)[1], dtype=policy.model.dtype, device=policy.device)
    return not policy.autocast and find_kernel(state, state) is not None


def shape_of_heads(policy: Policy) -> tuple[int, int]:
    """Return heads of a layer and their dimension."""
    config: Any = policy.model.config.get_text_config()
    heads = config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def estimate_pair_cost(policy: Policy) -> float:
    """Return multiplications of attention for a pair of tokens, relative to those of a position in all other layers."""
    heads, dim = shape_of_heads(policy)
    model = policy.model
    embeddings = sum(m.weight.numel() for m in body(model).modules() if isinstance(m, nn.Embedding))
    others = sum(p.numel() for p in body(model).parameters()) - embeddings
    return 2 * model.config.get_text_config().num_hidden_layers * heads * dim / others
