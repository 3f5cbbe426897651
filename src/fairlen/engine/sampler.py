"""From logits to a token and its log-prob: one uniform number, a function of seed and position, inverts the distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fairlen.batch import Bools, Floats, Ints
from fairlen.sampling.extend import Sampling

SAMPLING_BYTES = 36  # bytes of a step for each logit: three tensors in float32, three in float64
BLOCK = 1024  # tokens of a block in the search of a vocabulary larger than MAX_SCANNED
MAX_SCANNED = 4 * BLOCK
LIMITS = ("top_p", "top_k", "min_p")
ROW = np.dtype(
    [("seed", "u8"), ("position", "i8"), ("token", "i8"), *((name, "f8") for name in ("temperature", *LIMITS)),
     ("needs_support", "?")]
)  # fmt: skip
"""Parameters of a draw; `position` is that of the newest token, one before the draw's."""
Drawn = tuple[Tensor, Tensor]
"""Tokens and log-probs [2, N] in float64, and the support [N, V], or [N, 0] where no row truncates."""


def row_of(sampling: Sampling, position: int, token: int) -> tuple[float, ...]:
    limits = sampling.top_p, sampling.top_k, sampling.min_p
    return sampling.seed % 2**64, position, token, sampling.temperature, *limits, sampling.needs_support


def pack(rows: np.ndarray) -> Ints:
    """Pack tokens, positions and, by their bits, the float64 parameters of the draws, [7, N]: one upload a step."""
    packed = np.empty((4 + len(LIMITS), len(rows)), np.int64)
    packed[0], packed[1] = rows["token"], rows["position"]
    numbers = packed[2:].view(np.float64)
    numbers[0] = uniforms(rows["seed"], rows["position"] + 1)
    for place, name in enumerate(("temperature", *LIMITS), 1):
        numbers[place] = rows[name]
    return packed


def ways_of(rows: np.ndarray) -> tuple[bool, bool]:
    """Whether any row has a temperature other than 1, and whether any is truncated."""
    is_truncated = (rows["top_p"] < 1.0) | (rows["top_k"] > 0) | (rows["min_p"] > 0.0)
    return bool((rows["temperature"] != 1.0).any()), bool(is_truncated.any())


def sample_packed(logits: Tensor, packed: Tensor, ways: tuple[bool, bool]) -> Drawn:
    chance, temperatures, *limits = packed[2:, : len(logits)].view(torch.float64)
    is_tempered, is_truncated = ways
    columns = [limit[:, None] for limit in limits] if is_truncated else []
    tokens, logprobs, support = sample(logits, chance, temperatures if is_tempered else None, columns)
    return torch.stack([tokens.double(), logprobs.double()]), support


def read(model: nn.Module, drawn: Drawn, rows: np.ndarray) -> tuple[Ints, Floats, list[bytes]]:
    """Copy tokens, log-probs and supports [N] to the host, the one wait for the device in a step.

    Supports are empty where not asked for. Raises FloatingPointError where a log-prob is not finite.
    """
    tokens, chosen = drawn[0].cpu().numpy()[:, : len(rows)]
    if len(broken := np.flatnonzero(~np.isfinite(chosen))):
        raise FloatingPointError(
            f"logits of {type(model).__name__} are not finite after {rows['position'][broken[0]] + 1} tokens: "
            "look for a diverged update, or for half precision that overflows"
        )
    return tokens.astype(np.int64), chosen, read_supports(drawn[1], rows["needs_support"])


def read_supports(support: Tensor, wanted: Bools) -> list[bytes]:
    """The int32 ids that are True in `support` [N or more, V], for the rows that are wanted [N]."""
    found = [b""] * len(wanted)
    if wanted.any():
        rows, ids = support[: len(wanted)].nonzero().T.cpu().numpy()
        bounds = np.searchsorted(rows, np.arange(len(wanted) + 1))
        for row in np.flatnonzero(wanted):
            found[row] = ids[bounds[row] : bounds[row + 1]].astype(np.int32).tobytes()
    return found


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
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from `logits` [N, V] by `uniforms` [N], `temperatures` [N] and `limits` of `find_support`.

    Return tokens [N], log-probs [N] and the support [N, V], or [N, 0] without limits. Temperature 0 takes the most likely token,
    whatever the limits; None stands for 1. Log-probs are of softmax(logits / temperature) over the support, and of
    softmax(logits) where greedy.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperatures is not None:
        divisors = temperatures.masked_fill(temperatures == 0, 1.0)
        logits = logits / divisors[:, None].to(logits.dtype)
    logprobs = torch.log_softmax(logits, -1)
    probabilities = logprobs.exp()
    support = torch.empty_like(logits[:, :0], dtype=torch.bool)
    if limits:
        support = find_support(probabilities, *limits)
        if temperatures is not None:
            support |= temperatures[:, None] == 0
        probabilities = probabilities * support
        logprobs = torch.log_softmax(logits.masked_fill(~support, -torch.inf), -1)
    tokens = invert(probabilities, uniforms)
    if temperatures is not None:
        tokens = torch.where(temperatures == 0, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0], support


def invert(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Tokens [N] at which running sums of `probabilities` [N, V] pass the shares `uniforms` [N] of the whole.

    A large vocabulary is searched in blocks: running sums in float64 would move 20 bytes a token, and their CUDA kernel gives
    a row one block of threads.
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
    # a share below 1 ends at a token with a probability
    return block[:, 0] * BLOCK + invert(inside, share[:, 0].clamp(0.0, 1.0 - 2.0**-53))


def find_support(probabilities: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Tokens of `probabilities` [N, V] left by top-k, then top-p of the rest, then min-p: at least one. Limits are [N, 1]."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    keep = (top_k == 0) | (rank < top_k)
    kept = ordered * keep
    before = kept.cumsum(-1) - kept
    keep &= (before < top_p * kept.sum(-1, keepdim=True)) | (top_p >= 1.0)
    keep &= ordered >= min_p * ordered[:, :1]
    return torch.zeros_like(keep).scatter(-1, order, keep)
