"""How often 95% intervals of the study hold the truth: runs like the study's are simulated and measured by its own code."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairlen.batch import Floats
from research.study.evidence import RunRow, RunTables, Table
from research.study.intervals import summarize
from research.study.quantities import QUANTITIES

SEEDS = (5, 8, 20)
STUDIES, POOL = 4000, 3000
"""Studies, each with its seeds at random from a pool of simulated runs."""
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
    truths: int = 400
    """Number of these runs."""


def run_of(**tables: Table) -> RunTables:
    """Return a run that has only these tables."""
    row = RunRow("simulated", "study", "long", "simulated", "", 1, 0.0, 1.0, (), "", 0.0)
    every: dict[str, Table] = {key: {} for key in ("batches", "updates", "sequences", "evaluations", "directions")}
    return RunTables(row, **every | tables)


def evaluated(rng: np.random.Generator, gain: float = 0.8, size: int = 1) -> RunTables:
    """Return a run whose log odds rise by about a gain; runs differ, evaluations of a run differ less, and samples are few."""
    rise = gain * np.linspace(0, 1, EVALUATIONS) + np.cumsum(rng.normal(0, 0.12, EVALUATIONS))
    chance = 1 / (1 + np.exp(-DIFFICULTY - rise[:, None]))
    samples = SAMPLES * size
    scale = np.exp(rng.normal(0, 0.15)) * np.exp(rng.normal(5, 0.8, (EVALUATIONS, PROBLEMS, samples)))
    moment = np.repeat(np.arange(EVALUATIONS), PROBLEMS)
    return run_of(
        evaluations={
            "generated": moment, "update": moment, "problem": np.tile(np.arange(PROBLEMS), EVALUATIONS), "length_right": moment,
            "samples": np.full(len(moment), samples), "right": rng.binomial(samples, chance).ravel(),
            "length": scale.mean(2).ravel(),
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


def of(name: str, make: Callable[..., RunTables], **options: str) -> Draw:
    """Return what draws a quantity of one run."""
    return lambda rng, size: QUANTITIES[name](make(rng, size=size), **options)


def between(name: str, one: float, other: float, scale: Callable[[float], float] = float) -> Draw:
    """Return what draws the difference of a quantity between runs of two gains."""
    return lambda rng, size: (
        scale(QUANTITIES[name](evaluated(rng, one, size))) - scale(QUANTITIES[name](evaluated(rng, other, size)))
    )


SHAPES = (
    Shape("accuracy, difference", between("accuracy", 1.2, 0.8)),
    Shape("length, ratio", between("length", 1.2, 0.8, math.log), is_log_ratio=True),
    Shape("drop, difference", between("drop", 0.4, 0.8), size=20),
    Shape("best_accuracy, difference", between("best_accuracy", 1.2, 0.8), size=20),
    Shape("collapse, ratio", between("collapse", 0.8, -1.2, math.log), is_log_ratio=True),
    Shape("falls, difference", between("falls", 0.4, 0.8), size=20),
    Shape("length_at_best, ratio", between("length_at_best", 1.2, 0.8, math.log), is_log_ratio=True, size=20),
    Shape("entropy_change, value", of("entropy_change", updated)),
    Shape("gradient_spread, value", of("gradient_spread", updated)),
    Shape(
        "replay, a rule and another", of("replay", off_policy_run, rule="gspo", against="fspo_v3"), size=20, truths=40
    ),
    Shape("replay, a rule alone", of("replay", off_policy_run, rule="fspo_v3"), size=20, truths=40),
)


def simulate(shape: Shape, studies: int = STUDIES, pool: int = POOL) -> dict[int, float]:
    """Return the share of studies whose interval holds the truth, by number of seeds."""
    rng = np.random.default_rng(0)
    values = np.array([shape.draw(rng, 1) for _ in range(pool)])
    truth = np.mean([shape.draw(rng, shape.size) for _ in range(shape.truths)]) if shape.size else values.mean()
    truth = 100.0 * float(np.expm1(truth)) if shape.is_log_ratio else float(truth)
    drawn = {number: rng.choice(values, (studies, number)) for number in SEEDS}
    return {number: sum(holds(one, truth, shape) for one in some) / studies for number, some in drawn.items()}


def holds(values: Floats, truth: float, shape: Shape) -> bool:
    """Whether the interval of one number a seed holds the truth."""
    found = summarize(dict(enumerate(values)), is_log_ratio=shape.is_log_ratio)
    return found is not None and found.low <= truth <= found.high


def main(studies: int = STUDIES) -> None:
    """Print the coverage of every shape."""
    error = 100 * (0.95 * 0.05 / studies) ** 0.5
    print(f"Coverage of 95% intervals in {studies} simulated studies, percent (standard error {error:.1f})")
    print(f"{'seeds':32}" + "".join(f"{number:>8}" for number in SEEDS))
    for shape in SHAPES:
        print(
            f"{shape.name:32}" + "".join(f"{100 * share:8.1f}" for share in simulate(shape, studies).values()),
            flush=True,
        )


if __name__ == "__main__":
    main()
