"""How often 95% intervals of the study hold the truth: runs like the study's are simulated and measured by its own code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from fairlen.batch import Floats
from research.study.evidence import RunRow, RunTables, Table
from research.study.intervals import summarize
from research.study.quantities import QUANTITIES

SEEDS = (5, 8, 20)
STUDIES, POOL = 4000, 3000
"""Studies, each with its seeds at random from a pool of simulated runs."""
NOISELESS = 10**6
"""So many times the samples have next to no noise."""
PROBLEMS, SAMPLES, EVALUATIONS, UPDATES, PROMPTS, GROUP = 64, 4, 9, 160, 240, 8
DIFFICULTY = np.random.default_rng(1).normal(0.0, 1.5, PROBLEMS)
"""Log odds of the held-out problems, which are the same in all runs."""
Draw = Callable[[np.random.Generator, int], float]
"""One seed's number, from a run of so many times the usual size."""


@dataclass(frozen=True)
class Shape:
    """One kind of estimand."""

    name: str
    draw: Draw
    is_log_ratio: bool = False
    size: int = 0
    """The truth is the mean of runs this many times as large; 0: the mean of what runs of the usual size give."""


def run_of(**tables: Table) -> RunTables:
    """Return a run that has only these tables."""
    row = RunRow("simulated", "study", "long", "simulated", "", 1, 0.0, 1.0, (), "", 0.0)
    every: dict[str, Table] = {key: {} for key in ("batches", "updates", "sequences", "evaluations", "directions")}
    return RunTables(row, **every | tables)


def evaluated(
    rng: np.random.Generator, gain: float = 0.8, walk: float = 0.12, fall: float = 0.0, size: int = 1
) -> RunTables:
    """Return a run whose log odds rise by a gain, fall again after a quarter to three quarters of it, and walk at random.

    Runs differ, responses get shorter with accuracy, and samples are few; with a size of NOISELESS they are next to no chance.
    """
    time, start = np.linspace(0, 1, EVALUATIONS), rng.uniform(0.25, 0.75)
    rise = gain * time - fall * np.maximum(time - start, 0) / (1 - start) + np.cumsum(rng.normal(0, walk, EVALUATIONS))
    rise, scale = rise + rng.normal(0, 0.12), np.exp(rng.normal(0, 0.15) + 5 - 0.3 * rise)[:, None]
    chance = 1 / (1 + np.exp(-DIFFICULTY - rise[:, None]))
    noise = np.exp(rng.normal(-0.32, 0.8, (EVALUATIONS, PROBLEMS, SAMPLES))).mean(2) if size == 1 else np.ones(PROBLEMS)
    moment, problem = (index.ravel() for index in np.indices(chance.shape))
    return run_of(
        evaluations={
            "generated": moment, "update": moment, "problem": problem, "samples": np.full(len(moment), SAMPLES * size),
            "right": rng.binomial(SAMPLES * size, chance).ravel(), "length": (scale * noise).ravel(), "length_right": moment,
        }
    )  # fmt: skip


def off_policy_run(rng: np.random.Generator, size: int) -> RunTables:
    """Return a run whose log ratios spread like the root of length, more in some updates and prompts than in others."""
    prompt = np.repeat(np.arange(PROMPTS * size), GROUP)
    update = prompt * UPDATES // (PROMPTS * size)
    length = np.exp(5 + rng.normal(0, 0.3, prompt[-1] + 1)[prompt] + rng.normal(0, 0.4, len(prompt))).astype(np.int64)
    spread = np.exp(
        rng.normal(0, 0.3, UPDATES)[update] + rng.normal(0, 0.3, prompt[-1] + 1)[prompt] + rng.normal(0, 0.2)
    )
    ratio = 0.01 * spread * np.sqrt(length) * rng.normal(size=len(prompt))
    columns = {"length": length, "log_ratio": ratio, "prompt": prompt, "update": update}
    return run_of(sequences=columns | {"off_policy": np.ones(len(prompt), bool)})


def updated(rng: np.random.Generator, size: int = 1) -> RunTables:
    """Return a run whose entropy falls, in some runs to a small part of what it was, and whose gradients have spikes."""
    entropy = np.exp(np.linspace(0, rng.normal(-0.8, 0.4), UPDATES) + rng.normal(0, 0.1, UPDATES))
    norms = np.exp(rng.normal(0, 0.4, UPDATES) + 1.5 * (rng.random(UPDATES) < 0.03))
    return run_of(updates={"entropy": entropy, "gradient_norm": norms})


def of(name: str, make: Callable[..., RunTables], scale: Callable[[float], float] = float, **options: str) -> Draw:
    """Return what draws a quantity of one run."""
    return lambda rng, size: scale(QUANTITIES[name](make(rng, size=size), **options))


def curved(name: str, text: str, *runs: Callable[..., RunTables]) -> Shape:
    """Return a quantity of evaluations, of one run or between two, lengths as a ratio, whose truth has no noise."""
    is_log_ratio = name in ("length", "length_at_best", "collapse")
    parts = [of(name, make, math.log if is_log_ratio else float) for make in runs]

    def draw(rng: np.random.Generator, size: int) -> float:
        values = [part(one, size) for part, one in zip(parts, rng.spawn(len(parts)), strict=True)]
        return values[0] - sum(values[1:])

    return Shape(f"{name}, {text}", draw, is_log_ratio, NOISELESS)


PLATEAU = partial(evaluated, gain=0.0, walk=0.0)
FASTER, FALLING, COLLAPSING = partial(evaluated, gain=1.2), partial(evaluated, fall=0.8), partial(evaluated, fall=2.0)
SHAPES = (
    *(curved(name, "a plateau", PLATEAU) for name in ("best_accuracy", "drop")),
    *(curved(name, "two plateaus", PLATEAU, PLATEAU) for name in ("swings", "length_at_best")),
    *(
        curved(name, "a rise and a faster one", FASTER, evaluated)
        for name in ("accuracy", "length", "best_accuracy", "drop")
    ),
    *(
        curved(name, "a fall and none", FALLING, evaluated)
        for name in ("best_accuracy", "drop", "swings", "length_at_best")
    ),
    curved("collapse", "none and one", evaluated, COLLAPSING),
    Shape("entropy_change, value", of("entropy_change", updated)),
    Shape("gradient_spread, value", of("gradient_spread", updated)),
    Shape("replay, a rule and another", of("replay", off_policy_run, rule="gspo", against="fspo_v3"), size=20),
    Shape("replay, a rule alone", of("replay", off_policy_run, rule="fspo_v3"), size=20),
)


def simulate(shape: Shape, studies: int = STUDIES, pool: int = POOL) -> dict[int, float]:
    """Return the share of studies whose interval holds the truth, of those with an interval, by number of seeds."""
    values = np.array([shape.draw(np.random.default_rng(seed), 1) for seed in range(pool)])
    truths = pool if shape.size == NOISELESS else 40 if shape.size else 0
    exact = [shape.draw(np.random.default_rng(seed), shape.size) for seed in range(truths)]
    truth = float(np.mean(exact or values))
    truth = 100.0 * math.expm1(truth) if shape.is_log_ratio else truth
    rng = np.random.default_rng(0)
    drawn = {number: rng.choice(values, (studies, number)) for number in SEEDS}
    return {number: float(np.nanmean([holds(one, truth, shape) for one in some])) for number, some in drawn.items()}


def holds(values: Floats, truth: float, shape: Shape) -> float:
    """Return whether the interval of one number a seed holds the truth; nan where there is none."""
    found = summarize(dict(enumerate(values)), is_log_ratio=shape.is_log_ratio)
    return float(found.low <= truth <= found.high) if found and found.has_interval else math.nan


def main(studies: int = STUDIES) -> None:
    """Print the coverage of every shape."""
    error = 100 * (0.95 * 0.05 / studies) ** 0.5
    print(f"Coverage of 95% intervals in {studies} simulated studies, percent (standard error {error:.1f})")
    print(f"{'seeds':40}" + "".join(f"{number:>8}" for number in SEEDS))
    for shape in SHAPES:
        print(
            f"{shape.name:40}" + "".join(f"{100 * share:8.1f}" for share in simulate(shape, studies).values()),
            flush=True,
        )


if __name__ == "__main__":
    main()
