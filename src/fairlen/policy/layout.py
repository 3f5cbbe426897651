"""How the sequences of an update are laid out for a model: padded rows, or trees where the model can read them.

Trees are the same numbers from fewer positions, for models whose only memory is causal attention over keys and values. Whether
a model is one is found out once: by what its configuration says, and by a small tree against rows. Not here: the packing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fairlen.batch import Plan, Response, Rollouts, Segment
from fairlen.policy.model import Policy, body, output_embeddings
from fairlen.policy.pack import pack, sort_spans, split_rows
from fairlen.policy.tree_attention import NAME, find_kernel

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
        """Whether the sequences of this update are packed as trees."""
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
    obstacle = find_obstacle(policy, longest)
    if obstacle and wanted == "trees":
        raise ValueError(f"layout=trees: {obstacle}; give layout=auto or layout=rows")
    if obstacle:
        return Layout("rows", obstacle)
    reason, cost = "shared tokens are computed once", 0.0
    if not has_kernel(policy):
        reason, cost = f"{reason}, with one mask a tree", estimate_pair_cost(policy)
    return Layout("trees", reason, always=wanted == "trees", pair_cost=cost)


def find_obstacle(policy: Policy, longest: int) -> str:
    """Why the model cannot read trees, or nothing; then attention along trees is installed in it."""
    model, config = policy.model, policy.model.config.get_text_config()
    name = type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"{name} has layers of type {', '.join(sorted(kinds))}, whose state is not attention alone"
    if getattr(model, "_is_stateful", False) or not getattr(model, "_supports_attention_backend", False):
        return f"{name} does not take all of its state from transformers' attention interface"
    if config._attn_implementation not in ("sdpa", NAME):
        return f"{name} runs with attention {config._attn_implementation}, and trees stand in for sdpa"
    window = find_window(config)
    if window is not None and window < longest:
        return f"{name} has a sliding window of {window} tokens, and sequences have up to {longest}"
    unknown = rope_types(config) - LIKE_DEFAULT
    if unknown:
        return f"{name} has rotary embeddings of type {', '.join(sorted(unknown))}, which depend on the length of a row"
    model.set_attn_implementation(NAME)
    obstacle = probe(policy)
    if obstacle:
        model.set_attn_implementation("sdpa")
    return obstacle


def find_window(config: Any) -> int | None:
    """Tokens that layers with a sliding window see, None where there are no such layers."""
    kinds = getattr(config, "layer_types", None)
    slides = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if slides else None


def rope_types(config: Any) -> set[str]:
    """Kinds of rotary embeddings, of all layers; none for a model without them."""
    found: Any = getattr(config, "rope_parameters", None) or {}
    layers = [found] if "rope_type" in found else [part for part in found.values() if isinstance(part, dict)]
    return {str(part.get("rope_type", "default")) for part in layers}


def probe(policy: Policy) -> str:
    """What goes wrong with a small tree, or nothing."""
    model = policy.model
    was_training = model.training
    rollouts, plan = small_batch(policy)
    try:
        rows, trees = (read(policy, rollouts, plan, as_trees) for as_trees in (False, True))
        model.train()
        with torch.no_grad():  # dropout shows in training only
            policy.forward(next(pack(rollouts, plan, 1 << 20, trees=True, device=policy.device)).inputs)
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        return f"{type(model).__name__} cannot read trees: {str(error).strip().splitlines()[0]}"
    finally:
        model.train(was_training)
    error = float((rows - trees).abs().max() / rows.std())
    precision = torch.bfloat16 if policy.autocast else torch.float32
    tolerance = 2 * torch.finfo(precision).eps ** 0.5
    if not error <= tolerance:
        return (
            f"log-probs of {type(model).__name__} from a tree differ from those of rows by {error:.1e} "
            f"of their spread (tolerance {tolerance:.1e})"
        )
    return ""


def small_batch(policy: Policy) -> tuple[Rollouts, Plan]:
    """Sequences that fork twice, one of them within another."""
    vocabulary = output_embeddings(policy.model).weight.shape[0]
    draws = np.random.default_rng(0).integers(0, vocabulary, 60).tolist()
    trunk = draws[:16]
    rows = [trunk, trunk[:10] + draws[20:30], trunk + draws[30:34], trunk[:14] + draws[40:46]]
    responses = tuple(Response(0, tuple(row), 1, (0.0,) * (len(row) - 1), "stop", 0) for row in rows)
    segments = tuple(Segment(i, 1, len(row), 0) for i, row in enumerate(rows))
    numbers = np.ones(len(rows))
    plan = Plan(np.arange(len(rows)), np.array([len(row) - 1 for row in rows]), numbers, numbers, numbers)
    return Rollouts(responses, segments, len(trunk) + 4), plan


@torch.no_grad()
def read(policy: Policy, rollouts: Rollouts, plan: Plan, trees: bool) -> Tensor:
    """Log-probs of the plan's tokens without dropout, row by row."""
    policy.model.eval()
    found: dict[int, Tensor] = {}
    for packed in pack(rollouts, plan, 1 << 20, trees=trees, device=policy.device):
        parts = policy.forward(packed.inputs).logprobs.split(packed.micro.length.tolist())
        found |= dict(zip(packed.rows.tolist(), parts, strict=True))
    return torch.cat([found[row] for row in range(len(plan))])


def shape_of_heads(policy: Policy) -> tuple[int, int]:
    """Heads of a layer and their dimension."""
    config: Any = policy.model.config.get_text_config()
    heads = config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def has_kernel(policy: Policy) -> bool:
    """Whether attention along trees runs without masks."""
    state = torch.empty(0, shape_of_heads(policy)[1], dtype=policy.model.dtype, device=policy.device)
    return not policy.autocast and find_kernel(state, state) is not None


def estimate_pair_cost(policy: Policy) -> float:
    """Multiplications of attention for a pair of tokens, relative to those of a position in all other layers."""
    heads, dim = shape_of_heads(policy)
    model = policy.model
    embeddings = sum(m.weight.numel() for m in body(model).modules() if isinstance(m, nn.Embedding))
    others = sum(p.numel() for p in body(model).parameters()) - embeddings
    return 2 * model.config.get_text_config().num_hidden_layers * heads * dim / others
