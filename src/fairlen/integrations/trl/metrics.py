"""The numbers of one update inside TRL, by fairlen's names: sums over micro-batches and processes, divided once.

TRL averages what its micro-batches report, whatever their sizes; here every mean is a sum over a count of the whole update.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fairlen.methods.method import MicroLoss
from fairlen.methods.micro import Micro, MicroWithRef, Outputs, UpdateSums, sum_update
from fairlen.train.result import MAX_LOG_RATIO

SUMS = (
    "loss", "tokens", "sequences", "entropy", "ratio", "clipped", "inside", "old_kl", "mismatch", "mismatch_kl", "ref_kl",
    "sequences_clipped", "sequences_inside", "positive", "negative", "sign_length",
)  # fmt: skip
LARGEST = ("ratio", "mismatch")


@dataclass
class UpdateTally:
    """What the micro-batches of one update came to, in this process."""

    sums: UpdateSums = field(default_factory=UpdateSums)
    values: Tensor | float = 0.0
    """By the names of SUMS."""
    largest: Tensor | float = 0.0
    """By the names of LARGEST."""

    @torch.no_grad()
    def add(self, micro: Micro, outputs: Outputs, loss: MicroLoss) -> None:
        """Counts one micro-batch; one without sequences adds nothing but its loss of 0."""
        self.sums += sum_update(outputs, micro) if len(micro.length) else UpdateSums()
        self.values = self.values + torch.stack([value.double().sum() for value in token_sums(micro, outputs, loss)])
        mismatch = (old_of(micro, outputs) - micro.rollout_logprobs).abs()
        tops = [values.max().double() if len(values) else self.zero(values) for values in (loss.token.ratio, mismatch)]
        self.largest = torch.maximum(torch.stack(tops), torch.as_tensor(self.largest, device=mismatch.device))

    @staticmethod
    def zero(like: Tensor) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=like.device)

    def finish(self, gather: Callable[[Tensor], Tensor], device: torch.device) -> tuple[UpdateSums, dict[str, float]]:
        """The update's sums for the method's state, and its metrics, over all processes; `gather` is [n] -> [processes * n]."""
        own = torch.tensor([*vars(self.sums).values()], dtype=torch.float64, device=device)
        values = torch.as_tensor(self.values, dtype=torch.float64, device=device).expand(len(SUMS))
        largest = torch.as_tensor(self.largest, dtype=torch.float64, device=device).expand(len(LARGEST))
        ranks = gather(torch.cat([own, values, largest])).reshape(-1, len(own) + len(SUMS) + len(LARGEST)).cpu()
        totals = ranks.sum(0).tolist()
        found: dict[str, float] = dict(zip(SUMS, totals[len(own) :], strict=False))
        tops: dict[str, float] = dict(zip(LARGEST, ranks[:, -len(LARGEST) :].max(0).values.tolist(), strict=True))
        return UpdateSums(*totals[: len(own)]), name_metrics(found, tops)


def old_of(micro: Micro, outputs: Outputs) -> Tensor:
    """Log-probs of the policy that generated, [T]: the present one where the update is on-policy."""
    return outputs.logprobs.detach() if micro.is_on_policy else micro.old_logprobs


def token_sums(micro: Micro, outputs: Outputs, loss: MicroLoss) -> list[Tensor]:
    """What is summed of one micro-batch, in the order of SUMS."""
    token, old = loss.token, old_of(micro, outputs)
    log_ratio, mismatch = outputs.logprobs.detach() - old, old - micro.rollout_logprobs
    mass = micro.weight * micro.advantage * micro.length
    return [
        loss.total.detach(),
        micro.length,
        torch.ones_like(micro.length),
        outputs.entropy.detach(),
        token.ratio,
        token.clipped,
        token.inside,
        -log_ratio,
        mismatch.abs(),
        torch.expm1(mismatch.clamp(max=MAX_LOG_RATIO)) - mismatch,
        reference_kl(micro, outputs),
        micro.sum_per_sequence(token.clipped.double()) / micro.length,
        micro.sum_per_sequence(token.inside.double()) / micro.length,
        mass.clamp(min=0.0),
        (-mass).clamp(min=0.0),
        micro.advantage * micro.length,
    ]


def reference_kl(micro: Micro, outputs: Outputs) -> Tensor:
    """The k3 estimate for each token, nats, [T]; 0 without a reference."""
    if not isinstance(micro, MicroWithRef):
        return torch.zeros_like(micro.old_logprobs)
    difference = micro.ref_logprobs - outputs.logprobs.detach()
    return torch.expm1(difference) - difference


def name_metrics(sums: dict[str, float], largest: dict[str, float]) -> dict[str, float]:
    """Metrics of an update by the names of docs/metrics.md, and TRL's own `entropy`, `kl` and clipped share."""
    tokens, sequences = max(sums["tokens"], 1.0), max(sums["sequences"], 1.0)
    mean = {name: sums[name] / tokens for name in SUMS}
    return {
        "loss/total": sums["loss"],
        "tokens/trained": sums["tokens"],
        "sequences/trained": sums["sequences"],
        "entropy/mean": mean["entropy"],
        "ratio/mean": mean["ratio"],
        "ratio/max": largest["ratio"],
        "ratio/clipped": mean["clipped"],
        "ratio/inside": mean["inside"],
        "sequences/clipped": sums["sequences_clipped"] / sequences,
        "sequences/inside": sums["sequences_inside"] / sequences,
        "kl/old": mean["old_kl"],
        "mismatch/mean": mean["mismatch"],
        "mismatch/max": largest["mismatch"],
        "mismatch/kl": mean["mismatch_kl"],
        "weight/positive": sums["positive"],
        "weight/negative": sums["negative"],
        "coupling/sign_length": mean["sign_length"],
        "entropy": mean["entropy"],
        "kl": mean["ref_kl"],
        "clip_ratio/region_mean": mean["clipped"],
    }
