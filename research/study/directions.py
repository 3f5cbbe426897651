"""Clipped against whole gradients along a run: how far each band turns an update, and whether the bounds of 2509.09177 hold.

The gradient of a sequence is that of its full-ratio objective, e^S A sum_t grad log pi, the same for every band; a band decides
which sequences are accepted, on both sides, as in the paper's theorem 2.1. Bins are of length, within one update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch

from fairlen.audit.statistics.intervals import length_bins
from fairlen.batch import Bools, Floats, Ints, Plan
from fairlen.methods.compose import explain
from fairlen.methods.method import updates
from fairlen.policy.engines import build_engine
from fairlen.policy.model import Policy
from fairlen.policy.pack import pack
from fairlen.rollouts import Rollouts
from fairlen.tasks.grader import Grader
from fairlen.train.collect import Collector
from fairlen.train.start import build_learner, sampling_of
from recipes.replay_bands import WIDTHS, critical_factor, factor_for
from research.study.bounds import direction_bound
from research.study.cells import Cell, config_of, policy_of, task_of
from research.study.plan import BANDS

NUM_BINS, LEAST = 4, 6
"""Bins of length in one update, and fewest sequences in each."""
SHARE = 0.8
"""Of the sequences of an update, which every band accepts as nearly as it can."""
LARGEST = 20.0
"""Log ratio that is used in the exponent, at most."""


@dataclass
class Found:
    """Directions of every off-policy update and band."""

    bands: Sequence[str] = BANDS
    """Rules."""
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, update: int, length: Ints, total: Floats, gradient: Floats) -> None:
        """Add one update: lengths and log ratios [N], gradients [N, D]."""
        bins = length_bins(length, NUM_BINS, LEAST)
        for rule in self.bands:
            critical = critical_factor(rule, length, total, 0.0, *WIDTHS[rule])
            inside = critical <= factor_for(critical, SHARE)
            full, accepted, share = by_bin(bins.index, len(bins), gradient, inside)
            one = direction_bound(full, accepted, share, bins.count.astype(np.float64))
            self.rows.append({"update": update, "rule": rule, "share": float(inside.mean())} | asdict(one))


def by_bin(index: Ints, size: int, gradient: Floats, inside: Bools) -> tuple[Floats, Floats, Floats]:
    """Mean gradient of each bin over all and over accepted sequences, [K, D] each, and the accepted share, [K]."""
    groups = [np.flatnonzero(index == number) for number in range(size)]
    full = np.stack([gradient[rows].mean(0) for rows in groups])
    accepted = [
        gradient[kept].mean(0) if len(kept := rows[inside[rows]]) else np.zeros(full.shape[1]) for rows in groups
    ]
    return full, np.stack(accepted), np.array([inside[rows].mean() for rows in groups])


def sequence_gradients(policy: Policy, rollouts: Rollouts, plan: Plan) -> tuple[Floats, Floats]:
    """S of every planned sequence, [N], and the gradient of e^S A sum log pi by all trained weights, [N, D]."""
    weights = list(policy.trained().values())
    totals, gradients = [], []
    for row in range(len(plan)):
        one = replace(plan, **{column.name: getattr(plan, column.name)[[row]] for column in fields(plan)})
        (packed,) = pack(rollouts, one, 1, is_on_policy=False)
        logprobs = policy.forward(packed.inputs).logprobs
        total = float((logprobs.detach() - packed.micro.old_logprobs).double().sum())
        objective = logprobs.sum() * float(plan.advantage[row]) * float(np.exp(min(total, LARGEST)))
        parts = torch.autograd.grad(objective, weights)
        totals.append(total)
        gradients.append(torch.cat([part.reshape(-1) for part in parts]).double().numpy())
    return np.array(totals), np.stack(gradients)


def measure_directions(cell: Cell) -> list[dict[str, Any]]:
    """Return one row for each off-policy update of a run of the cell's method and each of its bands."""
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed + cell.shift)
    return asyncio.run(follow_run(cell))


async def follow_run(cell: Cell) -> list[dict[str, Any]]:
    """The run, measured before every off-policy update."""
    config = config_of(cell, "")
    method = explain(config.method, config.overrides).method
    policy = policy_of(cell, config.model.dtype)
    task = task_of(cell, config, policy)
    engine = build_engine(config, policy, task.longest_prompt + config.sampling.max_response_length)
    collector = Collector(
        engine.extend,
        Grader(task, policy.decode),
        task.train,
        sampling_of(config),
        cell.prompts_per_batch,
        0,
        config.run.seed,
    )
    learner, found = build_learner(config, policy, method), Found()
    version = place = 0
    for batch in range(cell.rollout_batches):
        collected = await collector(method, batch, place, version)
        rollouts, place, start = collected.rollouts, place + len(collected.problems), version
        for plan in [method.weigh(update) for update in updates(method.score(rollouts), cell.updates_per_batch)]:
            if version > start:
                total, gradient = sequence_gradients(policy, rollouts, plan)
                found.add(version + 1, plan.length, total, gradient)
            learner.step(method, rollouts, plan, {}, is_on_policy=version == start)
            version += 1
            engine.refresh(version)
    return found.rows
