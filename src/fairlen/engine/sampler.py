"""From logits to a token and its log-probability, one row a sequence.

A sample is a function of the row's logits, its seed and the position alone: one uniform, and the inverse of the distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fairlen.batch import Floats, Ints
from fairlen.sampling.extend import Sampling

BLOCK = 1024
"""Tokens of a block in the search of a large vocabulary."""
MAX_SCANNED = 4 * BLOCK
"""Vocabularies up to this are searched without blocks."""
MAX_SHARE = 1.0 - 2.0**-53
"""Below 1, so that the search ends at a token that has a probability."""
LIMITS = ("top_p", "top_k", "min_p")
ROW = np.dtype(
    [("seed", "u8"), ("position", "i8"), ("token", "i8"), *((name, "f8") for name in ("temperature", *LIMITS))]
)
"""What decides a draw: the newest token's position, which is one before that of the draw, and how to sample."""


def row_of(sampling: Sampling, position: int, token: int) -> tuple[float, ...]:
    """Return an element of an array of ROW."""
    limits = sampling.top_p, sampling.top_k, sampling.min_p
    return sampling.seed % 2**64, position, token, sampling.temperature, *limits


def draw(model: nn.Module, logits: Tensor, rows: np.ndarray) -> tuple[Ints, Floats]:
    """Draw a token from each of `logits` [N, V] by `rows` [N] of ROW; return them and their log-probs [N], on the host.

    Raises FloatingPointError where a log-prob is not finite.
    """
    chance = torch.from_numpy(uniforms(rows["seed"], rows["position"] + 1)).to(logits.device)
    is_tempered = (rows["temperature"] != 1.0).any()
    is_truncated = ((rows["top_p"] < 1.0) | (rows["top_k"] > 0) | (rows["min_p"] > 0.0)).any()
    temperatures = torch.tensor(rows["temperature"], device=logits.device) if is_tempered else None
    limits = [torch.tensor(rows[name], device=logits.device)[:, None] for name in LIMITS] if is_truncated else []
    tokens, logprobs = sample(logits, chance, temperatures, limits)
    # one copy to the host, which a device waits for: float64 holds a token id exactly
    found, chosen = torch.stack((tokens.double(), logprobs.double())).cpu().numpy()
    if len(broken := np.flatnonzero(~np.isfinite(chosen))):
        raise FloatingPointError(
            f"logits of {type(model).__name__} are not finite after {rows['position'][broken[0]] + 1} tokens: "
            "look for a diverged update, or for half precision that overflows"
        )
    return found.astype(np.int64), chosen


def uniforms(seeds: np.ndarray, positions: Ints) -> Floats:
    """Uniform numbers in [0, 1) as a function of (seed, position) alone, [N] (splitmix64)."""
    position = positions.astype(np.uint64) + np.uint64(1)
    bits = seeds * np.uint64(0xD1342543DE82EF95) + position * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def sample(
    logits: Tensor, uniforms: Tensor, temperatures: Tensor | None = None, limits: Sequence[Tensor] = ()
) -> tuple[Tensor, Tensor]:
    """Return tokens [N] and their log-probs [N] from `logits` [N, V], `uniforms` [N], `temperatures` [N], `limits` of `truncate`.

    Temperature 0 takes the most likely token; None stands for 1 everywhere. Log-probs are those of
    softmax(logits / temperature), untruncated, and of softmax(logits) where greedy.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperatures is not None:
        divisors = temperatures.masked_fill(temperatures == 0, 1.0)
        logits = logits / divisors[:, None].to(logits.dtype)
    logprobs = torch.log_softmax(logits, -1)
    probabilities = logprobs.exp()
    tokens = invert(truncate(probabilities, *limits) if limits else probabilities, uniforms)
    if temperatures is not None:
        tokens = torch.where(temperatures == 0, logits.argmax(-1), tokens)
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


def truncate(probabilities: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Return `probabilities` [N, V] with zeros outside top-k, then top-p of what is left, then min-p; one token at least stays.

    Limits are [N, 1]; 0 switches top-k off.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    keep = (top_k == 0) | (rank < top_k)
    kept = ordered * keep
    before = kept.cumsum(-1) - kept
    keep &= (before < top_p * kept.sum(-1, keepdim=True)) | (top_p >= 1.0)
    keep &= ordered >= min_p * ordered[:, :1]
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * keep)
