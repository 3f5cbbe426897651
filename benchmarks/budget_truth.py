"""Do budget curves cover the truth? Logs whose accuracy within every budget is known, and the intervals of the audit around it.

    python benchmarks/budget_truth.py             2,000 logs of each kind, marks checked: exit code 1 where one is missed
    python benchmarks/budget_truth.py --logs 100  fewer

A response is correct with a probability that its prompt decides (logits normal around 0 with standard deviation 1.2); lengths are
lognormal with standard deviation 0.5 around the prompt's, longer for hard prompts, and a fifth longer where incorrect. The truth
is the mean over 2,000,000 prompts, each drawn once. Budgets count where the truth lies between 5 and 95%. Of logs with two
limits, a response that the smaller one ended may be anything beyond: there the interval holds the truth at least as often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _checks import demand, read_size

from fairlen.audit.statistics.budgets import ENOUGH, BudgetCurve, find_curve
from fairlen.batch import Bools, Floats, Ints

TRUE_PROMPTS, COVERED, AMONG = 2_000_000, (0.93, 0.97), (0.05, 0.95)


@dataclass(frozen=True)
class Kind:
    """Size of a log and its limits, each of which holds for as many prompts."""

    name: str
    num_prompts: int
    size: int
    limits: tuple[int, ...] = ()
    shift: float = 0.0  # of all logits


KINDS = (
    Kind("64 x 8", 64, 8),
    Kind("64 x 16", 64, 16),
    Kind("256 x 4", 256, 4),
    Kind("64 x 8, hard", 64, 8, shift=-1.2),
    Kind("64 x 8, easy", 64, 8, shift=1.2),
    Kind("64 x 8, limit 256", 64, 8, (256,)),
    Kind("128 x 8, limits 160, 320", 128, 8, (160, 320)),
)


def draw(num_prompts: int, size: int, rng: np.random.Generator, shift: float) -> tuple[Bools, Ints]:
    """Draw correctness and length without a limit, [prompts, size] each."""
    hard = rng.normal(-shift, 1.2, num_prompts)[:, None]
    correct = rng.random((num_prompts, size)) < 1.0 / (1.0 + np.exp(hard))
    log_length = 5.0 + 0.3 * hard + rng.normal(0.0, 0.5, correct.shape) + np.log(1.2) * ~correct
    return correct, np.maximum(np.round(np.exp(log_length)), 1).astype(np.int64)


def find_truth(kind: Kind) -> tuple[Floats, Floats]:
    """Return the share correct within each number of tokens, from 0 on, and of the correct ones alone below the largest limit."""
    correct, length = draw(TRUE_PROMPTS, 1, np.random.default_rng((7, KINDS.index(kind))), kind.shift)
    hits = np.bincount(length[correct], minlength=100_000).cumsum() / TRUE_PROMPTS
    return hits, hits / hits[max(kind.limits, default=len(hits) - 1)]


def curve_of(kind: Kind, rng: np.random.Generator) -> BudgetCurve:
    """Return the curve of one log."""
    drawn, lengths = draw(kind.num_prompts, kind.size, rng, kind.shift)
    correct, length = drawn.ravel(), lengths.ravel()
    prompt = np.repeat(np.arange(kind.num_prompts), kind.size)
    limit = np.array(kind.limits or (length.max() + 1,))[prompt % max(len(kind.limits), 1)]
    truncated = length > limit
    return find_curve(prompt, np.minimum(length, limit), correct & ~truncated, truncated)


def measure(kind: Kind, num_logs: int) -> tuple[dict[float, float], float]:
    """Return how often intervals of budgets held the truth, by twentieths of the truth, and that of the budget that is enough."""
    rng, (truth, among), end = np.random.default_rng(KINDS.index(kind)), find_truth(kind), max(kind.limits, default=0)
    enough, held, count, is_held = int(np.searchsorted(among, ENOUGH)), np.zeros(20), np.zeros(20), 0
    for _ in range(num_logs):
        found = curve_of(kind, rng)
        here = truth[found.budget]
        chosen = (here > AMONG[0]) & (here < AMONG[1]) & (found.budget <= (end or found.budget.max()))
        place = (20 * here[chosen]).astype(np.int64)
        inside = (found.correct.low <= here) & (here <= found.highest.high)
        held += np.bincount(place, inside[chosen], 20)
        count += np.bincount(place, minlength=20)
        is_held += found.enough.low <= enough <= found.enough.high
    return {k / 20: held[k] / count[k] for k in np.flatnonzero(count > num_logs / 2)}, is_held / num_logs


def main() -> None:
    """Print coverage by kind, and check the marks."""
    (num_logs, is_asked), missed = read_size("--logs", 2000, smoke=20), []
    print(f"{'prompts x responses':26} {'least':>7} {'most':>7} {'nine tenths':>12}")
    for kind in KINDS:
        found, enough = measure(kind, num_logs)
        least, most = min(found.values()), max(found.values())
        print(
            f"{kind.name:26} {least:7.1%} {most:7.1%} " + (f"{enough:12.1%}" if len(kind.limits) < 2 else f"{'-':>12}")
        )
        if least < COVERED[0] or (most > COVERED[1] and len(kind.limits) < 2):
            missed.append(f"{kind.name}: {', '.join(f'{truth:.0%} {share:.1%}' for truth, share in found.items())}")
    if is_asked:
        demand(not missed, "; ".join(missed))
        print(f"all marks are met by {num_logs:,} logs of each kind")


if __name__ == "__main__":
    main()
