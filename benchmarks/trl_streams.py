"""EqLen in TRL against TRL's own GRPO: wall clock of an update for equal generated tokens.

    python benchmarks/trl_streams.py                 the playground, one core, runs of three trainers in turn
    python benchmarks/trl_streams.py --smoke         two updates of each

Both generate with the trainer's own model: GRPO by TRL's `generate`, EqLen by fairlen's engine around the same module, and for
comparison in calls of TRL's generation, each of which waits for the longest. A prompt has 8 responses, or 4 streams of two
tracks; an update has 6 prompts. The first update of each run warms up; the median of the others counts. The mark is 1.25 times
GRPO's seconds for a generated token.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import tempfile
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
import torch
from _checks import add_smoke, demand
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from fairlen import playground
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.tasks.playground import Playground

SLOWEST = 1.25
GENERATED = 6 * 8


class InCalls(FairGRPOTrainer):
    """EqLen by calls of TRL's generation, as with a generation of one's own."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        return super()._generate_single_turn(*args, **kwargs)


@dataclass
class Side:
    """Seconds and generated tokens of each update."""

    seconds: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    @property
    def per_token(self) -> float:
        return median(a / b for a, b in zip(self.seconds, self.tokens, strict=True))


class Clock(TrainerCallback):
    """Notes when updates end."""

    def __init__(self, trainer: Any, side: Side) -> None:
        self.trainer, self.side, self.since = trainer, side, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now, metrics = time.perf_counter(), self.trainer._metrics["train"]
        if state.global_step > 1:
            self.side.seconds.append(now - self.since)
            counts = metrics.get("tokens/generated") or [GENERATED * metrics["completions/mean_length"][-1]]
            self.side.tokens.append(counts[-1])
        self.since = now


def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float | None]:
    """1 where a text ends with # and the answer."""
    return [float(text.rpartition("#")[1:] == ("#", own)) for text, own in zip(completions, answer, strict=True)]


def run(kind: type[GRPOTrainer], side: Side, updates: int, **more: Any) -> None:
    """A run of one trainer, its first update not counted."""
    problems = [Playground().train(index) for index in range(256)]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = kind(
            model=AutoModelForCausalLM.from_pretrained(playground.PATH),
            processing_class=AutoTokenizer.from_pretrained(playground.PATH),
            reward_funcs=accuracy,
            args=GRPOConfig(
                folder, num_generations=8, per_device_train_batch_size=24, gradient_accumulation_steps=2, use_cpu=True,
                max_completion_length=128, max_steps=updates + 1, bf16=False, gradient_checkpointing=False,
                save_strategy="no", disable_tqdm=True, learning_rate=1e-4, logging_steps=1000, report_to="none", seed=1,
            ),
            train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems]),
            **more,
        )  # fmt: skip
        trainer.add_callback(Clock(trainer, side))
        trainer.train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    add_smoke(parser)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.updates, arguments.rounds = 1, 1
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    sides = {"GRPO (TRL)": Side(), "EqLen": Side(), "EqLen, in calls": Side()}
    for _ in range(arguments.rounds):
        run(GRPOTrainer, sides["GRPO (TRL)"], arguments.updates)
        run(FairGRPOTrainer, sides["EqLen"], arguments.updates, method="eqlen+grpo")
        run(InCalls, sides["EqLen, in calls"], arguments.updates, method="eqlen+grpo")
    base = sides["GRPO (TRL)"].per_token
    print(f"{'':<18}{'seconds an update':>20}{'tokens':>9}{'ms a token':>13}{'ratio':>8}   the mark is {SLOWEST}")
    for name, side in sides.items():
        seconds, tokens, mine = median(side.seconds), median(side.tokens), side.per_token
        print(f"{name:<18}{seconds:>20.2f}{tokens:>9.0f}{1000 * mine:>13.2f}{mine / base:>8.2f}")
        demand(tokens > 0, f"{name} generated nothing")
    if not arguments.smoke:
        demand(sides["EqLen"].per_token < SLOWEST * base, f"EqLen takes over {SLOWEST} times as long for a token")


if __name__ == "__main__":
    main()
