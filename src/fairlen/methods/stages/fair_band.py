"""The length-fair band of FSPO, whose state is the running drift and scale of log ratios."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from fairlen.batch import centred_squares
from fairlen.channels import Of
from fairlen.checks import Checked, NotNegative, Positive, PositiveFraction, added_later
from fairlen.methods.stages.micro import Micro, Outputs, Sums, TokenLoss, state
from fairlen.methods.stages.surrogate import MAX_LOG_RATIO, OFF, clip_sequences

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-4
"""Nats per square root of a token that two forward passes of the same weights may be apart."""


@dataclass(frozen=True)
class FairBand(Checked):
    """Bounds S, the sum of a sequence's log ratios, so that long and short sequences are accepted equally often.

        none:       -w_low sqrt(T)       <= S <=        w sqrt(T)
        symmetric:  -k T - w_low sqrt(T) <= S <=  k T + w sqrt(T)
        centred:    -k T - w_low sqrt(T) <= S <= -k T + w sqrt(T)

    w is `width`, or z times the running standard deviation of (S + k T) / sqrt(T) if `z` is above 0; w_low = lower_share * w.
    k >= 0 is the running estimate of -mean token log ratio, the drift of log-probs of old samples; it moves once per off-policy
    update, from the sums over all micro-batches and ranks, and update n uses what is known after update n - 1.

    Source: 2509.09177 v1 (equations 1 to 5): symmetric. v3 has no drift. Centred follows from S ~ N(-k T, sigma^2 T) and is ours.
    The papers' width is unknown; 0.03 is a third party's. Departures: on-policy updates do not move k (they would shrink it), by
    name or where no log-prob has moved but by rounding (the root mean square of S / sqrt(T) is at most 1e-4 nats); and S is held
    within 20 nats, as before `exp`. So one sequence of T tokens, among B sequences and N tokens of an update, moves
    `drift_average` by at most rate * 20 / N, and `variance_average` by at most rate * (400 / T + 40 k) / B, k the larger of the
    update's own drifts with it and with S = 0 in its place.
    """

    width: Positive = 0.03
    """Upper edge per square root of a token, nats."""
    lower_share: Positive = 1.0
    """Lower width as a share of the upper one."""
    z: NotNegative = 0.0
    """Above 0: width in running standard deviations, once they are known; `width` until then."""
    drift: Literal["none", "symmetric", "centred"] = "symmetric"
    """How the band follows k: not at all, outwards on both sides, or downwards as a whole."""
    dual_width: NotNegative = OFF
    """Bound for negative advantages, per square root of a token, nats; inf is off."""
    rate: PositiveFraction = 0.1
    """Weight of the newest update in the running estimates, 0..1; they are corrected for their start at 0."""
    of: Of = added_later("response")
    """Meaning of T: tokens of the response, or of one of its channels, at least 1, where the others hardly move S."""
    drift_average: float = state(0.0)
    """Running -mean log ratio per token, nats, before the correction."""
    variance_average: float = state(0.0)
    """Running mean of (S + k T)^2 / T, k each update's own drift, nats^2, before the correction; one sequence has no spread."""
    num_updates: int = state(0)
    """Off-policy updates seen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.current_drift, self.current_width  # found now: a compiled loss takes them as numbers that change

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        length = self.length(micro).to(logprobs.dtype)
        low, high = self.band(length, 0.0 if micro.is_on_policy else self.current_drift)
        return clip_sequences(logprobs, micro, 0.0, low, high, self.dual_width * length.sqrt())

    def length(self, micro: Micro) -> Tensor:
        """T, [B]. Raises ValueError for a plan without tokens of that channel."""
        if self.of == "response":
            return micro.length
        if micro.bounded is None:
            raise ValueError(
                f"FairBand: of={self.of}: the plan has no tokens by channel; make it with `plan_rows` or `weigh`"
            )
        return micro.bounded

    def band(self, length: Tensor, drift: float) -> tuple[Tensor, Tensor]:
        """Lower and upper edge of S for sequences of these lengths and a drift of so many nats per token, [B]."""
        root, shift = length.sqrt() * self.current_width, length * drift
        low = -self.lower_share * root - shift
        high = root + (shift if self.drift == "symmetric" else -shift)
        return low, high

    @cached_property
    def current_drift(self) -> float:
        """k, nats per token, at least 0; always 0 without drift."""
        return 0.0 if self.drift == "none" else max(self.drift_average, 0.0) / self.known_share

    @cached_property
    def current_width(self) -> float:
        """w, nats per square root of a token."""
        if self.z == 0.0 or self.variance_average <= 0.0:
            return self.width
        return self.z * math.sqrt(self.variance_average / self.known_share)

    @property
    def known_share(self) -> float:
        """Share of the running averages that is data rather than their start at 0."""
        if self.rate == 1.0 or not self.num_updates:
            return 1.0
        return -math.expm1(self.num_updates * math.log1p(-self.rate))  # above 0 at any rate

    def observe(self, outputs: Outputs, micro: Micro) -> Sums:
        """Of off-policy sequences: their number, their tokens, S held within 20 nats, and S^2 / T. All 0 where S is 0 by name."""
        if micro.is_on_policy:
            return band_sums(0, 0, 0, 0)
        log_ratio = micro.sum_per_sequence((outputs.logprobs.detach() - micro.old_logprobs).double())
        log_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        length = self.length(micro)
        columns = length > 0, length, log_ratio, log_ratio**2 / length
        return band_sums(*map(micro.total_of_sequences, columns))

    def update(self, sums: Sums) -> FairBand:
        """The band after one update; unchanged by one that is on-policy."""
        num_sequences, num_tokens = sums["num_sequences"], sums["num_tokens"]
        if sums["squared_log_ratio"] <= num_sequences * ROUNDING**2:
            return self
        drift = -sums["log_ratio"] / num_tokens
        spread = sums["squared_log_ratio"]
        if drift > 0.0:  # about it; about 0 where it is clamped
            spread = float(centred_squares(num_tokens, sums["log_ratio"], spread))
        return replace(
            self,
            drift_average=(1.0 - self.rate) * self.drift_average + self.rate * drift,
            variance_average=(1.0 - self.rate) * self.variance_average + self.rate * spread / num_sequences,
            num_updates=self.num_updates + 1,
        )


def band_sums(num_sequences: Any, num_tokens: Any, log_ratio: Any, squared_log_ratio: Any) -> Sums:
    """Sums for `FairBand.update`, over off-policy sequences, of 1, T, S (nats) and S^2 / T (nats^2)."""
    return {
        "num_sequences": num_sequences,
        "num_tokens": num_tokens,
        "log_ratio": log_ratio,
        "squared_log_ratio": squared_log_ratio,
    }
