"""Does the watch tell the truth? Runs whose truth is known, looked at after every step.

    python benchmarks/watch_truth.py             500 runs of each kind; exit code 1 if a mark is missed
    python benchmarks/watch_truth.py --runs 50   fewer; the parts below take the same share of their own numbers

A run has 300 steps of 16 prompts with 8 responses each. Lengths are lognormal with standard deviation .5 around the prompt's; a
response is correct with a probability of 30 to 70% that its prompt decides. The parts are:

1. False alarms and power. In seven kinds of runs nothing is associated with correctness within prompts; in two, incorrect
   responses are 20% and 40% longer from step 50 on. The fixed-sample test next to the watch is the audit's jackknife on all
   steps so far, looked at after every tenth step: its 5% are for one look. The size in the alarm is compared with the truth.
   The first run of each kind also goes through `LengthWatch.add`, a step at a time, and must alarm at the same step.
   In an eighth kind the association differs from step to step, with mean 0: no interval of the watch covers that. No mark.
   Sizes are also compared in runs with small batches, 4 prompts with 4 responses, and an effect of 20% from the start.
2. Coverage. In each of 300 runs, after every step and since the onset that is then most likely: do the sequences cover the
   quantities that they name, and the size's interval the true size?
3. Agreement with the audit. 100 logs each with lognormal lengths of standard deviation 1 and with two modes: the interval of the
   size in the alarm overlaps the interval of the audit of the whole log.
4. Thresholds. 20 runs each that become longer or shorter, or are truncated more and more; and 200 healthy runs each with small
   batches, 4 prompts with 4 responses and 2 with 8.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from _checks import demand, read_size

from fairlen import LengthWatch
from fairlen.audit.conclusion import within_log
from fairlen.audit.statistics.within import jackknife
from fairlen.watch.evidence import CLIPPED, ORDER, RAW, WEIGHT, EProcess, compare_groups
from fairlen.watch.page import make_log
from fairlen.watch.thresholds import THRESHOLDS
from fairlen.watch.watch import EFFECT

PROMPTS, SIZE, STEPS, ONSET = 16, 8, 300, 50
SPREAD, ERROR = 0.5, 0.05
NULL = ("independent", "difficulty", "both trends", "curriculum", "few prompts", "graded rewards", "unequal groups")
MOVING = "moves per step"
PLANTED = {"20% longer": math.log(1.2), "40% longer": math.log(1.4)}
MOST_FALSE, FOUND = 0.07, {"20% longer": 0.80, "40% longer": 0.95}
COVERED_KINDS = {"no effect": 0.0, "20% longer": math.log(1.2), "40% longer": math.log(1.4)}
COVERED = 0.95
AGREEING_KINDS, AGREEING = ("spread 1.0", "two modes"), 0.95
SHAPES = ("length falls by a third", "length explodes", "truncation 2% to 30%")
SMALL = ((4, 4), (2, 8))
MOST_HEALTHY = 0.05
MOVING_SPREAD = 0.2
"""Standard deviation over steps of the difference of log lengths in the kind MOVING."""


Interval = tuple[float, ...]
"""Value, low and high end."""


@dataclass(frozen=True)
class Draw:
    """Responses of a run, [N] each; steps count from 1 and are in order."""

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
    gap = PLANTED.get(kind, 0.0) * (step >= ONSET)
    if kind == MOVING:
        gap = rng.normal(0, MOVING_SPREAD, STEPS + 1)[step]
    length = np.exp(centre.ravel()[rows] + rng.normal(0, SPREAD, len(rows)) + gap * ~correct).astype(np.int64) + 1
    outcome = correct.astype(np.float64)
    if kind == "graded rewards":
        outcome = rng.integers(0, 3, len(rows)) / 5 + 0.6 * correct  # 0, .2, .4 and .6, .8, 1
    limit = math.exp(5.0) * np.exp(SPREAD * (2.1 - 1.6 * step / STEPS)) if "truncation" in kind else math.inf
    return Draw(step, number.ravel()[rows], np.minimum(length, limit).astype(np.int64), outcome, length > limit)


@dataclass(frozen=True)
class Run:
    """Steps of the first alarms, 0 for none, and the size in the watch's alarm: its interval is of log lengths."""

    effect: int
    cheated: int
    size: float = math.nan
    low: float = math.nan
    high: float = math.nan


def test_run(kind: str, seed: tuple[int, ...]) -> Run:
    return test_draw(draw_run(kind, np.random.default_rng(seed)))


def compare_steps(run: Draw) -> Iterator[np.ndarray]:
    """Yield the statistics of each step's groups."""
    stratum = np.unique(run.step * 10**6 + run.prompt, return_inverse=True)[1]
    step_of = np.zeros(stratum.max() + 1, np.int64)
    step_of[stratum] = run.step
    number, groups = compare_groups(stratum, (run.outcome > 0.5).astype(np.float64), run.length)
    order = np.argsort(number)
    steps, groups = step_of[number[order]], groups[order]
    for step in range(1, STEPS + 1):
        first, last = np.searchsorted(steps, [step, step + 1])
        yield groups[first:last]


def test_draw(run: Draw) -> Run:
    """Test a run after every step, and by the fixed-sample test after every tenth."""
    evidence, parts = EProcess(), list[np.ndarray]()
    effect = cheated = 0
    size = (math.nan,) * 3
    for step, groups in enumerate(compare_steps(run), 1):
        parts.append(groups)
        if not effect:
            evidence.add_step(groups)
            found = [pair for side in (0, 1) if (pair := evidence.detect(side, ERROR / 2))]
            if found:
                effect, size = step, tuple(found[0][1].raw_gap)
        if not (cheated or step % 10):
            weight, gaps = np.concatenate(parts)[:, [WEIGHT, RAW]].T
            cheated = step * (jackknife(weight * gaps, weight).p_value < 0.05)
    return Run(effect, cheated, *size)


def watch_run(kind: str, seed: tuple[int, ...]) -> dict[str, int]:
    """Watch a run as a trainer does; return the step of each kind's first alarm."""
    run, watch = draw_run(kind, np.random.default_rng(seed)), LengthWatch(keep=False, error=ERROR)
    feed(watch, run)
    return {alarm.kind: alarm.step for alarm in reversed(watch.alarms)}


def feed(watch: LengthWatch, run: Draw) -> None:
    """Add all steps of a run to a watch."""
    for step in range(1, int(run.step.max()) + 1):
        rows = run.step == step
        prompts, length, outcome, truncated = (x[rows] for x in (run.prompt, run.length, run.outcome, run.truncated))
        watch.add(prompts.tolist(), length, outcome, truncated=truncated, step=step)


def alarm_small(batch: tuple[int, int], seed: tuple[int, ...]) -> tuple[int, float]:
    """Watch a run of small batches with an effect of 20% until its alarm, at most 1,000 steps; return its step and size."""
    rng, evidence, (prompts, size) = np.random.default_rng(seed), EProcess(), batch
    rows = np.repeat(np.arange(prompts), size)
    for step in range(1, 1001):
        correct = rng.random(len(rows)) < 0.5
        length = np.exp(5.0 + rng.normal(0, SPREAD, len(rows)) + math.log(1.2) * ~correct).astype(np.int64) + 1
        evidence.add_step(compare_groups(rows, correct.astype(np.float64), length)[1])
        found = evidence.detect(0, ERROR / 2)
        if found and found[1].raw_gap.low > 0:
            return step, math.expm1(found[1].raw_gap.value)
    return 0, math.nan


def show_delay(steps: list[int]) -> str:
    """The median and the 90% quantile of delays after the onset."""
    late = [step - ONSET for step in steps if step >= ONSET]
    return f"{np.median(late):.0f}, {np.quantile(late, 0.9):.0f}" if late else "-"


@cache
def find_truth(gap: float) -> np.ndarray:
    """Return the expected statistics of a group with k correct responses, [SIZE + 1, 4], by 100,000 draws for each k."""
    rng, truth = np.random.default_rng(17), np.zeros((SIZE + 1, 4))
    for k in range(1, SIZE):
        outcome = np.tile(np.arange(SIZE) < k, 100_000).astype(np.float64)
        length = np.exp(5.0 + rng.normal(0, SPREAD, len(outcome)) + gap * (outcome == 0)).astype(np.int64) + 1
        truth[k] = compare_groups(np.repeat(np.arange(100_000), SIZE), outcome, length)[1].mean(0)
    return truth


def cover_run(gap: float, seed: tuple[int, ...]) -> np.ndarray:
    """Return whether the sequences of the clipped gap and the order, and the size's interval, cover at every look, [3]."""
    rng, truth = np.random.default_rng(seed), find_truth(gap)
    evidence, expected = EProcess(), list[np.ndarray]()
    covered = np.ones(3, bool)
    for _ in range(STEPS):
        correct = rng.random((PROMPTS, SIZE)) < 0.5
        length = np.exp(5.0 + rng.normal(0, SPREAD, correct.shape) + gap * ~correct).astype(np.int64) + 1
        rows = np.repeat(np.arange(PROMPTS), SIZE)
        number, groups = compare_groups(rows, correct.ravel().astype(np.float64), length.ravel())
        evidence.add_step(groups)
        weight = groups[:, WEIGHT]
        sums = (weight[:, None] * truth[correct.sum(1)[number]]).sum(0)
        sums[WEIGHT] = weight.sum()
        expected.append(sums)
        side = int(evidence.find_evalue(1) > evidence.find_evalue(0))
        onset = evidence.find_onset(side)
        sizes, mean = evidence.estimate_sizes(onset), np.sum(expected[onset:], 0)
        pairs = (CLIPPED, sizes.clipped_gap), (ORDER, sizes.order), (RAW, sizes.raw_gap)
        for place, (column, size) in enumerate(pairs):
            covered[place] &= not size.excludes(mean[column] / mean[WEIGHT])  # without an interval nothing is excluded
    return covered


@dataclass(frozen=True)
class Agreement:
    """Intervals of one log: of the alarm's size, of the watch at the end, and of the audit; log lengths or shares of pairs."""

    alarm: Interval
    audit: Interval
    pairs: Interval
    audit_pairs: Interval
    quantity: str


def draw_log(kind: str, rng: np.random.Generator) -> Draw:
    """Draw a log of 100 steps. Incorrect responses are 1.5 times as long, or in the longer of two modes in 65% instead of 40%."""
    rows = np.repeat(np.arange(100 * PROMPTS), SIZE)
    correct = rng.random(len(rows)) < 0.5
    centre = rng.normal(5.0, 0.4, 100 * PROMPTS)[rows]
    if kind == "spread 1.0":
        log_length = centre + rng.normal(0, 1.0, len(rows)) + math.log(1.5) * ~correct
    else:
        is_long = rng.random(len(rows)) < np.where(correct, 0.4, 0.65)
        log_length = centre + rng.normal(0, 0.25, len(rows)) + math.log(10) * is_long
    length = np.exp(log_length).astype(np.int64) + 1
    return Draw(rows // PROMPTS + 1, rows, length, correct.astype(np.float64), np.zeros(len(rows), bool))


def agree(kind: str, seed: tuple[int, ...]) -> Agreement:
    """Watch a log until its end, audit it, and return both intervals."""
    watch = LengthWatch(error=ERROR, kinds=(EFFECT,))
    feed(watch, draw_log(kind, np.random.default_rng(seed)))
    within = within_log(make_log(watch.steps, watch.kept))
    nothing = (math.nan,) * 3
    audit, audit_pairs = tuple(within.gap.estimate), tuple(within.order.estimate)
    if not watch.alarms:
        return Agreement(nothing, audit, nothing, audit_pairs, "")
    alarm = watch.alarms[0]
    assert alarm.interval is not None
    size = alarm.size, *alarm.interval
    if alarm.quantity == "length":
        size = tuple(math.log1p(x) for x in size)
    else:
        audit = audit_pairs
    return Agreement(size, audit, tuple(alarm.sequences["order"]), audit_pairs, alarm.quantity)


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[1] <= other[2] and other[1] <= one[2]


def watch_healthy(batch: tuple[int, int], seed: tuple[int, ...]) -> dict[str, int]:
    """Watch the thresholds of a healthy run with small batches; return the step of each alarm.

    Lengths spread by .4 between prompts and by .8 within them, 5% of responses are cut, 2% have no verdict.
    """
    prompts, size = batch
    rng, watch = np.random.default_rng(seed), LengthWatch(keep=False, kinds=THRESHOLDS)
    rows = np.repeat(np.arange(prompts), size)
    for step in range(1, STEPS + 1):
        log_length = 5.0 + rng.normal(0, 0.4, prompts)[rows] + rng.normal(0, 0.8, len(rows))
        limit = 5.0 + 1.645 * math.hypot(0.4, 0.8)  # the 95% quantile
        length = np.exp(np.minimum(log_length, limit)).astype(np.int64) + 1
        chance = rng.uniform(0.3, 0.7, prompts)[rows]
        outcome = np.where(rng.random(len(rows)) < 0.02, np.nan, rng.random(len(rows)) < chance)
        watch.add(rows.tolist(), length, outcome, truncated=log_length > limit, step=step)
    return {alarm.kind: alarm.step for alarm in watch.alarms}


Map = Callable[..., list[Any]]


def main() -> None:
    """Print each part, and check the marks."""
    number, is_asked = read_size("--runs", 500, smoke=1)
    missed: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as workers:

        def run_all(function: Callable[[tuple[int, ...]], Any], part: int, count: int) -> list[Any]:
            seeds = [(11, part, run) for run in range(count)]
            return list(workers.map(function, seeds, chunksize=max(count // 50, 1)))

        several = max(number * 300 // 500, 1)
        missed += check_alarms(run_all, number)
        missed += check_coverage(run_all, several)
        missed += check_agreement(run_all, max(number * 100 // 500, 1))
        missed += check_thresholds(run_all, max(number * 200 // 500, 1))
    demand(not is_asked or not missed, "; ".join(missed))


def check_alarms(run_all: Map, number: int) -> list[str]:
    """Print false alarms, power, and sizes at the alarm, and return the marks that are missed."""
    print(f"{number} runs of {STEPS} steps each; delays in steps after step {ONSET}: median, 90% quantile")
    print(f"{'kind':24} {'effect':>8} {'delay':>10} {'looked at':>10} {'delay':>10}")
    missed: list[str] = []
    for place, kind in enumerate((*NULL, *PLANTED)):
        runs = run_all(partial(test_run, kind), place, number)
        missed += check_kind(kind, runs)
        alarm_step = watch_run(kind, (11, place, 0)).get(EFFECT, 0)
        if alarm_step != runs[0].effect:
            missed.append(
                f"{kind}: LengthWatch alarms at step {alarm_step}, the statistics at once at {runs[0].effect}"
            )
    runs = run_all(partial(test_run, MOVING), 99, max(number // 5, 1))
    check_kind(MOVING, runs)
    alarms = [alarm for alarm in run_all(partial(alarm_small, SMALL[0]), 98, max(number // 5, 1)) if alarm[0]]
    if alarms:
        low, middle, high = np.quantile([size / 0.2 for _, size in alarms], (0.1, 0.5, 0.9))
        print(
            f"20% longer, 4 prompts x 4: alarm in {len(alarms)} runs, at step {np.median([step for step, _ in alarms]):.0f} at "
            f"the median; size in the alarm over the truth: median {middle:.2f}, 10 to 90% {low:.2f} to {high:.2f}", flush=True,
        )  # fmt: skip
    return missed


def check_kind(kind: str, runs: list[Run]) -> list[str]:
    """Print the line of a kind and return the marks that it misses."""
    effect, cheated = ([getattr(run, name) for run in runs if getattr(run, name)] for name in ("effect", "cheated"))
    delays = [show_delay(steps) if kind in PLANTED else "" for steps in (effect, cheated)]
    share, early = len(effect) / len(runs), sum(step < ONSET for step in effect) / len(runs)
    print(f"{kind:24} {share:8.1%} {delays[0]:>10} {len(cheated) / len(runs):10.1%} {delays[1]:>10}", flush=True)
    if kind in NULL:
        return [f"{kind}: {share:.1%} alarms, at most {MOST_FALSE:.0%}"] * (share > MOST_FALSE)
    if kind not in PLANTED:
        return []
    found = [run for run in runs if run.effect >= ONSET and not math.isnan(run.size)]
    ratios = [math.expm1(run.size) / math.expm1(PLANTED[kind]) for run in found]
    covers = sum(run.low <= PLANTED[kind] <= run.high for run in found)
    if found:
        low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9))
        print(
            f"{'':24} before its onset {early:.1%}; size in the alarm over the truth: median {middle:.2f}, 10 to 90% {low:.2f} "
            f"to {high:.2f}; interval covers the truth in {covers / len(found):.1%}", flush=True,
        )  # fmt: skip
    is_missed = share - early < FOUND[kind] or early > MOST_FALSE
    return [
        f"{kind}: found in {share - early:.1%}, at least {FOUND[kind]:.0%}; {early:.1%} before its onset"
    ] * is_missed


def check_coverage(run_all: Map, number: int) -> list[str]:
    """Print how often the sequences cover at every look, and return the marks that are missed."""
    print(
        f"\ncovered at every one of {STEPS} looks, share of {number} runs: clipped gap, order (tested), raw gap (size)"
    )
    missed: list[str] = []
    for place, (kind, gap) in enumerate(COVERED_KINDS.items(), 20):
        shares = np.mean(run_all(partial(cover_run, gap), place, number), 0).tolist()
        print(f"{kind:24} {' '.join(f'{share:8.1%}' for share in shares)}", flush=True)
        missed += [f"{kind}: covered in {share:.1%}, at least {COVERED:.0%}" for share in shares if share < COVERED]
    return missed


def check_agreement(run_all: Map, number: int) -> list[str]:
    """Print how often the watch and the audit agree on one log, and return the marks that are missed."""
    print(f"\nwatch (at its alarm) and audit (of the whole log), {number} logs of 100 steps each")
    missed: list[str] = []
    for place, kind in enumerate(AGREEING_KINDS, 30):
        logs: list[Agreement] = run_all(partial(agree, kind), place, number)
        found = [log for log in logs if log.quantity]
        share = sum(overlap(log.alarm, log.audit) for log in found) / len(logs)
        pairs = sum(overlap(log.pairs, log.audit_pairs) for log in found) / len(logs)
        length = [log for log in found if log.quantity == "length"]
        in_alarm = np.median([math.expm1(log.alarm[0]) for log in length])
        in_audit = np.median([math.expm1(log.audit[0]) for log in length])
        print(
            f"{kind:24} alarm in {len(found)}, its size is of length in {len(length)}; intervals of the size overlap in "
            f"{share:.0%}, of pairs in {pairs:.0%}; median size {in_alarm:.0%} in the alarm, {in_audit:.0%} in the audit",
            flush=True,
        )  # fmt: skip
        missed += [f"{kind}: intervals overlap in {share:.0%}, at least {AGREEING:.0%}"] * (share < AGREEING)
    return missed


def check_thresholds(run_all: Map, number: int) -> list[str]:
    """Print what thresholds do in changing runs and in healthy ones with small batches; return the marks that are missed."""
    print("\nthresholds")
    several = min(number, 20)
    for place, kind in enumerate(SHAPES, 40):
        runs = run_all(partial(watch_run, kind), place, several)
        steps = {name: [run[name] for run in runs if name in run] for run in runs for name in run}
        shown = (f"{name} in {len(x)} of {several}, first at step {min(x)}" for name, x in sorted(steps.items()))
        print(f"{kind:24} {'; '.join(shown) or 'none'}", flush=True)
    missed: list[str] = []
    for place, batch in enumerate(SMALL, 50):
        runs = run_all(partial(watch_healthy, batch), place, number)
        share = sum(map(bool, runs)) / number
        kinds = sorted({kind for run in runs for kind in run})
        print(f"healthy, {batch[0]} prompts x {batch[1]:<6} any in {share:.1%} of {number} {kinds or ''}", flush=True)
        missed += [f"healthy {batch}: {share:.1%} with an alarm, at most {MOST_HEALTHY:.0%}"] * (share > MOST_HEALTHY)
    return missed


if __name__ == "__main__":
    main()
