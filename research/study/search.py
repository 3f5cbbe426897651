"""The search that every method gets: its width at one learning rate, then its learning rate at that width, on a seed of its own.

Judged by held-out accuracy at the end of the run, on problems that the study is not judged by; of equal ones the first wins,
which is the published width (of GSPO the middle one) or the middle rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairlen.compare.config import parse_variant
from research.study.cells import Cell, read_cell
from research.study.plan import Plan, Variant, clip_fields, factors_of


@dataclass(frozen=True)
class Settings:
    """What a search chose."""

    rate: float
    factor: float
    """Of the published width."""

    def fields(self, variant: Variant) -> tuple[str, ...]:
        """The width as settings of the method; none where the variant says the width itself."""
        if "surrogate." in variant.text:
            return ()
        widths = {name: min(value * self.factor, 1.0) for name, value in clip_fields(variant.method).items()}
        return tuple(f"{name}={value:.4g}" for name, value in widths.items())


def middle_first(factors: tuple[float, ...], count: int) -> tuple[float, ...]:
    """The first `count` factors, the published width (or, for GSPO, the middle) first."""
    middle = len(factors) // 2
    return (factors[middle], *factors[:middle], *factors[middle + 1 :])[:count]


def width_candidates(plan: Plan, variant: Variant) -> list[Settings]:
    """The first stage."""
    return [Settings(plan.sizes.rates[0], f) for f in middle_first(factors_of(variant.method), plan.sizes.widths)]


def rate_candidates(plan: Plan, chosen: Settings) -> list[Settings]:
    """The second stage; its first one was run in the first stage."""
    return [Settings(rate, chosen.factor) for rate in plan.sizes.rates]


def search_cell(plan: Plan, variant: Variant, settings: Settings, tokens: int) -> Cell:
    """One run of the search; `tokens` is what `grpo` generated with the search's seed."""
    return make_cell(plan, variant, settings, plan.sizes.search_seed, tokens, plan.sizes.eval_problems)


def make_cell(plan: Plan, variant: Variant, settings: Settings, seed: int, tokens: int, skipped: int = 0) -> Cell:
    """The run of a variant with a seed."""
    sizes, parsed = plan.sizes, parse_variant(variant.text)
    batches = sizes.long_batches if variant.long and not skipped else sizes.rollout_batches
    is_few = "eqlen" in variant.text and variant.match == "tokens"
    every = 0 if skipped else sizes.eval_every * (2 if variant.long else 1)
    return Cell(
        method=parsed.method,
        set=(*parsed.settings, *settings.fields(variant)),
        task=variant.task,
        seed=seed,
        rate=variant.rate or settings.rate,
        rollout_batches=sizes.clock_batches if variant.is_timed else batches,
        max_generated=tokens if variant.match == "tokens" else 0,
        prompts_per_batch=sizes.prompts_per_batch,
        updates_per_batch=sizes.updates_per_batch,
        eval_every=0 if variant.is_timed else max(every // 2, 1) if is_few and every else every,
        eval_problems=1 if variant.is_timed else sizes.eval_problems,
        eval_samples=1 if variant.is_timed else sizes.eval_samples,
        skipped=skipped,
        is_timed=variant.is_timed,
    )


def score_of(cell: Cell, out: Path) -> float:
    """Held-out accuracy at the end of a finished run of the search."""
    last = read_cell(cell, out)["evaluations"][-1]
    return float(np.mean(last["right"]) / last["samples"])


def choose(candidates: list[Settings], scores: list[float]) -> Settings:
    """The best; of equal ones the first."""
    return candidates[int(np.argmax(scores))]
