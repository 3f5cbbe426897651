"""EqLen against GRPO on the playground: accuracy, lengths, and what each method says about stopping.

python recipes/eqlen_vs_grpo.py [--rollout-batches 8] [--seed 0]

All runs ask the same prompts, 16 tracks for each. EqLen generates more for them, because a track that has ended makes room for
another: the last columns say how much, so that the comparison at equal prompts is not taken for one at equal cost.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fairlen.flags import read_flags
from fairlen.train.run.config import TrainConfig
from fairlen.train.run.display import RunSummary
from fairlen.train.start import start_training

METHODS = ("grpo", "eqlen+grpo", "eqlen+dr_grpo", "eqlen_unbiased")
COLUMNS = (
    "method",
    "accuracy before",
    "after",
    "length before",
    "after",
    "stopping",
    "generated",
    "trained",
    "seconds",
)


@dataclass
class Settings:
    """Settings that all runs share."""

    rollout_batches: int = 8
    prompts_per_batch: int = 16
    seed: int = 0
    threads: int = 0
    methods: tuple[str, ...] = METHODS


def describe(method: str, summary: RunSummary) -> tuple[str, ...]:
    """One line of the table: held-out accuracy and length, then sums over the run."""
    lines = [json.loads(line) for line in (summary.folder / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "tokens/trained" in line]
    generated, trained = (sum(line[f"tokens/{name}"] for line in updates) for name in ("generated", "trained"))
    stopping = sum(line["advantage/eos"] for line in updates)
    before, after = summary.before, summary.after
    accuracies = [f"{one.accuracy:.1%}" for one in (before, after)]
    lengths = [f"{e.metrics()['eval/length']:.1f}" for e in (before, after)]
    sums = f"{stopping:+.0f}", f"{generated:,.0f}", f"{trained:,.0f}", f"{summary.training_seconds:.0f}"
    return method, *accuracies, *lengths, *sums


def main(settings: Settings) -> None:
    rows = [COLUMNS]
    with tempfile.TemporaryDirectory() as folder:
        for method in settings.methods:
            config = TrainConfig.of(
                method=method, rollout_batches=settings.rollout_batches, prompts_per_batch=settings.prompts_per_batch,
                seed=settings.seed,
                threads=settings.threads, eval_every=0, save_every=0, out=str(Path(folder) / method),
            )  # fmt: skip
            rows.append(describe(method, start_training(config)))
    print("\nHeld-out problems, 95% intervals over problems; stopping: sum of advantages at EOS positions")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


if __name__ == "__main__":
    main(read_flags(Settings, "python recipes/eqlen_vs_grpo.py", sys.argv[1:]))
