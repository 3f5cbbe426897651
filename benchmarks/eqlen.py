"""EqLen's yield and cost: the paper's table 3 taken apart, and the speed of generating pairs.

    python benchmarks/eqlen.py [--threads 1] [--repeats 5] [--prompts 16]
    python benchmarks/eqlen.py --smoke

The paper counts 6.04 times as many "samples" as GRPO with 16 tracks (51,456 against 8,520): 6 pairs of a stream, both segments
counted, at equal prompts. Samples are no information: a pair that is skipped trains nothing, and labels of one stream share their
prefix. So this counts pairs, kept pairs, trained tokens, verifier calls and time as well, at equal prompts
(benchmarks/samplers.py: at equal generated tokens). Playground model, float32, budget 160, temperature 1; a full update of each
side, in turns, medians over turns; the learning rate is tiny, so that the lengths follow one law throughout.

Speed: useful (generated, not inherited) tokens a second of the processor, EqLen and independent sampling in turns by the same
engine, which keeps no more rows than it has slots. That is what a large model has room for; forks whose rows were given up would
compute their prefixes again. The program fails where a mark is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass

import torch
from _checks import add_smoke, demand, demand_positive
from _trainer import OurTrainer

from fairlen import playground
from fairlen.engine import Engine
from fairlen.engine.device import keep_freed_memory
from fairlen.methods.compose import compose
from fairlen.policy.model import load_policy
from fairlen.sampling.extend import Sampling
from fairlen.tasks.grader import Grader
from fairlen.tasks.playground import Playground
from fairlen.train.collect import Collector

BUDGET = 160
SLOTS = (64, 128, 256)
RATE_MARK, AGAIN_MARK = 0.85, 0.05
TABLE = {
    "prompts": "prompts/asked",
    "generated tokens": "tokens/generated",
    "verifier calls": "responses/verified",
    "samples (the paper's count)": "samples",
    "pairs": "pairs/formed",
    "kept pairs": "pairs/trained",
    "rounds of a stream": "streams/rounds",
    "sequences trained": "sequences/trained",
    "trained tokens": "tokens/trained",
    "positions forwarded": "tokens/forwarded",
    "generation, s": "time/rollout",
    "update, s": "time/update",
}
"""Rows of the table, and what the trainer logs them as; samples and update are added up here."""


class Side:
    """One method's trainer."""

    def __init__(self, method: str, prompts: int, max_response_length: int) -> None:
        self.ours = OurTrainer(
            method=method,
            prompts_per_batch=prompts,
            max_response_length=max_response_length,
            learning_rate=1e-6,
            max_extra_batches=0,
            compile="off",
        )

    def turn(self) -> dict[str, float]:
        """One rollout batch, trained; what was logged of it."""
        self.ours.turn()
        entry = self.ours.entries[-1]
        entry["time/update"] = sum(entry.get(f"time/{part}", 0.0) for part in ("pack", "forward", "backward"))
        entry["samples"] = 2 * entry["pairs/formed"] if "pairs/formed" in entry else entry["responses/verified"]
        demand_positive(f"{self.ours.trainer.config.method}: gradient norm", [entry["gradient/norm"]])
        return entry

    def median(self, name: str) -> float:
        """Over all turns but the first; nan for what this side does not have."""
        return statistics.median(float(entry.get(name, "nan")) for entry in self.ours.entries[1:])


def compare_counts(repeats: int, prompts: int, max_response_length: int) -> None:
    """Prints the table at equal prompts."""
    sides = [Side(method, prompts, max_response_length) for method in ("eqlen+grpo", "grpo")]
    for _ in range(repeats + 1):  # the first turn of each is left out
        for side in sides:
            side.turn()
    print("\n| | EqLen, 8 x 2 | GRPO, 16 | ratio |\n|---|---|---|---|")
    for label, name in TABLE.items():
        ours, theirs = (side.median(name) for side in sides)
        cells = [show(ours), show(theirs), f"{ours / theirs:.2f}"]
        print(f"| {label} | {' | '.join('' if cell == 'nan' else cell for cell in cells)} |")


def show(number: float) -> str:
    """A count without digits after the point, anything else with two."""
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.2f}"


@dataclass(frozen=True)
class Speed:
    """One rollout batch, of which nothing is trained."""

    rate: float
    """Generated tokens a second of the processor."""
    again: float
    """Prompt and prefix tokens computed again, for each generated one."""


class Generator:
    """Rollout batches of any method by an engine that keeps a row for each slot."""

    def __init__(self) -> None:
        self.policy = load_policy(playground.PATH, "float32", "cpu", gradient_checkpointing=False)
        self.task = Playground()

    def collect(self, method: str, prompts: int, slots: int, turn: int) -> Speed:
        """Generates one, from an engine that knows no prompt yet."""
        eos, sampling = self.policy.eos_token_ids, Sampling(BUDGET, seed=0)
        engine = Engine(
            self.policy.model, eos_token_id=eos, max_length=256, max_num_seqs=slots, kept_rows=slots, compile=False
        )
        grader = Grader(self.task, self.policy.decode)
        collect = Collector(
            engine.extend, grader, self.task.train, sampling, num_prompts=prompts, max_extra_batches=0, seed=turn
        )
        start = time.process_time()
        collected = asyncio.run(collect(compose(method), 0, 1000 * turn, 0))
        seconds, stats = time.process_time() - start, engine.stats
        made = sum(response.length - response.inherited for response in collected.rollouts.responses)
        demand(made == stats.num_generated_tokens, f"{method}: {stats.num_generated_tokens} tokens for {made}")
        once = sum(len(tokens) - 1 for tokens in {problem.token_ids for problem in collected.problems})
        return Speed(made / seconds, max((stats.num_computed_tokens - once) / made, 0.0))


def compare_speed(repeats: int, prompts: int, slots: int) -> list[str]:
    """Prints tokens a second and tokens computed again; returns which marks were missed."""
    generator, sides = Generator(), ("eqlen+grpo", "grpo")
    generator.collect(sides[0], 1, slots, 0)  # whatever the first one takes longer for
    turns = [[generator.collect(method, prompts, slots, turn) for method in sides] for turn in range(1, repeats + 1)]
    ours, theirs = (statistics.median(turn[side].rate for turn in turns) for side in (0, 1))
    ratio, again = statistics.median(a.rate / b.rate for a, b in turns), max(turn[0].again for turn in turns)
    name = f"{prompts} prompts, {slots} slots, {slots} kept rows"
    print(f"{name}: EqLen {ours:,.0f} useful tokens/s, independent {theirs:,.0f}: {ratio:.2f} (mark: at least {RATE_MARK}); "
          f"computed again for a generated token: {again:.4f} (mark: at most {AGAIN_MARK})", flush=True)  # fmt: skip
    missed = [f"{name}: generates at {ratio:.2f}"] if ratio < RATE_MARK else []
    return missed + [f"{name}: computes {again:.4f} again"] * (again > AGAIN_MARK)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=16, help="in the table; four times as many for the speed")
    add_smoke(parser)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    if options.smoke:
        compare_counts(1, 2, 48)
        compare_speed(1, 1, 8)
        return
    missed = [miss for slots in SLOTS for miss in compare_speed(options.repeats, 4 * options.prompts, slots)]
    compare_counts(options.repeats, options.prompts, BUDGET)
    demand(not missed, "; ".join(missed))


if __name__ == "__main__":
    main()
