"""A full GRPO update of fairlen against TRL's GRPOTrainer: rollouts, reward, update; in one process, taking turns.

    python benchmarks/update.py [--threads 1] [--repeats 5] [--part all]

Both sides: the playground's model in float32, 16 prompts x 16 responses, budget 160 tokens, temperature 1, AdamW,
one update per rollout batch. TRL at its best settings here: static cache, no gradient checkpointing, no logging of
completions, no reference model; several micro-batches are tried and the fastest counts.

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

NUM_PROMPTS, NUM_RESPONSES, BUDGET = 16, 16, 160
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "100000000",
}


@dataclass
class Turns:
    """Useful tokens and seconds of one side, turn by turn."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Median useful tokens per second."""
        return statistics.median(t / s for t, s in zip(self.tokens, self.seconds, strict=True))

    def add(self, other: Turns) -> None:
        """Takes in more turns."""
        self.tokens += other.tokens
        self.seconds += other.seconds

    def __str__(self) -> str:
        step, tokens = statistics.median(self.seconds), statistics.mean(self.tokens)
        return f"{self.rate:8.0f} useful tokens/s, median update {step:.2f} s, {tokens:.0f} tokens"


class OurSide:
    """fairlen's own trainer, one rollout batch a turn."""

    def __init__(self, compile: str) -> None:
        from fairlen import playground
        from fairlen.compose import explain
        from fairlen.tasks.load import load_task
        from fairlen.train.config import TrainConfig
        from fairlen.train.display import Display
        from fairlen.train.judge import Judge
        from fairlen.train.layout import choose_layout
        from fairlen.train.policy import load_policy
        from fairlen.train.run import open_run
        from fairlen.train.start import build_trainer, find_max_length

        folder = tempfile.mkdtemp()
        config = TrainConfig(
            method="grpo", prompts=NUM_PROMPTS, budget=BUDGET, out=f"{folder}/run", warmup_updates=0,
            learning_rate=1e-6, eval_problems=1, compile=compile,
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

    def turn(self) -> int:
        asyncio.run(self.trainer.collect_and_learn())
        self.trainer.progress.batch += 1
        return int(self.entries[-1]["tokens/generated"])


class TheirSide:
    """TRL's GRPOTrainer, one optimizer step a turn: its own training_step on its own inputs."""

    def __init__(self, micro: int) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
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

            async def judge() -> list[float]:
                pairs = zip(prompts, completions, strict=True)
                return [(await task.verify(by_text[prompt], text)).outcome for prompt, text in pairs]

            return asyncio.run(judge())

        config = GRPOConfig(
            output_dir=tempfile.mkdtemp(), num_generations=NUM_RESPONSES, max_completion_length=BUDGET,
            temperature=1.0, top_k=0, top_p=1.0, per_device_train_batch_size=micro,
            gradient_accumulation_steps=NUM_PROMPTS * NUM_RESPONSES // micro,
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

    def turns(self, number: int) -> Turns:
        """Runs `number` steps after a first one that is not counted; TRL's own loop, timed between ends of steps."""
        turns = Turns()
        self.clock.number, self.clock.on_step = number + 1, lambda seconds: (
            turns.tokens.append(self.num_tokens), turns.seconds.append(seconds))  # fmt: skip
        self.trainer.train()
        return Turns(turns.tokens[1:], turns.seconds[1:])


def make_callback() -> type:
    from transformers import TrainerCallback

    class StopAfterStep(TrainerCallback):
        """Times each optimizer step of a trainer and stops it after some."""

        number = 0
        on_step: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.start = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.on_step(time.perf_counter() - self.start)
            self.number -= 1
            control.should_training_stop = self.number <= 0

    return StopAfterStep


StopAfterStep: Any = make_callback()


def measure_ours(side: OurSide, number: int) -> Turns:
    turns = Turns()
    for _ in range(number):
        start = time.perf_counter()
        turns.tokens.append(side.turn())
        turns.seconds.append(time.perf_counter() - start)
    return turns


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
    parameters = sum(p.numel() for p in side.trainer.learner.policy.model.parameters())
    flops = 6 * parameters * sum(e["tokens/forwarded"] for e in entries)
    useful = 6 * parameters * sum(e["tokens/trained"] for e in entries)
    rate, seconds = matmul_rate(), total["forward"] + total["backward"]
    print(
        f"update: {flops / seconds / 1e9:.0f} Gflop/s computed, {useful / seconds / 1e9:.0f} on trained tokens, "
        f"of {rate / 1e9:.0f} measured for large matrices: {flops / seconds / rate:.0%} and {useful / seconds / rate:.0%}"
    )


def compare_rates(repeats: int, micros: list[int]) -> None:
    ours = {f"fairlen, compile {mode}": OurSide(mode) for mode in ("off", "on")}
    theirs = {f"TRL, micro-batches of {micro}": TheirSide(micro) for micro in micros}
    for side in ours.values():
        measure_ours(side, 2)
    our_turns, their_turns = {name: Turns() for name in ours}, {name: Turns() for name in theirs}
    for _ in range(repeats):
        for name, side in theirs.items():
            their_turns[name].add(side.turns(1))
        for name, side in ours.items():
            our_turns[name].add(measure_ours(side, 2))
    best = max(turns.rate for turns in their_turns.values())
    for name, turns in (their_turns | our_turns).items():
        print(f"{name:24} {turns}, {turns.rate / best:.2f} of TRL's best")
    for name, side in ours.items():
        print(name)
        report_shares(side, len(our_turns[name].tokens))


def peak_resident() -> int:
    """Largest resident memory of this process so far, KiB; unlike ru_maxrss it does not inherit that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def peak_memory(part: str, micro: int) -> None:
    """Prints the peak resident memory of this process after two updates, beyond that of the imports."""
    import trl  # noqa: F401  both sides carry the same imports
    from transformers import AutoModelForCausalLM  # noqa: F401

    import fairlen.train.start  # noqa: F401

    before = peak_resident()
    if part == "memory-ours":
        measure_ours(OurSide("off"), 3)
    else:
        TheirSide(micro).turns(2)
    after = peak_resident()
    print(f"{part}: peak {after / 1024:.0f} MiB, {(after - before) / 1024:.0f} above imports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trl-micro", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--part", default="all", choices=("all", "rates", "memory-ours", "memory-trl"))
    arguments = parser.parse_args()
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ and not arguments.part.startswith("memory"):
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | KEEP_MEMORY)
    torch.set_num_threads(arguments.threads)
    if arguments.part.startswith("memory"):
        return peak_memory(arguments.part, arguments.trl_micro[-1])
    compare_rates(arguments.repeats, arguments.trl_micro)
    if arguments.part == "all":
        plain = {key: value for key, value in os.environ.items() if key not in KEEP_MEMORY}
        for part in ("memory-ours", "memory-trl"):
            command = [sys.executable, str(Path(__file__)), "--part", part, "--threads", str(arguments.threads)]
            subprocess.run([*command, "--trl-micro", *map(str, arguments.trl_micro)], check=True, env=plain)


if __name__ == "__main__":
    main()
