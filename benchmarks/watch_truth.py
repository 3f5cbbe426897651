"""Does the watch tell the truth? Runs whose truth is known, looked at after every step.

    python benchmarks/watch_truth.py             500 runs of 300 steps of each kind; exit code 1 where a mark is missed
    python benchmarks/watch_truth.py --runs 50   fewer

A step has 16 prompts with 8 responses each. Lengths are lognormal with standard deviation .5 around the prompt's; a response is
correct with a probability of 30 to 70% that its prompt decides. In seven kinds nothing goes with correctness within prompts; in
two, incorrect responses are 20% and 40% longer from step 50 on. Beside the watch stands a test of a fixed sample size, the
audit's own on all steps so far, that is looked at after every tenth step: its 5% are for one look.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from _checks import add_smoke, demand

from fairlen import LengthWatch
from fairlen.audit.statistics.within import compare_within
from fairlen.watch.watch import EFFECT

PROMPTS, SIZE, STEPS, ONSET = 16, 8, 300, 50
SPREAD = 0.5
NULL = ("independent", "difficulty", "both trends", "curriculum", "few prompts", "graded rewards", "unequal groups")
PLANTED = {"20% longer": math.log(1.2), "40% longer": math.log(1.4)}
MOST_FALSE, FOUND = 0.07, {"20% longer": 0.80, "40% longer": 0.95}
SHAPES = ("length falls by a third", "length explodes", "truncation 2% to 30%")


@dataclass(frozen=True)
class Step:
    """The responses of one step, [N] each."""

    prompts: list[int]
    lengths: np.ndarray
    outcomes: np.ndarray
    truncated: np.ndarray


def make_step(kind: str, step: int, rng: np.random.Generator) -> Step:
    """Draw a step of a kind of run."""
    progress = step / STEPS
    number = rng.permutation(20)[:PROMPTS] if kind == "few prompts" else np.arange(PROMPTS) + step * PROMPTS
    hard = np.random.default_rng(7).normal(0, 1, 20)[number] if kind == "few prompts" else rng.normal(0, 1, PROMPTS)
    hard = hard + (2 * progress - 1 if kind == "curriculum" else 0.0)
    chance = np.clip(
        0.5 - 0.2 * np.clip(hard, -1, 1) + (0.4 * (progress - 0.5) if kind == "both trends" else 0.0), 0.05, 0.95
    )
    centre = 5.0 + (0.0 if kind == "independent" else 0.4) * hard + (1.0 * progress if kind == "both trends" else 0.0)
    if kind == "length falls by a third":
        centre = centre + math.log(2 / 3) * progress
    if kind == "length explodes":
        centre = centre + math.log(4) * progress
    rows = np.repeat(np.arange(PROMPTS), SIZE)
    if kind == "unequal groups":
        rows = rows[rng.random(len(rows)) > 0.4]
    correct = rng.random(len(rows)) < chance[rows]
    gap = PLANTED.get(kind, 0.0) if step >= ONSET else 0.0
    length = np.round(np.exp(centre[rows] + rng.normal(0, SPREAD, len(rows)) + gap * ~correct)).astype(np.int64) + 1
    outcome = correct.astype(np.float64)
    if kind == "graded rewards":
        outcome = np.where(correct, rng.choice([0.6, 0.8, 1.0], len(rows)), rng.choice([0.0, 0.2, 0.4], len(rows)))
    share = 0.02 + 0.28 * progress if "truncation" in kind else 0.0
    limit = math.inf if not share else float(np.quantile(length, 1 - share))
    return Step([int(number[row]) for row in rows], np.minimum(length, limit), outcome, length > limit)


@dataclass
class Run:
    """What was told of one run."""

    effect: int = 0
    """Step of the alarm about length and correctness; 0 for none."""
    cheated: int = 0
    """Step at which the fixed-sample test, looked at every tenth step, first has p below 5% and an effect beyond the margin."""
    thresholds: tuple[str, ...] = ()


def watch_run(kind: str, seed: tuple[int, ...]) -> Run:
    """Watch one run of a kind."""
    rng, watch, found, parts = np.random.default_rng(seed), LengthWatch(keep=False), Run(), []
    for step in range(1, STEPS + 1):
        one = make_step(kind, step, rng)
        for alarm in watch.add(one.prompts, one.lengths, one.outcomes, truncated=one.truncated, step=step):
            if alarm.kind == EFFECT and not found.effect:
                found.effect = step
        parts.append((step * 10**6 + np.array(one.prompts, np.int64), one.outcomes > 0.5, one.lengths))
        if not found.cheated and step % 10 == 0:
            stratum, correct, length = (np.concatenate(column) for column in zip(*parts, strict=True))
            number = np.unique(stratum, return_inverse=True)[1]
            gap = compare_within(number, number, correct.astype(np.float64), length.astype(np.float64)).gap
            if gap.p_value < 0.05:
                found.cheated = step
    found.thresholds = tuple(one.kind for one in watch.alarms if one.kind != EFFECT)
    return found


def show_delay(steps: list[int]) -> str:
    """The median and the 90% quantile of delays after the onset."""
    late = [step - ONSET for step in steps if step >= ONSET]
    return f"{statistics.median(late):.0f}, {np.quantile(late, 0.9):.0f}" if late else "-"


def main() -> None:
    """Print what the watch and the fixed-sample test say of each kind, and check the marks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="of each kind")
    add_smoke(parser)
    args = parser.parse_args()
    number = 1 if args.smoke else args.runs
    print(f"{number} runs of {STEPS} steps each; delays in steps after step {ONSET}: median, 90% quantile")
    print(f"{'kind':24} {'effect':>8} {'delay':>10} {'looked at':>10} {'delay':>10}  thresholds")
    missed = []
    for place, kind in enumerate((*NULL, *PLANTED, *SHAPES)):
        several = min(number, 20) if kind in SHAPES else number
        with ProcessPoolExecutor(os.cpu_count()) as workers:
            runs = list(workers.map(partial(watch_run, kind), ((11, place, one) for one in range(several))))
        effect, cheated = (sum(getattr(run, name) > 0 for run in runs) / several for name in ("effect", "cheated"))
        kinds = {name: sum(name in run.thresholds for run in runs) / several for run in runs for name in run.thresholds}
        delays = (
            [show_delay([getattr(run, name) for run in runs]) for name in ("effect", "cheated")]
            if kind in PLANTED
            else ["", ""]
        )
        told = ", ".join(f"{name} {share:.0%}" for name, share in sorted(kinds.items()))
        print(f"{kind:24} {effect:8.1%} {delays[0]:>10} {cheated:10.1%} {delays[1]:>10}  {told}", flush=True)
        early = sum(0 < run.effect < ONSET for run in runs) / several
        if kind in NULL and effect > MOST_FALSE:
            missed.append(f"{kind}: {effect:.1%} alarms, at most {MOST_FALSE:.0%}")
        if kind in PLANTED and (effect - early < FOUND[kind] or early > MOST_FALSE):
            missed.append(
                f"{kind}: found in {effect - early:.1%}, at least {FOUND[kind]:.0%}; before its onset in {early:.1%}"
            )
    demand(args.smoke or not missed, "; ".join(missed))


if __name__ == "__main__":
    main()
