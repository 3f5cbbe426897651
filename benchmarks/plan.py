"""How long scoring and weighing take: 62,500 prompts with 16 responses each, a million segments, one core, no torch.

python benchmarks/plan.py            every base, and grpo with the modifiers that compare or sort; the mark is 1 s each
python benchmarks/plan.py dapo+lp    these methods
python benchmarks/plan.py --smoke    100 prompts
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from _checks import add_smoke, demand, demand_positive

from fairlen.batch import Responses, Segments
from fairlen.methods.compose import compose
from fairlen.methods.method import updates
from fairlen.methods.presets import BASES

PROMPTS, TRACKS, BUDGET, REPEATS, MARK = 62_500, 16, 8192, 3, 1.0
MODIFIERS = ("balanced", "balanced_update", "toplambda", "lp", "gr3", "lspo", "overlong_filter")


def make_tables(seed: int = 0, num_prompts: int = PROMPTS) -> tuple[Responses, Segments]:
    """Lognormal lengths up to the budget; prompts of every difficulty; what reaches the budget is truncated."""
    rng = np.random.default_rng(seed)
    rows = num_prompts * TRACKS
    prompt = np.repeat(np.arange(num_prompts), TRACKS)
    length = np.minimum(np.exp(rng.normal(6.5, 1.0, rows)).astype(np.int64) + 1, BUDGET)
    right = rng.random(rows) < rng.random(num_prompts)[prompt]
    active, zeros = np.ones(rows, np.bool_), np.zeros(rows, np.int64)
    responses = Responses(prompt, length, right.astype(float), right, length == BUDGET, active, zeros, zeros, BUDGET)
    none = np.zeros(rows, np.bool_)
    return responses, Segments(np.arange(rows), length, prompt, active, np.ones(rows), none, zeros, BUDGET)


def measure(name: str, responses: Responses, segments: Segments) -> tuple[float, float]:
    """Seconds of score_tables, and of one update's split and weigh; the median of each."""
    method, score, weigh = compose(name), [], []
    for _ in range(REPEATS):
        start = time.perf_counter()
        scored = method.score_tables(responses, segments)
        middle = time.perf_counter()
        for update in updates(scored):
            method.weigh(update)
        score.append(middle - start)
        weigh.append(time.perf_counter() - middle)
    return statistics.median(score), statistics.median(weigh)


def check(name: str, responses: Responses, segments: Segments) -> None:
    """Rows train, with finite weights and advantages that are not all 0."""
    method = compose(name)
    plans = [method.weigh(update) for update in updates(method.score_tables(responses, segments))]
    pushes = np.concatenate([plan.weight * plan.advantage for plan in plans]) if plans else np.zeros(0)
    demand(
        bool(np.isfinite(pushes).all() and pushes.any()),
        f"{name} plans {len(pushes)} rows, not finite or all of them 0",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=[*BASES, *(f"grpo+{modifier}" for modifier in MODIFIERS)])
    add_smoke(parser)
    options = parser.parse_args()
    prompts = 100 if options.smoke else PROMPTS
    tables, missed = make_tables(num_prompts=prompts), []
    print(f"{prompts:,} prompts x {TRACKS} responses, median of {REPEATS}, mark {MARK:g} s")
    print(f"{'method':24} {'score s':>8} {'weigh s':>8} {'sum s':>8}")
    for name in options.methods:
        check(name, *tables)
        score, weigh = measure(name, *tables)
        demand_positive(name, (score, weigh))
        print(f"{name:24} {score:8.3f} {weigh:8.3f} {score + weigh:8.3f}", flush=True)
        missed += [name] if score + weigh > MARK else []
    demand(not missed or options.smoke, f"over {MARK:g} s: {', '.join(missed)}")


if __name__ == "__main__":
    main()
