"""Plans on verl's driver: `weight * advantage` of every row of a rollout batch, as the advantage estimator `fairlen`.

It sees the rewards, the mask and the prompt of each row of the whole rollout batch, after verl has reordered it and padded it
with rows without a trained token. From these: a row is right where its reward is above `correct_threshold` (1/2: for rewards 0 and
1, or -1 and 1), truncated where it has as many tokens as the budget, and without verdict never. Where verl makes several
updates of a rollout batch, weights are multiplied by their number; verl may split the rows of a prompt over them.

Rows that are pieces of streams are planned by trainer.py, which knows more of them, and handed through here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from fairlen.integrations.padded import TrainedTokens
from fairlen.integrations.verl.choice import NAME, read_method
from fairlen.integrations.verl.plans import PLANNED, is_bypassed, plan_scores
from fairlen.integrations.verl.record import record_plan


@register_adv_est(NAME)
def fair_advantage(
    token_level_rewards: Tensor,
    response_mask: Tensor,
    config: Mapping[str, Any] | None = None,
    index: Iterable[Any] = (),
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Advantages with their weights folded in, and returns, [N, L] each, on trained tokens."""
    algorithm = config or {}
    settings = {**(algorithm.get("fairlen") or {}), "bypass_mode": is_bypassed(algorithm)}
    length = response_mask.sum(1).cpu().numpy().astype(np.int64)
    outcome = token_level_rewards.double().sum(1).cpu().numpy()  # of any type, bfloat16 too
    plan = PLANNED.get()
    if plan is None:
        prompts = list(index)
        plan = plan_scores(read_method(settings), outcome, length, prompts, settings)
        record_plan(
            settings, {"prompt": [str(x) for x in prompts], "outcome": outcome, "length": length, "folded": plan.folded}
        )
    tokens = TrainedTokens.find(response_mask)
    folded = torch.from_numpy(plan.folded).to(token_level_rewards)
    return tokens.spread(folded), tokens.spread(torch.from_numpy(outcome).to(token_level_rewards))
