"""Does the watch tell the truth? Runs whose truth is known, looked at after every step.

    python benchmarks/watch_truth.py             500 runs of 300 steps of each kind; exit code 1 where a mark is missed
    python benchmarks/watch_truth.py --runs 50   fewer

A step has 16 prompts with 8 responses each. Lengths are lognormal with standard deviation .5 around the prompt's; a response is
correct with a probability of 30 to 70% that its prompt decides. In seven kinds nothing goes with correctness within prompts; in
two, incorrect responses are 20% and 40% longer from step 50 on. Beside the watch stands a test of a fixed sample size, the
audit's jackknife on all steps so far, that is looked at after every tenth step: its 5% are for one look. Of runs that only become
longer or shorter, or are truncated more and more, 20 are watched for the thresholds.

The statistics of a run are computed at once; the first run of each kind goes through `LengthWatch.add` too, a step at a time,
and has to give its alarm at the same step.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from _checks import demand, read_size

from fairlen import LengthWatch
from fairlen.audit.statistics.within import jackknife
from fairlen.watch.evidence import EProcess, compare_groups
from fairlen.watch.watch import EFFECT

PROMPTS, SIZE, STEPS, ONSET = 16, 8, 300, 50
SPREAD, ERROR = 0.5, 0.05
NULL = ("independent", "difficulty", "both trends", "curriculum", "few prompts", "graded rewards", "unequal groups")
PLANTED = {"20% longer": math.log(1.2), "40% longer": math.log(1.4)}
MOST_FALSE, FOUND = 0.07, {"20% longer": 0.80, "40% longer": 0.95}
SHAPES = ("length falls by a third", "length explodes", "truncation 2% to 30%")


@dataclass(frozen=True)
class Draw:
    """The responses of a run, [N] each, steps from 1 in order."""

    step: np.ndarray
    prompt: np.ndarray
    length: np.ndarray
    outcome: np.ndarray
    truncated: np.ndarray


def draw_run(kind: str, rng: np.random.Generator) -> Draw:
    """Draw a run of a kind."""
    number = np.arange(STEPS * PROMPTS).reshape(STEPS, PROMPTS)
    hard = rng.normal(0, 1, number.shape)
    if kind == "few prompts":  # the same 20 come back
        number = rng.permuted(np.tile(np.arange(20), (STEPS, 1)), axis=1)[:, :PROMPTS]
        hard = rng.normal(0, 1, 20)[number]
    progress = (np.arange(1, STEPS + 1) / STEPS)[:, None]
    hard = hard + (2 * progress - 1) * (kind == "curriculum")
    chance = 0.5 - 0.2 * np.clip(hard, -1, 1) + 0.4 * (progress - 0.5) * (kind == "both trends")
    growth = {"both trends": 1.0, "length falls by a third": math.log(2 / 3), "length explodes": math.log(4)}
    centre = 5.0 + 0.4 * (kind != "independent") * hard + growth.get(kind, 0.0) * progress

    rows = np.repeat(np.arange(number.size), SIZE)
    rows = rows[rng.random(len(rows)) > 0.4 * (kind == "unequal groups")]
    step = rows // PROMPTS + 1
    correct = rng.random(len(rows)) < np.clip(chance, 0.05, 0.95).ravel()[rows]
    gap = PLANTED.get(kind, 0.0) * (step >= ONSET) * ~correct
    length = np.exp(centre.ravel()[rows] + rng.normal(0, SPREAD, len(rows)) + gap).astype(np.int64) + 1
    outcome = correct.astype(np.float64)
    if kind == "graded rewards":
        outcome = rng.integers(0, 3, len(rows)) / 5 + 0.6 * correct  # 0, .2, .4 and .6, .8, 1
    limit = math.exp(5.0) * np.exp(SPREAD * (2.1 - 1.6 * step / STEPS)) if "truncation" in kind else math.inf
    return Draw(step, number.ravel()[rows], np.minimum(length, limit).astype(np.int64), outcome, length > limit)


@dataclass(frozen=True)
class Run:
    """Steps of the first alarms about length and correctness, 0 for none: of the watch, and of the fixed-sample test."""

    effect: int
    cheated: int


def test_run(kind: str, seed: tuple[int, ...]) -> Run:
    return test_draw(draw_run(kind, np.random.default_rng(seed)))


def test_draw(one: Draw) -> Run:
    """Test a run after every step, and by the fixed-sample test after every tenth."""
    evidence = EProcess()
    stratum = np.unique(one.step * 10**6 + one.prompt, return_inverse=True)[1]
    step_of = np.zeros(stratum.max() + 1, np.int64)
    step_of[stratum] = one.step
    found, groups = compare_groups(stratum, (one.outcome > 0.5).astype(np.float64), one.length)
    order = np.argsort(found)
    steps, groups = step_of[found[order]], groups[order]
    effect = cheated = 0
    for step in range(1, STEPS + 1):
        first, last = np.searchsorted(steps, [step, step + 1])
        evidence.add(groups[first:last])
        if not effect and any(evidence.find(side, ERROR / 2) for side in (0, 1)):
            effect = step
        weight, gaps = groups[:last, :2].T
        gap = jackknife(weight * gaps, weight) if not (cheated or step % 10) else None
        if gap and gap.p_value < 0.05:
            cheated = step
    return Run(effect, cheated)


def watch_run(kind: str, seed: tuple[int, ...]) -> dict[str, int]:
    """Watch a run as a trainer does; return the step of each kind's first alarm."""
    one, watch = draw_run(kind, np.random.default_rng(seed)), LengthWatch(keep=False, error=ERROR)
    for step in range(1, STEPS + 1):
        rows = one.step == step
        prompts, length, outcome, truncated = (x[rows] for x in (one.prompt, one.length, one.outcome, one.truncated))
        watch.add(prompts.tolist(), length, outcome, truncated=truncated, step=step)
    return {alarm.kind: alarm.step for alarm in reversed(watch.alarms)}


def show_delay(steps: list[int]) -> str:
    """The median and the 90% quantile of delays after the onset."""
    late = [step - ONSET for step in steps if step >= ONSET]
    return f"{np.median(late):.0f}, {np.quantile(late, 0.9):.0f}" if late else "-"


def main() -> None:
    """Print what the watch and the fixed-sample test say of each kind, and check the marks."""
    number, is_asked = read_size("--runs", 500, smoke=1)
    print(f"{number} runs of {STEPS} steps each; delays in steps after step {ONSET}: median, 90% quantile")
    print(f"{'kind':24} {'effect':>8} {'delay':>10} {'looked at':>10} {'delay':>10}")
    missed: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        for place, kind in enumerate((*NULL, *PLANTED)):
            runs = list(workers.map(partial(test_run, kind), ((11, place, one) for one in range(number)), chunksize=8))
            missed += check_kind(kind, runs)
            if (told := watch_run(kind, (11, place, 0)).get(EFFECT, 0)) != runs[0].effect:
                missed.append(f"{kind}: LengthWatch alarms at step {told}, the statistics at once at {runs[0].effect}")
        several = min(number, 20)
        for place, kind in enumerate(SHAPES, len(NULL) + len(PLANTED)):
            told = list(workers.map(partial(watch_run, kind), ((11, place, one) for one in range(several))))
            steps = {name: [run[name] for run in told if name in run] for run in told for name in run}
            shown = (f"{name} in {len(x)} of {several}, first at step {min(x)}" for name, x in sorted(steps.items()))
            print(f"{kind:24} thresholds: {'; '.join(shown) or 'none'}", flush=True)
    demand(not is_asked or not missed, "; ".join(missed))


def check_kind(kind: str, runs: list[Run]) -> list[str]:
    """Print the line of a kind and return the marks that it misses."""
    effect, cheated = ([getattr(run, name) for run in runs if getattr(run, name)] for name in ("effect", "cheated"))
    delays = [show_delay(steps) if kind in PLANTED else "" for steps in (effect, cheated)]
    share, early = len(effect) / len(runs), sum(step < ONSET for step in effect) / len(runs)
    print(
        f"{kind:24} {share:8.1%} {delays[0]:>10} {len(cheated) / len(runs):10.1%} {delays[1]:>10}",
        f" before its onset {early:.1%}" if kind in PLANTED else "", flush=True,
    )  # fmt: skip
    if kind in NULL:
        return [f"{kind}: {share:.1%} alarms, at most {MOST_FALSE:.0%}"] * (share > MOST_FALSE)
    is_missed = share - early < FOUND[kind] or early > MOST_FALSE
    return [
        f"{kind}: found in {share - early:.1%}, at least {FOUND[kind]:.0%}; {early:.1%} before its onset"
    ] * is_missed


if __name__ == "__main__":
    main()
