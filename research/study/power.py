"""How many seeds show an effect: what a measured claim needs, from the spread over seeds of its figure in a study or a pilot."""

from __future__ import annotations

import math
from bisect import bisect_left
from pathlib import Path

from research.ledger.claims import FIGURES, ROOT, Ledger, load_ledger
from research.ledger.rule import POWER, Measure, detectable, effect_seen
from research.study.intervals import LEAST_SEEDS, Result, quantile

MOST_SEEDS = 1000
EXAMPLES = (5, 8, 20)


def spread(result: Result) -> float:
    """Return the standard deviation over seeds, in the unit of the figure."""
    return (result.high - result.low) / 2 / quantile(0.975, result.seeds - 1) * math.sqrt(result.seeds)


def seeds_needed(deviation: float, smallest: float, predicted: str = "positive") -> int:
    """Return the fewest seeds that reproduce twice the smallest effect of interest, mostly the paper's own, with 80% power; where
    none is predicted, that hold the interval of no effect within the smallest. MOST_SEEDS where those are too few."""
    counts, wanted = range(LEAST_SEEDS, MOST_SEEDS + 1), smallest if predicted == "none" else 2.0 * smallest

    def suffices(count: int) -> bool:
        return effect_seen(count, deviation / math.sqrt(count), smallest, predicted) <= wanted

    return counts[min(bisect_left(counts, True, key=suffices), len(counts) - 1)]


def power_lines(ledger: Ledger) -> list[str]:
    """Return a table of the measured claims, those that need the most seeds last."""
    found = []
    for claim in ledger.claims:
        result = ledger.results.get(claim.measure.estimand) if claim.measure else None
        if claim.measure and result and result.has_interval:
            found.append(power_line(claim.id, claim.measure, result))
    head = f"{'claim':14}{'seeds':>6}{'sd':>10}{'smallest':>10}{'seen':>10}{'needed':>8}  unit"
    return (
        [head, *(line for _, line in sorted(found))]
        if found
        else ["No figure of a measured claim has an interval yet."]
    )


def power_line(id: str, measure: Measure, result: Result) -> tuple[int, str]:
    """Return the seeds that a claim needs, and its line of the table."""
    deviation = spread(result)
    seen = detectable(measure, result)
    needed = seeds_needed(deviation, measure.smallest, measure.predicted)
    numbers = f"{deviation:10.3g}{measure.smallest:10.3g}{seen:10.3g}"
    many = f"{needed}" if needed < MOST_SEEDS else f">={MOST_SEEDS}"
    return needed, f"{id:14}{result.seeds:6}{numbers}{many:>8}  {result.unit}"


def main(results: Path = ROOT / FIGURES) -> None:
    """Print what seeds see in standard deviations, and what each measured claim needs."""
    for seeds in EXAMPLES:
        seen = effect_seen(seeds, seeds**-0.5)
        print(f"{seeds:3} seeds see an effect of {seen:.2f} standard deviations over seeds with {POWER:.0%} power")
    print(*power_lines(load_ledger(results=results)), sep="\n")
