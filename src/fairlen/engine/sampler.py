"""From logits to a token and its log-probability, one row a sequence.

A sample is a function of the row's logits, its seed and the position alone: one uniform per (seed, position), and the
inverse of the distribution function. What else is in flight matters only through rounding of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fairlen.batch import Floats, Ints
from fairlen.sampling.extend import Sampling

BLOCK = 1024
"""Tokens of a block in the search of a large vocabulary."""
MAX_SCANNED = 4 * BLOCK
"""Vocabularies up to this are searched without blocks."""
MAX_SHARE = 1.0 - 2.0**-53
"""Below 1, so that the search ends at a token that has a probability."""
SHAPE = np.dtype([("seed", "u8"), ("temperature", "f8"), ("top_p", "f8"), ("top_k", "i8"), ("min_p", "f8")])
"""What of a `Sampling` decides a draw."""


def shape_of(sampling: Sampling) -> tuple[float, ...]:
    """Return an element of an array of SHAPE."""
    return sampling.seed % 2**64, sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p


def draw(model: nn.Module, logits: Tensor, shapes: np.ndarray, positions: Ints) -> tuple[Ints, Floats]:
    """Draw tokens [N] at `positions` [N] from `logits` [N, V] by `shapes` [N]; return them and their log-probs [N], on the host.

    Raises FloatingPointError where a log-prob is not finite.
    """

    def column(name: str) -> Tensor:
        return torch.tensor(shapes[name], device=logits.device)[:, None]

    chance = torch.from_numpy(uniforms(shapes["seed"], positions)).to(logits.device)
    temperatures = None if (shapes["temperature"] == 1.0).all() else column("temperature")[:, 0]
    is_truncated = ((shapes["top_p"] < 1.0) | (shapes["top_k"] > 0) | (shapes["min_p"] > 0.0)).any()
    truncation = Truncation(column("top_p"), column("top_k"), column("min_p")) if is_truncated else None
    tokens, logprobs = sample(logits, chance, temperatures, truncation)
    # one copy to the host, which a device waits for: float64 holds a token id exactly
    found, chosen = torch.stack((tokens.double(), logprobs.double())).cpu().numpy()
    if len(broken := np.flatnonzero(~np.isfinite(chosen))):
        raise FloatingPointError(
            f"logits of {type(model).__name__} are not finite after {positions[broken[0]]} tokens: "
            "look for a diverged update, or for half precision that overflows"
        )
    return found.astype(np.int64), chosen


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) as a function of (seed, position) alone, [N] (splitmix64)."""
    bits = seeds * np.uint64(0xD1342543DE82EF95) + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Truncation:
    """Limits of the sampled set, one row a sequence, [N, 1]."""

    top_p: Tensor
    top_k: Tensor
    """0 is off."""
    min_p: Tensor


def sample(
    logits: Tensor, uniforms: Tensor, temperatures: Tensor | None, truncation: Truncation | None
) -> tuple[Tensor, Tensor]:
    """Tokens [N] and their log-probabilities [N] from `logits` [N, V], `uniforms` [N] and `temperatures` [N].

    Temperature 0 takes the most likely token; None stands for 1 everywhere. Log-probabilities are those of
    softmax(logits / temperature), untruncated, and of softmax(logits) where greedy.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    is_greedy = None if temperatures is None else temperatures == 0
    if temperatures is not None and is_greedy is not None:
        logits = logits / temperatures.masked_fill(is_greedy, 1.0)[:, None].to(logits.dtype)
    logprobs = torch.log_softmax(logits, -1)
    probabilities = logprobs.exp()
    if truncation is not None:
        probabilities = truncate(probabilities, truncation)
    tokens = invert(probabilities, uniforms)
    if is_greedy is not None:
        tokens = torch.where(is_greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """The tokens [N] at which the running sums of `probabilities` [N, V] pass the shares `uniforms` [N] of the whole.

    A large vocabulary is searched in blocks: running sums in float64 would move 20 bytes a token of it, and their kernel for
    CUDA works on a row with one block of threads.
    """
    if probabilities.shape[-1] <= MAX_SCANNED:
        reached = probabilities.cumsum(-1, dtype=torch.float64)
        tokens = (reached <= uniforms[:, None] * reached[:, -1:]).sum(-1)
        return tokens.clamp_(max=probabilities.shape[-1] - 1)
    num_whole = probabilities.shape[-1] // BLOCK
    whole, rest = probabilities.split([num_whole * BLOCK, probabilities.shape[-1] - num_whole * BLOCK], -1)
    masses = torch.cat(
        [whole.unflatten(-1, (num_whole, BLOCK)).sum(-1, dtype=torch.float64), rest.double().sum(-1, keepdim=True)], -1
    )
    block = invert(masses, uniforms)[:, None]
    before = (masses.cumsum(-1) - masses).gather(-1, block)
    share = (uniforms[:, None] * masses.sum(-1, keepdim=True) - before) / masses.gather(-1, block)
    places = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, places.clamp(max=probabilities.shape[-1] - 1))
    inside = inside.masked_fill(places >= probabilities.shape[-1], 0.0)
    return block[:, 0] * BLOCK + invert(inside, share[:, 0].clamp(0.0, MAX_SHARE))


def truncate(probabilities: Tensor, truncation: Truncation) -> Tensor:
    """`probabilities` [N, V], zero outside top-k, then top-p of what is left, then min-p; at least one token stays."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    keep = (truncation.top_k == 0) | (rank < truncation.top_k)
    kept = ordered * keep
    before = kept.cumsum(-1) - kept
    keep &= (before < truncation.top_p * kept.sum(-1, keepdim=True)) | (truncation.top_p >= 1.0)
    keep &= ordered >= truncation.min_p * ordered[:, :1]
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)
