"""Every surrogate as one policy loss of verl, by the name `fairlen`: called on each micro-batch, in each worker.

verl hands it padded log-probs and one advantage per token, into which advantage.py has folded the weight. The loss is the plain
sum, times the number of ranks that verl averages gradients over. Which method it is comes with `config.policy_loss`, a
`FairPolicyLoss`; so does the state of a method that has one.

Metrics are numerators and denominators, because verl averages what a loss returns over micro-batches without weights: divide
their means, such as actor/fairlen/clipped by actor/fairlen/tokens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.workers.config import ActorConfig, PolicyLossConfig

from fairlen.integrations.padded import TrainedTokens
from fairlen.integrations.verl.choice import NAME, only_surrogate, read_method
from fairlen.methods.method import Method
from fairlen.methods.micro import Micro, TokenLoss

QUARTERS = 4
"""Parts of the budget by which acceptance is counted."""
NOISE = 1e-5
"""Mean |log ratio| of a micro-batch, nats, up to which its policy is the one that generated it, but for rounding."""


@dataclass
class FairPolicyLoss(PolicyLossConfig):
    """verl's settings of a policy loss, and the method. Named as `actor.policy_loss._target_`, so that a worker that cannot load
    fairlen fails when it is built."""

    method: str = ""
    settings: list[str] = field(default_factory=list)
    max_response_length: int = 0
    """The generation budget, tokens."""
    state: dict[str, float] = field(default_factory=dict)
    """What the method has learned so far, by `Method.state`."""

    def __post_init__(self) -> None:
        method = read_method({"method": self.method, "settings": list(self.settings)})
        object.__setattr__(self, "composed", only_surrogate(method).with_state(dict(self.state)))


@register_policy_loss(NAME)
def fair_policy_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "",
    config: ActorConfig | None = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """The loss of one micro-batch of padded rows, [N, L] each, and its counts. `loss_agg_mode` is for verl's own terms."""
    settings = getattr(config, "policy_loss", None)
    if config is None or not isinstance(settings, FairPolicyLoss):
        raise ValueError(
            "actor.policy_loss does not say which method: set actor_rollout_ref.actor.policy_loss._target_="
            "fairlen.integrations.verl.loss.FairPolicyLoss and +actor_rollout_ref.actor.policy_loss.method=…, or start the job with "
            "`fairlen verl --method …`"
        )
    begun = time.perf_counter()
    tokens = TrainedTokens.find(response_mask)
    folded = tokens.scatter_rows(tokens.collect(advantages))
    weight = torch.ones_like(folded)
    micro = tokens.micro(folded, weight, weight, old_logprobs=old_log_prob)
    logprobs = tokens.gather(log_prob)
    method: Method = vars(settings)["composed"]
    token = method.surrogate(logprobs, micro)
    loss = token.loss if rollout_is_weights is None else token.loss * tokens.gather(rollout_is_weights)
    total = loss.sum() * config.global_batch_info.get("dp_size", 1)
    counts = count(token, logprobs, micro, settings.max_response_length)
    return total, counts | {"actor/fairlen/seconds": time.perf_counter() - begun}


@torch.no_grad()
def count(token: TokenLoss, logprobs: Tensor, micro: Micro, max_response_length: int) -> dict[str, float]:
    """Sums over the tokens of a micro-batch, and the sums that a method's state learns from. Waits for the device once."""
    log_ratio = (logprobs - micro.old_logprobs).double()
    summed, length = micro.sum_per_sequence(log_ratio), micro.length.double()
    moved = (log_ratio.abs().sum() > NOISE * length.sum()).double()
    counts = {
        "tokens": length.sum(),
        "sequences": torch.ones_like(length).sum(),
        "clipped": token.clipped.double().sum(),
        "ratio": token.ratio.double().sum(),
        "moved/sequences": moved * len(length),
        "moved/tokens": moved * length.sum(),
        "moved/log_ratio": moved * summed.sum(),
        "moved/squared_log_ratio": moved * (summed**2 / length).sum(),
    }
    quarter = micro.per_token((QUARTERS * (micro.length - 1) // max(max_response_length, 1)).clamp(0, QUARTERS - 1))
    for number in range(QUARTERS):
        chosen = (quarter == number).double()
        counts[f"inside_quarter_{number + 1}"] = (chosen * token.inside).sum()
        counts[f"tokens_quarter_{number + 1}"] = chosen.sum()
    values = torch.stack(list(counts.values())).tolist()
    return {f"actor/fairlen/{name}": value for name, value in zip(counts, values, strict=True)}
