"""Check that the intervals of the audit's budget curve hold the truth, on logs whose accuracy within every budget is known.

    python benchmarks/budget_truth.py             2,000 logs of each kind; exit code 1 if a mark is missed
    python benchmarks/budget_truth.py --logs 100  fewer

A response is correct with a probability that its prompt decides (logits normal around 0 with standard deviation 1.2); lengths are
lognormal with standard deviation 0.5 around the prompt's, longer for hard prompts, and a fifth longer if incorrect. The truth
is the mean over 2,000,000 prompts, each drawn once. Budgets count where the truth lies between 5 and 95%. In logs with two
limits, a response that the smaller limit ended may be anything beyond it: there the interval holds the truth at least as often.

The last columns are about the budget within which nine tenths of the correct responses end: prompts with a correct response, the
share of logs whose interval has an upper end, how often such an interval holds the truth, and how often the interval of any log
does, if an upper end that does not exist counts as infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from _checks import demand, read_size

from fairlen.audit.statistics.budgets import ENOUGH, BudgetCurve, find_curve
from fairlen.batch import Bools, Floats, Ints

TRUE_PROMPTS, AMONG = 2_000_000, (0.05, 0.95)
LEAST_COVERED, LEAST_ENOUGH = 0.93, 0.90
SURE_PROMPTS = 64  # prompts with a correct response from which on an upper end always exists


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
    Kind("64 x 4, few correct", 64, 4, shift=-2.5),
    Kind("128 x 4, few correct", 128, 4, shift=-2.5),
    Kind("512 x 4, few correct", 512, 4, shift=-3.0),
    Kind("24 x 16", 24, 16),
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


@dataclass(frozen=True)
class DrawnCurve:
    """The budget curve of one log, and how many of its prompts have a correct response."""

    curve: BudgetCurve
    num_solved: int


def draw_curve(kind: Kind, rng: np.random.Generator) -> DrawnCurve:
    """Return the curve of one log."""
    drawn, lengths = draw(kind.num_prompts, kind.size, rng, kind.shift)
    correct, length = drawn.ravel(), lengths.ravel()
    prompt = np.repeat(np.arange(kind.num_prompts), kind.size)
    limit = np.array(kind.limits or (length.max() + 1,))[prompt % max(len(kind.limits), 1)]
    truncated = length > limit
    correct = correct & ~truncated
    return DrawnCurve(
        find_curve(prompt, np.minimum(length, limit), correct, truncated), len(np.unique(prompt[correct]))
    )


@dataclass
class Coverage:
    """How often the intervals of one kind held the truth."""

    by_truth: dict[float, float]  # of budgets, by twentieths of the true share
    num_solved: float  # mean number of prompts with a correct response
    bounded: float  # share of logs with an upper end of the budget that is enough
    bounded_held: float  # of those, share that held the truth
    enough_held: float  # of all logs, share that held the truth
    num_unbounded: int  # logs without an upper end although SURE_PROMPTS prompts have a correct response


def measure(kind: Kind, num_logs: int) -> Coverage:
    """Return the coverage of logs of one kind."""
    rng, (truth, among), end = np.random.default_rng(KINDS.index(kind)), find_truth(kind), max(kind.limits, default=0)
    enough, inside_count, count = int(np.searchsorted(among, ENOUGH)), np.zeros(20), np.zeros(20)
    solved, has_end, held = np.zeros(num_logs), np.zeros(num_logs, np.bool_), np.zeros(num_logs, np.bool_)
    for log in range(num_logs):
        drawn = draw_curve(kind, rng)
        found, solved[log] = drawn.curve, drawn.num_solved
        here = truth[found.budget]
        chosen = (here > AMONG[0]) & (here < AMONG[1]) & (found.budget <= (end or found.budget.max()))
        place = (20 * here[chosen]).astype(np.int64)
        inside = (found.correct.low <= here) & (here <= found.highest.high)
        inside_count += np.bincount(place, inside[chosen], 20)
        count += np.bincount(place, minlength=20)
        has_end[log] = math.isfinite(found.enough.high)
        held[log] = not found.enough.excludes(enough)
    by_truth = {k / 20: float(inside_count[k] / count[k]) for k in np.flatnonzero(count > num_logs / 2).tolist()}
    bounded_held = float(held[has_end].mean()) if has_end.any() else math.nan
    num_unbounded = int((~has_end & (solved >= SURE_PROMPTS)).sum())
    return Coverage(by_truth, solved.mean(), has_end.mean(), bounded_held, held.mean(), num_unbounded)


def find_missed(kind: Kind, found: Coverage, num_logs: int) -> list[str]:
    """Return every mark that a kind missed."""
    missed = []
    if min(found.by_truth.values()) < LEAST_COVERED:
        missed.append(
            f"{kind.name}: {', '.join(f'{truth:.0%} {share:.1%}' for truth, share in found.by_truth.items())}"
        )
    if len(kind.limits) < 2 and found.enough_held < LEAST_ENOUGH:
        missed.append(f"{kind.name}: nine tenths {found.enough_held:.1%}")
    if len(kind.limits) < 2 and found.bounded * num_logs >= 50 and found.bounded_held < LEAST_ENOUGH:
        missed.append(f"{kind.name}: nine tenths, if there is an upper end, {found.bounded_held:.1%}")
    if found.num_unbounded:
        missed.append(f"{kind.name}: {found.num_unbounded} logs of {SURE_PROMPTS} prompts have no upper end")
    return missed


def main() -> None:
    """Print coverage by kind, and check the marks."""
    (num_logs, is_checked), missed = read_size("--logs", 2000, smoke=20), []
    head = f"{'prompts x responses':26} {'least':>7} {'most':>7} {'prompts':>8} {'upper end':>10}"
    print(f"{head} {'it holds':>9} {'nine tenths':>12}")
    for kind in KINDS:
        found = measure(kind, num_logs)
        line = f"{kind.name:26} {min(found.by_truth.values()):7.1%} {max(found.by_truth.values()):7.1%}"
        line += f" {found.num_solved:8.1f} {found.bounded:10.1%}"
        held = f"{found.bounded_held:9.1%}" if found.bounded > 0 else f"{'-':>9}"
        ends = f" {held} {found.enough_held:12.1%}"
        print(line + (ends if len(kind.limits) < 2 else f" {'-':>9} {'-':>12}"), flush=True)
        missed += find_missed(kind, found, num_logs)
    if is_checked:
        demand(not missed, "; ".join(missed))
        print(f"all marks are met by {num_logs:,} logs of each kind")


if __name__ == "__main__":
    main()
