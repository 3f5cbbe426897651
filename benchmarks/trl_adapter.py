"""How much of TRL's training time is spent inside the adapter: the mark is 3%.

python benchmarks/trl_adapter.py                      four methods on the playground, one core
python benchmarks/trl_adapter.py fspo --updates 5     these methods
python benchmarks/trl_adapter.py --smoke              EqLen, one update

Inside counts what fairlen adds to a step of TRL: planning, metrics, the method's state, streams of pairs; and the method's loss,
though it takes the place of TRL's. Generation, reward functions, forward and backward pass are TRL's. The model is tiny, so
that the share is an upper bound for models that anyone trains.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
import torch
from _checks import add_smoke, demand
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from fairlen import playground
from fairlen.integrations.run_folder import HomeRun
from fairlen.integrations.trl import FairGRPOTrainer
from fairlen.integrations.trl import trainer as adapter
from fairlen.tasks.playground import Playground

METHODS = ("fspo", "dapo+balanced", "grpo+toplambda", "eqlen+grpo")
MARK = 0.03
OURS = ("collect_whole", "collect_sampled", "method_loss", "end_update")
OUR_FUNCTIONS = {"count": adapter, "fold": adapter, "split_rows": adapter.trl_rows, "sample": adapter}
THEIRS = ("_generate_single_turn", "_tokenize_prompts", "reward_tracks")
"""Functions of TRL's that a sampler inside TRL calls."""


class Clock:
    """Time by owner; entering a function of one owner stops the clock of the other."""

    def __init__(self) -> None:
        self.seconds = {"ours": 0.0, "theirs": 0.0}
        self.owners, self.since = ["theirs"], time.perf_counter()

    def turn(self) -> None:
        """Add the time since the last turn to its owner."""
        now = time.perf_counter()
        self.seconds[self.owners[-1]] += now - self.since
        self.since = now

    def owned(self, owner: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted as its owner's."""

        @wraps(function)  # the adapter looks at signatures of TRL's
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.turn()
            self.owners.append(owner)
            try:
                return function(*args, **kwargs)
            finally:
                self.turn()
                self.owners.pop()

        return timed


def accuracy(completions: list[str], answer: list[str], **_: Any) -> list[float]:
    """1 where a text ends with # and the answer."""
    return [float(text.rpartition("#")[1:] == ("#", own)) for text, own in zip(completions, answer, strict=True)]


def build(clock: Clock, method: str, updates: int, folder: str) -> FairGRPOTrainer:
    """A trainer whose parts are timed: 6 prompts with 8 answers for each rollout batch, two micro-batches, one update."""
    for name, owner in OUR_FUNCTIONS.items():
        setattr(owner, name, clock.owned("ours", getattr(owner, name)))
    whole = "_generate_and_score_completions"  # which ours calls in between
    setattr(GRPOTrainer, whole, clock.owned("theirs", getattr(GRPOTrainer, whole)))
    own = {name: clock.owned("ours", getattr(FairGRPOTrainer, name)) for name in OURS}
    theirs = {name: clock.owned("theirs", getattr(FairGRPOTrainer, name)) for name in THEIRS}
    problems = [Playground().train(index) for index in range(256)]
    return type("Timed", (FairGRPOTrainer,), own | theirs)(
        model=AutoModelForCausalLM.from_pretrained(playground.PATH),
        processing_class=AutoTokenizer.from_pretrained(playground.PATH),
        reward_funcs=accuracy,
        args=GRPOConfig(
            folder, num_generations=8, per_device_train_batch_size=24, gradient_accumulation_steps=2, use_cpu=True,
            max_completion_length=60, max_steps=updates, bf16=False, gradient_checkpointing=False, save_strategy="no",
            disable_tqdm=True, learning_rate=1e-4, logging_steps=1000,
        ),
        train_dataset=Dataset.from_list([{"prompt": p.text, "answer": p.answer} for p in problems]),
        method=method,
    )  # fmt: skip


def measure(method: str, updates: int) -> tuple[float, float]:
    """Seconds inside the adapter and in all, of a run after one warm-up update."""
    clock = Clock()
    plain = {name: getattr(owner, name) for name, owner in OUR_FUNCTIONS.items()}
    write = HomeRun.write
    try:
        HomeRun.write = clock.owned("ours", write)  # type: ignore[method-assign]
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            build(clock, method, 1, f"{folder}/warm").train()
            for name, function in plain.items():
                setattr(OUR_FUNCTIONS[name], name, function)
            trainer = build(clock, method, updates, f"{folder}/timed")
            clock.seconds = dict.fromkeys(clock.seconds, 0.0)
            clock.since = start = time.perf_counter()
            trainer.train()
            clock.turn()
            return clock.seconds["ours"], time.perf_counter() - start
    finally:
        HomeRun.write = write  # type: ignore[method-assign]
        for name, function in plain.items():
            setattr(OUR_FUNCTIONS[name], name, function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=METHODS)
    parser.add_argument("--updates", type=int, default=4)
    add_smoke(parser)
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.methods, arguments.updates = ("eqlen+grpo",), 1
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    print(f"{'method':<18}{'inside, ms an update':>22}{'all, ms an update':>20}{'share':>8}   the mark is {MARK:.0%}")
    shares = {}
    for method in arguments.methods:
        inside, everything = (1000 * seconds / arguments.updates for seconds in measure(method, arguments.updates))
        demand(0 < inside < everything, f"{method}: {inside:.1f} ms inside the adapter of {everything:.1f} in all")
        shares[method] = inside / everything
        print(f"{method:<18}{inside:>22.1f}{everything:>20.1f}{shares[method]:>8.1%}", flush=True)
    missed = [method for method, share in shares.items() if share > MARK]
    demand(not missed or arguments.smoke, f"over {MARK:.0%} of an update: {', '.join(missed)}")


if __name__ == "__main__":
    main()
