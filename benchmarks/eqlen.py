"""What EqLen gives for what it costs: the paper's table 3 taken apart, and the speed of generating pairs.

    python benchmarks/eqlen.py [--threads 1] [--repeats 3] [--prompts 16]

The paper counts 6.04 times as many "samples" as GRPO with 16 tracks (51,456 against 8,520): 6 pairs of a stream, both segments
counted, at equal prompts. Samples are no information: a pair that is skipped trains nothing, and labels of one stream share their
prefix. So this counts pairs, kept pairs, trained tokens, verifier calls and time as well, at equal prompts and at equal generated
tokens (GRPO then asks as many more prompts). Playground model, float32, budget 160, temperature 1; a full update of each side, in
turns, medians over turns; the learning rate is tiny, so that the lengths follow one law throughout.

Speed: useful (generated, not inherited) tokens a second, by the same engine with as many requests in flight as it has slots.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from typing import Any

import torch

from fairlen import playground
from fairlen.compose import compose, explain
from fairlen.engine import Engine
from fairlen.extend import Sampling
from fairlen.tasks.load import load_task
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector
from fairlen.train.config import TrainConfig
from fairlen.train.display import Display
from fairlen.train.judge import Judge
from fairlen.train.layout import choose_layout
from fairlen.train.memory import keep_freed_memory
from fairlen.train.policy import load_policy
from fairlen.train.run import open_run
from fairlen.train.start import build_trainer, find_max_length

BUDGET = 160
TABLE = {
    "prompts": "prompts/asked",
    "generated tokens": "tokens/generated",
    "verifier calls": "responses/verified",
    "samples (the paper's count)": "samples",
    "pairs": "pairs/formed",
    "kept pairs": "pairs/kept",
    "rounds of a stream": "streams/rounds",
    "sequences trained": "sequences/trained",
    "trained tokens": "tokens/trained",
    "positions forwarded": "tokens/forwarded",
    "generation, s": "time/rollout",
    "update, s": "time/update",
}


class Side:
    """A trainer of ours, one rollout batch and its update a turn."""

    def __init__(self, method: str, prompts: int) -> None:
        config = TrainConfig(
            method=method, prompts=prompts, budget=BUDGET, out=f"{tempfile.mkdtemp()}/run", warmup_updates=0,
            learning_rate=1e-6, eval_problems=1, max_refills=0, compile="off",
        )  # fmt: skip
        composition = explain(config.method)
        policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
        task = load_task(config, policy.tokenizer)
        judge = Judge(task, policy.decode)
        layout = choose_layout("auto", policy, find_max_length(config, policy, task.longest_prompt))
        run, display = open_run(config, composition, layout), Display(config, composition)
        self.trainer = build_trainer(config, run, composition, policy, judge, (), display, layout)
        self.entries: list[dict[str, Any]] = []
        self.trainer.show = self.entries.append

    def turn(self) -> None:
        """One rollout batch, trained; adds an entry."""
        asyncio.run(self.trainer.collect_and_learn())
        self.trainer.progress.batch += 1
        entry = self.entries[-1]
        entry["time/update"] = sum(entry.get(f"time/{part}", 0.0) for part in ("pack", "forward", "backward"))
        entry["samples"] = 2 * entry["pairs/formed"] if "pairs/formed" in entry else entry["responses/verified"]

    def median(self, name: str) -> float:
        """Over all turns but the first; nan for what this side does not have."""
        return statistics.median(entry.get(name, float("nan")) for entry in self.entries[1:])


def compare_counts(repeats: int, prompts: int) -> None:
    """The table at equal prompts and at equal generated tokens."""
    pairs, same = Side("eqlen+grpo", prompts), Side("grpo", prompts)
    for side in (pairs, same):
        side.turn()
    ratio = pairs.entries[0]["tokens/generated"] / same.entries[0]["tokens/generated"]
    more = Side("grpo", round(prompts * ratio))
    more.turn()
    for _ in range(repeats):
        for side in (pairs, same, more):
            side.turn()
    print(f"\n{'':28}{'EqLen 8 x 2':>14}{'GRPO 16':>14}{'ratio':>8}{'GRPO, as many':>16}{'ratio':>8}")
    for label, name in TABLE.items():
        ours, equal_prompts, equal_tokens = (side.median(name) for side in (pairs, same, more))
        cells = f"{ours:14,.2f}{equal_prompts:14,.2f}{ours / equal_prompts:8.2f}{equal_tokens:16,.2f}{ours / equal_tokens:8.2f}"
        print(f"{label:28}{cells.replace('nan', '  -')}")


def compare_speed(repeats: int, prompts: int) -> None:
    """Useful tokens a second with 128 tracks in flight, and what was computed twice."""
    policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
    task = Playground()
    rates: dict[str, list[float]] = {"grpo": [], "eqlen+grpo": []}
    recomputed = 0.0
    for turn in range(repeats + 1):
        for name, found in rates.items():
            engine = Engine(policy.model, eos_token_id=policy.eos_token_ids, max_length=256, slots=128, compile=False)
            judge, sampling = Judge(task, policy.decode), Sampling(BUDGET, seed=0)
            collect = Collector(
                engine.extend, judge, task.train, sampling, num_prompts=prompts, max_refills=0, seed=turn
            )
            start = time.perf_counter()
            collected = asyncio.run(collect(compose(name), 0, 1000 * turn, 0))
            stats, seconds = engine.stats, time.perf_counter() - start
            if turn:
                found.append(stats.num_generated_tokens / seconds)
            once = sum(len(tokens) - 1 for tokens in {problem.token_ids for problem in collected.problems})
            recomputed = max(recomputed, (stats.num_computed_tokens - once) / stats.num_generated_tokens)
    ours, theirs = (statistics.median(rates[name]) for name in ("eqlen+grpo", "grpo"))
    print(f"\ngeneration, 128 tracks in flight, {prompts} prompts: EqLen {ours:,.0f} useful tokens/s, independent {theirs:,.0f}: "
          f"{ours / theirs:.2f} (mark: at least 0.85)")  # fmt: skip
    print(f"prompt and prefix tokens computed again, a generated token: {recomputed:.4f} (mark: at most 0.02)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    compare_counts(options.repeats, options.prompts)
    compare_speed(options.repeats, 4 * options.prompts)


if __name__ == "__main__":
    main()
