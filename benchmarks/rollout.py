"""The embedded engine against transformers' `generate`, side by side in one process.

    python benchmarks/rollout.py [--threads 1] [--repeats 3]
    python benchmarks/rollout.py --smoke

Both sides run the playground's model on the same prompts, budgets, numbers of sequences at a time, dtype and threads,
and take turns. Useful tokens count up to and including EOS; what `generate` computes after a row's EOS is work, not
use.

glibc hands large temporaries back to the system by default, and `generate` makes many: page faults then take two
thirds of its time on a virtual machine. Both sides run with an allocator that keeps its memory, as `KEEP_MEMORY` sets
it; with `--default-malloc` they run as they come.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from _checks import add_smoke, demand, demand_positive
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from fairlen.engine import Engine
from fairlen.playground import PATH
from fairlen.rollouts import TokenIds
from fairlen.sampling.extend import Sampling
from fairlen.tasks.playground import Playground

SAME = 0.99
"""Share of greedy sequences that both sides have to write alike; ties within rounding may fall either way."""

KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "100000000",
}

Rollout = Callable[[], list[TokenIds]]


@dataclass(frozen=True)
class Size:
    """How much is asked for."""

    prompts: int = 64
    per_prompt: int = 16
    max_response_length: int = 160
    at_a_time: int = 128


SMALL = Size(prompts=2, per_prompt=4, max_response_length=24, at_a_time=4)


@dataclass(frozen=True)
class Workload:
    """The same requests for both sides."""

    prompts: tuple[TokenIds, ...]
    temperature: float
    size: Size

    @property
    def samplings(self) -> list[Sampling]:
        max_response_length = self.size.max_response_length
        return [
            Sampling(max_response_length, seed=seed, temperature=self.temperature) for seed in range(len(self.prompts))
        ]


def generate(model: PreTrainedModel, eos: int, workload: Workload) -> list[TokenIds]:
    """transformers' way: batches with a static cache, each as long as its longest row."""
    config = GenerationConfig(
        **({"do_sample": True, "top_k": 0} if workload.temperature > 0 else {"do_sample": False}),
        max_new_tokens=workload.size.max_response_length, eos_token_id=eos, pad_token_id=eos, cache_implementation="static",
    )  # fmt: skip
    texts, num_rows = [], workload.size.at_a_time
    for start in range(0, len(workload.prompts), num_rows):
        prompts = workload.prompts[start : start + num_rows]
        width = max(map(len, prompts))
        ids = torch.tensor([[eos] * (width - len(prompt)) + list(prompt) for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        texts += model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
    return [tuple(text[: text.index(eos) + 1] if eos in text else text) for text in texts]


def extend(engine: Engine, workload: Workload) -> list[TokenIds]:
    """Our way, from nothing: keys and values of earlier repetitions are forgotten."""
    engine.refresh(engine.policy_version)
    return [made.token_ids for made in engine.generate(workload.prompts, workload.samplings)]


def seconds(rollout: Rollout) -> tuple[float, float, list[TokenIds]]:
    """Wall-clock and processor seconds of one rollout, and what it made."""
    start, start_cpu = time.perf_counter(), time.process_time()
    texts = rollout()
    return time.perf_counter() - start, time.process_time() - start_cpu, texts


def compare(title: str, sides: dict[str, Rollout], repeats: int) -> dict[str, list[TokenIds]]:
    """Prints useful tokens per second of each side, medians of `repeats` turns, and the ratio to the first side."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    cpu_rates: dict[str, list[float]] = {name: [] for name in sides}
    texts: dict[str, list[TokenIds]] = {}
    for _ in range(repeats):
        for name, rollout in sides.items():
            elapsed, busy, texts[name] = seconds(rollout)
            num_tokens = sum(map(len, texts[name]))
            rates[name].append(num_tokens / elapsed)
            cpu_rates[name].append(num_tokens / busy)
    print(f"{title}: useful tokens/s, median of {repeats}; ratio by the clock, and by processor time")
    base, base_cpu = (statistics.median(next(iter(table.values()))) for table in (rates, cpu_rates))
    for name in sides:
        lengths = [len(text) for text in texts[name]]
        demand_positive(f"the rate of {name}", (*rates[name], *cpu_rates[name]))
        demand(len(lengths) == len(texts[next(iter(sides))]), f"{name} answered {len(lengths)} requests")
        rate, cpu_rate = statistics.median(rates[name]), statistics.median(cpu_rates[name])
        print(
            f"  {name:18s} {rate:9,.0f}  x{rate / base:5.2f}  x{cpu_rate / base_cpu:5.2f}   "
            f"({min(rates[name]):,.0f} to {max(rates[name]):,.0f}; "
            f"{sum(lengths):,} tokens, mean {statistics.mean(lengths):.1f}, longest {max(lengths)})",
            flush=True,
        )
    return texts


def occupancy(engine: Engine, rollout: Rollout) -> float:
    """Mean share of slots busy during one rollout."""
    before = engine.stats
    rollout()
    after = engine.stats
    steps = after.num_steps - before.num_steps
    return (after.num_generated_tokens - before.num_generated_tokens) / (steps * after.num_slots)


def build_engines(model: PreTrainedModel, eos: int, prompts: tuple[TokenIds, ...], size: Size) -> dict[str, Engine]:
    """The engine eager and compiled; at the smallest size, where compiling is all the time, eager alone."""
    longest = max(map(len, prompts)) + size.max_response_length
    kinds = {"engine eager": False} | ({} if size == SMALL else {"engine compiled": True})
    return {
        name: Engine(model, eos_token_id=eos, max_length=longest, max_num_seqs=size.at_a_time, compile=compiled)
        for name, compiled in kinds.items()
    }


def measure(size: Size, repeats: int, threads: int) -> None:
    """Prints everything; ends the program where the sides do not do the same."""
    model = AutoModelForCausalLM.from_pretrained(PATH, dtype=torch.float32).eval()
    eos, task = int(model.config.eos_token_id), Playground()
    problems = [task.train(index).token_ids for index in range(size.prompts)]
    prompts = tuple(prompt for prompt in problems for _ in range(size.per_prompt))
    print(
        f"{len(prompts)} requests = {size.prompts} prompts x {size.per_prompt}, budget {size.max_response_length}, "
        f"{size.at_a_time} at a time, float32, {threads} thread(s), torch {torch.__version__}",
        flush=True,
    )
    engines = build_engines(model, eos, prompts, size)
    texts: dict[str, list[TokenIds]] = {}
    for title, temperature in (("sampled at temperature 1", 1.0), ("greedy", 0.0)):
        workload = Workload(prompts, temperature, size)
        sides: dict[str, Rollout] = {"generate": lambda w=workload: generate(model, eos, w)}
        for name, engine in engines.items():
            sides[name] = lambda e=engine, w=workload: extend(e, w)
        for name, rollout in sides.items():
            print(f"  first rollout, {name}: {seconds(rollout)[0]:.1f} s", flush=True)
        texts = compare(title, sides, repeats)
        for name, engine in engines.items():
            print(f"  {name}: slots {occupancy(engine, sides[name]):.0%} busy")
    for name in engines:
        same = sum(a == b for a, b in zip(texts["generate"], texts[name], strict=True))
        print(f"  greedy sequences of {name} equal to generate's: {same} of {len(prompts)}")
        demand(same >= SAME * len(prompts), f"{len(prompts) - same} greedy sequences of {name} are not generate's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--default-malloc", action="store_true", help="run with the allocator as it comes")
    add_smoke(parser)
    options = parser.parse_args()
    if not options.default_malloc and KEEP_MEMORY.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    torch.set_num_threads(options.threads)
    measure(SMALL if options.smoke else Size(), 1 if options.smoke else options.repeats, options.threads)


if __name__ == "__main__":
    main()
