"""A full GRPO update of fairlen against TRL's GRPOTrainer: rollouts, reward, update; in one process, taking turns.

    python benchmarks/update.py [--threads 1] [--repeats 5] [--part all]
    python benchmarks/update.py --smoke

Both sides: the playground's model in float32, 16 prompts x 16 responses, budget 160 tokens, temperature 1, AdamW,
one update per rollout batch. TRL at its best settings here: static cache, no gradient checkpointing, no logging of
completions, no reference model; several micro-batches are tried and the fastest counts. That every turn of both sides
has all of its responses is checked.

Useful tokens are generated tokens up to and including EOS. The learning rate is tiny, so that lengths follow the same
law on both sides from the first turn to the last. Peak memory is measured in a process of its own for each side.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from _checks import add_smoke, demand, demand_positive

MARK = 4.0
"""Useful tokens a second, ours over TRL's, with the better of our two engines."""
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "100000000",
}


@dataclass(frozen=True)
class Work:
    """The workload of a turn of either side."""

    prompts: int = 16
    responses: int = 16
    """A prompt."""
    max_response_length: int = 160

    @property
    def rows(self) -> int:
        return self.prompts * self.responses


SMALL = Work(prompts=4, responses=8, max_response_length=48)


@dataclass
class Turns:
    """Useful tokens, seconds and processor seconds of one side, turn by turn."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median useful tokens per second."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))

    @property
    def busy_rate(self) -> float:
        """Median useful tokens per second of processor time: what others do on the machine matters less to it."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.busy, strict=True))

    def add(self, tokens: int, since: Instant) -> None:
        """Takes in one more turn that has just ended."""
        now = Instant()
        self.tokens.append(tokens)
        self.seconds.append(now.clock - since.clock)
        self.busy.append(now.busy - since.busy)

    def __str__(self) -> str:
        step, tokens = statistics.median(self.seconds), statistics.mean(self.tokens)
        return f"{self.rate:8.0f} useful tokens/s, median update {step:.2f} s, {tokens:.0f} tokens"


class Instant:
    """Now, by the clock and by the processor time of this process."""

    def __init__(self) -> None:
        self.clock, self.busy = time.perf_counter(), time.process_time()


class OurSide:
    """fairlen's own trainer, one rollout batch a turn."""

    def __init__(self, work: Work, compile: str) -> None:
        from _trainer import OurTrainer

        self.work = work
        self.ours = OurTrainer(
            method="grpo", overrides=(f"sampling.n={work.responses}",), prompts_per_batch=work.prompts,
            max_response_length=work.max_response_length,
            learning_rate=1e-6, max_extra_batches=0, compile=compile,
        )  # fmt: skip

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The log of each turn."""
        return self.ours.entries

    def turn(self) -> int:
        """Generated tokens of one more turn."""
        self.ours.turn()
        entry = self.entries[-1]
        demand(
            entry["responses/verified"] == self.work.rows, f"fairlen verified {entry['responses/verified']} responses"
        )
        demand_positive("fairlen's gradient norm", [entry["gradient/norm"]])
        return int(entry["tokens/generated"])


class TheirSide:
    """TRL's GRPOTrainer, one optimizer step a turn: its own training_step on its own inputs."""

    def __init__(self, work: Work, micro: int) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.trainer_callback import PrinterCallback
        from transformers.utils.logging import disable_progress_bar
        from trl import GRPOConfig, GRPOTrainer

        from fairlen import playground
        from fairlen.tasks.playground import Playground

        disable_progress_bar()
        task = Playground()
        self.num_tokens = 0
        tokenizer = AutoTokenizer.from_pretrained(playground.PATH)
        by_text = {task.train(i).text: task.train(i) for i in range(4096)}
        for text, problem in by_text.items():
            assert tuple(tokenizer(text)["input_ids"]) == problem.token_ids, "both sides must read the same prompts"

        def reward(
            prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
        ) -> list[float]:
            self.num_tokens = sum(map(len, completion_ids))
            demand(len(completion_ids) == work.rows, f"TRL asked for the rewards of {len(completion_ids)} responses")

            async def grade() -> list[float]:
                pairs = zip(prompts, completions, strict=True)
                return [(await task.verify(by_text[prompt], text)).outcome for prompt, text in pairs]

            return asyncio.run(grade())

        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), num_generations=work.responses, max_completion_length=work.max_response_length,
            temperature=1.0, top_k=0, top_p=1.0, per_device_train_batch_size=micro,
            gradient_accumulation_steps=work.rows // micro,
            learning_rate=1e-6, lr_scheduler_type="constant", loss_type="grpo", beta=0.0, max_steps=10_000,
            report_to=[], logging_strategy="no",
            use_cpu=True, bf16=False, fp16=False, gradient_checkpointing=False, log_completions=False,
            save_strategy="no", disable_tqdm=True, cache_implementation="static", epsilon=0.2, dataloader_num_workers=0,
        )  # fmt: skip
        self.trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(playground.PATH, dtype=torch.float32),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_dict({"prompt": list(by_text)}),
            processing_class=tokenizer,
        )
        self.clock = StopAfterStep()
        self.trainer.add_callback(self.clock)
        self.trainer.remove_callback(PrinterCallback)

    def run(self, turns: Turns) -> None:
        """Adds a step after a first one that is not counted; TRL's own loop, timed from its beginning to its end."""
        uncounted = Turns()
        steps = iter((uncounted, turns))
        self.clock.on_step = lambda since: next(steps).add(self.num_tokens, since)
        self.clock.number = 2
        self.trainer.train()


def make_callback() -> type:
    from transformers import TrainerCallback

    class StopAfterStep(TrainerCallback):
        """Says when each optimizer step of a trainer began, and stops it after some."""

        number = 0
        on_step: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.start = Instant()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.on_step(self.start)
            self.number -= 1
            control.should_training_stop = self.number <= 0

    return StopAfterStep


StopAfterStep: Any = make_callback()


def measure_ours(side: OurSide, number: int, turns: Turns) -> None:
    """Add a number of turns."""
    for _ in range(number):
        since = Instant()
        turns.add(side.turn(), since)


def matmul_rate() -> float:
    """Measured float32 flop/s of large matrices with the threads in use."""
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / statistics.median(times)


def report_shares(side: OurSide, turns: int) -> None:
    """Share of time by phase, and the fraction of the matmul rate that forward and backward reach."""
    entries = side.entries[-turns:]
    total = {
        name: sum(e[f"time/{name}"] for e in entries)
        for name in ("rollout", "verify", "plan", "pack", "forward", "backward")
    }
    total["rollout"] -= total["verify"]
    everything = sum(total.values())
    print("share of time: " + ", ".join(f"{name} {value / everything:.1%}" for name, value in total.items()))
    parameters = sum(p.numel() for p in side.ours.trainer.learner.policy.model.parameters())
    flops = 6 * parameters * sum(e["tokens/forwarded"] for e in entries)
    useful = 6 * parameters * sum(e["tokens/trained"] for e in entries)
    rate, seconds = matmul_rate(), total["forward"] + total["backward"]
    print(
        f"update: {flops / seconds / 1e9:.0f} Gflop/s computed, {useful / seconds / 1e9:.0f} on trained tokens, "
        f"of {rate / 1e9:.0f} measured for large matrices: {flops / seconds / rate:.0%} and {useful / seconds / rate:.0%}"
    )


def compare_rates(work: Work, repeats: int, micros: list[int]) -> float:
    """Prints the rates of all sides, which take turns; returns the best of ours over the best of TRL's."""
    modes = ("off",) if work == SMALL else ("off", "on")
    ours = {f"fairlen, compile {mode}": OurSide(work, mode) for mode in modes}
    theirs = {f"TRL, micro-batches of {micro}": TheirSide(work, micro) for micro in micros}
    for side in ours.values():
        measure_ours(side, 2, Turns())
    turns: dict[str, Turns] = {name: Turns() for name in (*theirs, *ours)}
    for _ in range(repeats):
        for name, side in theirs.items():
            side.run(turns[name])
        for name, side in ours.items():
            measure_ours(side, 2, turns[name])
    best, best_busy = (max(getattr(turns[name], kind) for name in theirs) for kind in ("rate", "busy_rate"))
    for name, found in turns.items():
        demand_positive(f"the rate of {name}", [found.rate])
        print(
            f"{name:24} {found}, {found.rate / best:.2f} of TRL's best, by processor time {found.busy_rate / best_busy:.2f}",
            flush=True,
        )
    for name, side in ours.items():
        print(name)
        report_shares(side, len(turns[name].tokens))
    check_lengths(turns)
    return max(turns[name].rate for name in ours) / best


def check_lengths(turns: dict[str, Turns]) -> None:
    """Sides whose mean lengths are further apart than sampling explains do not do the same work."""
    counts = {name: found.tokens for name, found in turns.items()}
    mean = statistics.mean(count for found in counts.values() for count in found)
    for name, found in counts.items():
        demand(
            abs(statistics.mean(found) / mean - 1) < 0.5,
            f"{name} generated {statistics.mean(found):.0f} tokens, not {mean:.0f}",
        )


def peak_resident() -> int:
    """Largest resident memory of this process so far, KiB; unlike ru_maxrss it does not inherit that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def peak_memory(work: Work, part: str, micro: int) -> None:
    """Prints the peak resident memory of this process after two updates, beyond that of the imports."""
    import trl  # noqa: F401  both sides carry the same imports
    from transformers import AutoModelForCausalLM  # noqa: F401

    import fairlen.train.start  # noqa: F401

    before = peak_resident()
    if part == "memory-ours":
        measure_ours(OurSide(work, "off"), 2, Turns())
    else:
        TheirSide(work, micro).run(Turns())
    after = peak_resident()
    demand(after > before, f"{part}: two updates took no memory")
    print(f"{part}: peak {after / 1024:.0f} MiB, {(after - before) / 1024:.0f} above imports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trl-micro", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--part", default="all", choices=("all", "rates", "memory-ours", "memory-trl"))
    add_smoke(parser)
    arguments = parser.parse_args()
    is_memory = arguments.part.startswith("memory")
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ and not is_memory:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    torch.set_num_threads(arguments.threads)
    work, repeats, micros = Work(), arguments.repeats, arguments.trl_micro
    if arguments.smoke:
        work, repeats, micros = SMALL, 1, [SMALL.rows]
    if is_memory:
        return peak_memory(work, arguments.part, micros[-1])
    ratio = compare_rates(work, repeats, micros)
    if arguments.part == "all":
        plain = {key: value for key, value in os.environ.items() if key not in KEEP_MEMORY}
        for part in ("memory-ours",) if arguments.smoke else ("memory-ours", "memory-trl"):
            command = [sys.executable, str(Path(__file__)), "--part", part, "--threads", str(arguments.threads)]
            command += ["--smoke"] if arguments.smoke else []
            subprocess.run([*command, "--trl-micro", *map(str, micros)], check=True, env=plain)
    demand(arguments.smoke or ratio >= MARK, f"{ratio:.2f} times TRL's best; the mark is {MARK:g}")


if __name__ == "__main__":
    main()
