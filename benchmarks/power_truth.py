"""Check the audit's sentence on what rollouts would show: an effect of the size that it names is found in four of five logs.

    python benchmarks/power_truth.py             1,000 logs of each kind; exit code 1 if a mark is missed
    python benchmarks/power_truth.py --logs 100  fewer

Each time a log without an effect is audited, and the sizes are taken that its sentence names: a difference of length, and points
of pairs. Then an effect of exactly that size is planted in a second log of the same kind, and that log is audited. Three effects
are planted: incorrect responses are longer by the size named; the same for the points of pairs; and incorrect responses vary more
in length, so that they are farther from their prompt's median by the points named. The program prints the share of the second
logs in which the finding of the planted effect is significant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from _checks import demand, read_size

from fairlen.audit.conclusion import conclude, find_detectable, find_levels, within_log
from fairlen.audit.log import Log
from fairlen.batch import build_responses, build_segments

SPREAD = 0.5
"""Standard deviation of log lengths within a prompt."""
NUM_FINDINGS = 2  # a log without turns, channels or recorded updates has two
LEAST_POWER, MOST_POWER = 0.76, 0.86
"""The mark is about four of five. For the points of pairs more is allowed, because the sentence has one number of points for two
effects, and the finding of each has a second effect that can make it significant."""
RATIOS = np.linspace(1.0, 4.0, 13)
"""Spread of the lengths of incorrect responses over that of correct ones, for which the share of pairs is tabulated."""


@dataclass(frozen=True)
class Size:
    num_prompts: int
    num_responses: int
    own_length: float = 0.0  # standard deviation of prompts' mean log lengths, besides what their difficulty explains

    @property
    def name(self) -> str:
        return f"{self.num_prompts} x {self.num_responses}" + ", own lengths" * (self.own_length > 0)


SIZES = (Size(20, 8), Size(40, 8), Size(80, 8), Size(40, 16), Size(40, 8, own_length=0.8))


def make_log(size: Size, rng: np.random.Generator, shift: float = 0.0, ratio: float = 1.0) -> Log:
    """Return a log in which incorrect responses are longer by `shift` in logs, and their lengths vary `ratio` times as much."""
    hard = rng.normal(0.0, 1.2, size.num_prompts)[:, None]
    correct = rng.random((size.num_prompts, size.num_responses)) < 1.0 / (1.0 + np.exp(hard))
    noise = rng.normal(0.0, SPREAD, correct.shape) * np.where(correct, 1.0, ratio)
    centre = 6.0 + 0.45 * hard + rng.normal(0.0, size.own_length, hard.shape)
    length = np.maximum(np.round(np.exp(centre + noise + shift * ~correct)), 1).astype(np.int64).ravel()
    prompt = np.repeat(np.arange(size.num_prompts), size.num_responses)
    verdict = correct.ravel().astype(np.float64)
    limit = int(length.max()) + 1
    responses = build_responses(prompt, length, verdict, verdict, np.zeros(len(prompt), np.bool_), limit)
    known = frozenset(("correct", "truncated", "reward"))
    return Log("simulation", "tokens", responses, 0 * prompt, build_segments(responses, length), known=known)


def tabulate_bend(size: Size) -> list[float]:
    """Return the share of pairs in which the incorrect response is farther from the median, less a half, for RATIOS."""
    rng, many = np.random.default_rng(1), replace(size, num_prompts=20_000)
    return [within_log(make_log(many, rng, ratio=float(ratio))).bend.value for ratio in RATIOS]


def measure_power(size: Size, number: int) -> dict[str, float]:
    """Return the share of logs in which a planted effect is found, for each kind of effect."""
    rng, bends = np.random.default_rng(SIZES.index(size)), tabulate_bend(size)
    found = dict.fromkeys(("length", "pairs", "farther from the median"), 0)
    for _ in range(number):
        gap, share = find_detectable(within_log(make_log(size, rng)), find_levels(NUM_FINDINGS))
        shift = NormalDist().inv_cdf(min(0.5 + share, 0.999)) * SPREAD * math.sqrt(2.0)
        ratio = float(np.interp(share, bends, RATIOS))
        names = [conclude(within_log(make_log(size, rng, shift=by))).significant for by in (gap, shift)]
        found["length"] += bool({"gap", "order"} & set(names[0]))
        found["pairs"] += bool({"gap", "order"} & set(names[1]))
        bent = conclude(within_log(make_log(size, rng, ratio=ratio))).significant
        found["farther from the median"] += bool({"bend", "curve"} & set(bent))
    return {name: count / number for name, count in found.items()}


def main() -> None:
    """Print how often an effect of the size named is found, and check the marks."""
    (number, is_checked), missed = read_size("--logs", 1000, smoke=10), []
    print(f"{'prompts x responses':20} {'length':>8} {'pairs':>8} {'farther from the median':>24}")
    for size in SIZES:
        power = measure_power(size, number)
        print(
            f"{size.name:20} {power['length']:8.1%} {power['pairs']:8.1%} {power['farther from the median']:24.1%}",
            flush=True,
        )
        for kind, share in power.items():
            most = MOST_POWER if kind == "length" else 1.0
            if not LEAST_POWER <= share <= most:
                missed.append(f"{size.name}, {kind}: {share:.1%}")
    if is_checked:
        demand(not missed, "; ".join(missed))
        print(f"all marks are met by {number:,} logs of each kind")


if __name__ == "__main__":
    main()
