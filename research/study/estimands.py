"""What claims rest on: a quantity of one variant or of two, over seeds; defined in the papers' files, read from evidence."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from recipes.replay_bands import WIDTHS
from research.study.evidence import NUMBERS, Evidence, RunTables
from research.study.intervals import LEAST_SEEDS, Result, summarize
from research.study.plan import Plan
from research.study.quantities import BY_TABLE, QUANTITIES, Rates, costs, started

WORLDS = ("long", "short", "smollm2", "memoryless", "checked")
COMBINES = {"value": 1, "difference": 2, "ratio": 2}
"""Each with the variants it takes."""
COSTS = ("seconds", "tokens", "updates", "best")
TIMED = ("tokens_per_second",)
"""Quantities of runs on an idle machine."""
NUM_FOLDS = 32
"""Parts of the held-out problems, each of which is left out once."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "quarter": (0, 1, 2, 3), "rule": tuple(WIDTHS), "against": tuple(WIDTHS), "column": NUMBERS,
    "bound": ("rho_paper", "rho_bound"),
}  # fmt: skip
"""Values of options; the other options are numbers."""


@dataclass(frozen=True)
class Estimand:
    """A mean over seeds of one number a seed; two variants are paired by seed."""

    id: str
    world: str
    quantity: str
    variants: tuple[str, ...]
    """As for `fairlen compare`; the second is what the first is compared with."""
    combine: str
    """value, difference (first minus second), or ratio (change from the second to the first, percent)."""
    unit: str
    what: str
    labels: tuple[str, ...] = ()
    """Of controls, one a variant; "" is none."""
    cost: str = ""
    """What both runs of a seed have spent the same of, the smaller of their totals, where the quantity is read; "best": where the
    first is most accurate."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, wrong, text in self.mistakes():
            if wrong:
                raise ValueError(f"{self.id}: {name}={getattr(self, name)!r}: {text}")

    def mistakes(self) -> Iterable[tuple[str, bool, str]]:
        """Yield every field that may be wrong, whether it is, and what to write instead."""
        yield "id", not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.id), "write lower case, digits and single dashes"
        for name in ("unit", "what"):
            yield name, not getattr(self, name), "say what it is"
        for name, known in (("world", WORLDS), ("quantity", QUANTITIES), ("combine", COMBINES), ("cost", ("", *COSTS))):
            yield name, getattr(self, name) not in known, f"give one of {', '.join(filter(None, known))}"
        needed = COMBINES[self.combine]
        yield "variants", len(self.variants) != needed, f"{self.combine} takes {needed}"
        yield "labels", len(self.labels) not in (0, needed), f"give one for each of {needed} variants, or none"
        reader = "chosen_by" if self.cost == "best" else "place"
        costed = [name for name in QUANTITIES if reader in parameters(name)]
        is_costed = not self.cost or (self.quantity in costed and needed == 2)
        yield "cost", not is_costed, f"it needs two variants and one of {', '.join(costed)}"
        allowed = [name for name in parameters(self.quantity) if name not in ("run", "rates", "chosen_by")]
        for name, value in self.options.items():
            yield "options", name not in allowed, f"{self.quantity} takes {', '.join(allowed) or 'none'}"
            choices = CHOICES.get(name)
            is_known = value in choices if choices else isinstance(value, int | float)
            yield "options", not is_known, f"{name} is {', '.join(map(str, choices)) if choices else 'a number'}"
        yield "options", bool(self.cost) and "place" in self.options, "a cost decides the place"
        lacking = [
            name for name, one in parameters(self.quantity).items() if name == "rule" and one.default is one.empty
        ]
        yield "options", not set(lacking) <= set(self.options), f"{self.quantity} needs rule"


def parameters(quantity: str) -> Mapping[str, inspect.Parameter]:
    """Return what a quantity is given."""
    return inspect.signature(QUANTITIES[quantity]).parameters


def make_estimand(id: str, entry: Mapping[str, Any]) -> Estimand:
    """Return the estimand of a table [estimands.ID]. Raises ValueError naming id, field and remedy."""
    known = {f.name: f for f in fields(Estimand) if f.name != "id"}
    needed = [name for name in known if name not in ("labels", "cost", "options")]
    for name in entry:
        if name not in known:
            raise ValueError(f"{id}: {name}: unknown key; there are {', '.join(known)}")
    for name in needed:
        if name not in entry:
            raise ValueError(f"{id}: {name} is missing")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
    return Estimand(id, **given)


def planned_seeds(estimand: Estimand, plan: Plan) -> int:
    """Return how many seeds of an estimand are to be run; 0 of variants that the plan does not have."""
    sizes, labels = plan.sizes.get(estimand.world), estimand.labels or ("",) * len(estimand.variants)
    sides = {(estimand.world, text, label) for text, label in zip(estimand.variants, labels, strict=True)}
    found = [plan.seeds(v) for v in plan.variants if (v.world, v.text, v.label) in sides] if sizes else []
    if sizes and estimand.quantity in TIMED:
        found = [sizes.timed_seeds]
    return len(set.intersection(*map(set, found))) if found else 0


def measure(evidence: Evidence, estimand: Estimand) -> Result | None:
    """Return the estimand with its interval; None where there are no runs that give it."""
    role = "timed" if estimand.quantity in TIMED else "study"
    labels = estimand.labels or ("",) * len(estimand.variants)
    sides = [evidence.find(estimand.world, *one, role) for one in zip(estimand.variants, labels, strict=True)]
    rates = [rates_of(evidence, estimand.world, variant) for variant in estimand.variants]
    if None in rates and (estimand.cost == "seconds" or "rates" in parameters(estimand.quantity)):
        return None
    seeds = sorted(set.intersection(*(set(side) for side in sides)))
    pairs = {seed: [side[seed] for side in sides] for seed in seeds}
    values = {seed: value_of(estimand, runs, rates) for seed, runs in pairs.items()}
    other = math.hypot(problem_error(estimand, pairs, rates), timing_error(estimand, pairs, rates, evidence))
    result = summarize(values, estimand.unit, estimand.what, estimand.combine == "ratio", other)
    return replace(result, runs=len(seeds)) if result else None


def problem_error(estimand: Estimand, pairs: Mapping[int, list[RunTables]], rates: list[Rates | None]) -> float:
    """Return the standard error from held-out problems, which all runs share, so that no spread over seeds shows it.

    Each fold of problems is left out of all runs (jackknife). The error of the mean over seeds holds a part that each seed has by
    itself, which their spread has already: that part is the mean of the seeds' own errors, less the mean's, over the other seeds.
    """
    if estimand.quantity not in BY_TABLE["evaluations"] or len(pairs) < LEAST_SEEDS:
        return 0.0
    present = sorted({int(one) for runs in pairs.values() for one in runs[0].evaluations["problem"] % NUM_FOLDS})
    found = np.array(
        [
            [value_of(estimand, [without(run, fold) for run in runs], rates) for fold in present]
            for runs in pairs.values()
        ]
    )
    found = found[np.isfinite(found).all(1)]
    if len(present) < 2 or len(found) < LEAST_SEEDS:
        return 0.0
    size, num_seeds = found.shape[1], len(found)
    of_mean = (size - 1) * float(found.mean(0).var())
    own = ((size - 1) * float(found.var(1).mean()) - of_mean) / (num_seeds - 1)
    return math.sqrt(max(of_mean - own, 0.0))


def without(run: RunTables, fold: int) -> RunTables:
    """Return a run without one fold of its held-out problems."""
    keep = run.evaluations["problem"] % NUM_FOLDS != fold
    return replace(run, evaluations={name: values[keep] for name, values in run.evaluations.items()})


def timing_error(
    estimand: Estimand, pairs: Mapping[int, list[RunTables]], rates: list[Rates | None], evidence: Evidence
) -> float:
    """Return the standard error from rates, by moving each by as much as methods differ that sample alike."""
    noise, changes = timing_noise(evidence, estimand.world), []
    if estimand.quantity in TIMED:
        return math.sqrt(len(estimand.variants)) * noise.generated if estimand.combine == "ratio" else 0.0
    if estimand.cost != "seconds" and "rates" not in parameters(estimand.quantity):
        return 0.0
    for number in range(len(rates)):
        for name in ("generated", "trained"):
            ends = [means_of(estimand, pairs, moved(rates, number, name, sign, noise)) for sign in (1, -1)]
            changes.append((ends[0] - ends[1]) / 2)
    return math.hypot(*(change for change in changes if math.isfinite(change)))


def means_of(estimand: Estimand, pairs: Mapping[int, list[RunTables]], rates: list[Rates | None]) -> float:
    """Return the mean over seeds."""
    return float(np.nanmean([value_of(estimand, runs, rates) for runs in pairs.values()])) if pairs else math.nan


def moved(rates: list[Rates | None], number: int, name: str, sign: int, noise: Rates) -> list[Rates | None]:
    """Return rates with one of them off by its noise."""
    factor, one = math.exp(sign * getattr(noise, name)), rates[number]
    assert one is not None  # of every cost in seconds
    return [*rates[:number], replace(one, **{name: getattr(one, name) * factor}), *rates[number + 1 :]]


def timing_noise(evidence: Evidence, world: str) -> Rates:
    """Return the standard deviations of the logarithm of both rates among methods that sample alike: all without streams, or
    with them where those are fewer than two."""
    names = sorted({run.variant for run in evidence.runs if run.world == world and run.role == "timed"})
    streams = [name for name in names if name.startswith("eqlen")]
    alike = [name for name in names if name not in streams]
    found = [rates_of(evidence, world, name) for name in (alike if len(alike) > 1 else streams)]
    logs = np.log([(one.generated, one.trained) for one in found if one])
    return Rates(*map(float, logs.std(0, ddof=1))) if len(logs) > 1 else Rates(0.0, 0.0)


def measure_all(evidence: Evidence, estimands: Mapping[str, Estimand]) -> dict[str, Result]:
    """Return every estimand that the evidence gives, by id."""
    found = {id: measure(evidence, estimand) for id, estimand in estimands.items()}
    return {id: result for id, result in found.items() if result is not None}


def value_of(estimand: Estimand, runs: list[RunTables], rates: list[Rates | None]) -> float:
    """Return the number of one seed: of a ratio its logarithm."""
    places = equal_places(runs, estimand.cost, rates) if estimand.cost not in ("", "best") else None
    found = []
    for number, run in enumerate(runs):
        given: dict[str, Any] = dict(estimand.options)
        if estimand.cost == "best":
            given["chosen_by"] = runs[0]
        if places:
            given["place"] = places[number]
        if "rates" in parameters(estimand.quantity):
            given["rates"] = rates[number]
        found.append(QUANTITIES[estimand.quantity](run, **given))
    if estimand.combine == "ratio":
        return math.log(found[0]) - math.log(found[1]) if min(found) > 0 else math.nan
    return found[0] - found[1] if len(found) == 2 else found[0]


def equal_places(runs: list[RunTables], cost: str, rates: list[Rates | None]) -> list[float] | None:
    """Return the place in each run's evaluations where it had spent what the cheaper spent in all; None where all end there."""
    spent = [costs(run, cost, rate) for run, rate in zip(runs, rates, strict=True)]
    least = min(one[-1] for one in spent)
    if all(one[-1] == least for one in spent):
        return None
    return [float(np.interp(least, one, np.arange(len(one)))) for one in spent]


def rates_of(evidence: Evidence, world: str, variant: str) -> Rates | None:
    """Return how long a variant takes, from its timed runs without what starts up; None where there are none."""
    runs = [started(run) for run in evidence.find(world, variant, role="timed").values()]
    columns = ("batches", "seconds"), ("batches", "generated"), ("updates", "seconds"), ("updates", "tokens_trained")
    sums = [sum(float(getattr(run, table)[column].sum()) for run in runs) for table, column in columns]
    return Rates(sums[0] / sums[1], sums[2] / sums[3]) if sums[1] and sums[3] else None
