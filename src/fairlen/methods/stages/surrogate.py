"""How far one update may go: the loss of each token, as a function of log-probs and the plan.

    surrogate(logprobs [T], micro) -> TokenLoss

Contract:

- Slope: at ratio 1 the derivative of the summed loss by each token's log-prob is minus its sequence's advantage. For a ratio of
  sequences exp(S / T^a), S the sum of the log ratios of T tokens, this puts -psi T^(a-1) on every token, psi being the clipped
  objective; so any aggregation combines with any of them.
- Masks: the loss of a token depends on its own sequence alone. `clipped` is where a bound made the gradient 0, a penalty's
  too, `inside` where the two-sided bound holds. Tokens that do not train (`micro.mask`) have weight 0 and log-probs 0, and their
  loss must be finite.
- Rounding: in the first update the old log-probs are the new ones, and every ratio exactly 1. Log ratios are held at 20 before
  `exp`, a departure from every source (docs/papers.md); what that stops counts as clipped.
- State: a call changes nothing. Fields of `state` move once per update, by `observe`, sums of a micro-batch, and `update`.

Only tensor methods are used: the module imports without torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlen.checks import Checked, Fraction, NotNegative, Positive
from fairlen.methods.stages.micro import Micro, TokenLoss

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Nats, the most that `exp` is given."""
OFF = math.inf
"""The value of a bound that never acts."""


@dataclass(frozen=True)
class PolicyGradient:
    """No ratio and no bound: -A logprob.  Source: REINFORCE (Williams 1992)."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio = token_ratio(logprobs.detach(), micro)
        return unbounded(-micro.per_token(micro.advantage) * logprobs, ratio)


@dataclass(frozen=True)
class Clip(Checked):
    """A ratio is bounded in 1 - clip_low .. 1 + clip_high; which ratio, says the stage."""

    clip_low: Fraction = 0.2
    """Lower bound of the ratio, as a distance from 1; 1 is none."""
    clip_high: NotNegative = 0.2
    """Upper bound of the ratio, as a distance from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("dual_clip", "delta"):
            value = getattr(self, name, OFF)
            if value != OFF and not value > 1.0 + self.clip_high:
                raise ValueError(
                    f"{type(self).__name__}: {name}={value}: it bounds the ratio itself; "
                    f"give more than 1 + clip_high = {1 + self.clip_high:g} (3 is common), or inf to leave it off"
                )

    @property
    def log_bounds(self) -> tuple[float, float]:
        """The clip in log space."""
        return math.log1p(-self.clip_low) if self.clip_low < 1.0 else -OFF, math.log1p(self.clip_high)


@dataclass(frozen=True)
class TokenClip(Clip):
    """Bounds each token's ratio: -min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).

    `dual_clip` c > 1 holds the loss of a negative advantage at -c A once rho > c (arXiv:1912.09729); `delta` holds rho itself
    below delta for both signs (TRL's `delta`, INTELLECT-2).
    Source: PPO (arXiv:1707.06347, equation 7), GRPO (arXiv:2402.03300, equation 3).
    """

    dual_clip: float = OFF
    """Largest ratio that counts where the advantage is negative; inf is off."""
    delta: float = OFF
    """Largest ratio that counts at all; inf is off."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        log_ratio = logprobs - micro.old_logprobs
        return clip_tokens(log_ratio, micro, self.clip_low, self.clip_high, self.dual_clip, self.delta)


@dataclass(frozen=True)
class SequenceTokenClip(Clip):
    """The value of the sequence's mean-log ratio, with a gradient per token: rho_t = sg[s] pi / sg[pi], clipped as a token.

    Source: GSPO-token (arXiv:2507.18071, equation 13). Equal to SequenceClip in value and gradient for one advantage a sequence.
    """

    clip_low: Fraction = 3e-4
    clip_high: NotNegative = 4e-4

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        mean = sequence_log_ratio(logprobs.detach(), micro) / micro.length
        log_ratio = micro.per_token(mean) + (logprobs - logprobs.detach())
        return clip_tokens(log_ratio, micro, self.clip_low, self.clip_high)


@dataclass(frozen=True)
class SequenceClip(Clip):
    """Bounds the sequence's geometric mean ratio s = exp(S / T) in 1 - clip_low .. 1 + clip_high.

    Source: GSPO (arXiv:2507.18071, equations 5 and 7; clips of its section 5.1).
    """

    clip_low: Fraction = 3e-4
    clip_high: NotNegative = 4e-4
    dual_clip: float = OFF
    """Largest ratio that counts where the advantage is negative; inf is off."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        return clip_sequences(logprobs, micro, 1.0, *self.log_bounds, math.log(self.dual_clip))


@dataclass(frozen=True)
class SequenceRatioClip(Clip):
    """Bounds the sequence's full ratio exp(S) in 1 - clip_low .. 1 + clip_high, whatever its length.

    Source: the RLOO baseline of 2509.09177, as in TRL's RLOOTrainer (clip 0.2).
    """

    dual_clip: float = OFF
    """Largest ratio that counts where the advantage is negative; inf is off."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        return clip_sequences(logprobs, micro, 0.0, *self.log_bounds, math.log(self.dual_clip))


@dataclass(frozen=True)
class PowerClip(Clip):
    """Bounds exp(S / T^power): SequenceRatioClip at power 0, SequenceClip at 1; at 1/2 the spread is free of length.

    Source: P-GSPO (OpenReview OeYb0K8gEu; power 0.6). Its clips are not known to us: those of GSPO.
    """

    clip_low: Fraction = 3e-4
    clip_high: NotNegative = 4e-4
    power: Fraction = 0.6
    """Of the length that divides S, 0..1."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        return clip_sequences(logprobs, micro, self.power, *self.log_bounds, OFF)


@dataclass(frozen=True)
class PrefixBand(Checked):
    """Bounds S_t, the sum of log ratios up to a sequence's token t = 1..T, in a band that grows with a power of t.

        psi_t = exp(S_t) A with S_t held in  -width_low t^power .. width_high t^power;   the gradient is that of token t alone

    At power 1/2 the band of FSPO at every position: exp(S_t) is the full ratio of the prefix that token t ends. A negative
    advantage is held at `dual_width` t^power too.
    Source: CTPO (arXiv:2605.07331), by its authors' code. Departure: S_t is held at 20 before `exp`, there at 10.
    """

    width_low: Positive = 0.025
    """Lower edge at the first token, nats below 0."""
    width_high: Positive = 0.05
    """Upper edge at the first token, nats above 0."""
    dual_width: NotNegative = 0.05
    """Bound for negative advantages at the first token, nats above 0; inf is off."""
    power: Fraction = 0.5
    """Of the position, which multiplies all three, 0..1; 1/2 follows the spread of a sum of independent log ratios."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        log_ratio, ones = logprobs.detach() - micro.old_logprobs, logprobs.new_ones(len(logprobs))
        log_ratio = log_ratio.clamp(-1e4, 1e4)  # a running sum of all rows would round the others' away
        prefix, root = (micro.cumulate(v).to(logprobs.dtype) for v in (log_ratio, ones))
        root = root.clamp(min=1.0) ** self.power
        objective, found = clip_log_ratio(
            prefix + (logprobs - logprobs.detach()), micro.per_token(micro.advantage),
            -self.width_low * root, self.width_high * root, self.dual_width * root,
        )  # fmt: skip
        return TokenLoss(loss=-objective, **found)


@dataclass(frozen=True)
class GeometricClip(Checked):
    """The geometric mean of token ratios that were clipped first, each on the side that its advantage pushes to.

        psi = A exp(mean_t l~_t),   l~ = sign(A) min(sign(A) l, sign(A) clip(l, -width_low, width_high))

    Source: GMPO (arXiv:2507.20673, equation 4; 0.4 on both sides, in log space).
    """

    width_low: Positive = 0.4
    """Lowest log ratio of a token, nats below 0."""
    width_high: Positive = 0.4
    """Highest, nats above 0."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        log_ratio = logprobs - micro.old_logprobs
        advantage = micro.per_token(micro.advantage)
        bounded = log_ratio.clamp(-self.width_low, self.width_high)
        side = advantage.sign()
        held = side * (side * log_ratio).minimum(side * bounded)
        mean = micro.sum_per_sequence(held) / micro.length
        frozen = (held != log_ratio) | micro.per_token(mean > MAX_LOG_RATIO)
        return TokenLoss(
            loss=micro.per_token(-mean.clamp(max=MAX_LOG_RATIO).exp() * micro.advantage),
            ratio=log_ratio.detach().clamp(max=MAX_LOG_RATIO).exp(),
            clipped=(advantage != 0) & frozen,
            inside=bounded == log_ratio,
        )


@dataclass(frozen=True)
class DetachedClip(Clip):
    """Weighs the log-prob by the clipped ratio without a gradient through it: -sg[clip(rho)] A logprob. No token is silenced.

    Source: CISPO (arXiv:2506.13585, equations 4 and 5). `clip_high` is not published there; 4, so a largest weight of 5, is
    ScaleRL's (TRL writes it as epsilon_high=5). `clip_low` 1 means no lower bound, as in the paper.
    """

    clip_low: Fraction = 1.0
    clip_high: NotNegative = 4.0

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio = token_ratio(logprobs.detach(), micro)
        held = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        loss = -held * micro.per_token(micro.advantage) * logprobs
        return TokenLoss(loss=loss, ratio=ratio, clipped=ratio != ratio, inside=held == ratio)


@dataclass(frozen=True)
class SoftGate(Checked):
    """A smooth gate instead of a clip: -(4 / tau) sigmoid(tau (rho - 1)) A, tau by the sign of the advantage.

    Source: SAPO (arXiv:2511.20347, equations 5 and 6).
    """

    tau_positive: Positive = 1.0
    """Steepness of the gate for positive advantages."""
    tau_negative: Positive = 1.05
    """For negative ones."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        ratio = token_ratio(logprobs, micro)
        advantage = micro.per_token(micro.advantage)
        tau = (advantage > 0).to(ratio.dtype) * (self.tau_positive - self.tau_negative) + self.tau_negative
        return unbounded(-(tau * (ratio - 1.0)).sigmoid() * 4.0 / tau * advantage, ratio.detach())


@dataclass(frozen=True)
class GammaKernel(Checked):
    """Weighs the log-prob by a smooth kernel of the sequence's full ratio W: -sg[W^c1 exp(c2 (1 - W))] A logprob.

    Source: VESPO (arXiv:2602.10693; (c1, c2) = (2, 3) for advantages of at least 0, (3, 2) below). The kernel is 1 at W = 1.
    """

    power_positive: Positive = 2.0
    """c1 for advantages of at least 0."""
    decay_positive: Positive = 3.0
    """c2 for advantages of at least 0."""
    power_negative: Positive = 3.0
    """c1 below 0."""
    decay_negative: Positive = 2.0
    """c2 below 0."""

    def __call__(self, logprobs: Tensor, micro: Micro) -> TokenLoss:
        log_ratio = sequence_log_ratio(logprobs.detach(), micro).clamp(max=MAX_LOG_RATIO)
        positive = (micro.advantage >= 0).to(log_ratio.dtype)
        power = positive * (self.power_positive - self.power_negative) + self.power_negative
        decay = positive * (self.decay_positive - self.decay_negative) + self.decay_negative
        kernel = (power * log_ratio + decay * (1.0 - log_ratio.exp())).exp()
        loss = -micro.per_token(kernel * micro.advantage) * logprobs
        return unbounded(loss, micro.per_token(log_ratio.exp()))


def token_ratio(logprobs: Tensor, micro: Micro) -> Tensor:
    """exp(logprobs - old_logprobs), [T]."""
    return (logprobs - micro.old_logprobs).clamp(max=MAX_LOG_RATIO).exp()


def sequence_log_ratio(logprobs: Tensor, micro: Micro) -> Tensor:
    """S, the sum over a sequence's tokens of logprobs - old_logprobs, [B]."""
    return micro.sum_per_sequence(logprobs - micro.old_logprobs)


def unbounded(loss: Tensor, ratio: Tensor) -> TokenLoss:
    """The TokenLoss of a surrogate that never silences a token."""
    everywhere = ratio == ratio
    return TokenLoss(loss=loss, ratio=ratio, clipped=~everywhere, inside=everywhere)


def clip_tokens(
    log_ratio: Tensor, micro: Micro, clip_low: float, clip_high: float, dual_clip: float = OFF, delta: float = OFF
) -> TokenLoss:
    """-min(rho A, clip(rho) A), rho the exp of log ratios [T] that carry gradient."""
    low, high = 1.0 - clip_low, 1.0 + clip_high
    advantage = micro.per_token(micro.advantage)
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    objective = (ratio.clamp(max=delta) * advantage).minimum(ratio.clamp(low, high) * advantage)
    if dual_clip < OFF:
        objective = objective.where(advantage >= 0, objective.maximum(dual_clip * advantage))
    seen = ratio.detach()
    above = (seen > high) | (log_ratio.detach() > MAX_LOG_RATIO)
    beyond = (seen < low) | (seen > min(dual_clip, delta)) | (log_ratio.detach() > MAX_LOG_RATIO)
    clipped = (advantage > 0) & above | (advantage < 0) & beyond
    return TokenLoss(loss=-objective, ratio=seen, clipped=clipped, inside=(seen >= low) & (seen <= high))


def clip_sequences(
    logprobs: Tensor, micro: Micro, power: float, low: Tensor | float, high: Tensor | float, dual: Tensor | float
) -> TokenLoss:
    """-psi T^(power - 1) on each token, psi the clipped objective of exp(S / T^power); bounds in log space, [B] or one number."""
    advantage, length = micro.advantage, micro.length.to(logprobs.dtype)
    log_ratio = sequence_log_ratio(logprobs, micro) / length**power
    objective, found = clip_log_ratio(log_ratio, advantage, low, high, dual)
    spread = {name: micro.per_token(values) for name, values in found.items()}
    return TokenLoss(loss=micro.per_token(-objective * length ** (power - 1.0)), **spread)


def clip_log_ratio(
    log_ratio: Tensor, advantage: Tensor, low: Tensor | float, high: Tensor | float, dual: Tensor | float
) -> tuple[Tensor, dict[str, Tensor]]:
    """The clipped objective of exp(log ratio), and `ratio`, `clipped` and `inside` of a TokenLoss; bounds in log space."""
    held = log_ratio.clamp(max=MAX_LOG_RATIO)
    bounded = held.clamp(low, high)  # type: ignore[call-overload]  # two numbers or two tensors
    objective = (held.exp() * advantage).minimum(bounded.exp() * advantage)
    seen = log_ratio.detach()
    ceiling = (seen.new_zeros(len(seen)) + dual).clamp(max=MAX_LOG_RATIO)
    objective = objective.where(advantage >= 0, objective.maximum(ceiling.exp() * advantage))
    above = (seen > high) | (seen > MAX_LOG_RATIO)
    clipped = (advantage > 0) & above | (advantage < 0) & ((seen < low) | (seen > ceiling))
    return objective, {"ratio": held.detach().exp(), "clipped": clipped, "inside": (seen >= low) & (seen <= high)}
