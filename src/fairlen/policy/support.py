"""The support of truncated sampling: the policy is the softmax over the tokens that sampling left.

Old policy, current policy and reference model share the set of the policy that sampled, so that no ratio is between distributions
over different tokens (DeepSeek-V3.2, arXiv:2512.02556, section 3.1). engine/sampler.py cuts the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fairlen.batch import Ints
from fairlen.engine.device import upload

FLOOR = -1e30
"""The score of a token that was cut: its probability and all derivatives by it are 0, and its log-prob times 0 is no NaN."""


@dataclass(frozen=True)
class Support:
    """Ids that each of T trained tokens was drawn from."""

    token_ids: Tensor  # back to back, [M]
    bounds: Ints
    """Where a token's ids begin, and the end, [T + 1], on the host; none stand for the whole vocabulary. Empty where all do."""

    def cut(self, scores: Tensor, chunk: slice) -> Tensor:
        """Overwrite, in `scores` [n, V] of the trained tokens of `chunk`, those of cut tokens."""
        bounds = self.bounds[chunk.start : chunk.stop + 1]
        counts = np.diff(bounds)
        if not counts.any():
            return scores
        first, rows = int(bounds[0]), np.repeat(np.arange(len(counts)), counts)
        is_cut = upload(counts > 0, scores.device)[:, None].repeat(1, scores.shape[1])
        is_cut[upload(rows, scores.device), self.token_ids[first : first + len(rows)]] = False
        return scores.masked_fill_(is_cut, FLOOR)


WHOLE = Support(torch.empty(0, dtype=torch.int64), np.zeros(0, np.int64))


def build_support(supports: Iterable[bytes], target: Ints, device: torch.device) -> Support:
    """From the bytes of a Response, for trained tokens `target` [T].

    A token that is not in its own support was not drawn from it, and is read over the whole vocabulary, like one without any.
    """
    found = list(supports)
    token_ids, counts = np.frombuffer(b"".join(found), np.int32), np.array([len(one) // 4 for one in found])
    rows = np.repeat(np.arange(len(target)), counts)
    has_target = np.zeros(len(target), np.bool_)
    has_target[rows[token_ids == target[rows]]] = True
    if not has_target.any():
        return WHOLE
    bounds = np.concatenate([[0], np.cumsum(counts * has_target)])
    return Support(upload(token_ids[has_target[rows]].astype(np.int64), device), bounds)
