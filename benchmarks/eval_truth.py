"""Check that the intervals of `fairlen eval` hold the true accuracy, at low and high accuracies and with few problems.

    python benchmarks/eval_truth.py                    2,000 evaluations of each kind; exit code 1 if a mark is missed
    python benchmarks/eval_truth.py --evaluations 200  fewer

Each evaluation draws the accuracy of every problem from a beta distribution with a given mean, then 4 or 32 responses to each
problem. The spread of accuracies is set by the sum of the two parameters of the distribution: from problems that are all alike
over 50, 10, 2 and 0.5 to problems that are always or never solved. The program prints the lowest coverage of the 95% interval
over these six spreads, and the mean width of the intervals of one spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from _checks import demand, read_size

from fairlen.batch import Floats, Ints
from fairlen.evaluate.estimators import mean_of_problems, pass_at

SPREADS = (math.inf, 50.0, 10.0, 2.0, 0.5, 0.0)
"""Sums of the two parameters of the beta distribution; inf: all problems are alike, 0: each is solved always or never."""
SHOWN_SPREAD = 2.0
ACCURACIES = (0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97)
PASS_ACCURACIES = (0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9)
LEAST_COVERED = 0.92
TRUE_PROBLEMS = 1_000_000
"""Problems over which the true pass@8 is averaged."""


@dataclass(frozen=True)
class Cell:
    """One metric at one size: the mean over problems of the share correct, or of pass@k."""

    metric: str
    num_problems: int
    num_samples: int
    accuracy: float  # mean over problems of the chance that a response is correct
    k: int = 1

    def measure(self, num_correct: Ints) -> Floats:
        """Return the metric of each problem from its number of correct responses."""
        return pass_at(num_correct, self.num_samples, self.k)

    def find_truth(self, spread: float) -> float:
        """Return the mean of the metric over all problems of a spread."""
        if self.k == 1:
            return self.accuracy
        chance = draw_accuracies(self.accuracy, spread, TRUE_PROBLEMS, np.random.default_rng(7))
        return float((1.0 - (1.0 - chance) ** self.k).mean())


CELLS = (
    *(
        Cell(f"avg@{num_samples}", num_problems, num_samples, accuracy)
        for num_samples in (4, 32)
        for num_problems in (30, 100)
        for accuracy in ACCURACIES
    ),
    *(Cell("pass@8 of 32", 100, 32, accuracy, k=8) for accuracy in PASS_ACCURACIES),
)


def draw_accuracies(mean: float, spread: float, num_problems: int, rng: np.random.Generator) -> Floats:
    """Draw the chance of a correct response to each problem, [num_problems]."""
    if math.isinf(spread):
        return np.full(num_problems, mean)
    if spread == 0.0:
        return (rng.random(num_problems) < mean).astype(np.float64)
    return rng.beta(mean * spread, (1.0 - mean) * spread, num_problems)


def measure_coverage(cell: Cell, spread: float, number: int) -> tuple[float, float]:
    """Return how often the interval holds the truth, and its mean width."""
    rng = np.random.default_rng((CELLS.index(cell), SPREADS.index(spread)))
    truth, held, width = cell.find_truth(spread), 0, 0.0
    for _ in range(number):
        chance = draw_accuracies(cell.accuracy, spread, cell.num_problems, rng)
        found = mean_of_problems(cell.measure(rng.binomial(cell.num_samples, chance)))
        demand(math.isfinite(found.low) and math.isfinite(found.high), f"{cell}: an interval is missing")
        held += found.low <= truth <= found.high
        width += found.high - found.low
    return held / number, width / number


def main() -> None:
    """Print the lowest coverage of each metric, size and accuracy, and check the marks."""
    number, is_checked = read_size("--evaluations", 2000, smoke=20, help="of each kind")
    cells = CELLS if is_checked else CELLS[::7]
    missed = []
    print(
        f"{'metric':14} {'problems':>8} {'accuracy':>8} {'lowest coverage':>16} {'of a spread of':>15} {'mean width':>11}"
    )
    for cell in cells:
        found = {spread: measure_coverage(cell, spread, number) for spread in SPREADS}
        lowest = min(SPREADS, key=lambda spread: found[spread][0])
        covered, width = found[lowest][0], found[SHOWN_SPREAD][1]
        print(
            f"{cell.metric:14} {cell.num_problems:8} {cell.accuracy:8.0%} {covered:16.1%} {lowest:15g} {width:11.1%}",
            flush=True,
        )
        if covered < LEAST_COVERED:
            missed.append(f"{cell.metric} of {cell.num_problems} problems at {cell.accuracy:.0%}: {covered:.1%}")
    if is_checked:
        demand(not missed, "; ".join(missed))
        print(f"at least {LEAST_COVERED:.0%} in every row: {number:,} evaluations of each kind")


if __name__ == "__main__":
    main()
