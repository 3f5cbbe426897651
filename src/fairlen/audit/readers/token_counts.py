"""How a column says how many tokens a response has, checked against its text.

A cell is a number, a list of a few numbers (of turns or steps), a list of token ids, or a mask. A number is believed if it grows
with the text of the responses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlen.audit.readers.rows import Values, is_number, numbers
from fairlen.batch import Floats

FEW = 12  # elements of a list without a text up to which it holds numbers of tokens, and above which it holds ids
CHARACTERS = (0.7, 12.0)  # characters per token, at the least and at the most
MIN_RANK, MIN_ROWS = 0.5, 10  # rank correlation with the text from which on a number is believed; rows to compute it
MIN_PROMPT = 0.1  # share of the number that a prompt has to be for it to be sought


def count_number(cell: Any) -> Any:
    """Return the cell as it is."""
    return cell


def count_sum(cell: Any) -> Any:
    """Return the sum of the numbers in a list, in lists within it too."""
    if not isinstance(cell, list):
        return cell
    parts = [count_sum(item) for item in cell if item is not None]
    return sum(parts) if all(is_number(part) for part in parts) else None


def count_items(cell: Any) -> Any:
    """Return how many items a list has, those of lists within it together."""
    if not isinstance(cell, list):
        return cell
    return sum(count_items(item) if isinstance(item, list) else 1 for item in cell)


Count = Callable[[Any], Any]
COUNTS: dict[str, Count] = {"number": count_number, "sum": count_sum, "items": count_items}


@dataclass(frozen=True)
class TokenCount:
    """How cells are counted, and how far the numbers can be believed."""

    kind: str  # a key of COUNTS
    values: Floats  # of each row, nan if it is missing
    rank: float  # rank correlation with the characters of the text, nan without texts


def choose_count(cells: Values, texts: list[str], name: str) -> TokenCount:
    """Return the way to count cells that goes best with the texts; `texts` is empty if the log has none."""
    lists = [cell for cell in cells if isinstance(cell, list)]
    if not lists:
        return measure_count("number", cells, texts)
    flat = [item for cell in lists[:64] for item in flatten(cell)]
    is_mask = name.endswith("mask") or (bool(flat) and all(item in (0, 1) for item in flat))
    if is_mask:
        return measure_count("sum", cells, texts)
    is_nested = any(isinstance(item, list) for cell in lists for item in cell)
    kinds = [measure_count(kind, cells, texts) for kind in ("items", "sum")]
    if texts:
        fitting = [count for count in kinds if is_in_range(count.values, texts)]
        if fitting:
            return max(fitting, key=lambda count: count.rank if count.rank == count.rank else -1.0)
    is_few = float(np.median([len(cell) for cell in lists])) <= FEW and not is_nested
    return kinds[1] if is_few else kinds[0]


def flatten(cell: Any) -> list[Any]:
    """Return the items of a list, those of lists within it too."""
    return [item for part in cell for item in flatten(part)] if isinstance(cell, list) else [cell]


def measure_count(kind: str, cells: Values, texts: list[str]) -> TokenCount:
    """Return one way to count cells with its rank correlation with the text."""
    values = numbers([COUNTS[kind](cell) for cell in cells])[0]
    return TokenCount(kind, values, correlate_ranks(values, np.array([*map(len, texts)], np.float64)))


def is_in_range(values: Floats, texts: list[str]) -> bool:
    """Return whether a token has a plausible number of characters."""
    sizes = np.array([*map(len, texts)], np.float64)
    known = np.isfinite(values) & (values > 0) & (sizes > 0)
    if not known.any():
        return False
    return CHARACTERS[0] <= float(np.median(sizes[known] / values[known])) <= CHARACTERS[1]


def correlate_ranks(x: Floats, y: Floats) -> float:
    """Return Spearman's rank correlation of finite pairs; nan if there are too few, or one side does not vary."""
    if len(x) != len(y):
        return float("nan")
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() < MIN_ROWS:
        return float("nan")
    ranks = [rank(values[known]) for values in (x, y)]
    if min(np.ptp(values) for values in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def rank(values: Floats) -> Floats:
    """Return the mean rank of each value among all."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2.0)[place]


def includes_prompt(values: Floats, texts: list[str], prompts: list[str]) -> bool:
    """Return whether numbers of tokens count the prompt as well as the response."""
    sizes, asked = (np.array([*map(len, side)], np.float64) for side in (texts, prompts))
    known = np.isfinite(values) & (values > 0) & (sizes > 0) & (asked > 0)
    if known.sum() < MIN_ROWS:
        return False
    values, sizes, asked = values[known], sizes[known], asked[known]
    if np.ptp(sizes) == 0 or asked.mean() < MIN_PROMPT * sizes.mean():
        return False
    if asked.std() > 0.05 * asked.mean():
        (slope, of_prompt, _), remainder = fit(values, [sizes, asked, np.ones(len(sizes))])
        (_, _), without = fit(values, [sizes, np.ones(len(sizes))])
        is_explained = remainder < 0.9 * without and remainder < 0.5 * values.std()
        return is_plausible(slope) and 0.5 * slope <= of_prompt <= 2 * slope and is_explained
    (slope, constant), remainder = fit(values, [sizes, np.ones(len(sizes))])
    is_tight = remainder < 0.5 * values.std() and constant > 2 * remainder / np.sqrt(len(values))
    return is_plausible(slope) and is_tight and 0.5 * slope * asked.mean() <= constant <= 2 * slope * asked.mean()


def is_plausible(slope: float) -> bool:
    """Return whether a number of tokens per character is one that tokenizers have."""
    return 1 / CHARACTERS[1] <= slope <= 1 / CHARACTERS[0]


def fit(values: Floats, columns: list[Floats]) -> tuple[Floats, float]:
    """Return the least squares coefficients of columns, and the standard deviation of the remainder."""
    table = np.stack(columns, 1)
    weights = np.asarray(np.linalg.lstsq(table, values, rcond=None)[0], np.float64)
    return weights, float((values - table @ weights).std())
