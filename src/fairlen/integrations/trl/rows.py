"""Rows of TRL's micro-batches: parts of them, and which of their tokens train."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor

from fairlen.integrations.tree_rows import find_trained
from fairlen.integrations.turns import count_tokens, was_truncated

COLUMN = "fair_"
"""Begins the names of a plan's columns in a rollout batch of TRL, which shuffles and splits them with its own."""

FORWARDED = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip
"""What a model may read besides tokens."""


def split_rows(inputs: dict[str, Tensor | None], size: int) -> list[dict[str, Tensor | None]]:
    """A micro-batch in parts of at most `size` rows: batches of pairs have more rows than TRL's settings ask for."""
    num_rows = len(inputs["completion_ids"])  # type: ignore[arg-type]
    if num_rows <= size:
        return [inputs]
    rows = {name: value for name, value in inputs.items() if value is not None and value.ndim}
    return [
        inputs | {name: value[first : first + size] for name, value in rows.items()}
        for first in range(0, num_rows, size)
    ]


def loss_mask(inputs: dict[str, Any]) -> Tensor:
    """1 on trained tokens, [N, L]: completions without what tools and environments wrote."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def read_trained(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Which tokens of a micro-batch train, [N, L], and how many of each segment, row after row."""
    return find_trained(loss_mask(inputs), inputs[f"{COLUMN}trains"], inputs.get(f"{COLUMN}length"))


def read_turns(
    output: dict[str, Any], eos_ids: Collection[int], max_response_length: int
) -> list[tuple[tuple[int, ...], bool]]:
    """Return the tokens of each turn of the responses of TRL's batch, and whether the limit on tokens ended them, [N]."""
    columns = (output["completion_ids"], output["completion_mask"], loss_mask(output))
    rows = zip(*(column.cpu().numpy() for column in columns), strict=True)
    return [
        (count_tokens(own), was_truncated(ids[mask > 0].tolist(), own[mask > 0], eos_ids, max_response_length))
        for ids, mask, own in rows
    ]


def has_open_call(completion: Any) -> bool:
    """Return whether messages end with a call of a tool that was not made: the limit on calls, or on tokens, came before."""
    return isinstance(completion, list) and bool(completion) and bool(completion[-1].get("tool_calls"))
